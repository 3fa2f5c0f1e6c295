"""The FLOPs of matmuls (dots, convolutions, kernels that state theirs): of an instruction, and of a whole program."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardwise.compiled.text import shapes
from shardwise.compiled.text.hlo import Computation, Instruction, Module, Unread
from shardwise.compiled.text.stated import stated_cost
from shardwise.compiled.text.walk import WRAPS, Visit, is_matmul

_KERNEL = re.compile(r'custom_call_target="[^"]*(tpu_custom_call|triton|mosaic)')
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_LABELS = re.compile(r"\bdim_labels=([\w?]+)_([\w?]+)->([\w?]+)")
_COUNT = re.compile(r"\b(feature_group_count|batch_group_count)=(\d+)")
_CONTRACTED = re.compile(r'\blhs_contracting_dim(?:ension)?s"?[=:][\[{]([\d,\s"]*)[\]}]')


@dataclass(frozen=True, slots=True)
class MatmulCost:
    """A dot, a convolution or a kernel: its FLOPs, an addition and a multiplication being two, and its operands' dtype."""

    flops: float
    dtype: str


@dataclass(slots=True)
class Workbook:
    """The matmuls of a module's computations, each looked up once, and those that cannot be read."""

    module: Module
    known: dict[str, tuple[MatmulCost, ...]] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)


def matmul_flops(module: Module, instruction: Instruction, home: Computation | None = None) -> float:
    """The FLOPs of the matmuls that an instruction is, or runs as part of itself (of a fusion those inside it).

    >>> from shardwise.compiled.text.hlo import read
    >>> module = read('''HloModule jit_f
    ... ENTRY %main (a: f32[4,8], b: f32[8,2]) -> f32[4,2] {
    ...   %a = f32[4,8]{1,0} parameter(0)
    ...   %b = f32[8,2]{1,0} parameter(1)
    ...   ROOT %d = f32[4,2]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    ... }''')
    >>> matmul_flops(module, module.entry.root)                      # 2 * 4 * 2 * 8
    128.0

    Args:
        home: the computation that the instruction stands in; looked for where it is not given.
    """
    home = home or next(c for c in module.computations.values() if c.by_name.get(instruction.name) is instruction)
    return sum((matmul.flops for matmul in matmuls(Workbook(module), home, instruction)), 0.0)


def flops_per_device(module: Module, visits: Iterable[Visit]) -> float:
    """The FLOPs of matmuls in one call of the program, on one device, loops by their trips (once where not known).

    Of a conditional's branches the one with the most counts.
    """
    book = Workbook(module)
    entered: dict[tuple[int, ...], list[Visit]] = {}
    for visit in visits:
        entered.setdefault(tuple(id(i) for i in visit.path), []).append(visit)

    def total(visit: Visit, path: tuple[int, ...]) -> float:
        """The FLOPs of a visited computation, with what it runs."""
        own = sum(p.flops for i in visit.computation.instructions for p in matmuls(book, visit.computation, i))
        flops = own * (1 if visit.trips is None else visit.trips)
        for instruction in visit.computation.instructions:
            inner = entered.get((*path, id(instruction)), [])
            if inner:
                parts = [total(v, (*path, id(instruction))) for v in inner]
                flops += max(parts) if instruction.opcode == "conditional" else sum(parts)
        return flops

    return float(sum(total(visit, ()) for visit in entered.get((), [])))


def silent_kernels(module: Module) -> int:
    """How many kernels of the text (of Pallas, or of Triton) do not state their FLOPs.

    >>> from shardwise.compiled.text.hlo import read
    >>> body = 'ROOT %k = f32[8]{0} custom-call(%p), custom_call_target="tpu_custom_call"'
    >>> entry = "ENTRY %main (p: f32[8]) -> f32[8] {\\n  %p = f32[8]{0} parameter(0)\\n  " + body + "\\n}"
    >>> silent_kernels(read("HloModule m\\n" + entry))
    1
    """
    called = (i for c in module.computations.values() for i in c.instructions if i.opcode == "custom-call")
    return sum(1 for i in called if _KERNEL.search(i.attributes) and stated_cost(i) is None)


def matmuls(book: Workbook, home: Computation, instruction: Instruction) -> tuple[MatmulCost, ...]:
    """The matmuls that an instruction is, or holds; those of what a loop or a call runs are not its own."""
    if is_matmul(instruction):
        try:
            return (_matmul(home, instruction),)
        except (shapes.UnreadShapeError, LookupError, ValueError) as error:
            book.unread.append(Unread(instruction.line, instruction.name, f"its FLOPs cannot be read: {error}"))
            return ()
    if instruction.opcode not in WRAPS:
        return ()
    return tuple(matmul for _, name in instruction.called() for matmul in _held(book, name))


def _held(book: Workbook, name: str) -> tuple[MatmulCost, ...]:
    computation = book.module.computations.get(name)
    if computation is None:
        return ()
    if name not in book.known:
        book.known[name] = ()  # a computation that calls itself would not end
        book.known[name] = tuple(p for i in computation.instructions for p in matmuls(book, computation, i))
    return book.known[name]


def _matmul(home: Computation, instruction: Instruction) -> MatmulCost:
    if cost := stated_cost(instruction):
        return MatmulCost(cost.flops, _multiplied(home, instruction))
    first, second = (shapes.first(home.by_name[name].shape) for name in instruction.operands[:2])
    out = shapes.first(instruction.shape)
    if instruction.opcode == "convolution" or "$conv" in instruction.attributes:
        if "$convBackwardInput" in instruction.attributes:
            first, out = out, first  # window and labels are those of the forward convolution
        elif "$convBackwardFilter" in instruction.attributes:
            second, out = out, second
        return MatmulCost(_convolution_flops(first, out, second, instruction.attributes), first.dtype)
    contracted = _CONTRACTED.search(instruction.attributes)
    places = [int(d) for d in re.findall(r"\d+", contracted[1])] if contracted else [len(first.dims) - 1]
    return MatmulCost(2.0 * out.elements * math.prod(first.dims[place] for place in places), first.dtype)


def _multiplied(home: Computation, instruction: Instruction) -> str:
    """The dtype that a kernel most likely multiplies: of the floating arrays that it takes that of the largest."""
    texts = [home.by_name[name].shape for name in instruction.operands if name in home.by_name]
    arrays = [array for text in (*texts, instruction.shape) for array in shapes.leaves(shapes.parse(text))]
    floating = [array for array in arrays if "float" in array.dtype] or arrays
    return max(floating, key=lambda array: array.bytes).dtype


def _convolution_flops(lhs: shapes.Array, out: shapes.Array, kernel: shapes.Array, attributes: str) -> float:
    """Two for each pair of an input and a kernel element that meet; padding and holes of a dilation meet nothing.

    XLA counts alike: HandleConvolution in hlo_cost_analysis.cc.
    """
    labels = _LABELS.search(attributes)
    if not labels:
        raise ValueError("it has no dim_labels")
    of_lhs, of_kernel, of_out = labels.groups()
    counts = {name: int(count) for name, count in _COUNT.findall(attributes)}
    window = _window(attributes)
    pairs = 1
    for place in sorted(label for label in of_out if label.isdigit()):
        axis = int(place)
        low = window["pad"][axis].split("_")[0] if "pad" in window else "0"
        step = {key: int(window[key][axis]) if key in window else 1 for key in ("stride", "lhs_dilate", "rhs_dilate")}
        sizes = (lhs.dims[of_lhs.index(place)], kernel.dims[of_kernel.index(place)], out.dims[of_out.index(place)])
        pairs *= _meetings(*sizes, int(low), step["stride"], step["lhs_dilate"], step["rhs_dilate"])
    features = lhs.dims[of_lhs.index("f")] // counts.get("feature_group_count", 1)
    batch = lhs.dims[of_lhs.index("b")] // counts.get("batch_group_count", 1)
    return 2.0 * features * batch * out.dims[of_out.index("f")] * pairs


def _window(attributes: str) -> dict[str, list[str]]:
    match = _WINDOW.search(attributes)
    fields = [part.partition("=") for part in match[1].split()] if match else []
    return {key: value.split("x") for key, _, value in fields}


@functools.lru_cache(maxsize=4096)
def _meetings(size: int, kernel: int, out: int, low: int, stride: int, lhs_dilate: int, rhs_dilate: int) -> int:
    """How many pairs of an output and a kernel position along one dimension meet an element of the input.

    Output o and kernel position k meet place o*stride + k*rhs_dilate - low of the input with its holes, which has
    elements at the multiples of lhs_dilate.

    >>> _meetings(4, 4, 4, 0, 3, 4, 1)        # a batch of 4, written as a convolution
    4
    """
    step = math.gcd(stride, lhs_dilate)
    period = lhs_dilate // step
    inverse = pow(stride // step, -1, period) if period > 1 else 0
    found = 0
    for position in range(kernel):
        offset = position * rhs_dilate - low
        if offset % step:
            continue
        first = (-offset // step) * inverse % period if period > 1 else 0  # the least o that meets no hole
        lowest = max(0, -(offset // stride))  # the least o at or after the first element
        highest = min(out - 1, ((size - 1) * lhs_dilate - offset) // stride)
        lowest += (first - lowest) % period
        if highest >= lowest:
            found += (highest - lowest) // period + 1
    return found
