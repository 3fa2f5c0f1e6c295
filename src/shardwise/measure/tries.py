"""Variants of a rehearsal side by side: other compiler options, other layouts; ranked by the modelled step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.compiled.audit import Audit
from shardwise.compiled.targets.compiler_flags import Options
from shardwise.compiled.text.hlo import Instruction
from shardwise.errors import CompileError, MeasureError, leading, one_line, quoted
from shardwise.schedule.timeline import Timeline
from shardwise.units import bytes_text, seconds_text

PLAIN = "as it is"
LAYOUTS = "layouts:"
HEAD = ("", "step", "of it", "exposed", "sends", "memory", "variant", "what changed")
NUMBERS = frozenset(range(1, 6))


@dataclass(frozen=True, slots=True)
class Variant:
    """What is tried: compiler options, or the arguments that `module:function` returns, whose layouts are others."""

    name: str
    options: Options = ()
    layouts: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a variant was compiled to, and its modelled timeline; or why it was not."""

    variant: Variant
    audit: Audit | None = None
    timeline: Timeline | None = None
    failed: str = ""

    @property
    def seconds(self) -> float:
        return float("inf") if self.timeline is None else self.timeline.step_seconds


def variant(text: str) -> Variant:
    """Read what `--try` says.

    >>> variant("xla_enable_async_all_gather=true,xla_tpu_scoped_vmem_limit_kib=98304").options
    (('xla_enable_async_all_gather', 'true'), ('xla_tpu_scoped_vmem_limit_kib', '98304'))
    >>> variant("layouts:other.py:args").layouts
    'other.py:args'

    Raises:
        MeasureError: it is neither.
    """
    if text.startswith(LAYOUTS) and text != LAYOUTS:
        return Variant(text, layouts=text.removeprefix(LAYOUTS))
    options = []
    for part in text.split(","):
        name, equals, value = part.strip().lstrip("-").partition("=")
        if not equals or not name or not value:
            raise MeasureError(
                f"--try {quoted(text)}: write an option of the compiler as name=value, several with commas between them, or "
                f"other arguments as {LAYOUTS}other.py:args"
            )
        options.append((name, value))
    return Variant(text, tuple(sorted(options)))


def tried(variants: Sequence[Variant], compiled: Callable[[Variant], Audit], hardware: str | None = None) -> list[Tried]:
    """Compile variants, the plain one first, and replay the schedule of each; of what a compiler refuses it is kept why.

    Raises:
        CompileError: of the plain one.
        HardwareError: the devices are not in the catalogue, so that nothing models the step.
    """
    found = []
    for each in (Variant(PLAIN), *variants):
        try:
            audit = compiled(each)
        except CompileError as error:
            if each.name == PLAIN:
                raise
            found.append(Tried(each, failed=str(error)))
            continue
        found.append(Tried(each, audit, audit.timeline(hardware)))
    return found


def ranked(found: Sequence[Tried]) -> list[Tried]:
    """The fastest first; of equally fast ones that which needs less memory, and the plain one before others."""
    return sorted(found, key=lambda each: (each.seconds, _memory(each), each.variant.name != PLAIN))


def _memory(each: Tried) -> int:
    return each.audit.memory.peak if each.audit is not None and each.audit.memory is not None else 0


def changed(each: Tried, plain: Tried) -> str:
    """What a variant's compiled program holds more or less than the plain one's."""
    if each.audit is None or plain.audit is None:
        return ""
    if each.variant.name == PLAIN:
        return ""
    mine, its = (_collectives(found.audit) for found in (each, plain))
    parts = [
        f"{mine[key]} {' over '.join(key)}, not {its[key]}" for key in dict.fromkeys((*its, *mine)) if mine[key] != its[key]
    ]
    overlapped, before = (sum(bool(c.hidden_by) for c in found.audit.collectives) for found in (each, plain) if found.audit)
    if not parts and overlapped != before:
        parts.append(f"{overlapped} of {len(each.audit.collectives)} behind matmuls, not {before}")
    if not parts:
        mine_made, its_made = (list(map(_made, found.audit.module.instructions())) for found in (each, plain) if found.audit)
        same_kernels = Counter(mine_made) == Counter(its_made)
        parts.append("nothing" if mine_made == its_made else "the schedule" if same_kernels else "which kernels there are")
    return "; ".join(parts)


def _collectives(audit: Audit | None) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for each in audit.collectives if audit is not None else ():
        found[each.kind, ",".join(each.axes) or "?"] += each.trips or 1
    return found


def _made(instruction: Instruction) -> tuple[str, str, int | None]:
    return instruction.opcode, instruction.shape, instruction.cycles


def table(found: Sequence[Tried]) -> str:
    """The variants, the fastest first."""
    plain = next(each for each in found if each.variant.name == PLAIN)
    assert plain.audit is not None
    rows = [HEAD, *(_row(number, each, plain) for number, each in enumerate(ranked(found), 1) if each.audit is not None)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in NUMBERS else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip
    head = f"{plain.audit.name} on {plain.audit.target}, mesh {plain.audit.mesh}: modelled from the compiled schedule"
    return "\n".join(map(one_line, [leading(head), *lines, *_refused(found)]))


def _row(number: int, each: Tried, plain: Tried) -> tuple[str, ...]:
    assert each.audit is not None
    assert each.timeline is not None
    memory = each.audit.memory
    return (
        f"{number}.",
        seconds_text(each.seconds),
        f"{each.seconds / plain.seconds:.0%}" if plain.seconds else "",
        seconds_text(each.timeline.exposed_seconds),
        bytes_text(each.audit.total_wire_bytes),
        "" if memory is None else bytes_text(memory.peak),
        each.variant.name,
        changed(each, plain),
    )


def _refused(found: Sequence[Tried]) -> Iterator[str]:
    for each in found:
        if each.failed:
            first, *rest = each.failed.split("\n")
            yield f"not compiled: {each.variant.name}: {first}"
            yield from (f"    {line}" for line in rest)


def facts(found: Sequence[Tried]) -> list[dict[str, Any]]:
    """The variants for JSON, the fastest first; the keys are stable."""
    plain = next(each for each in found if each.variant.name == PLAIN)
    return [
        {
            "variant": each.variant.name,
            "step_seconds": None if each.timeline is None else each.timeline.step_seconds,
            "exposed_seconds": None if each.timeline is None else each.timeline.exposed_seconds,
            "wire_bytes": None if each.audit is None else each.audit.total_wire_bytes,
            "memory_bytes": None if each.audit is None or each.audit.memory is None else each.audit.memory.peak,
            "changed": changed(each, plain),
            "failed": each.failed,
        }
        for each in ranked(found)
    ]
