"""From an instruction to the line of the user's file that it comes from, by the tables at the head of a compiled text."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.compiled.facts import Line
from shardwise.compiled.text.hlo import Instruction, Module

_METADATA = re.compile(r"\bmetadata=\{((?:[^{}\"]|\"(?:\\.|[^\"\\])*\")*)\}")
_FIELD = re.compile(r'(\w+)=(?:"((?:\\.|[^"\\])*)"|([^\s,{}]+))')
# Files that are no user's: installed libraries, Python's own, and this package, which acts for the line that called it.
_LIBRARY = re.compile(
    r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<"
    r"|(^|[/\\])(bin|Scripts)[/\\][^/\\]+$"
    r"|(^|[/\\])shardwise[/\\](__main__|api|cli|pytest_plugin)\.py"
    r"|(^|[/\\])shardwise[/\\](commands|runtime|planning|compiled|intent|measure|functions)[/\\]"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a file, and the function it stands in."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Ways:
    """The ways in which a program comes to its lines: which line of a stack of them to name.

    That is the innermost line of the user's own files, unless the program comes to it in several ways: then it is a helper's,
    and the line where these ways part is named, and the helper's after it. Lines outside of the function that is audited are
    no part of it.
    """

    _known: dict[str, set[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(set))

    def add(self, frames: Sequence[Frame]) -> None:
        """Know one more stack, innermost first; all are known before a line is asked for."""
        first, *callers = _users(frames) or [""]
        self._known[first].add(tuple(callers))

    def line(self, frames: Sequence[Frame]) -> Line | None:
        """The line to name of a stack; None where none is the user's own."""
        found = _users(frames)
        if not found:
            return None
        innermost, *callers = found
        ways = self._known.get(innermost, ())
        # The first caller that these ways do not share: those before it tell no more than the helper's line does. JAX keeps so
        # many frames alone, so that one way may end where another goes on.
        parting = next((n for n in range(len(callers)) if len({way[n] for way in ways if len(way) > n}) > 1), None)
        return Line(innermost) if parting is None else Line(callers[parting], innermost)


@dataclass(slots=True)
class Sources:
    """The tables of one module; `frames(instruction)` are the lines that it comes from, innermost first; `line` the one to
    name (see `Ways`)."""

    module: Module
    _frames: dict[int, tuple[Frame, int]] = field(default_factory=dict)
    _ways: Ways = field(default_factory=Ways)

    def __post_init__(self) -> None:
        tables = self.module.tables
        files = {key: text.strip().strip('"') for key, text in tables["FileNames"].items()}
        functions = {key: text.strip().strip('"') for key, text in tables["FunctionNames"].items()}
        places: dict[int, Frame] = {}
        for key, text in tables["FileLocations"].items():
            fields = _integers(text)
            name = files.get(fields.get("file_name_id", 0), "?")
            places[key] = Frame(name, fields.get("line", 0), functions.get(fields.get("function_name_id", 0), ""))
        links = {key: _integers(text) for key, text in tables["StackFrames"].items()}
        # Some versions count a frame's parent from 0 (none) and some from 1: there the outermost is its own parent.
        shift = int(bool(links) and all(fields.get("parent_frame_id", 0) > 0 for fields in links.values()))
        for key, fields in links.items():
            if fields.get("file_location_id", 0) in places:
                self._frames[key] = (places[fields["file_location_id"]], fields.get("parent_frame_id", 0) - shift)
        for key in self._frames:
            self._ways.add(self._stack(key))

    def frames(self, instruction: Instruction) -> list[Frame]:
        """The lines an instruction comes from, innermost first; none where the text does not say."""
        fields = metadata(instruction)
        found = self._stack(int(fields["stack_frame_id"])) if fields.get("stack_frame_id", "").isdigit() else []
        if not found and "source_file" in fields:
            line = fields.get("source_line", "0")
            found.append(Frame(fields["source_file"], int(line) if line.isdigit() else 0))
        return found

    def line(self, instruction: Instruction) -> Line | None:
        """The line of the user's own that an instruction comes from, and the helper's where that one calls a helper."""
        return self._ways.line(self.frames(instruction))

    def _stack(self, frame_id: int) -> list[Frame]:
        found: list[Frame] = []
        while frame_id in self._frames and len(found) <= len(self._frames):
            frame, frame_id = self._frames[frame_id]
            found.append(frame)
        return found


def _users(frames: Sequence[Frame]) -> list[str]:
    """The lines of the program that stand in files of the user's own, innermost first: not those that ask for its audit.

    Where a line comes again, what stands between is left out: of what is derived of a jitted function, JAX tells how it was
    traced, and then how it was called.
    """
    inner = next((place for place, frame in enumerate(frames) if is_users(frame.file)), 0)
    asked = next((place for place, frame in enumerate(frames) if place > inner and is_planners(frame.file)), len(frames))
    lines = [str(frame) for frame in frames[:asked] if is_users(frame.file)]
    last = {line: place for place, line in enumerate(lines)}
    found, place = [], 0
    while place < len(lines):
        found.append(lines[place])
        place = last[lines[place]] + 1
    return found


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a file is the user's own, neither a library's nor this package's.

    >>> [is_users(file) for file in ("/home/me/train.py", "/src/shardwise/__main__.py", "/src/shardwise/runtime/lower.py")]
    [True, False, False]
    """
    return not _LIBRARY.search(file)


@functools.lru_cache(maxsize=4096)
def is_planners(file: str) -> bool:
    """Whether a file is this package's, which lowers plans."""
    return re.search(r"(^|[/\\])shardwise[/\\]", file) is not None and not is_users(file)


def metadata(instruction: Instruction) -> dict[str, str]:
    """The fields of an instruction's metadata: `op_name`, `stack_frame_id`, ..."""
    match = _METADATA.search(instruction.attributes)
    if not match:
        return {}
    return {key: re.sub(r"\\(.)", r"\1", quoted) or plain for key, quoted, plain in _FIELD.findall(match[1])}


def _integers(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text)}
