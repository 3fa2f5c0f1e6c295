"""What belongs to a project: the files and modules below its folders that are not installed there."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwise.errors import CompileError, one_line

Roots = tuple[Path, ...] | None  # the folders of a project; None for no limit
_INSTALLED = ("site-packages", "dist-packages")


def project_of(file: str | Path) -> tuple[Path, ...]:
    """The folders whose files and modules a lock file may name: its own, and the current one."""
    return tuple(dict.fromkeys((Path(file).absolute().parent.resolve(), Path.cwd().resolve())))


def check_inside(named: str, places: Sequence[str], roots: Roots) -> None:
    """Refuse what lies outside a project, before it is imported.

    >>> check_inside("train.py", ["/home/ann/work/train.py"], (Path("/home/ann/work"),))
    >>> check_inside("/etc/x.py", ["/etc/x.py"], None)

    Args:
        places: its file, or the folders of a package without one; none for what is built in.

    Raises:
        CompileError: one of them is not below a root, or is installed.
    """
    if roots is None or (places and all(_is_inside(Path(place).resolve(), roots) for place in places)):
        return
    told = " and ".join(str(root) for root in roots)
    raise CompileError(
        f"{one_line(named)} lies outside the project, which is {told}: a lock file is trusted as code, and names files and "
        "modules of the project only; if you trust this one, allow it with --allow-outside"
    )


def check_module_inside(named: str, found: Any, roots: Roots) -> None:
    """Refuse a module that was reached through another one: `train.py:os.system` names what is not the project's."""
    if isinstance(found, ModuleType):
        file = getattr(found, "__file__", None)
        check_inside(named, [file] if file else list(getattr(found, "__path__", ())), roots)


def _is_inside(place: Path, roots: tuple[Path, ...]) -> bool:
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    if any(name in _INSTALLED for name in place.parts) or place.is_relative_to(standard):
        return False
    return any(place.is_relative_to(root) for root in roots)
