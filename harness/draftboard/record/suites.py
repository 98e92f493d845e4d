"""Suites: what to measure, as data. A TOML file names target, tasks, drafters and settings; flags win.

```toml
title = "Everyday check"
target = "some/model"
plugins = "my_drafters"          # the package whose modules the arms name
baseline = "plain"               # the arm that every other is compared with
tasks = ["chat"]
max_new_tokens = 96

[[arms]]
drafter = "plain"

[[arms]]
drafter = "lookup"
k = [4, 8]                       # one arm for each
options = { min_n = 2 }
```
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from draftboard.errors import UserError, unknown
from draftboard.record.codec import from_json
from draftboard.record.records import Json

SUITES = Path(__file__).resolve().parents[2] / "suites"
"""The suites of the checkout that this code belongs to."""

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One drafter at one K."""

    drafter: str
    """A module of the suite's `plugins`, a dotted module name, or a path that ends in .py."""
    k: int | None = None
    """Drafts a round; None leaves it to the drafter, which may have no such option."""
    options: dict[str, Json] = field(default_factory=dict)
    """Other options of the drafter's `build`."""
    target: str | None = None
    """The only target that the arm fits, such as the one that its weights were trained for; a suite that is
    run on another one leaves it out."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Everything that decides a run but the machine. Raises UserError for a value that makes no sense."""

    name: str
    title: str
    target: str
    """Id of the embedded target, a folder, or a hub id."""
    plugins: str
    """The package whose modules the arms name."""
    baseline: str
    """The drafter of the arm that all others are compared with."""
    tasks: tuple[str, ...]
    arms: tuple[ArmSpec, ...]
    max_new_tokens: int
    revision: str | None = None
    limit: int | None = None
    """Prompts per task, chosen by `seed`; None for all."""
    repeats: int = 1
    warmup: int = 1
    """Uncounted replies an arm gives before its first counted one."""
    seed: int = 0
    dtype: Dtype = "auto"
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    thinking: bool | None = None
    """The thinking flag of the target's chat template, over the tasks' own; None leaves it to them."""
    indicative: bool = False
    """True when the suite is too short for its figures to be quoted."""
    telemetry_s: float = 15.0
    """Seconds that each arm runs under sampling after all timing; 0 for no such pass."""
    max_context: int | None = None
    """The most positions that the caches may hold; prompts that may need more are left out. None: as many as
    the prompts need."""
    verify_repeats: int = 9
    """Forwards timed for each number of rows of T_verify(m), after all replies; 0 for none."""

    def __post_init__(self) -> None:
        known = [arm.drafter for arm in self.arms]
        if self.baseline not in known:
            raise unknown("baseline", self.baseline, known, f"the arms of suite {self.name!r}")
        for name, least in _LEAST.items():
            self._require(name, f"at least {least}", lambda value, least=least: least <= value < math.inf)
        self._require("top_p", "above 0 and at most 1", lambda value: 0 < value <= 1)
        self._require("tasks", "at least one task, each once", _distinct)
        self._check_arms()

    def _check_arms(self) -> None:
        for arm in self.arms:
            if arm.k is not None and arm.k < 1:
                raise UserError(
                    f"suite {self.name!r}: k must be at least 1, found {arm.drafter} with k = {arm.k}"
                )
            if self.arms.count(arm) > 1:
                asked = "" if arm.k is None else f" with k = {arm.k}"
                raise UserError(f"suite {self.name!r}: each arm once, found {arm.drafter}{asked} more often")

    def _require(self, name: str, expected: str, holds: Any) -> None:
        value = getattr(self, name)
        if value is not None and not holds(value):
            raise UserError(f"suite {self.name!r}: {name} must be {expected}, found {value!r}")

    def override(self, **changes: Any) -> Suite:
        """The suite with the given fields replaced; None means that the flag was not given.

        A revision belongs to its target: another target without one loses the suite's, and with it go the
        arms that fit the suite's own target alone. Raises UserError for a field that does not exist or a
        value that makes no sense.
        """
        fields = {f.name for f in dataclasses.fields(self)}
        for name in changes:
            if name not in fields:
                raise unknown("setting", name, fields, "a suite")
        given = {name: value for name, value in changes.items() if value is not None}
        if given.get("target", self.target) != self.target:
            given.setdefault("revision", None)
            given["arms"] = tuple(arm for arm in self.arms if arm.target in (None, given["target"]))
        return dataclasses.replace(self, **given)

    def choose(self, drafters: Sequence[str] = (), ks: Sequence[int] = ()) -> Suite:
        """The suite with only these drafters and only these K; empty leaves the suite's own choice.

        The baseline always stays, and stays as it is. A drafter that the suite does not name gets default
        options, so that any module can be tried in any suite.
        """
        base = tuple(arm for arm in self.arms if arm.drafter == self.baseline)
        others = [arm for arm in self.arms if arm.drafter != self.baseline]
        if drafters:
            asked = [name for name in dict.fromkeys(drafters) if name != self.baseline]
            others = [arm for name in asked for arm in _arms_of(name, others)]
        if ks:
            spread = [dataclasses.replace(arm, k=k) for arm in others for k in dict.fromkeys(ks)]
            others = [arm for i, arm in enumerate(spread) if arm not in spread[:i]]
        return dataclasses.replace(self, arms=base + tuple(others))


_LEAST = {
    "max_new_tokens": 1,
    "limit": 1,
    "repeats": 1,
    "warmup": 0,
    "seed": 0,
    "temperature": 0,
    "top_k": 1,
    "telemetry_s": 0,
    "max_context": 1,
    "verify_repeats": 0,
}


def _arms_of(drafter: str, arms: Iterable[ArmSpec]) -> list[ArmSpec]:
    return [arm for arm in arms if arm.drafter == drafter] or [ArmSpec(drafter)]


def _distinct(items: Sequence[Any]) -> bool:
    return bool(items) and all(item not in items[:i] for i, item in enumerate(items))


def list_suites(folder: Path = SUITES) -> list[str]:
    """Names of the suites in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load_suite(name: str, folder: Path = SUITES) -> Suite:
    """The suite called `name` in `folder`, or the TOML file at that path.

    Raises UserError naming the file and the key for an unknown key, a wrong type or a senseless value.
    """
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise unknown("suite", name, list_suites(folder), str(folder)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"suite file {path} cannot be read: {error}") from None
    return _read(data, path)


def _read(data: dict[str, Any], path: Path) -> Suite:
    _check_keys(data, Suite, str(path), without={"name"})
    arms = data.get("arms", [])
    if not isinstance(arms, list) or not all(isinstance(arm, dict) for arm in arms):
        raise UserError(f"{path}: arms must be tables, each headed [[arms]]")
    expanded = [one for i, arm in enumerate(arms) for one in _expand(arm, f"{path}: arms[{i}]")]
    return from_json(Suite, {**data, "name": path.stem, "arms": expanded}, f"{path}: suite")


def _expand(arm: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """One table for each K that the table names."""
    _check_keys(arm, ArmSpec, where)
    ks = arm.get("k")
    if not isinstance(ks, list):
        return [arm]
    if not ks:
        raise UserError(f"{where}: k is an empty list; name at least one K or leave k out")
    return [{**arm, "k": k} for k in ks]


def _check_keys(data: dict[str, Any], kind: type, where: str, without: Iterable[str] = ()) -> None:
    known = {f.name for f in dataclasses.fields(kind)} - set(without)
    for key in data:
        if key not in known:
            raise unknown("key", key, known, where)
