"""Lowered functions as StableHLO, which any process can compile for devices that are not attached."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.backend import get_compile_options
from jaxlib.xla_client import DeviceList

from shardwise.chips.topology import Topology
from shardwise.compiled.facts import MemoryUse
from shardwise.compiled.targets.unattached import compiler_options, memory_use, mesh_of, reason
from shardwise.errors import CompileError, MissingExtraError
from shardwise.mesh import Mesh

# Python code that the partitioner calls back: the module holds the address of it, which no other process has.
_CALLS_BACK = b"CustomSPMDPartitioning"
# What a caller may have set of JAX that the compiler is told.
_SETTINGS = ("jax_use_shardy_partitioner", "jax_optimization_level", "jax_memory_fitting_level")
_MOST_ARGUMENTS = 2000  # beyond these JAX hands a TPU program one tuple (should_tuple_args in jax/_src/dispatch.py)


_BOOLEANS: dict[str, Any] = {"true": True, "false": False}  # some options read no text as a truth value


@dataclass(frozen=True, slots=True)
class Program:
    """A lowered function, without the devices that it was traced for.

    Attributes:
        module: StableHLO as MLIR bytecode; layouts, donations and names of arguments are in it.
        open_inputs, open_outputs: whether the compiler may choose the layout, for each argument and result.
        settings: JAX's configuration, as far as the compiler is told of it.
        options: for the compiler, over its own and the environment's.
    """

    module: bytes
    open_inputs: tuple[bool, ...]
    open_outputs: tuple[bool, ...]
    settings: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    @property
    def calls_back(self) -> bool:
        """Whether the compiler calls Python code of this process back (`custom_partitioning`)."""
        return _CALLS_BACK in self.module


@dataclass(frozen=True, slots=True)
class Made:
    """What a compiler made of a program: the scheduled text, and what it takes of a device's memory.

    `compile_seconds` are those of a processor, over all of the compiler's threads; None where it is not known.
    """

    text: str
    memory: MemoryUse | None
    compile_seconds: float | None = field(default=None, compare=False)


def program_of(lowered: jax.stages.Lowered) -> Program:
    """The program of a lowered function.

    >>> made = program_of(jax.jit(lambda a: a * 2).lower(1.0))
    >>> made.open_inputs, made.open_outputs, made.calls_back
    ((True,), (True,), False)
    """
    module: Any = lowered.compiler_ir("stablehlo")
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    main = next(each.operation for each in module.body.operations if _named_main(each.operation))
    settings = tuple((name, getattr(jax.config, name)) for name in _SETTINGS)
    return Program(written.getvalue(), _open(main, "arg_attrs"), _open(main, "res_attrs"), settings)


def compile_program(program: Program, topology: Topology, grid: Mesh) -> Made:
    """Compile a program for the devices of a topology in the order of a mesh, in this process.

    Raises:
        CompileError: the compiler refuses, with its reason: the program may need more memory than a device has.
        HardwareError, MeshError, MissingExtraError: as `mesh_of` raises them.
    """
    mesh = mesh_of(topology, grid)
    began = time.process_time()
    try:
        executable = _compiled(program, topology, mesh)
    except MissingExtraError:
        raise
    except Exception as error:  # XLA's errors share no public type
        way_out = "\nshard it further, or rematerialise" if "memory" in str(error).lower() else ""
        raise CompileError(f"{topology}: the compiler refuses: {reason(error)}{way_out}") from error
    took = time.process_time() - began
    text = "\n\n".join(module.to_string() for module in executable.hlo_modules())
    return Made(text, memory_use(executable.get_compiled_memory_stats()), took)


def _compiled(program: Program, topology: Topology, mesh: jax.sharding.Mesh) -> Any:
    devices = mesh.devices.reshape(1, -1)
    client = devices[0, 0].client
    for name, value in program.settings:
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
    own = {name: _BOOLEANS.get(value, value) for name, value in program.options}
    options: Any = get_compile_options(
        num_replicas=1, num_partitions=devices.size, device_assignment=devices, backend=client,
        env_options_overrides=compiler_options(topology) | own,
    )  # fmt: skip
    options.parameter_is_tupled_arguments = topology.kind == "tpu" and len(program.open_inputs) > _MOST_ARGUMENTS
    build = options.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = list(program.open_inputs)
    build.allow_spmd_sharding_propagation_to_output = list(program.open_outputs)
    module = parsed(program.module)
    return client.compile(module, executable_devices=DeviceList(tuple(devices.flat)), compile_options=options)


def parsed(module: bytes) -> Any:
    """A module read in a context that knows all dialects that JAX lowers to: that of a function which it has lowered."""
    other: Any = jax.jit(lambda: 0).lower().compiler_ir("stablehlo")
    return type(other).parse(module, other.context)


def _named_main(operation: Any) -> bool:
    return operation.name == "func.func" and str(operation.attributes["sym_name"]) == '"main"'


def _open(main: Any, attribute: str) -> tuple[bool, ...]:
    """Which arguments or results say no layout, or leave some of it open (`P.UNCONSTRAINED`)."""
    return tuple(_is_open(each) for each in _attributes(main, attribute))


def _attributes(main: Any, attribute: str) -> Iterable[Any]:
    if attribute in main.attributes:
        return main.attributes[attribute]
    kind = main.attributes["function_type"].value
    return [{}] * len(kind.inputs if attribute == "arg_attrs" else kind.results)


def _is_open(attributes: Any) -> bool:
    said = [str(attributes[name]) for name in ("sdy.sharding", "mhlo.sharding") if name in attributes]
    return not said or any("?" in each for each in said)
