"""Prices as formulas with their numbers filled in: what `Costs` compute on quantities, printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from shardwise.chips import Figure, Hardware, Memory
from shardwise.chips.quantities import FORMULAS, Factor, Formula, Letter, Longest, Product, Quantity, formula_of, value_of
from shardwise.planning.prices import Costs
from shardwise.units import bytes_text, seconds_text

# What figures of the catalogue are called in formulas: the letter, its unit, and what is said of it.
_LETTERS = {
    "memory_bytes_per_s": ("memory", "B/s"),
    "bytes_per_s": ("memory", "B/s", "one host's, shared by all devices"),
    "copied_bytes_per_s": ("copied", "B/s", "copies in memory"),
    "fresh_bytes_per_s": ("fresh", "B/s", "writes that map memory first"),
    "launch_seconds": ("start", "s"),
    "rendezvous_seconds": ("wait", "s", "for each other"),
    "local_seconds": ("start", "s"),
    "dispatch_seconds": ("dispatch", "s", "of a program"),
    "efficiency": ("e", "", "the share of the peak that large matmuls reach"),
    "results_per_s": ("rate", "results/s"),
    "kept_results_per_s": ("rate", "results/s", "kept for a collective"),
    "start_seconds": ("start", "s"),
    "cut_bytes_per_s": ("cut", "B/s", "cutting parts out of an array"),
    "transposed_bytes_per_s": ("transposed", "B/s", "transposing in memory"),
    "far_transposed_bytes_per_s": ("transposed", "B/s", "transposing large arrays in memory"),
    "spread_bytes_per_s": ("spread", "B/s", "two blocks that end within lanes, spread in memory"),
    "slice_seconds": ("least", "s"),
    "least_seconds": ("least", "s"),
    "least_copy_seconds": ("least", "s", "a small copy"),
}


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a price: in symbols, with its numbers, what it comes to, and its label, if it has one."""

    symbols: str
    numbers: str
    seconds: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A price as the terms that add up to it, and what their letters stand for."""

    terms: tuple[Term, ...]
    letters: tuple[str, ...]
    values: dict[str, float]  # of all symbols


def with_formulas(costs: Costs) -> Costs:
    """The same prices, as quantities that keep their formulas."""
    links = costs.interconnect
    return replace(costs, interconnect=replace(links, hardware=_named(links.hardware), arithmetic=FORMULAS))


def _named(chip: Hardware) -> Hardware:
    def named(record: Any) -> Any:
        found = {each.name: getattr(record, each.name) for each in fields(record) if each.name in _LETTERS}
        return replace(record, **{name: _letter(figure, *_LETTERS[name]) for name, figure in found.items()})

    return replace(
        named(chip),
        flops_per_s=tuple((dtype, _letter(figure, "peak", "FLOP/s")) for dtype, figure in chip.flops_per_s),
        compiler=chip.compiler and named(chip.compiler),
        links=named(chip.links) if isinstance(chip.links, Memory) else chip.links,  # others are named as they are priced
    )


def _letter(figure: Figure, symbol: str, unit: str, *said: str) -> Figure:
    return replace(figure, value=Quantity.named(symbol, figure.value, unit, *said))


def told(price: float) -> Told:
    """The formula of a price.

    >>> from shardwise.chips import hardware
    >>> from shardwise.chips.interconnect import Interconnect
    >>> from shardwise.mesh import Mesh
    >>> costs = with_formulas(Costs(Interconnect(hardware("h100"), Mesh.parse("x=16")), "bfloat16"))
    >>> gathered = Quantity.named("V", 2**31, "B", "when gathered")
    >>> found = told(costs.collective("all-gather", ("x",), gathered / 16, gathered))
    >>> print(found.terms[0].symbols, "=", found.terms[0].numbers)
    max(L, V · (n-1)/n / W) = max(4 us, 2.15 GB · 15/16 / 450 GB/s)
    """
    parts = list(_parts(formula_of(price)))
    symbols = _symbols([formula for formula, _ in parts])
    terms = [Term(_sum(formula, symbols), _sum(formula), value_of(formula), label) for formula, label in parts]
    letters = [_explained(letter, symbols) for letter in symbols if letter.made or letter.said]
    return Told(tuple(terms), tuple(letters), {symbol: letter.value for letter, symbol in symbols.items()})


def _parts(formula: Formula) -> Iterator[tuple[Formula, str]]:
    """The terms of a price; a part that has a label alone is told by its own formula."""
    for product in formula:
        match product:
            case Product(1.0, ((Letter("", _, _, said, made), 1),)):
                yield made, ", ".join(said)
            case _:
                yield (product,), ""


Symbols = dict[Letter, str]


def _symbols(formulas: list[Formula]) -> Symbols:
    """A symbol for each letter, those of the formulas first and then those of what they stand for; no two the same."""
    found: Symbols = {}
    while formulas:
        letters = dict.fromkeys(letter for formula in formulas for letter in _letters(formula))
        new = [letter for letter in letters if letter not in found]
        for letter in new:
            symbol = letter.symbol
            while symbol in found.values():
                symbol += "'"
            found[letter] = symbol
        formulas = [letter.made for letter in new]
    return found


def _letters(formula: Formula) -> Iterator[Letter]:
    for product in formula:
        for factor, _ in product.factors:
            if isinstance(factor, Letter):
                yield factor
            else:
                for each in factor.of:
                    yield from _letters(each)


def _explained(letter: Letter, symbols: Symbols) -> str:
    made = [_sum(letter.made, symbols), _sum(letter.made)] if letter.made else []
    formula = " = ".join([symbols[letter], *made])
    return ": ".join([formula, "; ".join(letter.said)]) if letter.said else formula


def _sum(formula: Formula, symbols: Symbols | None = None) -> str:
    """A formula in symbols; without them, in numbers."""
    plus, minus = ("+", "-") if _is_count(Longest((formula,))) else (" + ", " - ")
    text = ""
    for product in formula:
        sign = "" if not text else minus if product.times < 0 else plus
        text += sign + _product(product._replace(times=abs(product.times)) if sign else product, symbols)
    return text or "0"


def _product(product: Product, symbols: Symbols | None) -> str:
    text = _coefficient(product.times) if product.times != 1 or not product.factors else ""
    after_count = bool(text)
    for factor, power in product.factors:
        one, count = _factor(factor, symbols), _is_count(factor)
        if power > 0:
            text = f"{text} · {one}" if text else one
        else:
            text = f"{text or '1'}{'/' if count and after_count else ' / '}{one}"
        after_count = count
    return text


def _factor(factor: Factor, symbols: Symbols | None) -> str:
    match factor:
        case Letter():
            return symbols[factor] if symbols is not None else _number(factor)
        case Longest((one,)):
            return f"{value_of(one):g}" if symbols is None and _is_count(factor) else f"({_sum(one, symbols)})"
        case Longest(of):
            return f"max({', '.join(_sum(each, symbols) for each in of)})"


def _is_count(factor: Factor) -> bool:
    """Whether a factor has no unit, and is no choice: (n-1)/n is written as one number."""
    if isinstance(factor, Letter):
        return not factor.unit
    return len(factor.of) == 1 and all(_is_count(each) for product in factor.of[0] for each, _ in product.factors)


def _coefficient(times: float) -> str:
    """A factor as a fraction, where it is one: chunks are shares of blocks."""
    if times >= 1 and round(times, 3) == times == float(f"{times:g}"):
        return f"{times:g}"
    near = Fraction(times).limit_denominator(2**24)
    return str(near) if abs(near - times) < 1e-12 * abs(times) else f"{times:.9g}"


def _number(letter: Letter) -> str:
    match letter.unit:
        case "s":
            return seconds_text(letter.value)
        case "B":
            return bytes_text(letter.value)
        case "B/s":
            return f"{bytes_text(letter.value)}/s"
        case "":
            return f"{letter.value:g}"
        case unit:
            return f"{letter.value:.3g} {unit}"
