"""How near estimates come: random problems on slices of TPUs, as estimated and as compiled; nothing runs.

    python -m benchmarks.estimates

Written to docs/benchmarks/estimates.md and estimates.json, after every problem, and what plans print of it to
src/shardwise/planning/agreement.json. Problems that the JSON holds are left as they are: after a change to prices, --again
plans them again, and compiles what is chosen otherwise; --fresh compiles all again. First every choice is compiled, then what
`confirm` compiles beside it.

A third of the problems, picked by a hash of each, is held out: nothing is tuned on them. `--fitted` lists the others,
worst first.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.drawn import Problem, problems
from shardwise import api, writing
from shardwise.chips.topology import Topology
from shardwise.commands.making import start, versions
from shardwise.compiled.confirming import compilers_own, first_of, rehearsed
from shardwise.compiled.lockfile import Made
from shardwise.errors import CompileError, ShardwiseError
from shardwise.planning.agreement import ALL, CLOSE, FILE, SMALL, kind_of
from shardwise.planning.explain import summary
from shardwise.planning.ranking import Candidate
from shardwise.steps import Automatic

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
COUNT, SEED = 450, 0
ONE_OF_EACH = "v5e:2x2"  # its compiler is that of all TPUs


@dataclass(frozen=True, slots=True)
class Tried:
    """A program as estimated and as compiled, in microseconds; of the compiler's own there is no estimate."""

    program: str
    estimate: float | None
    compiled: float
    fused: bool

    @property
    def ratio(self) -> float:
        assert self.estimate is not None
        return self.estimate / self.compiled

    @property
    def is_near(self) -> bool:
        return abs(self.ratio - 1) <= CLOSE


@dataclass(frozen=True, slots=True)
class Row:
    """A problem: the planner's choice, and what `confirm` compiles beside it, once that is done; or why nothing is."""

    problem: str
    held_out: bool
    target: str
    choice: Tried | None
    others: tuple[Tried, ...] | None = None
    fault: str = ""

    @property
    def chips(self) -> int:
        return Topology.parse(self.target).chips

    @property
    def regret(self) -> float | None:
        """The time of the choice over that of the best that `confirm` compiles; None where that is not known."""
        if self.choice is None or self.others is None:
            return None
        return self.choice.compiled / min(each.compiled for each in (self.choice, *self.others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT, help=f"problems (default: {COUNT})")
    parser.add_argument("--fresh", action="store_true", help="compile again what the JSON holds")
    parser.add_argument("--again", action="store_true", help="plan all again, and compile what the JSON does not hold")
    parser.add_argument("--page", action="store_true", help="compile nothing: write the page from the JSON")
    parser.add_argument("--fitted", action="store_true", help="compile nothing: list the fitted problems, worst first")
    given = parser.parse_args()
    path = FOLDER / "estimates.json"
    found = {} if given.fresh or not path.exists() else json.loads(path.read_text(encoding="utf-8"))
    rows = {facts["problem"]: row_of(facts) for facts in found.get("rows", [])}
    kept_out = {str(problem): problem.held_out for problem in problems(given.count, SEED)}
    rows = {name: dataclasses.replace(row, held_out=kept_out.get(name, row.held_out)) for name, row in rows.items()}
    if given.fitted:
        print("\n".join(worst(rows.values())))
        return
    if not given.page:
        start([Made("benchmarks.estimates", on=ONE_OF_EACH)])
        for stage in (chosen, compared):
            for problem in problems(given.count, SEED):
                row = stage(problem, rows.get(str(problem)), given.again)
                if row is not None:
                    rows[str(problem)] = row
                    print(f"{row.target}  {said(row)}", flush=True)
                    keep(path, given.count, list(rows.values()), versions(ONE_OF_EACH))
    keep(path, given.count, list(rows.values()), found.get("versions") or versions(ONE_OF_EACH))


def chosen(problem: Problem, known: Row | None, again: bool) -> Row | None:
    """The planner's choice as compiled; nothing where that is known. Planned `again`, only another program is compiled."""
    if known is not None and not again:
        return None
    plan = planned(problem)
    if known is not None and known.choice is not None and known.choice.program == summary(plan.best.program):
        choice = estimated(known.choice, plan.best)
        return None if choice == known.choice else dataclasses.replace(known, choice=choice)
    try:
        choice = tried_of(plan.best, rehearsed(plan.task, plan.best.program, Topology.parse(problem.target)))
    except ShardwiseError as error:
        return Row(str(problem), problem.held_out, problem.target, None, fault=str(error).splitlines()[0])
    return Row(str(problem), problem.held_out, problem.target, choice, left_from(known))


def left_from(known: Row | None) -> tuple[Tried, ...] | None:
    """What was compiled for a problem whose choice is another now."""
    if known is None or known.others is None:
        return None
    return (*known.others, *([known.choice] if known.choice is not None else []))


def compared(problem: Problem, known: Row | None, again: bool) -> Row | None:
    """A row with what `confirm` compiles beside the choice; nothing where that is known. What was compiled stays so."""
    if known is None or known.choice is None or (known.others is not None and not again):
        return None
    plan, target = planned(problem), Topology.parse(problem.target)
    before = {each.program: each for each in known.others or ()}
    others = []
    for candidate in first_of(plan.candidates):
        name = summary(candidate.program)
        if name in before:
            others.append(estimated(before[name], candidate))
        elif name != known.choice.program:
            with contextlib.suppress(CompileError):
                others.append(tried_of(candidate, rehearsed(plan.task, candidate.program, target)))
    own = [each for each in before.values() if each.estimate is None]
    if known.others is None:
        made = compilers_own(plan.task, plan.best.program, lambda program: rehearsed(plan.task, program, target))
        own = [tried_of(candidate, audit) for candidate, audit in made]
    row = dataclasses.replace(known, others=(*own, *others))
    return None if row == known else row


def estimated(tried: Tried, candidate: Candidate) -> Tried:
    """A program that is compiled, with the estimate that it has now."""
    return dataclasses.replace(tried, estimate=round(1e6 * candidate.estimate.seconds, 2))


def planned(problem: Problem) -> api.Plan:
    return api.plan(str(problem.equation), sizes=problem.sizes, mesh=problem.mesh, hardware=problem.target)


def tried_of(candidate: Candidate, audit: Any) -> Tried:
    steps = candidate.program.steps
    own = any(isinstance(step, Automatic) for step in steps)
    estimate = None if own else round(1e6 * candidate.estimate.seconds, 2)
    compiled = round(1e6 * audit.timeline().step_seconds, 2)
    return Tried(summary(candidate.program), estimate, compiled, candidate.program.overlaps)


def row_of(facts: dict[str, Any]) -> Row:
    """A row from what `dataclasses.asdict` made of it."""
    choice, others = facts["choice"], facts["others"]
    read = {"choice": choice and Tried(**choice), "others": None if others is None else tuple(Tried(**o) for o in others)}
    return Row(**{**facts, **read})


def said(row: Row) -> str:
    if row.choice is None:
        return f"{row.problem}: {row.fault}"
    regret = "" if row.regret is None else f"  regret {row.regret:.2f}"
    return f"{row.choice.estimate:.0f} / {row.choice.compiled:.0f} us  {row.choice.ratio:.2f}{regret}  {row.problem}"


def worst(rows: Iterable[Row]) -> Iterator[str]:
    """The fitted problems, the worst estimate first."""
    fitted = [row for row in rows if not row.held_out and row.choice is not None]
    for row in sorted(fitted, key=lambda row: -abs(row.choice.ratio - 1) if row.choice else 0.0):
        yield f"{said(row)}\n    {row.choice.program if row.choice else ''}"


# What is kept.


def keep(path: Path, count: int, rows: Sequence[Row], made: dict[str, str]) -> None:
    facts: dict[str, Any] = {"made by": f"python -m benchmarks.estimates --count {count}", "seed": SEED, "versions": made}
    facts |= {"times": "microseconds", "rows": [dataclasses.asdict(row) for row in rows]}
    writing.write(path, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
    printed: dict[str, Any] = {"made by": facts["made by"], "within": CLOSE, "kinds": by_kind(rows)}
    writing.write(FILE, json.dumps(printed, indent=1) + "\n")
    writing.write(path.with_suffix(".md"), "\n".join(page(rows, made, count)) + "\n")


def by_kind(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Of the programs compiled for held-out problems of each kind, how many estimates were near, and how many there are."""
    found: dict[str, list[int]] = {}
    for row in rows:
        chip = Topology.parse(row.target).chip
        if not row.held_out or row.choice is None or chip is None:
            continue
        for each in (row.choice, *(row.others or ())):
            if each.estimate is not None:
                for name in (chip, ALL):
                    counts = found.setdefault(kind_of(name, row.chips, each.fused), [0, 0])
                    counts[0] += each.is_near
                    counts[1] += 1
    return dict(sorted(found.items()))


# The page.


def page(rows: Sequence[Row], made: dict[str, str], count: int) -> Iterator[str]:
    """What is kept, as Markdown; of held-out problems no more than how many are near."""
    with_what = ", ".join(f"{name} {version}" for name, version in made.items())
    yield "# Estimates"
    yield ""
    yield (
        f"Made by `python -m benchmarks.estimates`: {with_what}; bfloat16. Random contractions and changes of layout, in "
        "shapes and layouts that nobody chose, on slices of 4 to 256 chips with one to three mesh axes "
        "(`benchmarks/drawn.py`). Each is planned with the defaults, and the choice is compiled by the target's real compiler; "
        f"*near* is an estimate within {CLOSE:.0%} of the schedule that came out, replayed on a model of the chip. Nothing ran "
        "on a TPU."
    )
    yield ""
    yield (
        "A third of the problems, picked by a hash of each, is held out: nothing was tuned on them, and of these no more is "
        "shown than how many are near. Three were looked at when their choices were slow, and count as fitted since. "
        "*Regret* is the time of the choice over that of the best program that "
        "`sw.plan(..., confirm=...)` compiles: the first candidates with and without a ring, and the compiler's own."
    )
    yield ""
    yield from choices(rows)
    yield from kinds(rows)
    faults = [row for row in rows if row.choice is None]
    compared = sum(row.regret is not None for row in rows)
    yield (
        f"Of {count} problems {len(rows)} are planned and compiled so far, {compared} of them with what `confirm` compiles "
        f"beside; {len(faults)} the compiler refused."
    )
    yield from (f"- {row.problem}: {row.fault}" for row in faults if not row.held_out)


def choices(rows: Sequence[Row]) -> Iterator[str]:
    yield "## The planner's choices"
    yield ""
    yield "| slices | problems | near | of | share | regret of | mean | most | beyond 1.5 |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, picked in (
        ("held out", lambda row: row.held_out),
        ("fitted", lambda row: not row.held_out),
    ):
        for slices, fits in (
            (f"up to {SMALL} chips", lambda row: row.chips <= SMALL),
            (f"more than {SMALL}", lambda row: row.chips > SMALL),
            ("all", lambda row: True),
        ):
            yield _choices(f"{slices}", name, [row for row in rows if row.choice is not None and picked(row) and fits(row)])
    yield ""


def _choices(slices: str, name: str, rows: Sequence[Row]) -> str:
    near = sum(row.choice.is_near for row in rows if row.choice is not None)
    regrets = [row.regret for row in rows if row.regret is not None]
    mean = f"{sum(regrets) / len(regrets) - 1:.1%}" if regrets else ""
    most, beyond = (f"{max(regrets):.2f}", str(sum(each > 1.5 for each in regrets))) if regrets else ("", "")
    share = f"{near / len(rows):.0%}" if rows else ""
    return f"| {slices} | {name} | {near} | {len(rows)} | {share} | {len(regrets)} | {mean} | {most} | {beyond} |"


def kinds(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Held-out programs by kind"
    yield ""
    yield "The choices and what was compiled beside them: what plans print behind an estimate."
    yield ""
    yield "| kind | near | of |"
    yield "|---|---|---|"
    for kind, (near, count) in by_kind(rows).items():
        yield f"| {kind} | {near} | {count} |"
    yield ""


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
