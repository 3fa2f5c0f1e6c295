"""A hardware as TOML: read, and written so that it is read back the same."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from shardwise.chips.figures import Calibration, Compiler, Figure, Hardware, Memory, Rate, Reached, Switch, Torus
from shardwise.errors import HardwareError, one_line, quoted
from shardwise.steps import COLLECTIVES

_LINKS: dict[str, type[Any]] = {"torus": Torus, "switch": Switch, "memory": Memory}


def read(text: str) -> Hardware:
    """Read one hardware from TOML; every figure is `{ value = ..., source = "..." }`.

    Raises:
        HardwareError: it is no TOML, a figure or its source is missing, or a figure is no positive number.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"this is no TOML: {one_line(str(error))}") from None
    name = one_line(str(table.get("name", "?")))

    def figure(section: str, key: str) -> Figure:
        return _figure(_table(table, section, name).get(key), f"{section}.{key}", name)

    def record(section: str, made: type[Any]) -> Any:
        """What a section's figures make; those that were added later need not be there."""
        given = _table(table, section, name)
        keys = [each.name for each in fields(made) if each.name in given or each.default is MISSING]
        return made(**{key: figure(section, key) for key in keys})

    kind = _table(table, "links", name).get("kind")
    if kind not in _LINKS:
        raise HardwareError(f"hardware {name} has links of kind {quoted(kind)}: known are {', '.join(_LINKS)}")
    reached = None
    if "reached" in table:
        reached = Reached(figure("reached", "links"), figure("reached", "matmuls") if "matmuls" in table["reached"] else None)
    return Hardware(
        name=name,
        title=one_line(str(table.get("title", name))),
        device_kinds=tuple(map(str, table.get("device_kinds", ()))),
        devices_per_chip=int(table.get("devices_per_chip", 1)),
        flops_per_s=tuple((dtype, figure("flops_per_s", dtype)) for dtype in _table(table, "flops_per_s", name)),
        memory_bytes=figure("memory", "bytes"),
        memory_bytes_per_s=figure("memory", "bytes_per_s"),
        links=record("links", _LINKS[kind]),
        clock_hz=figure("clock", "hz") if "clock" in table else None,
        compiler=record("compiler", Compiler) if "compiler" in table else None,
        host_bytes_per_s=figure("host", "bytes_per_s") if "host" in table else None,
        network_bytes_per_s=figure("network", "bytes_per_s") if "network" in table else None,
        reached=reached,
        overlapped_matmul=figure("overlap", "matmul") if "overlap" in table else None,
        rates=tuple(_rate(each, name) for each in table.get("collectives", ())),
        calibration=_calibration(table["calibration"], name) if "calibration" in table else None,
    )


def _table(table: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise HardwareError(f"hardware {name}: {key} is no table: write [{key}], and its figures below")
    return found


def _figure(entry: Any, where: str, name: str) -> Figure:
    if not isinstance(entry, dict) or "value" not in entry or not entry.get("source"):
        raise HardwareError(f"hardware {name} lacks {where} = {{ value = ..., source = ... }}")
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise HardwareError(f"hardware {name}: {where} is {quoted(value)}, and a figure is a number that is not negative")
    return Figure(float(value), one_line(str(entry["source"])))


def _rate(entry: Any, name: str) -> Rate:
    where = "[[collectives]]"
    if not isinstance(entry, dict) or not {"kind", "devices", "apart"} <= set(entry):
        raise HardwareError(f"hardware {name}: {where} has a kind, devices, and how far apart they are")
    kind = next((known for known in COLLECTIVES if known == entry["kind"]), None)
    if kind is None:
        raise HardwareError(f"hardware {name}: {where} of kind {quoted(entry['kind'])}: known are {', '.join(COLLECTIVES)}")
    figures = [_figure(entry.get(key), f"{where} {kind}: {key}", name) for key in ("start_seconds", "bytes_per_s")]
    return Rate(kind, int(entry["devices"]), int(entry["apart"]), *figures)


def _calibration(entry: Any, name: str) -> Calibration:
    try:
        versions = tuple((str(library), str(version)) for library, version in entry["versions"].items())
        errors = tuple((str(kind), float(error)) for kind, error in entry["errors"].items())
        return Calibration(one_line(str(entry["host"])), str(entry["date"]), versions, int(entry["measured"]), errors)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise HardwareError(
            f"hardware {name}: [calibration] has a host, a date, how many programs were measured, versions and errors"
        ) from None


def written(chip: Hardware) -> str:
    """A hardware as TOML, which `read` reads back as it is.

    >>> from shardwise.chips import hardware
    >>> read(written(hardware("h100"))) == hardware("h100")
    True
    """
    return "\n".join(_lines(chip)) + "\n"


def _lines(chip: Hardware) -> Iterator[str]:
    yield f"name = {_said(chip.name)}"
    yield f"title = {_said(chip.title)}"
    yield f"device_kinds = [{', '.join(map(_said, chip.device_kinds))}]"
    yield f"devices_per_chip = {chip.devices_per_chip}"
    found = chip.calibration
    if found is not None:
        yield from ("", "[calibration]", f"host = {_said(found.host)}", f"date = {_said(found.date)}")
        yield f"measured = {found.measured}"
        yield from ("[calibration.versions]", *(f"{_said(library)} = {_said(version)}" for library, version in found.versions))
        yield from ("[calibration.errors]", *(f"{_said(kind)} = {error!r}" for kind, error in found.errors))
    yield from ("", "[flops_per_s]", *(f"{dtype} = {_entry(figure)}" for dtype, figure in chip.flops_per_s))
    yield from ("", "[memory]", f"bytes = {_entry(chip.memory_bytes)}", f"bytes_per_s = {_entry(chip.memory_bytes_per_s)}")
    if chip.host_bytes_per_s is not None:
        yield from ("", "[host]", f"bytes_per_s = {_entry(chip.host_bytes_per_s)}")
    if chip.network_bytes_per_s is not None:
        yield from ("", "[network]", f"bytes_per_s = {_entry(chip.network_bytes_per_s)}")
    yield from ("", "[links]", f"kind = {_said(next(kind for kind, links in _LINKS.items() if isinstance(chip.links, links)))}")
    yield from (f"{name} = {_entry(getattr(chip.links, name))}" for name in chip.links.__dataclass_fields__)
    if chip.clock_hz is not None:
        yield from ("", "[clock]", f"hz = {_entry(chip.clock_hz)}")
    if chip.compiler is not None:
        yield from ("", "[compiler]")
        yield from (f"{name} = {_entry(getattr(chip.compiler, name))}" for name in Compiler.__dataclass_fields__)
    if chip.reached is not None:
        yield from ("", "[reached]", f"links = {_entry(chip.reached.links)}")
        yield from () if chip.reached.matmuls is None else (f"matmuls = {_entry(chip.reached.matmuls)}",)
    if chip.overlapped_matmul is not None:
        yield from ("", "[overlap]", f"matmul = {_entry(chip.overlapped_matmul)}")
    for rate in chip.rates:
        yield from ("", "[[collectives]]", f"kind = {_said(rate.kind)}", f"devices = {rate.devices}", f"apart = {rate.apart}")
        yield f"start_seconds = {_entry(rate.start_seconds)}"
        yield f"bytes_per_s = {_entry(rate.bytes_per_s)}"


def _entry(figure: Figure) -> str:
    return f"{{ value = {figure.value!r}, source = {_said(figure.source)} }}"


def _said(text: str) -> str:
    return json.dumps(one_line(text), ensure_ascii=False)
