"""The doors in Python: each checks at the threshold, calls one floor below, and says where an error came from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardwise.chips import Hardware
from shardwise.chips.topology import HERE, Topology
from shardwise.errors import HardwareError, PlanError, ShardwiseError, quoted
from shardwise.layout import Layout
from shardwise.notation import parse, parse_relayout
from shardwise.planning.problem import DTYPE, Problem, problem
from shardwise.planning.ranking import Candidate, Ranking, ranked
from shardwise.threshold import context

if TYPE_CHECKING:
    import jax


class Plan(Ranking):
    """The programs that solve one equation, ranked; printable, iterable, and the best one runnable.

    >>> p = plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes={"I": 64, "J": 64, "K": 64}, mesh="x=4")
    >>> [type(step).__name__ for step in p.best.program.steps]
    ['Einsum', 'AllReduce']
    """

    def code(self) -> str:
        """The best program as plain JAX source that runs without Shardwise."""
        from shardwise.runtime.code import source

        told = f"# on TPUs faster with jax.jit(..., compiler_options={self.compiler_options})\n" if self.best.options else ""
        return source(self.best.program, str(self.task.equation), task=self.task) + told

    @property
    def compiler_options(self) -> dict[str, str]:
        """The options with which the best program was the fastest as `confirm` compiled it, by name, for `jax.jit`.

        What `function` gives has them by itself, but not inside of another `jax.jit`, which is to be given them.

        >>> plan("A[I_x] -> A[I]", sizes={"I": 64}, mesh="x=4").compiler_options
        {}
        """
        return dict(self.best.options)

    def function(self, mesh: jax.sharding.Mesh, candidate: Candidate | None = None) -> Callable[..., jax.Array]:
        """The best program, or another candidate, as a function of arrays on a mesh: jitted and differentiable.

        Raises:
            MeshError: the mesh has other axes than the one planned for.
            ArrayError: when called, an array whose shape or layout is not the one planned for.
        """
        from shardwise.runtime.execute import planned_function

        given = {"equation": self.task.equation, "mesh": mesh}
        with context(**given):
            chosen = candidate or self.best
            planned = planned_function(self.task, chosen.program, mesh, compiler_options=chosen.options)

        def function(*arrays: Any) -> jax.Array:
            with context(arrays=arrays, **given):
                return planned(*arrays)

        function.__signature__ = inspect.signature(planned)  # type: ignore[attr-defined]
        return function


def plan(
    equation: str, *arrays: Any, sizes: Mapping[str, int] | None = None, mesh: Any = None,
    hardware: str | Hardware | None = None, dtype: str | None = None, memory_limit: float | None = None,
    overlap: bool | str = True, exact: bool = False, confirm: str | None = None,
) -> Plan:  # fmt: skip
    """Rank the programs that solve an equation by their modelled cost; without arrays, and unconfirmed, it needs no JAX.

    >>> p = plan("A[I_x, J] · B[J, K] -> C[I_x, K]", sizes={"I": 64, "J": 64, "K": 64}, mesh="x=4", hardware="tpu-v5e")
    >>> p.best.estimate.total_wire_bytes
    0

    Given arrays, or a `jax.ShapeDtypeStruct` for each, it reads everything else off them:

    >>> import jax, numpy as np
    >>> a = put(np.zeros((64, 32), np.float32), "A[I_x, J]", "x=4")
    >>> p = plan("A[I_x, J] · B[J, K] -> C[I_x, K]", a, jax.ShapeDtypeStruct((32, 8), "float32"))
    >>> p.task.sizes, str(p.task.mesh), p.task.dtype, p.task.hardware.name
    ({'I': 64, 'J': 32, 'K': 8}, 'x=4', 'float32', 'cpu')

    Args:
        equation: in the notation; `_?` in the result leaves axes to the planner. Of arrays also `"ij,jk->ik"`, whose layouts
            are those of the arrays.
        arrays: one for each operand, or none: arrays that live on a mesh must lie as written; no data is touched.
        sizes: without arrays, the size of every dimension, in elements.
        mesh: `"x=4, y=2"`, `{"x": 4, "y": 2}` or a JAX mesh; by default the one in force, or the arrays' own.
        hardware: a name of `sw.hardware.names()`, a topology as `"v5e:2x4"`, whose links are then known, or a file that
            `sw.calibrate` wrote, as `"./mine.toml"`; by default that of the mesh's devices (of TPUs with the links that
            their coordinates tell), or this host, calibrated or as "cpu" stands in the catalogue. Of a TPU by its name alone
            the standard slice of so many devices is assumed, where there is one, and the plan says so.
        dtype: the operands' dtype by name; by default that of the arrays, and "bfloat16" without.
        memory_limit: the bytes that one device may hold at any time, inputs included.
        overlap: whether programs may overlap transfers with matmuls; or how they must: `"ring"`, `"bidirectional"`, `"folded"`,
            `"torus"` (along all sides of one at once), `"scatter"`, `"rotate"`.
        exact: only programs in which every sum is made on one device at once, as in `sw.einsum`.
        confirm: a target as `"v5e:2x4"`: the first candidates are compiled by its real compiler, and ranked by the
            timelines of what came out. It is the hardware too, if none is given. Or `"here"`: they are run in turn on the
            mesh's own devices, and ranked by the clock; some seconds.

    Raises:
        NotationError, MeshError, LayoutError, HardwareError, PlanError: what is wrong, and the way out.
        ArrayError: an array lies otherwise than written, or has another rank.
        MissingExtraError: the compiler of `confirm` is not installed.
        DeviceError: `confirm="here"`, and the mesh has no devices to run on.
        MeasureError: a program raises while it is run.
    """
    with context(equation=equation, arrays=arrays or None, sizes=sizes, mesh=mesh):
        _check_flags(exact=exact)
        _check_target(confirm)
        where: Any = confirm if hardware is None and confirm != HERE else hardware
        name = None if dtype is None else _dtype_name(dtype)
        if arrays:
            task = _problem_of(equation, arrays, sizes, mesh, where, name, memory_limit, overlap, exact)
        else:
            task = _problem_in(equation, sizes, mesh, where, name or DTYPE, memory_limit, overlap, exact)
        found = ranked(task)
        candidates = found.candidates if confirm is None else _confirmed(found, confirm, mesh, arrays)
        return Plan(task, candidates, found.searched_all, found.floor_seconds)


def _check_target(confirm: str | None) -> None:
    """Refuse devices that are none, and say what else `confirm` takes."""
    if confirm is None or confirm == HERE:
        return
    try:
        Topology.parse(confirm)
    except HardwareError as error:
        here = f'or confirm="{HERE}", which runs the first candidates on the devices of the mesh'
        raise HardwareError(f"{error}\n  {here}") from None


def _confirmed(found: Ranking, on: str, mesh: Any, arrays: tuple[Any, ...]) -> tuple[Candidate, ...]:
    """The candidates by what a target's compiler made of the first, or by how long those ran on the mesh's own devices."""
    if on == HERE:
        from shardwise.measure.autotuning import tuned
        from shardwise.runtime.devices import attached_mesh

        return tuned(found.task, found.candidates, attached_mesh(mesh, arrays))
    from shardwise.compiled.confirming import confirmed

    return confirmed(found.task, found.candidates, on)


def _problem_of(
    equation: str, arrays: tuple[Any, ...], sizes: Any, mesh: Any, where: Any, dtype: str | None, *wishes: Any
) -> Problem:
    """The problem that arrays pose."""
    if sizes is not None:
        raise PlanError("arrays are given, which have their sizes: drop sizes, or plan without the arrays")
    from shardwise.runtime.described import problem_of

    return problem_of(equation, arrays, mesh, where, dtype, *wishes)


def _problem_in(equation: str, sizes: Any, mesh: Any, where: Any, dtype: str, *wishes: Any) -> Problem:
    """The problem that words pose; the mesh in force, or one of JAX, says its hardware."""
    read = parse(equation)
    if sizes is None:
        raise PlanError("neither sizes nor arrays are given: add sizes={'I': 1024, ...}, or one array for each operand")
    if mesh is None or (where is None and hasattr(mesh, "axis_names")):
        from shardwise.runtime.devices import find_mesh, hardware_of

        mesh = find_mesh(mesh) if mesh is None else mesh
        where = hardware_of(mesh) if where is None else where
    memory_limit, overlap, exact = wishes
    return problem(read, sizes, mesh, where, dtype, None, memory_limit, overlap, exact)


def einsum(
    equation: str, *arrays: Any, mesh: Any = None, hardware: str | Hardware | None = None, out: Any = None,
    overlap: bool | str = True, memory_limit: float | None = None, pad: bool = False, exact: bool = False,
    precision: Any = None, preferred_element_type: Any = None,
) -> jax.Array:  # fmt: skip
    """Run an equation by the best program; the result equals `jnp.einsum` of the whole arrays.

    >>> import numpy as np
    >>> a, b = np.arange(16.0).reshape(4, 4), np.arange(16.0, 32.0).reshape(4, 4)
    >>> c = einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", a, b, mesh="x=4")
    >>> c[:2, :2].tolist()
    [[152.0, 158.0], [504.0, 526.0]]

    Args:
        equation: the notation, or `"ij,jk->ik"`: then layouts are those of the arrays, and `out` that of the result.
        arrays: one for each operand. A NumPy array is placed as written; a JAX array must lie as written.
        mesh: a JAX mesh or `"x=4"`; by default the one in force (`jax.set_mesh`) or the arrays' own.
        out: for the short form: a layout (`"i_x, k"`, `sw.Layout` or `PartitionSpec`), or None: the planner chooses.
        overlap: whether programs may overlap transfers with matmuls; or how they must, as in `sw.plan`.
        pad: fill dimensions that axes do not divide with zeros, which change no value. Dimensions of the result that
            its layout splits have the padded size then, with zeros at the end.
        exact: only programs in which every element of the result is one sum, made on one device of all that it sums, as
            on a single device: nothing is added across devices, and what is split along the sum is gathered first. It has
            the bits of the whole result where the compiler sums a block as it sums the whole, which depends on the shapes;
            `sw.check(..., exact=True)` says whether. Gradients are sums across devices all the same.
        precision, preferred_element_type: as in `jnp.einsum`.

    Raises:
        ShardwiseError: one of its own kinds, which says where, what, why, and the way out.
    """
    from shardwise.runtime.execute import Options, run
    from shardwise.runtime.lower import Arithmetic

    with context(equation=equation, arrays=arrays, mesh=mesh):
        _check_flags(pad=pad, exact=exact)
        chip = None if hardware is None else _hardware(hardware)
        options = Options(chip, out, memory_limit, pad, Arithmetic(precision, preferred_element_type), overlap, exact)
        return run(equation, arrays, mesh, options)


def reshard(array: Any, equation: str, mesh: Any = None, *, hardware: str | Hardware | None = None) -> jax.Array:
    """Change the layout of an array by the cheapest steps.

    >>> import numpy as np, shardwise as sw
    >>> a = sw.put(np.arange(16.0).reshape(4, 4), "A[I_x, J]", sw.make_mesh("x=4"))
    >>> tuple(reshard(a, "A[I_x, J] -> A[I, J_x]").sharding.spec)
    (None, 'x')

    Raises:
        NotationError: the equation does more than change the layout of one array.
        ShardwiseError: as `einsum`.
    """
    with context(equation=equation):
        parse_relayout(equation)
    return einsum(equation, array, mesh=mesh, hardware=hardware)


def put(array: Any, layout: str | Layout, mesh: Any = None, *, pad: bool = False) -> jax.Array:
    """Place an array, or a file's, on a mesh; each device is given only its shard.

    >>> import numpy as np
    >>> a = put(np.arange(24).reshape(3, 8), "A[I_x, J]", "x=3")
    >>> a.addressable_shards[1].data.tolist()
    [[8, 9, 10, 11, 12, 13, 14, 15]]

    Args:
        array: NumPy or JAX array, nested lists, or a file: `"a.npy"`, `"a.npz:name"`, `"a.safetensors:name"`.
        layout: `"A[I_x, J]"` or `"I_x, J"`.
        mesh: a JAX mesh or `"x=4"`; by default the one in force.
        pad: fill dimensions that their axes do not divide with zeros at the end.

    Raises:
        ShardwiseError: wrong rank, a size that axes do not divide, an unreadable file.
    """
    from shardwise.runtime import arrays
    from shardwise.runtime.devices import find_mesh

    with context(array=array, layout=layout, mesh=mesh):
        _check_flags(pad=pad)
        return arrays.put(array, layout, find_mesh(mesh), pad=pad)


def show(x: Any, mesh: Any = None, *, sizes: Any = None, pad: bool = False) -> Any:
    """Show where an array lives, a tree of parameters, a plan, an audit or a timeline; returns what was shown.

    It prints in a terminal, in colours where rich is installed (`pip install "shardwise[show]"`), and draws itself in a
    notebook. No data is touched. Inside `jit` and `shard_map` it prints once, when the function is traced.

    >>> import numpy as np, shardwise as sw
    >>> _ = show(sw.put(np.arange(4.0), "A[I_x]", sw.make_mesh("x=2")))
    A[I_x], 4, on mesh x=2
    +-----+-----+
    |  0  |  1  |
    +-----+-----+
    device  holds  shard
    0       0:2    2
    1       2:4    2
    >>> _ = show("A[I_x, J]", "x=2", sizes={"I": 3, "J": 4}, pad=True)
    A[I_x, J], 3 x 4, on mesh x=2; padded to 4 x 4
    +---------+
    |    0    |
    +---------+
    |    1    |
    | pad I+1 |
    +---------+
    device  holds                shard
    0       0:2, 0:4             2 x 4
    1       2:3 +1 padding, 0:4  2 x 4

    Args:
        x: a JAX array or its type (`jax.ShapeDtypeStruct`), a tree of them, a layout as `"A[I_x, J]"` or `sw.Layout`, a
            sharding, or anything of Shardwise's own that prints.
        mesh: of a layout: in any form that Shardwise reads; by default the one in force.
        sizes: of a layout: each dimension's in elements, `{"I": 1024}`, or in order; of a sharding: the array's shape.
        pad: of a layout: fill up dimensions that their axes do not divide, as `sw.put` does on request.

    Raises:
        ArrayError: what is given lives on no device; MeshError, LayoutError, NotationError: a layout that cannot be.
    """
    from shardwise.pictures.dispatch import seen
    from shardwise.pictures.terminal import present

    told = {"layout": x, "mesh": mesh} if isinstance(x, str | Layout) else {}
    with context(**told):
        _check_flags(pad=pad)
        shown = seen(x, mesh, sizes, pad=pad)
    return present(shown)


def _hardware(name: str | Hardware) -> Hardware | str:
    """A hardware by its name; a topology's name, once it is known, as it is."""
    from shardwise.chips import hardware
    from shardwise.chips.topology import Topology

    is_topology = isinstance(name, str) and ":" in name and not hardware.is_file(name)
    return str(Topology.parse(name)) if is_topology else hardware(name)


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, str):
        return dtype
    import numpy as np

    try:
        name = None if dtype is None else np.dtype(dtype).name
    except TypeError:
        name = None
    if name is None:
        raise PlanError(f"{quoted(dtype)} is no dtype: give its name, as 'bfloat16'")
    return name


def _check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ShardwiseError(f"{name}={quoted(flag)}: only True and False are known")
