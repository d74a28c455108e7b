"""As much of Prometheus's language as our alerts use: read, and applied to what was scraped.

An expression compares one value to a number. The value is a selector, `increase` of one over a window, or an
aggregation of one by labels. Anything else is refused, so that no alert is written that nobody has tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Labels with their values, and the value.
Labels = frozenset[tuple[str, str]]
# By name of the metric.
Scrape = Mapping[str, Sequence[tuple[Labels, float]]]

_EXPRESSION: Final = re.compile(
    r"""
    (?: (?P<aggregate>sum|min|max) \s* (?: by \s* \( (?P<by>[a-z_, ]+) \) )? \s* \( )?
    (?P<increase> increase\( )?
    (?P<name> [a-z_]+ )
    (?P<window> \[ \d+ [smh] \] )?
    \)*
    \s* (?P<compare> [<>] ) \s*
    (?P<bound> \d+ (?: \.\d+ )? )
    """,
    re.VERBOSE,
)
_AGGREGATES: Final[dict[str, Callable[[list[float]], float]]] = {"sum": sum, "min": min, "max": max}


@dataclass(frozen=True)
class Expression:
    """One that was read."""

    name: str
    aggregate: str
    by: tuple[str, ...]
    is_increase: bool
    is_below: bool
    bound: float

    def fires(self, before: Scrape, now: Scrape) -> list[Labels]:
        """For which labels it holds, given what was scraped at the beginning of the window and now."""
        values = [(labels, self._value(before, labels, value)) for labels, value in now.get(self.name, ())]
        if self.aggregate:
            groups: dict[Labels, list[float]] = {}
            for labels, value in values:
                key = frozenset((name, value_) for name, value_ in labels if name in self.by)
                groups.setdefault(key, []).append(value)
            values = [(labels, _AGGREGATES[self.aggregate](found)) for labels, found in groups.items()]
        return [labels for labels, value in values if (value < self.bound if self.is_below else value > self.bound)]

    def _value(self, before: Scrape, labels: Labels, value: float) -> float:
        if not self.is_increase:
            return value
        # A series that was not there before shows no increase, as with Prometheus.
        return value - dict(before.get(self.name, ())).get(labels, value)


def read(text: str) -> Expression:
    """An expression.

    Raises:
        ValueError: It is none of those that are known here.
    """
    found = _EXPRESSION.fullmatch(text)
    if found is None or text.count("(") != text.count(")"):
        raise ValueError(f"{text!r} is not an expression that was tried")
    if bool(found["increase"]) != bool(found["window"]):
        raise ValueError(f"{text!r}: a window belongs to increase, and to nothing else")
    by = tuple(name.strip() for name in (found["by"] or "").split(",") if name.strip())
    return Expression(
        name=found["name"],
        aggregate=found["aggregate"] or "",
        by=by,
        is_increase=bool(found["increase"]),
        is_below=found["compare"] == "<",
        bound=float(found["bound"]),
    )
