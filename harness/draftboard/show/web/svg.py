"""SVG for pages: escaped elements, and a plot with axes. Colours come from the page's style by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from draftboard.show.words import visible

Range = tuple[float, float]
Shown = str | float
"""An attribute's value."""


def tag(name: str, *children: str, **attributes: Shown | None) -> Markup:
    """An element. Text and attributes are escaped, `Markup` is taken as it is; an attribute's underscores
    are hyphens, one at its end is dropped, and None leaves it out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(map(_escaped, children))
    return Markup(f"<{name}{shown}>{inner}</{name}>" if inner else f"<{name}{shown}/>")


def _escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else escape(visible(text))


def _value(value: Shown) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def ticks(lo: float, hi: float, most: int = 6) -> list[float]:
    """At most `most` round numbers from `lo` to `hi`."""
    raw = max(hi - lo, 1e-9) / max(most - 1, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
    first = math.ceil(lo / step - 1e-9)
    return [n * step for n in range(first, math.floor(hi / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot area with axes: `x` and `y` are the ranges of the data, sizes are in pixels."""

    x: Range
    y: Range
    width: float = 560.0
    height: float = 200.0
    left: float = 44.0
    bottom: float = 36.0
    top: float = 10.0
    right: float = 12.0

    def at_x(self, value: float) -> float:
        """The pixel of a value on the x axis."""
        lo, hi = self.x
        return self.left + (value - lo) / ((hi - lo) or 1) * (self.width - self.left - self.right)

    def at_y(self, value: float) -> float:
        """The pixel of a value on the y axis."""
        lo, hi = self.y
        return (
            self.height
            - self.bottom
            - (value - lo) / ((hi - lo) or 1) * (self.height - self.bottom - self.top)
        )

    def draw(
        self,
        *marks: Markup,
        label: str,
        x_title: str,
        y_title: str,
        x_ticks: Sequence[tuple[float, str]] | None = None,
        role: str = "img",
    ) -> Markup:
        """The plot with its axes. `label` says in words what it shows; one with links is a `group`."""
        named = [(t, f"{t:g}") for t in ticks(*self.x)] if x_ticks is None else x_ticks
        parts = (*self._y_axis(y_title), *self._x_axis(named, x_title), *marks)
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", *parts, class_="plot", role=role, aria_label=label, viewBox=box)

    def _y_axis(self, title: str) -> Iterable[Markup]:
        for value in ticks(*self.y, 5):
            y, end = self.at_y(value), self.width - self.right
            yield tag("line", class_="grid", x1=self.left, x2=end, y1=y, y2=y)
            yield text(f"{value:g}", self.left - 6, y + 4, "end")
        middle = (self.at_y(self.y[0]) + self.at_y(self.y[1])) / 2
        yield text(title, 11.0, middle, "middle", turn=True)

    def _x_axis(self, named: Sequence[tuple[float, str]], title: str) -> Iterable[Markup]:
        base = self.height - self.bottom
        yield tag("line", class_="axis", x1=self.left, x2=self.width - self.right, y1=base, y2=base)
        for value, name in named:
            yield text(name, self.at_x(value), base + 14, "middle")
        yield text(title, (self.left + self.width - self.right) / 2, self.height - 5, "middle")

    def rule(self, y: float) -> Markup:
        """A line across at a value of the y axis."""
        at = self.at_y(y)
        return tag("line", class_="rule", x1=self.left, x2=self.width - self.right, y1=at, y2=at)

    def mark(self, x: float, words: str) -> Markup:
        """A line from top to bottom at a value of the x axis, with words above it."""
        at = self.at_x(x)
        upright = tag("line", class_="step", x1=at, x2=at, y1=self.top, y2=self.height - self.bottom)
        return upright + text(words, at, self.top - 5, "middle")

    def line(self, points: Iterable[tuple[float, float]], class_: str) -> Markup:
        """A line through points."""
        return tag("polyline", class_=class_, points=self._points(points))

    def band(self, points: Sequence[tuple[float, float, float]]) -> Markup:
        """The area between (x, low, high)."""
        edge = [(x, hi) for x, _, hi in points] + [(x, lo) for x, lo, _ in reversed(points)]
        return tag("polygon", class_="band", points=self._points(edge))

    def _points(self, points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{self.at_x(x):.1f},{self.at_y(y):.1f}" for x, y in points)

    def dot(self, x: float, y: float, title: str, class_: str = "dot") -> Markup:
        """A point with its words on hover."""
        return tag("circle", tag("title", title), class_=class_, cx=self.at_x(x), cy=self.at_y(y), r=3.5)

    def bar(self, x: float, y: float, width: float, title: str, class_: str, base: float = 0.0) -> Markup:
        """A bar around x from `base` to y, `width` in units of the x axis."""
        left, right = self.at_x(x - width / 2), self.at_x(x + width / 2)
        top, bottom = sorted((self.at_y(y), self.at_y(base)))
        size = {"width": right - left, "height": max(bottom - top, 1.0)}
        return tag("rect", tag("title", title), class_=class_, x=left, y=top, **size)


def text(words: str, x: float, y: float, anchor: str, turn: bool = False) -> Markup:
    """A word in a picture."""
    turned = f"rotate(-90 {x:g} {y:g})" if turn else None
    return tag("text", words, x=x, y=y, text_anchor=anchor, transform=turned)
