"""Drafter modules: found by name, checked, and their options bound. No method is named in here."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from draftboard.drafter import Card
from draftboard.errors import UserError, unknown
from draftboard.record.codec import from_json

Build = Callable[..., Any]


def list_drafters(package: str) -> list[str]:
    """Short names of the modules in a drafters package, sorted; private ones and sub-packages left out."""
    found = pkgutil.iter_modules(_import(package, "drafters package").__path__)
    return sorted(module.name for module in found if not module.ispkg and not module.name.startswith("_"))


def load(name: str, package: str) -> ModuleType:
    """The drafter module called `name`, checked for `CARD` and `build`.

    A plain name is looked up in `package`, a name ending in .py is a file, a dotted name is imported as it
    is, also from the working directory. Raises UserError for a module that is not there or is no drafter.
    """
    if name.endswith(".py"):
        module = _import_file(Path(name))
    elif "." in name:
        module = _import_here(name)
    elif name in (known := list_drafters(package)):
        module = importlib.import_module(f"{package}.{name}")
    else:
        raise unknown("drafter", name, known, package)
    if not isinstance(getattr(module, "CARD", None), Card):
        raise UserError(f"drafter {name!r} has no CARD; set CARD = draftboard.drafter.Card(...)")
    options_of(module)
    return module


def bind(module: ModuleType, options: Mapping[str, Any], function: str = "build") -> dict[str, Any]:
    """All options of a module's `build`: the given ones, checked against its annotations, and the defaults.

    Raises UserError for an option that does not exist, has another type, or is missing and has no default.
    """
    parameters = options_of(module, function)
    for name in options:
        if name not in parameters:
            raise unknown("option", name, parameters, short_name(module))
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in options]
    if missing:
        raise UserError(f"drafter {short_name(module)!r} needs the option {missing[0]!r}; set it")
    hints = get_type_hints(getattr(module, function))
    given = {n: from_json(hints.get(n, Any), v, f"{short_name(module)}.{n}") for n, v in options.items()}
    return {name: given.get(name, parameter.default) for name, parameter in parameters.items()}


def options_of(module: ModuleType, function: str = "build") -> dict[str, inspect.Parameter]:
    """The options of a module's `build`, by name. Raises UserError for a signature that hides them."""
    build: Build | None = getattr(module, function, None)
    wanted = f"{function}(target, sampler, *, option=default, ...)"
    if not callable(build):
        raise UserError(f"drafter {short_name(module)!r} has no {function}; define {wanted}")
    parameters = list(inspect.signature(build).parameters.values())
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(by_place) != 2 or any(p.kind is not p.KEYWORD_ONLY for p in parameters[2:]):
        found = f"{function}{inspect.signature(build)}"
        raise UserError(f"drafter {short_name(module)!r} has {found}; expected {wanted}")
    return {parameter.name: parameter for parameter in parameters[2:]}


def short_name(module: ModuleType) -> str:
    """The module's own name, without its package."""
    return module.__name__.rpartition(".")[2]


def _import_here(name: str) -> ModuleType:
    """Imports a dotted name; the working directory comes last, so that it cannot hide what is installed."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    return _import(name, "drafter")


def _import(name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"{kind} {name!r} not found: {error}; check the name and the path") from None


def _import_file(path: Path) -> ModuleType:
    """Imports a file under its stem, once; the stem must not be the name of another module."""
    if not path.is_file():
        raise UserError(f"drafter file {str(path)!r} not found; give the path of a .py file")
    origin, taken = str(path.resolve()), importlib.util.find_spec(path.stem)
    if taken is not None and taken.origin != origin:
        raise UserError(f"drafter file {str(path)!r} has the name of the module {path.stem!r}; rename it")
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, origin)
        assert spec is not None and spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[path.stem]
            raise
    return sys.modules[path.stem]
