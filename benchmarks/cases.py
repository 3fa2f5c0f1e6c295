"""The contractions that are timed: those of the teaching documents, D1 to D10, and six more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """An equation with its sizes, and the mesh for 4 and for 8 devices."""

    name: str
    equation: str
    sizes: dict[str, int]
    mesh: dict[int, str]
    dtype: str = "float32"


LINE = {4: "x=4", 8: "x=8"}
GRID = {4: "x=2, y=2", 8: "x=4, y=2"}
HEADLINE = {"I": 16384, "J": 1024, "K": 2048}
HALF = {"I": 4096, "J": 1024, "K": 2048}

CASES = [
    Case("D1a nothing sharded", "A[I, J] · B[J, K] -> C[I, K]", {"I": 1024, "J": 1024, "K": 1024}, LINE),
    Case("D1b rows sharded", "A[I_x, J] · B[J, K] -> C[I_x, K]", HALF, LINE),
    Case("D1c columns sharded", "A[I, J] · B[J, K_y] -> C[I, K_y]", HALF, GRID),
    Case("D1d both sharded", "A[I_x, J] · B[J, K_y] -> C[I_x, K_y]", HALF, GRID),
    Case("D2 one contracted side sharded", "A[I, J_x] · B[J, K] -> C[I, K]", HALF, LINE),
    Case("D3 both contracted sides sharded", "A[I, J_x] · B[J_x, K] -> C[I, K]", HALF, LINE),
    Case("D4 same axis on both free sides", "A[I_x, J] · B[J, K_x] -> C[I_x, K]", HALF, LINE),
    Case("D5 two dimensions", "A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]", HALF, GRID),
    Case("D6 headline", "A[I_x, J] · B[J, K] -> C[I, K]", HEADLINE, LINE),
    Case("D7 batched", "A[I_x, J] · Y[P_x, J, K] -> C[P_x, I, K]", {"I": 4096, "J": 1024, "K": 512, "P": 8}, LINE),
    Case("D8 scattered result", "A[I, J_x] · B[J_x, K] -> C[I_x, K]", HEADLINE, LINE),
    Case("D10 both operands in two dimensions", "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", HALF, GRID),
    Case("small", "A[I_x, J] · B[J, K] -> C[I, K]", {"I": 512, "J": 512, "K": 512}, LINE),
    Case("skinny", "A[I_x, J] · B[J, K] -> C[I, K]", {"I": 65536, "J": 512, "K": 64}, LINE),
    Case("tall contraction", "A[I, J_x] · B[J_x, K] -> C[I, K]", {"I": 512, "J": 65536, "K": 512}, LINE),
    Case("batched over an axis", "Q[B_x, S, D] · K[B_x, T, D] -> L[B_x, S, T]", {"B": 16, "S": 512, "T": 512, "D": 128}, LINE),
    Case("weights gathered", "X[B_{x,y}, D] · W[D_x, F_y] -> Y[B_{x,y}, F]", {"B": 4096, "D": 1024, "F": 2048}, GRID),
    Case("three operands", "A[I_x, J] · B[J, K_y] · D[K_y, L] -> C[I_x, L]", {"I": 4096, "J": 512, "K": 2048, "L": 512}, GRID),
]
