"""Hardware: chips and links as cited data, one TOML file for each chip, and one for each host that was calibrated."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from shardwise.chips.figures import (
    Calibration,
    Compiler,
    Figure,
    Hardware,
    Links,
    Memory,
    Rate,
    Reached,
    Switch,
    Torus,
)
from shardwise.chips.hosts import cache_file
from shardwise.chips.storing import read
from shardwise.errors import HardwareError, did_you_mean, one_line, quoted

__all__ = [
    "Calibration", "Catalogue", "Compiler", "Figure", "Hardware", "Links", "Memory", "Rate", "Reached", "Switch", "Torus",
    "hardware", "read",
]  # fmt: skip

# As some call a chip; beside these a TPU's name may go without "tpu-", as that of a topology does: v5e, v5e:2x4.
_OTHER_NAMES = {"tpu7x": "tpu-v7x"}

_FOLDER = Path(__file__).with_name("catalogue")


class Catalogue:
    """The hardware that is known: `hardware(name)`, `hardware.names()`, `hardware.for_device_kind(kind)`, `hardware.here()`."""

    def __call__(self, name: str | Hardware) -> Hardware:
        """Look up a hardware by name: `tpu-v5e`, or `v5e`; or read the file that `shardwise calibrate` wrote: `./mine.toml`.

        >>> hardware("v5e").title
        'TPU v5e'

        Raises:
            HardwareError: the catalogue does not hold it; the nearest name is offered. Or the file cannot be read.
        """
        if isinstance(name, Hardware):
            return name
        if self.is_file(name):
            return _from_file(name)
        canonical = self.canonical(name) if isinstance(name, str) else name
        if canonical not in self.names():
            have = f"the catalogue holds {', '.join(self.names())}"
            raise HardwareError(f"unknown hardware {quoted(name)}: {have}{did_you_mean(str(name), self.names())}")
        return _load(canonical)

    def canonical(self, name: str) -> str:
        """The catalogue's name of a chip by any of its names; of one that it does not hold the name as it is.

        >>> hardware.canonical("v5e"), hardware.canonical("tpu7x"), hardware.canonical("h100")
        ('tpu-v5e', 'tpu-v7x', 'h100')
        """
        name = _OTHER_NAMES.get(name, name)
        return name if name in self.names() or f"tpu-{name}" not in self.names() else f"tpu-{name}"

    def is_file(self, name: object) -> bool:
        """Whether a name is that of a file.

        >>> hardware.is_file("./mine.toml"), hardware.is_file("v5e"), hardware.is_file("v5e:2x4")
        (True, False, False)
        """
        return isinstance(name, str) and (name.endswith(".toml") or "/" in name or os.sep in name)

    def here(self) -> Hardware:
        """This host with its devices simulated: as it was calibrated with this JAX, or as the catalogue has "cpu".

        >>> hardware.here().shared
        True
        """
        try:
            kept = _from_file(str(cache_file()))
        except HardwareError:
            return self("cpu")
        return kept if kept.shared else self("cpu")

    def names(self) -> tuple[str, ...]:
        """The names that the catalogue holds."""
        return _names()

    def for_device_kind(self, kind: str) -> Hardware:
        """The hardware of a device by JAX's `device_kind`.

        Raises:
            HardwareError: no hardware of the catalogue answers to it.
        """
        known = [(device_kind, name) for name in self.names() for device_kind in _load(name).device_kinds]
        matching = [(len(device_kind), name) for device_kind, name in known if kind.lower().startswith(device_kind.lower())]
        if matching:
            return _load(max(matching)[1])
        raise HardwareError(f"devices of kind {kind!r} are not in the catalogue: say which to estimate with, hardware='h100'")


hardware = Catalogue()


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


@functools.cache
def _load(name: str) -> Hardware:
    return read((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _from_file(name: str) -> Hardware:
    try:
        status = os.stat(name)
        return _loaded(name, status.st_mtime_ns, status.st_size)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, HardwareError):
            raise HardwareError(f"{one_line(name)}: {error}") from None
        said = getattr(error, "strerror", None) or "it is no text"
        way_out = "shardwise calibrate -o writes one, and sw.hardware.names() lists those that are known"
        raise HardwareError(f"{quoted(name)} cannot be read as hardware: {said}; {way_out}") from None


@functools.lru_cache(maxsize=16)
def _loaded(name: str, _changed: int, _size: int) -> Hardware:
    """A file as it stands: read again where it has changed."""
    return read(Path(name).read_text(encoding="utf-8"))
