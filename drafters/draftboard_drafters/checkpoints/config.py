"""config.json, read strictly: what decides a result is never guessed and never read two ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from draftboard.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Config:
    """A checkpoint's configuration; `where` names it in messages. A key whose value is null is absent."""

    data: Mapping[str, Any]
    where: str

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def need(self, name: str, kind: type[T]) -> T:
        """The value of `name`. Raises UserError when it is absent or of another type."""
        if name not in self:
            raise UserError(
                f"{self.where}: config.json has no {name!r}, which decides the result and is never guessed;"
                " take it from whoever trained the drafter and add it"
            )
        return self._checked(name, kind)

    def get(self, name: str, kind: type[T], default: T) -> T:
        """The value of `name`, or `default` when it is absent. Raises UserError for another type."""
        return self._checked(name, kind) if name in self else default

    def maybe(self, name: str, kind: type[T]) -> T | None:
        """The value of `name`, or None when it is absent. Raises UserError for another type."""
        return self._checked(name, kind) if name in self else None

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; `default` where it is absent and there is one."""
        value = self.need(name, int) if default is None else self.get(name, int, default)
        if value < least:
            raise self.wrong(name, f"a whole number from {least}", value)
        return value

    def positive(self, name: str) -> float:
        """A finite number above 0 that must be there."""
        value = self.need(name, float)
        if not 0 < value < math.inf:
            raise self.wrong(name, "a finite number above 0", value)
        return value

    def ids(self, name: str, *, least: int) -> tuple[int, ...]:
        """A list of distinct whole numbers of at least `least` that must be there."""
        values = self.need(name, list)
        if not values or any(type(value) is not int for value in values):
            raise self.wrong(name, "a list of whole numbers", values)
        if min(values) < least or len(set(values)) < len(values):
            raise self.wrong(name, f"distinct whole numbers from {least}", values)
        return tuple(values)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        values = self.get(name, list, [])
        if any(type(value) is not str for value in values):
            raise self.wrong(name, "a list of words", values)
        return tuple(values)

    def first(self, name: str) -> Config:
        """The first of the configurations listed under `name`; empty when there is none."""
        values = self.get(name, list, []) or [{}]
        if not isinstance(values[0], dict):
            raise self.wrong(name, "a list of objects", values)
        return Config(values[0], f"{self.where}: {name}")

    def section(self, name: str) -> Config:
        """The configuration nested under `name`; empty when absent."""
        return Config(self.get(name, dict, {}), f"{self.where}: {name}")

    def merged(self, name: str) -> Config:
        """This configuration with the keys nested under `name` beside its own.

        Raises UserError where the two places state different values.
        """
        nested = self.section(name)
        for key in nested.data:
            if key in self and key in nested and self.data[key] != nested.data[key]:
                raise UserError(
                    f"{self.where}: config.json says {key} is {self.data[key]!r} at its top level and"
                    f" {nested.data[key]!r} in {name}; correct one of them"
                )
        stated = {key: value for key, value in nested.data.items() if value is not None}
        return Config({**self.data, **stated}, self.where)

    def wrong(self, name: str, expected: str, found: Any) -> UserError:
        """The error for a value that cannot be used."""
        return UserError(f"{self.where}: config.json has {name} = {found!r}; expected {expected}")

    def refuse(self, what: str, reason: str) -> UserError:
        """The error for a checkpoint that was recognised and cannot be run."""
        return UserError(f"{self.where}: recognised as {what}, which cannot be run here: {reason}")

    def _checked(self, name: str, kind: type[T]) -> T:
        value = self.data[name]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.wrong(name, kind.__name__, value)
        checked: T = value
        return checked
