"""Faults planted into the programs of the corpus, and how the way out that the doctor offers is applied."""

from __future__ import annotations

import importlib.util
import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType
from making import laid  # noqa: F401

from shardwise.compiled.arguments import parameter_names

PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True, slots=True)
class Fault:
    """A text of a program in place of another.

    Attributes:
        named: what the first finding must name: a piece of the faulty line, or the argument's name.
        target: the devices that are compiled for: those at hand, or by name.
        missed: what the doctor does not do yet: `named`, `removed`, and why.
    """

    name: str
    program: str
    old: str
    new: str
    named: str
    target: str = "here"
    missed: str = ""


FAULTS = (
    Fault(
        "batch and features swapped in a constraint",
        "fsdp",
        'P("x", None, None)))\n        return',
        'P(None, None, "x")))\n        return',
        "with_sharding_constraint(h",
    ),
    Fault(
        "a constraint that replicates",
        "fsdp",
        'P("x", None, None)))\n        return',
        "P(None, None, None)))\n        return",
        "with_sharding_constraint(h",
    ),
    Fault(
        "a constraint on the sequence",
        "fsdp",
        'P("x", None, None)))\n        return',
        'P(None, "x", None)))\n        return',
        "with_sharding_constraint(h",
    ),
    Fault(
        "the target lies otherwise than the batch",
        "fsdp",
        "batch, batch)",
        'batch, laid(mesh, (32, 256, 512), None, "x", None))',
        "target",
    ),
    Fault(
        "weights gathered as float32",
        "fsdp",
        'jnp.einsum("bsf,fd->bsd", up, w["down"])',
        'jnp.einsum("bsf,fd->bsd", up, wide(w["down"].astype(jnp.float32) * 1.5))',
        "wide",
        target="v5e:2x4",
    ),
    Fault(
        "head and head size swapped",
        "tensor_parallel",
        'shard(q, "x", None, "y", None)',
        'shard(q, "x", None, None, "y")',
        "shard(q",
    ),
    Fault(
        "a batch axis forgotten of hidden units",
        "tensor_parallel",
        'shard(up, "x", None, "y")',
        'shard(up, None, None, "y")',
        "shard(up",
    ),
    Fault(
        "the output matrix split by columns",
        "tensor_parallel",
        '(2048, 512), "y", None)',
        '(2048, 512), None, "y")',
        "w['down']",
    ),
    Fault(
        "the output projection split by columns",
        "tensor_parallel",
        '(8, 64, 512), "y", None, None)',
        '(8, 64, 512), None, None, "y")',
        "w['o']",
        missed="removed: the TPU's and this compiler make less of it than of the program without the fault",
    ),
    Fault(
        "one projection split along its sum",
        "tensor_parallel",
        '"v": laid(mesh, (512, 8, 64), None, "y", None)',
        '"v": laid(mesh, (512, 8, 64), "y", None, None)',
        "w['v']",
    ),
    Fault(
        "keys split by head size",
        "tensor_parallel",
        '"k": laid(mesh, (512, 8, 64), None, "y", None)',
        '"k": laid(mesh, (512, 8, 64), None, None, "y")',
        "w['k']",
    ),
    Fault(
        "the block's output on the sequence",
        "tensor_parallel",
        'shard(out, "x", None, None)',
        'shard(out, None, "x", None)',
        "shard(out",
    ),
    Fault(
        "the input on the sequence",
        "tensor_parallel",
        '(16, 256, 512), "x", None, None)',
        '(16, 256, 512), None, "x", None)',
        "h",
    ),
    Fault(
        "a batch axis forgotten", "sequence_parallel", 'P("x", None, None)', "P(None, None, None)", "with_sharding_constraint(n"
    ),
    Fault(
        "the residual on features",
        "sequence_parallel",
        'P("x", "y", None)',
        'P("x", None, "y")',
        "with_sharding_constraint(out",
    ),
    Fault(
        "the gate split along its sum",
        "sequence_parallel",
        '"gate": laid(mesh, (512, 2048), None, "y")',
        '"gate": laid(mesh, (512, 2048), "y", None)',
        "['gate']",
        missed="named: another layout of the residual saves more, and comes first",
    ),
    Fault(
        "the way back split by columns",
        "sequence_parallel",
        '(2048, 512), "y", None)',
        '(2048, 512), None, "y")',
        "['down']",
        missed="named: another layout of the residual saves more, and comes first",
    ),
    Fault(
        "optimizer state replicated",
        "fsdp_tp",
        "state = types(jnp.float32)",
        "state = jax.tree.map(lambda a: laid(mesh, a.shape, dtype=a.dtype), types(jnp.float32))",
        "mu[",
    ),
    Fault(
        "optimizer state with axes swapped",
        "fsdp_tp",
        "state = types(jnp.float32)",
        'state = {"up": laid(mesh, (4, 512, 2048), None, "y", "x", dtype=jnp.float32), "down": '
        'laid(mesh, (4, 2048, 512), None, "x", "y", dtype=jnp.float32)}',
        "mu[",
    ),
    Fault(
        "a constraint in a scan on the sequence",
        "fsdp_tp",
        'P("x", None, None)',
        'P(None, "x", None)',
        "with_sharding_constraint(h",
    ),
    Fault(
        "a scanned weight with axes swapped",
        "fsdp_tp",
        '(4, 2048, 512), None, "y", "x"',
        '(4, 2048, 512), None, "x", "y"',
        "['down']",
    ),
    Fault(
        "the input of a scan on features",
        "fsdp_tp",
        'laid(mesh, (16, 256, 512), "x", None, None))',
        'laid(mesh, (16, 256, 512), None, None, "x"))',
        "h",
    ),
    Fault("the head split along its sum", "embedding", '(256, 4096), None, "y")', '(256, 4096), "y", None)', "['head']"),
    Fault(
        "logits replicated over the vocabulary",
        "embedding",
        'P("x", None, "y")',
        'P("x", None, None)',
        "with_sharding_constraint(logits",
        missed="removed: the way out sends more once it is compiled here; with on= it is taken back",
    ),
    Fault(
        "logits on the sequence",
        "embedding",
        'P("x", None, "y")',
        'P("x", "y", None)',
        "with_sharding_constraint(logits",
        missed="named, removed: another constraint comes first, and saves nothing once it is compiled here",
    ),
    Fault(
        "tokens on the sequence",
        "embedding",
        '(64, 512), "x", None, dtype',
        '(64, 512), None, "x", dtype',
        "tokens",
        missed="named: the labels, which lie as the tokens do, come first",
    ),
    Fault(
        "activations on features under FSDP",
        "remat",
        'P(("x", "y"), None)',
        'P(None, ("x", "y"))',
        "with_sharding_constraint(h",
    ),
    Fault("half of the batch axes forgotten", "remat", 'P(("x", "y"), None)', 'P("y", None)', "with_sharding_constraint(h"),
    Fault(
        "attention's output on the sequence",
        "heads",
        'P("x", None, None)',
        'P(None, "x", None)',
        "with_sharding_constraint(out",
    ),
    Fault(
        "queries split along their sum",
        "heads",
        '"q": laid(mesh, (512, 512), None, "y")',
        '"q": laid(mesh, (512, 512), "y", None)',
        "w['q']",
    ),
    Fault(
        "the way out of attention split by columns",
        "heads",
        '"o": laid(mesh, (512, 512), "y", None)',
        '"o": laid(mesh, (512, 512), None, "y")',
        "w['o']",
        missed="removed: the compiler sends as much without the fault",
    ),
    Fault(
        "the batch split where the ring wants the sequence",
        "ring_attention",
        '(4, 1024, 256), None, "x", None)',
        '(4, 1024, 256), "x", None, None)',
        "h",
    ),
    Fault(
        "a constraint in a scan forgets the batch",
        "fsdp_tp",
        'P("x", None, None)',
        'P(None, None, "y")',
        "with_sharding_constraint(h",
    ),
    Fault(
        "keys split along their sum",
        "heads",
        '"k": laid(mesh, (512, 128), None, "y")',
        '"k": laid(mesh, (512, 128), "y", None)',
        "w['k']",
    ),
    Fault(
        "a batch axis forgotten of queries",
        "tensor_parallel",
        'shard(q, "x", None, "y", None)',
        'shard(q, None, None, "y", None)',
        "shard(q",
    ),
    Fault("an out_sharding left out", "explicit_block", ', out_sharding=P("x", None, None)', "", 'w["down"]'),
    Fault(
        "an out_sharding on the sequence",
        "explicit_block",
        'out_sharding=P("x", None, None)',
        'out_sharding=P(None, "x", None)',
        "h + out",
    ),
    Fault("a pipeline's stages split by rows", "pipeline", '256, 256), "x")', '256, 256), None, "x")', "w"),
)

_WIDE = """
def wide(w):
    w = jax.lax.with_sharding_constraint(w, jax.NamedSharding(_mesh, P(None, None)))
    return w.astype(jnp.bfloat16)

"""


def planted(fault: Fault) -> str:
    """The text of a program with a fault."""
    text = (PROGRAMS / f"{fault.program}.py").read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, fault.name
    if "wide(" in fault.new:
        text = text.replace("\ndef build(mesh):", f"{_WIDE}\ndef build(mesh):\n    global _mesh\n    _mesh = mesh", 1)
    return text.replace(fault.old, fault.new)


def loaded(text: str, folder: Path, name: str) -> Any:
    """A module of its own, of a text."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    linecache.checkcache(str(path))
    spec = importlib.util.spec_from_file_location(f"{name}_{abs(hash(text))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def axis_types(module: Any) -> AxisType:
    return AxisType.Explicit if module.AXES == "explicit" else AxisType.Auto


def relaid(function: Any, args: tuple[Any, ...], names: tuple[str, ...], spec: Any) -> tuple[Any, ...]:
    """Arguments of which those with these names lie otherwise, as the pasted `jax.device_put` lays them."""
    first = parameter_names(function, len(args))

    def again(path: Any, leaf: Any) -> Any:
        name = first[path[0].idx] + jax.tree_util.keystr(path[1:])
        if name not in names:
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=jax.NamedSharding(leaf.sharding.mesh, spec))

    return jax.tree_util.tree_map_with_path(again, args)
