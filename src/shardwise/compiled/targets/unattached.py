"""Devices that are not attached: those of a topology, as the TPU and GPU compilers describe them, and meshes of them."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AxisType

from shardwise.chips.placing import Position, mesh_order
from shardwise.chips.topology import Topology
from shardwise.compiled.facts import MemoryUse
from shardwise.errors import HardwareError, MissingExtraError, one_line
from shardwise.mesh import Mesh
from shardwise.runtime.devices import checked_types, position_of

# What libtpu reads when it is loaded: ask no metadata server, and take no part in a cluster. Any accelerator type will
# do: it keeps libtpu from printing that it found none, and the topology's own name says what is compiled for.
_TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is taken, so that several processes may compile at once
}
# What JAX reads when it first looks for plugins: the CUDA plugin gives itself up without all libraries that a GPU needs.
_GPU_ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class _Gpu:
    """Figures that the GPU compiler asks for, from the target descriptions of OpenXLA (xla/backends/gpu/target_config)."""

    description: str
    capability: int
    cores: int
    memory_bytes: int
    memory_bytes_per_s: int
    cache_bytes: int
    clock_ghz: float


_GPUS = {
    "h100": _Gpu("NVIDIA H100 80GB HBM3", 9, 132, 84942979072, 3352320000000, 52428800, 1.98),
    "h200": _Gpu("NVIDIA H200 141GB HBM3e", 9, 132, 151397597184, 4800000000000, 52428800, 1.98),
    "b200": _Gpu("NVIDIA B200", 10, 148, 191514411008, 7672320000000, 132644864, 1.965),
}

# JAX's kind of a TPU device, and its cores.
_TPUS = {
    "v3": ("TPU v3", 1), "v4": ("TPU v4", 2), "v5e": ("TPU v5 lite", 1), "v5p": ("TPU v5", 2), "v6e": ("TPU v6 lite", 1),
    "v7x": ("TPU7x", 1),
}  # fmt: skip

# A GpuTargetConfigProto as text; what stands as a number here is the same on Hopper and Blackwell.
_GPU_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: {cores} fpus_per_core: 128 clock_rate_ghz: {clock_ghz}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: {memory_bytes_per_s} l2_cache_size: {cache_bytes} device_memory_size: {memory_bytes}
  cuda_compute_capability {{ major: {capability} feature_extension: ACCELERATED_FEATURES }}
  device_vendor: "NVIDIA Corporation" name: "{description}"
  driver_version: "13.0.0" runtime_version: "12.8.0" dnn_version: "9.10.0"
  device_interconnect_info {{ active_links: 18 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{description}"
"""


@functools.lru_cache(maxsize=64)
def devices_of(topology: Topology) -> tuple[jax.Device, ...]:
    """The devices of a topology: they can be compiled for, and hold no arrays.

    >>> devices = devices_of(Topology.parse("v5e:2x4"))
    >>> len(devices), devices[0].device_kind
    (8, 'TPU v5 lite')

    Raises:
        MissingExtraError: the compiler of these devices is not installed.
        HardwareError: the compiler does not know the topology.
    """
    topology = Topology.parse(topology)
    options = _tpu_options(topology) if topology.kind == "tpu" else _gpu_options(topology)
    try:
        with _environment(topology.kind):
            return tuple(topologies.get_topology_desc(**options).devices)
    except NotImplementedError as error:
        raise HardwareError(
            f"{topology}: JAX has started in this process without the compiler of these devices, which it gives up where it "
            "finds no such device: set JAX_PLATFORMS=cpu in the environment before JAX is first used"
        ) from error
    except Exception as error:  # of many types: those of the plugin, of JAX, of the operating system
        raise HardwareError(
            f"{topology}: the compiler describes no such devices: {reason(error)}\n"
            f"choose another topology, or the compiler of another version of JAX (this is {jax.__version__})"
        ) from error


def mesh_of(topology: Any, axes: Any = None, *, axis_types: Iterable[AxisType] | AxisType | None = None) -> jax.sharding.Mesh:
    """A mesh of a topology's devices, neighbours along each axis on linked devices (`shardwise.chips.placing`).

    >>> dict(mesh_of("v5e:2x4", "x=4, y=2").shape)
    {'x': 4, 'y': 2}

    Args:
        topology: a name as in `v5e:2x4`, or a `Topology`.
        axes: `"x=4, y=2"` or `{"x": 4, "y": 2}`; by default one axis x over all devices.
        axis_types: one `jax.sharding.AxisType` for all axes or one for each; by default Explicit, as JAX makes meshes.

    Raises:
        HardwareError: the topology cannot be read, or the compiler does not know it.
        MeshError: the axes do not multiply to the number of its devices.
        MissingExtraError: the compiler of these devices is not installed.
    """
    topology = Topology.parse(topology)
    grid = Mesh((("x", topology.size),)) if axes is None else Mesh.parse(axes)
    order = mesh_order(topology, grid)
    types = checked_types(axis_types, grid) or (AxisType.Explicit,) * len(grid.axes)
    at = {_position(device, topology): device for device in devices_of(topology)}
    devices = np.array([at[position] for position in order], dtype=object)
    return jax.sharding.Mesh(devices.reshape([size for _, size in grid.axes]), grid.names, axis_types=types)


def target_mesh(topology: Any, axes: Any = None, *, axis_types: Iterable[AxisType] | None = None) -> jax.sharding.AbstractMesh:
    """The same mesh without devices, of which it says the kind alone: it needs no compiler.

    >>> mesh = target_mesh("v5e:2x4", "x=4, y=2")
    >>> dict(mesh.shape), mesh.abstract_device.device_kind
    ({'x': 4, 'y': 2}, 'TPU v5 lite')

    Raises:
        HardwareError: the topology cannot be read.
    """
    topology = Topology.parse(topology)
    grid = Mesh((("x", topology.size),)) if axes is None else Mesh.parse(axes)
    name = topology.name.split(":")[0]
    kind, cores = _TPUS[name] if topology.kind == "tpu" else (_GPUS[name].description, _GPUS[name].cores)
    types = tuple(axis_types or (AxisType.Explicit,) * len(grid.axes))
    device = AbstractDevice(device_kind=kind, num_cores=cores, platform=topology.kind)
    return jax.sharding.AbstractMesh(
        tuple(size for _, size in grid.axes), grid.names, axis_types=types, abstract_device=device
    )  # fmt: skip


def compiler_options(topology: Topology) -> dict[str, Any]:
    """The options that the compiler needs for a topology; the process's own flags stay as they are.

    Raises:
        MissingExtraError: for GPUs, the CUDA compiler is not installed.
    """
    if topology.kind == "tpu":
        return {}
    # Autotuning would run kernels, and there is no device to run them on.
    return {"xla_gpu_autotune_level": 0, "xla_gpu_cuda_data_dir": str(_cuda_folder(topology))}


def memory_use(stats: Any) -> MemoryUse | None:
    """What a compiled program needs for each device, from the compiler's figures; None where it gives none."""
    if stats is None:
        return None
    arguments, outputs, temporaries, aliased, code = _sizes(stats, "")
    on_host = _sizes(stats, "host_")
    host = on_host[0] + on_host[1] + on_host[2] - on_host[3]
    return MemoryUse(arguments, outputs, temporaries, aliased, code, arguments + outputs - aliased + temporaries, host)


def _sizes(stats: Any, where: str) -> tuple[int, ...]:
    names = ("argument", "output", "temp", "alias", "generated_code")
    return tuple(int(getattr(stats, f"{where}{name}_size_in_bytes")) for name in names)


def reason(error: BaseException) -> str:
    """An error's own words, on one line.

    >>> reason(ValueError("no such\\n  chip"))
    'no such chip'
    """
    said = " ".join(one_line(str(error)).split()) or type(error).__name__
    return said if len(said) <= _REASON_CHARACTERS else f"{said[:_REASON_CHARACTERS]}..."


def _position(device: Any, topology: Topology) -> Position:
    if topology.kind == "tpu":
        return position_of(device, topology)
    host, gpu = divmod(device.id, topology.shape[1])
    return (host, gpu, 0)


def _tpu_options(topology: Topology) -> dict[str, Any]:
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise MissingExtraError(
            f'{topology}: the TPU compiler is not installed: pip install "shardwise[tpu]" (Linux; no TPU is needed)'
        )
    name, shape = topology.slice.name.split(":")
    options: dict[str, Any] = {
        "platform": "tpu",
        "topology_name": f"{'tpu7x' if name == 'v7x' else name}:{shape}",
        # By default hosts of 2x2 chips: a smaller topology needs smaller ones.
        "chips_per_host_bounds": (*(min(2, size) for size in topology.shape[:2]), 1),
        "num_slices": topology.slices,
    }
    if name == "v4":  # both cores work as one device, as they do where JAX runs on them
        options["chip_config_name"] = "megacore"
    return options


def _gpu_options(topology: Topology) -> dict[str, Any]:
    _cuda_folder(topology)
    gpu = _GPUS[topology.name.split(":")[0]]
    target = _GPU_TARGET.format(**{name: getattr(gpu, name) for name in _Gpu.__dataclass_fields__})
    hosts, gpus = topology.shape
    return {"platform": "cuda", "topology_name": "", "topology": f"1x{hosts}x{gpus}", "target_config": target}


def _cuda_folder(topology: Topology) -> Path:
    """Where the CUDA compiler lives: in its wheel (one name for CUDA 12, another for 13), or on the path."""
    plugin = any(importlib.util.find_spec(name) for name in ("jax_cuda13_plugin", "jax_cuda12_plugin"))
    wheels = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (wheels.submodule_search_locations or ())] if wheels else []
    folders = [root / name for root in roots for name in ("cu13", "cuda_nvcc")]
    found = next((folder for folder in folders if (folder / "bin" / "ptxas").exists()), None)
    ptxas = shutil.which("ptxas")
    if found is None and ptxas:
        found = Path(ptxas).resolve().parents[1]
    if not plugin or found is None:
        lacks = "CUDA compiler" if plugin else "GPU compiler"
        raise MissingExtraError(
            f'{topology}: the {lacks} is not installed: pip install "shardwise[gpu]" (Linux; no GPU is needed)'
        )
    return found


@contextmanager
def _environment(kind: str) -> Iterator[None]:
    """What a compiler needs while it is loaded, where the user has not said otherwise; afterwards all is as it was."""
    wanted = _TPU_ENVIRONMENT if kind == "tpu" else _GPU_ENVIRONMENT
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    if "TPU_HOST_BOUNDS" in os.environ:
        added.pop("TPU_ACCELERATOR_TYPE", None)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
