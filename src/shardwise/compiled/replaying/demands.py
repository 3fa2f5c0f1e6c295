"""What operations ask of a device that are more than one pass over memory: passes and FLOPs, by a formula each, or a note."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.compiled.text import shapes
from shardwise.compiled.text.hlo import Computation, Instruction, Module
from shardwise.compiled.text.walk import inside

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# What is none of the formulas below, and may be slower than one pass.
_ONE_PASS = {
    "reduce-window": "each window is read anew",
    "select-and-scatter": "each window is read anew",
    "scatter": "it goes update by update",
    "gather": "it goes slice by slice",
    "rng": "it computes every number",
    "rng-bit-generator": "it computes every number",
}
_FACTORED = ("cholesky", "Cholesky", "InvertDiagBlocksLowerTriangular")


@dataclass(frozen=True, slots=True)
class Demand:
    """How often an operation goes over its arrays, the FLOPs that it does besides matmuls, and what is to be said of it."""

    passes: float = 1.0
    flops: float = 0.0
    dtype: str = "float32"
    note: str = ""


def demand(module: Module, home: Computation, instruction: Instruction) -> Demand:
    """What an instruction asks for, with all that it holds where it is a fusion.

    - sort of n: a merge sort, ceil(log2 n) passes over its arrays.
    - fft of n: 5 n log2 n FLOPs a line (Cooley and Tukey).
    - cholesky of n x n, and the inverse of a triangle: n^3 / 3 FLOPs; triangular-solve for m columns: n^2 m (Golub and Van
      Loan, "Matrix Computations").

    >>> from shardwise.compiled.text.hlo import read
    >>> module = read('''HloModule jit_f
    ... ENTRY %main (a: f32[1000]) -> f32[1000] {
    ...   %a = f32[1000]{0} parameter(0)
    ...   ROOT %s = f32[1000]{0} sort(%a), dimensions={0}, to_apply=%less
    ... }''')
    >>> demand(module, module.entry, module.entry.root).passes                                    # 2**10 is 1024
    10.0
    """
    found = [each for computation, inner in _held(module, home, instruction) if (each := _own(computation, inner))]
    if not found:
        return Demand()
    most = max(found, key=lambda each: each.flops)
    notes = dict.fromkeys(each.note for each in found if each.note)
    return Demand(max(each.passes for each in found), sum(each.flops for each in found), most.dtype, "; ".join(notes))


def _held(module: Module, home: Computation, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    yield home, instruction
    if instruction.opcode == "fusion":
        yield from ((computation, inner) for computation in inside(module, instruction) for inner in computation.instructions)


def _own(home: Computation, instruction: Instruction) -> Demand | None:
    opcode = instruction.opcode
    if opcode == "custom-call":
        target = _TARGET.search(instruction.attributes)
        opcode = target[1] if target else opcode
    try:
        if opcode == "sort":
            return _sort(instruction)
        if opcode in ("fft", "triangular-solve", *_FACTORED):
            return _linear_algebra(opcode, home, instruction)
    except (shapes.UnreadShapeError, LookupError, ValueError):
        return Demand(note=f"{opcode}: estimated as one pass over memory, its sizes are not known")
    if opcode in _ONE_PASS:
        return Demand(note=f"{opcode}: estimated as one pass over memory, though {_ONE_PASS[opcode]}")
    return None


def _sort(instruction: Instruction) -> Demand:
    array = shapes.first(instruction.shape)
    along = int((instruction.attribute("dimensions") or "{0}").strip("{}"))
    passes = max(1, math.ceil(math.log2(max(array.dims[along], 1))))
    note = f"a sort of {array.dims[along]:,}: estimated as {passes} passes over memory (log2 n, as a merge sort)"
    return Demand(float(passes), note=note)


def _linear_algebra(opcode: str, home: Computation, instruction: Instruction) -> Demand:
    out = shapes.first(instruction.shape)
    if opcode == "fft":
        lengths = [int(n) for n in (instruction.attribute("fft_length") or "{1}").strip("{}").split(",")]
        given = shapes.first(home.by_name[instruction.operands[0]].shape)
        elements = max(out.elements, given.elements)
        flops, formula = 5.0 * elements * math.log2(math.prod(lengths)), "5 n log2 n"
    elif opcode == "triangular-solve":
        side = shapes.first(home.by_name[instruction.operands[0]].shape).dims[-1]
        flops, formula = float(side * out.elements), "n^2 m"
    else:
        flops, formula = out.elements * out.dims[-1] / 3, "n^3 / 3"
    return Demand(1.0, flops, out.dtype, f"{opcode}: estimated as one pass over memory, or {formula} FLOPs at the chip's peak")
