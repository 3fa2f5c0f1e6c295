"""A small linear model, trained on as many devices as there are: on a laptop, by `shardwise launch`, by SLURM, on Kubernetes.

JAX_NUM_CPU_DEVICES=4 python train.py             one process, four simulated devices
shardwise launch -n 4 train.py                    four processes of this machine
srun python train.py                              as train.sbatch does
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import shardwise as sw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", default="weights.npy")
    options = parser.parse_args()

    job = sw.distributed.start()  # before JAX is first used; one process where nothing says otherwise
    mesh = sw.make_mesh(f"x={jax.device_count()}", axis_types=jax.sharding.AxisType.Auto)
    random = np.random.default_rng(0)
    truth = random.standard_normal((64, 1), np.float32)
    inputs = random.standard_normal((512, 64), np.float32)
    x, y = sw.put(inputs, "X[B_x, D]", mesh), sw.put(inputs @ truth, "Y[B_x, F]", mesh)
    w = sw.put(np.zeros((64, 1), np.float32), "W[D, F]", mesh)

    def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((sw.einsum("X[B_x, D] · W[D, F] -> Y[B_x, F]", x, w, mesh=mesh) - y) ** 2)

    @jax.jit
    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(w, x, y)
        return w - 0.2 * gradient, value

    agreed = sw.distributed.preflight(step, w, x, y)  # every process is about to run the same program
    if job.speaks:
        print(agreed)
    for _ in range(options.steps):
        w, value = step(w, x, y)
    if job.speaks:
        print(f"loss {float(value):.2e} after {options.steps} steps on {jax.device_count()} devices")
    sw.distributed.save(w, options.save)  # every process calls it: each part is written once


if __name__ == "__main__":
    main()
