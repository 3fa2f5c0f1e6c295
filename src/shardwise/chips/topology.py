"""Topologies: so many devices of one kind and how they lie, as the compilers name them: `v5e:2x4`, `v5e:2x4*2`, `h100:2x8`."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from shardwise.chips import Switch, Torus, hardware
from shardwise.errors import HardwareError, counted, did_you_mean, pointed, quoted

_SHAPE = re.compile(r"[0-9]{1,6}(x[0-9]{1,6})*")


HERE = "here"  # in the place of a target: the devices of this machine


@dataclass(frozen=True, slots=True)
class _Family:
    """What a name before the colon stands for; a pod is the most chips that links join, a side the most in a row."""

    chip: str | None
    kind: str
    dimensions: int
    pod: int
    side: int
    cores: int = 1
    closes_at: int = 1  # a side that is a multiple of it is a ring


# Pods: cloud.google.com/tpu/docs, the system architecture page of each generation. Beyond the pod of a v5e the compiler
# ends the process ("Check failed: chip_bounds().x <= 16"), so what is too large is refused here.
_TPU_PODS = {"v4": 4096, "v5e": 256, "v5p": 8960, "v6e": 256, "v7x": 9216}
_GPUS = ("h100", "h200", "b200")
_MOST_HOSTS = 1024  # tried: h100:1024x8 compiles in a few seconds
_MOST_SLICES = 64  # tried: v5e:2x2*64 compiles in seconds


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices of one kind in a grid: chips of a torus, or of several joined by a network, or hosts of GPUs behind a switch.

    >>> v5e = Topology.parse("v5e:2x4")
    >>> v5e.chip, v5e.shape, v5e.size
    ('tpu-v5e', (2, 4), 8)
    >>> Topology.parse("h100:2x8").size, Topology.parse("v5e:2x4*2").size
    (16, 16)

    Attributes:
        name: the canonical name, as in `v5e:2x4`.
        chip: its name in the catalogue of hardware; None for a TPU v3, which the catalogue does not hold.
        kind: `"tpu"` or `"gpu"`.
        shape: chips along each dimension of the torus (of one slice), or (hosts, GPUs of a host).
        cores_per_chip: devices a chip shows: 2 on TPU v3 and v7x. On v4 and v5p both cores work as one device.
        rings: for each dimension of `shape`, whether it closes to a ring.
        slices: how many slices of that shape a network joins.
    """

    name: str
    chip: str | None
    kind: str
    shape: tuple[int, ...]
    cores_per_chip: int
    rings: tuple[bool, ...]
    slices: int = 1

    @classmethod
    def parse(cls, text: Any) -> Topology:
        """Read `"v5e:2x4"`, `"v5e:2x4*2"` (slices), `"tpu7x:2x2x1"`, `"h100:8"` or `"h100:2x8"` (hosts x GPUs).

        Raises:
            HardwareError: the name is unknown, or the shape is missing or impossible.
        """
        if isinstance(text, Topology):
            return text
        if not isinstance(text, str):
            raise HardwareError(f"{quoted(text)} is no topology: write its name and shape as text, 'v5e:2x4' or 'h100:2x8'")
        word, colon, shape = text.partition(":")
        name = _family_name(text, word.strip())
        family = _family(name)
        if not colon or not shape.strip():
            raise HardwareError(pointed(text, len(text.rstrip()), "no shape", _shape_hint(name, family)))
        shape, slices = _slices(text, shape, family)
        sizes = _sizes(text, shape, name, family)
        _check_sizes(text, sizes, name, family)
        shown = sizes[1:] if family.kind == "gpu" and sizes[0] == 1 else sizes
        rings = tuple(family.kind == "tpu" and size > 1 and size % family.closes_at == 0 for size in sizes)
        one = cls(f"{name}:{'x'.join(map(str, shown))}", family.chip, family.kind, sizes, family.cores, rings)
        return one if slices == 1 else replace(one, name=f"{one.name}*{slices}", slices=slices)

    @property
    def slice(self) -> Topology:
        """One of its slices.

        >>> Topology.parse("v5e:2x4*2").slice == Topology.parse("v5e:2x4")
        True
        """
        return self if self.slices == 1 else replace(self, name=self.name.rpartition("*")[0], slices=1)

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(self.shape) * self.slices

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.chips * self.cores_per_chip

    def __str__(self) -> str:
        return self.name


@functools.lru_cache(maxsize=256)
def standard_slice(chip: str, devices: int) -> Topology | None:
    """The slice of so many devices of a TPU that is handed out: its sides are powers of two, and as even as they can be.

    None where there is none: of 2 chips, or of a number that is no power of two, or of what is no TPU. The shapes are those of
    cloud.google.com/tpu/docs, the configurations of each generation.

    >>> [str(standard_slice("tpu-v6e", count)) for count in (4, 8, 16)], str(standard_slice("tpu-v5p", 16))
    (['v6e:2x2', 'v6e:2x4', 'v6e:4x4'], 'v5p:2x2x4')
    >>> str(standard_slice("tpu-v7x", 8)), standard_slice("tpu-v5e", 6), standard_slice("h100", 8)
    ('v7x:2x2x1', None, None)
    """
    name = chip.removeprefix("tpu-")
    if name not in _TPU_PODS:
        return None
    family = _family(name)
    chips, rest = divmod(devices, family.cores)
    if rest or not 4 <= chips <= family.pod or chips & (chips - 1):
        return None
    doublings, each = chips.bit_length() - 1, [0] * family.dimensions
    for place in range(doublings):
        each[-1 - place % family.dimensions] += 1
    sides = [1 << many for many in each]
    sides = sides if 1 not in sides else sides[::-1]  # a plane of a torus in three dimensions is 2x2x1
    return Topology.parse(f"{name}:{'x'.join(map(str, sides))}")


def families() -> tuple[str, ...]:
    """The names that may stand before the colon.

    >>> families()
    ('v3', 'v4', 'v5e', 'v5p', 'v6e', 'v7x', 'h100', 'h200', 'b200')
    """
    return ("v3", *_TPU_PODS, *_GPUS)


def _family_name(text: str, word: str) -> str:
    name = hardware.canonical(word.casefold()).removeprefix("tpu-")
    if name in families():
        return name
    known = ", ".join(families())
    raise HardwareError(
        pointed(
            text,
            len(text) - len(text.lstrip()),
            f"no devices {quoted(word)}{did_you_mean(name, families())}",
            f"known are {known}",
        )
    )


def _family(name: str) -> _Family:
    if name == "v3":  # two devices a chip; a pod of 32 x 32 closes to a torus
        return _Family(None, "tpu", 2, 1024, 32, cores=2, closes_at=32)
    chip = hardware(name)
    match chip.links:
        case Torus() as torus:
            pod, dimensions = _TPU_PODS[name], int(torus.dimensions.value)
            side = int(torus.longest.value) if dimensions == 2 else pod
            return _Family(
                chip.name, "tpu", dimensions, pod, side, chip.devices_per_chip, int(torus.wraps_at_multiple_of.value)
            )
        case Switch() as switch:
            side = int(switch.node_devices.value)
            return _Family(chip.name, "gpu", 2, side * _MOST_HOSTS, side)
        case _:
            raise AssertionError(f"{name} has neither a torus nor a switch")


def _slices(text: str, shape: str, family: _Family) -> tuple[str, int]:
    """A shape without the number of slices behind it, and that number."""
    one, star, count = shape.partition("*")
    if not star:
        return shape, 1
    at = text.index("*")
    if family.kind == "gpu":
        raise HardwareError(pointed(text, at, "slices of GPUs", "hosts x GPUs says what a network joins: h100:2x8"))
    if not count.strip().isdecimal() or not 1 <= int(count) <= _MOST_SLICES:
        raise HardwareError(pointed(text, at, f"{count.strip()[:20]!r} slices", f"1 to {_MOST_SLICES}, as in v5e:2x4*2"))
    return one, int(count)


def _sizes(text: str, shape: str, name: str, family: _Family) -> tuple[int, ...]:
    start = text.index(":") + 1
    start += len(shape) - len(shape.lstrip())
    if not _SHAPE.fullmatch(shape.strip()):
        raise HardwareError(pointed(text, start, f"{shape.strip()[:20]!r} is no shape", _shape_hint(name, family)))
    sizes = tuple(int(size) for size in shape.strip().split("x"))
    if family.kind == "gpu" and len(sizes) == 1:
        sizes = (1, *sizes)
    if len(sizes) != family.dimensions:
        why = f"{counted(len(sizes), 'dimension')} where {name} has {family.dimensions}"
        raise HardwareError(pointed(text, start, why, _shape_hint(name, family)))
    return sizes


def _check_sizes(text: str, sizes: tuple[int, ...], name: str, family: _Family) -> None:
    def refuse(why: str, way_out: str) -> NoReturn:
        raise HardwareError(pointed(text, text.index(":") + 1, why, way_out))

    if 0 in sizes:
        refuse("a dimension of no chips", "every dimension holds at least 1")
    if family.kind == "gpu":
        hosts, gpus = sizes
        if gpus > family.side:
            count = gpus * hosts
            way_out = f"{-(-count // family.side)}x{family.side} says {-(-count // family.side)} hosts of {family.side}"
            refuse(f"{gpus} GPUs in a host, which holds up to {family.side}", f"write hosts x GPUs: {name}:{way_out}")
        if hosts > _MOST_HOSTS:
            refuse(f"{hosts} hosts", f"up to {_MOST_HOSTS} are compiled for")
        return
    odd = next((size for size in sizes if size > 1 and size % 2), None)
    if odd:
        refuse(f"a dimension of {odd} chips", f"hosts hold 2x2 chips: every dimension is 1 or even, {name}:{_example(family)}")
    if max(sizes) > family.side:
        refuse(f"a dimension of {max(sizes)} chips", f"a {name} pod has at most {family.side} in a row")
    if math.prod(sizes) > family.pod:
        refuse(f"{math.prod(sizes)} chips", f"a {name} pod has {family.pod}")


def _example(family: _Family) -> str:
    return {2: "2x4", 3: "2x2x2"}[family.dimensions]


def _shape_hint(name: str, family: _Family) -> str:
    if family.kind == "gpu":
        return f"give GPUs, or hosts x GPUs of each: {name}:8 or {name}:2x8"
    return f"give the chips along each dimension of the torus: {name}:{_example(family)}"
