"""Values and tables of a lock file as TOML text, and taken out of it again with an error for what does not belong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shardwise.errors import FileError, did_you_mean

REPAIR = "restore it from version control, or delete it and write it again with `shardwise lock`"


def whole(value: float) -> float:
    """A whole number without its `.0`."""
    return int(value) if abs(value) < 2**53 and value == int(value) else value


def table_text(facts: Mapping[str, Any]) -> str:
    """Keys and values as a table on one line."""
    return "{ " + ", ".join(f"{_key(name)} = {value_text(value)}" for name, value in facts.items()) + " }"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else value_text(name)


def value_text(value: Any) -> str:
    """A value in TOML; https://toml.io/en/v1.0.0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(whole(value))  # as TOML writes numbers too
    if isinstance(value, tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character < " " or character in "\x7f\x85\u2028\u2029":  # the last three are legal, and break lines in editors
        return f"\\u{ord(character):04x}"
    return "\ufffd" if "\ud800" <= character <= "\udfff" else character


_REQUIRED: Any = object()
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list", dict: "a table"}


class Table:
    """A table of the file from which keys are taken; what is missing, of another type or left over is an error."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise FileError(f"{where}: {data!r} stands where a table belongs; {REPAIR}")
        self.data = dict(data)
        self.where = where
        self.known: list[str] = []

    def take(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value of a key, of this kind."""
        self.known.append(key)
        value = self.data.pop(key, default)
        if value is _REQUIRED:
            raise FileError(f"{self.where}: {key} is missing; {REPAIR}")
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if value is not default and (not fits or (isinstance(value, bool) and kind is not bool)):
            raise FileError(f"{self.where}: {key} = {value!r} is not {_WORDS[kind]}; {REPAIR}")
        return value

    def all_of(self, what: type, kind: type) -> dict[str, Any]:
        """Every field of a dataclass; those with a default may be missing."""
        taken = {f.name: self.take(f.name, kind, f.default if f.default == "" else _REQUIRED) for f in fields(what)}
        self.end()
        return taken

    def end(self) -> None:
        """Refuse what was not taken."""
        for key in self.data:
            raise FileError(f"{self.where}: the key {key!r} is not known{did_you_mean(key, self.known)}")
