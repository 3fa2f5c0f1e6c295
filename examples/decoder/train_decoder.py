"""Train the decoder on eight simulated devices: with FSDP, tensor parallelism or both, as it is or with `sw.overlap`.

python examples/decoder/train_decoder.py --layout tp
python examples/decoder/train_decoder.py --layout tp --overlap v5e:2x4         the same losses to rounding; needs shardwise[tpu]
python examples/decoder/train_decoder.py --steps 40 --checkpoint decoder       goes on where it stopped; needs orbax-checkpoint

It learns the bytes of the decoder's own file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decoder
import jax
import jax.numpy as jnp
import numpy as np
from decoder import Sizes
from jax import P

import shardwise as sw

LAYOUTS = {  # the mesh, and the axis over which weights are stored in parts
    "fsdp": ("data=8, model=1", "data"),
    "tp": ("data=4, model=2", None),
    "fsdp+tp": ("data=2, model=4", "data"),
}
SIZES = Sizes()
TEXT = np.frombuffer(Path(decoder.__file__).read_bytes(), np.uint8)


def adamw(state: Any, gradients: Any, rate: float = 1e-3, decay: float = 0.1) -> Any:
    """One step of AdamW (Loshchilov and Hutter, 2019); moments lie as their weights do."""
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, state["square"], gradients)

    def moved(w: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        return w - rate * (m / (1 - 0.9**count) / (jnp.sqrt(s / (1 - 0.99**count)) + 1e-8) + decay * w)

    weights = jax.tree.map(moved, state["weights"], mean, square)
    return {"weights": weights, "mean": mean, "square": square, "count": count}


def step(state: Any, text: jax.Array) -> tuple[Any, jax.Array]:
    """The state after one batch of text, and the loss before."""
    value, gradients = jax.value_and_grad(decoder.loss)(state["weights"], text)
    return adamw(state, gradients), value


def started(mesh: jax.sharding.Mesh, stored: str | None, sizes: Sizes) -> Any:
    """The state before the first step: each device makes its own parts, with the same values in every layout."""
    described = decoder.weights_of(sizes, stored)

    def drawn(key: jax.Array) -> Any:
        weights = {
            name: deviation * jax.random.normal(jax.random.fold_in(key, number), shape)
            for number, (name, (shape, _, deviation)) in enumerate(described.items())
        }
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return {"weights": weights, "mean": zeros, "square": zeros, "count": jnp.zeros((), jnp.int32)}

    layouts = {name: jax.NamedSharding(mesh, layout) for name, (_, layout, _) in described.items()}
    shardings = {"weights": layouts, "mean": layouts, "square": layouts, "count": jax.NamedSharding(mesh, P())}
    return jax.jit(drawn, out_shardings=shardings)(jax.random.key(0))


def batch(number: int, mesh: jax.sharding.Mesh, sizes: Sizes) -> jax.Array:
    """Pieces of the text, the same for the same number, each with the byte that follows."""
    starts = np.random.default_rng(number).integers(len(TEXT) - sizes.tokens, size=(sizes.batch, 1))
    pieces = TEXT[starts + np.arange(sizes.tokens + 1)].astype(np.int32)
    return jax.device_put(pieces, jax.NamedSharding(mesh, P("data")))


class Checkpoints:
    """The last two states that were kept in a folder, with Orbax."""

    def __init__(self, folder: str) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError:
            raise SystemExit("--checkpoint writes with Orbax: pip install orbax-checkpoint") from None
        self.args = ocp.args
        self.manager = ocp.CheckpointManager(Path(folder).absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2))

    def last(self, state: Any) -> tuple[int, Any]:
        """The last step that was kept and the state after it, in the layouts of the state given; that and 0 where none was."""
        number = self.manager.latest_step()
        return (number, self.manager.restore(number, args=self.args.StandardRestore(state))) if number else (0, state)

    def keep(self, number: int, state: Any) -> None:
        self.manager.save(number, args=self.args.StandardSave(state))
        self.manager.wait_until_finished()  # the next step takes the memory of this state


def overlapped(mesh: jax.sharding.Mesh, state: Any, sizes: Sizes, devices: str, seconds: float) -> Callable[..., Any]:
    """The step with transfers behind its matmuls, where that is faster on these devices; says what was changed."""
    found = sw.overlap(step, state, batch(0, mesh, sizes), on=devices, mesh=mesh, seconds=seconds)
    print(found)
    return found.function


def train(
    layout: str, steps: int, *, overlap: str | None = None, seconds: float = 60, checkpoint: str | None = None,
    every: int = 5, sizes: Sizes = SIZES,
) -> tuple[Any, list[float]]:  # fmt: skip
    """The state after so many steps, and the loss of each that was made now.

    Args:
        layout: one of LAYOUTS.
        overlap: devices that `sw.overlap` plans for, as "v5e:2x4"; None trains the step as it is.
        seconds: how long `sw.overlap` compiles variants.
        checkpoint: a folder; where it holds a state, training goes on from there.
        every: after how many steps the loss is printed and the state is kept.
    """
    axes, stored = LAYOUTS[layout]
    mesh = sw.make_mesh(axes, axis_types=jax.sharding.AxisType.Auto)
    with jax.set_mesh(mesh):
        first, state = 0, started(mesh, stored, sizes)
        function = overlapped(mesh, state, sizes, overlap, seconds) if overlap else step
        layouts = jax.tree.map(lambda array: array.sharding, state)
        compiled = jax.jit(function, donate_argnums=0, out_shardings=(layouts, None))
        checkpoints = Checkpoints(checkpoint) if checkpoint else None
        if checkpoints:
            first, state = checkpoints.last(state)
            print(f"{checkpoint} holds step {first}" if first else f"{checkpoint} is empty")
        losses = []
        for number in range(first + 1, steps + 1):
            state, value = compiled(state, batch(number, mesh, sizes))
            losses.append(float(value))
            if number % every == 0 or number == steps:
                print(f"step {number:4}  loss {losses[-1]:.4f}", flush=True)
                if checkpoints:
                    checkpoints.keep(number, state)
    return state, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=LAYOUTS, default="fsdp+tp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--overlap", metavar="DEVICES", help="plan the step for these devices, as v5e:2x4, with sw.overlap")
    parser.add_argument("--seconds", type=float, default=60, help="how long sw.overlap compiles variants")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="keep the state there, and go on from what it holds")
    parser.add_argument("--every", type=int, default=5, help="after how many steps the loss is printed and the state kept")
    given = parser.parse_args()
    sw.simulate(8)
    try:
        train(**vars(given))
    except sw.ShardwiseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
