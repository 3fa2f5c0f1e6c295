"""What a collective really moves, where a compiler wraps it: narrow numbers packed in words, a part laid into zeros."""

from __future__ import annotations

from shardwise.compiled.text import shapes
from shardwise.compiled.text.hlo import Computation, Instruction, Module

# What gives the same numbers, perhaps in another order or seen as words of another width; never in another dtype.
_VIEWS = ("bitcast", "copy", "copy-start", "copy-done")
_ZEROS = ("0", "-0", "false")


def unpacked(computation: Computation, name: str) -> shapes.Array | None:
    """The array that a collective moves; of words into which TPU's compilers pack narrower numbers, those numbers."""
    given = computation.by_name.get(name)
    array = _array(given)
    if given is None or array is None or array.dtype != "uint32":
        return array
    numbers = _array(_seen_through(computation, given, ("bitcast",)))
    return numbers if numbers is not None and numbers.bits < array.bits else array


def laid(module: Module, computation: Computation, name: str) -> shapes.Array | None:
    """The part of an array that each device has laid into zeros; None where it is made otherwise."""
    given = computation.by_name.get(name)
    made = None if given is None else _seen_through(computation, given, _VIEWS)
    if made is None:
        return None
    inner = computation
    if made.opcode == "fusion":
        called = module.computations.get(next((called for _, called in made.called()), ""))
        if called is None or called.root is None:
            return None
        inner, outer, made = called, made, _seen_through(called, called.root, _VIEWS)
    else:
        outer = None
    if made.opcode != "dynamic-update-slice" or len(made.operands) < 2:
        return None
    zeros, part = (inner.by_name.get(operand) for operand in made.operands[:2])
    if zeros is None or not _is_zero(computation, inner, outer, zeros):
        return None
    return _array(part)


def _is_zero(computation: Computation, inner: Computation, outer: Instruction | None, found: Instruction) -> bool:
    """Whether an instruction of a computation, or of a fusion in it, is nothing but zeros."""
    while True:
        if found.opcode == "constant":
            return found.inside.strip() in _ZEROS
        if found.opcode == "parameter" and outer is not None and found.inside.strip().isdigit():
            above = computation.by_name.get(outer.operands[int(found.inside)])
            inner, outer = computation, None
        elif found.opcode in ("broadcast", *_VIEWS) and found.operands:
            above = inner.by_name.get(found.operands[0])
        else:
            return False
        if above is None:
            return False
        found = above


def _seen_through(computation: Computation, found: Instruction, views: tuple[str, ...]) -> Instruction:
    """What made an array, before views of it."""
    for _ in range(len(computation.instructions)):
        is_view = found.opcode in views or (found.opcode == "custom-call" and '"ZeroCrop"' in found.attributes)
        above = computation.by_name.get(found.operands[0]) if is_view and found.operands else None
        if above is None:
            break
        found = above
    return found


def _array(instruction: Instruction | None) -> shapes.Array | None:
    if instruction is None:
        return None
    try:
        found = shapes.leaves(shapes.parse(instruction.shape))
    except shapes.UnreadShapeError:
        return None
    return found[0] if found else None
