"""Makes the golden corpus: every program, compiled for every target by the JAX that runs this, as text.

    python -m tests.golden.make [--target v5e:2x4] [--program fsdp]

No device is needed: libtpu and the CUDA plugin compile for topologies that are described to them. Texts are kept as
compiled; only the names of files are made relative, so that equal programs give equal texts on every machine.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import inspect
import json
import os
import re
import site
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def set_environment() -> None:
    """What JAX and the compilers read when they start; before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = "8"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # no chip is opened: several compilers may run at once
    flags = ["--xla_gpu_autotune_level=0"]
    for folder in site.getsitepackages():
        flags += [
            f"--xla_gpu_cuda_data_dir={path}"
            for name in ("cu13", "cuda_nvcc")
            if (path := Path(folder) / "nvidia" / name).is_dir()
        ]
    os.environ["XLA_FLAGS"] = " ".join(flags)


set_environment()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh  # noqa: E402

import tests.golden.foreign  # noqa: E402, F401  (its programs enter the corpus)
from shardwise import writing  # noqa: E402
from tests.golden.programs import PROGRAMS, Golden  # noqa: E402

TARGETS = ("cpu", "v4:2x2x1", "v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1", "h100:8")

# A GpuTargetConfigProto: what the compiler asks a driver about the chip, where there is one.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" name: "NVIDIA H100 80GB HBM3"
  driver_version: "13.0.0" runtime_version: "12.8.0" dnn_version: "9.10.0"
  device_interconnect_info { active_links: 18 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
"""


def devices_of(target: str) -> list[Any]:
    """The devices of a target, in the order in which a ring over all of them visits neighbours."""
    if target == "cpu":
        return jax.devices()
    if target == "h100:8":
        return list(
            topologies.get_topology_desc(platform="cuda", topology_name="", topology="1x1x8", target_config=H100).devices
        )
    return list(topologies.get_topology_desc(platform="tpu", topology_name=target).devices)


def grid_of(target: str) -> np.ndarray:
    """The eight devices as 4 x 2, so that rows and columns join physical neighbours."""
    devices = devices_of(target)
    if devices[0].platform != "tpu":
        return np.array(devices).reshape(4, 2)
    corner = {(0, 0): 0, (1, 0): 1, (1, 1): 2, (0, 1): 3}  # round the square of chips

    def place(device: Any) -> tuple[int, int]:
        i, j, k = device.coords
        if target.endswith("2x4"):
            return j, i
        return corner[i, j], k if target.endswith("2x2x2") else device.core_on_chip

    return np.array(sorted(devices, key=place)).reshape(4, 2)


def mesh_of(target: str, axes: str) -> Mesh:
    """The mesh of a program: 4 x 2 as it lies, 8 as a ring."""
    shape = {name: int(size) for name, size in (part.split("=") for part in axes.split(","))}
    grid = grid_of(target)
    if len(shape) == 1 and grid[0, 0].platform == "tpu" and not target.endswith("2x2x1"):
        grid = np.concatenate([grid[:, 0], grid[::-1, 1]])
    return Mesh(grid.reshape(tuple(shape.values())), tuple(shape))


def relative(text: str) -> str:
    """The text with the names of files relative to the project, or to the folder of installed packages."""

    def shorten(match: re.Match[str]) -> str:
        path = match[0]
        for root in (str(ROOT), *site.getsitepackages()):
            path = path.removeprefix(root + "/")
        return path.rsplit("/site-packages/", 1)[-1] if not path.startswith("/") else re.sub(r"^.*/(lib/|src/)", "", path)

    return re.sub(r"/[\w./-]*/[\w.-]+\.py\b", shorten, text)


def compiled_text(program: Golden, target: str) -> str:
    function, arguments = program.build(mesh_of(target, program.axes))
    return relative(function.lower(*arguments).compile().as_text())


def folder_of(target: str) -> Path:
    return HERE / "texts" / f"jax-{'.'.join(jax.__version__.split('.')[:2])}" / target.replace(":", "-")


def installed(*names: str) -> dict[str, str]:
    """Versions of those packages that are there."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def file_of(program: Golden) -> Path:
    """The file that a program stands in."""
    return Path(inspect.getfile(program.build))


def marked_lines(program: Golden) -> dict[str, str]:
    """Lines of its file with a mark, in the program or in a function that its source names."""
    source = file_of(program).read_text(encoding="utf-8").splitlines()
    blocks = {program.name: inspect.getsourcelines(program.build)}
    module = inspect.getmodule(program.build)
    names = set(re.findall(r"\b(\w+)\(", "".join(blocks[program.name][0])))
    for name in ("ring", "attention", "feed_forward"):
        if name in names:
            blocks[name] = inspect.getsourcelines(getattr(module, name))
    numbers = sorted(n for lines, start in blocks.values() for n in range(start, start + len(lines)))
    return {str(n): source[n - 1].split("# => ")[1] for n in numbers if "# => " in source[n - 1]}


def write(program: Golden, target: str) -> str:
    """Compile one program for one target, write its text, and enter it in the index. Says how it went."""
    folder = folder_of(target)
    folder.mkdir(parents=True, exist_ok=True)
    index_path = folder / "index.json"
    index = json.loads(index_path.read_text(encoding="utf-8")) if index_path.exists() else {"programs": {}}
    packages = {
        "cpu": ("jax", "jaxlib"), "h100:8": ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt"),
    }.get(target, ("jax", "jaxlib", "libtpu"))  # fmt: skip
    index["target"], index["versions"], index["devices"] = target, installed(*packages), 8
    entry: dict[str, Any] = {"axes": program.axes, "lines": marked_lines(program)}
    entry["source_sha256"] = hashlib.sha256(file_of(program).read_bytes()).hexdigest()
    if file_of(program).name != "programs.py":
        entry["file"] = file_of(program).name
    path = folder / f"{program.name}.txt.gz"
    try:
        text = compiled_text(program, target)
    except Exception as error:  # a compiler may refuse; the index says so
        path.unlink(missing_ok=True)
        entry["refused"] = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        said = f"refused: {entry['refused']}"
    else:
        writing.write(path, gzip.compress(text.encode(), compresslevel=9, mtime=0))
        said = f"{len(text):,} characters, {path.stat().st_size:,} bytes packed"
    index["programs"][program.name] = entry
    index["programs"] = dict(sorted(index["programs"].items()))
    writing.write(index_path, json.dumps(index, indent=1) + "\n")
    return said


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--program", choices=sorted(PROGRAMS), action="append")
    chosen = parser.parse_args(arguments)
    for target in chosen.target or TARGETS:
        for name in chosen.program or PROGRAMS:
            print(f"{target:12} {name:18} {write(PROGRAMS[name], target)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
