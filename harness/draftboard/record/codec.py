"""Records to JSON and back, strictly: an unknown key, a missing key or a wrong type is an error.

The types in `records` are the format; `schema()` prints them as JSON Schema.
"""

from __future__ import annotations

import dataclasses
import math
import types
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from draftboard.errors import UserError
from draftboard.record.records import Json

T = TypeVar("T")

LARGEST = 2**64 - 1
"""The largest whole number a file may hold, with either sign: nothing that is counted reaches it."""

_hints = cache(get_type_hints)


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """`list[int]` as (list, (int,)); the first is None for a plain type."""
    return get_origin(kind), get_args(kind)


def to_json(value: Any) -> Json:
    """Plain JSON data of a record. Raises ValueError for NaN and infinities: a file never holds them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a record cannot hold {value}; use None and a reason")
    return value


def from_json(kind: type[T], data: Json, where: str = "record") -> T:
    """The typed value that `data` spells. Raises UserError naming the place, what was expected and found;
    `1e999`, which reads as infinity, and whole numbers past `LARGEST` are refused as well."""
    return cast(T, _read(kind, data, where))


def _read(kind: Any, data: Json, where: str) -> Any:
    if kind is Any:
        return _read_any(data, where)
    origin, args = _parts(kind)
    if origin is None:
        reads = _read_dataclass if dataclasses.is_dataclass(kind) else _checked
        return reads(cast(type, kind), data, where)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return _read(next(a for a in args if a is not type(None)), data, where)
    if origin is Literal:
        return data if data in args else _refuse(where, f"one of {', '.join(map(str, args))}", data)
    if origin is tuple:
        return _read_tuple(args, data, where)
    return {k: _read(args[1], v, f"{where}.{k}") for k, v in _checked(dict, data, where).items()}


def _read_any(data: Json, where: str) -> Json:
    if isinstance(data, dict):
        return {key: _read_any(item, f"{where}.{key}") for key, item in data.items()}
    if isinstance(data, list):
        return [_read_any(item, where) for item in data]
    return _bounded(data, where)


def _read_dataclass(kind: type, data: Json, where: str) -> Any:
    _checked(dict, data, where)
    hints, fields = _hints(kind), dataclasses.fields(kind)
    extra = sorted(set(data) - {f.name for f in fields})
    if extra:
        _refuse(where, f"a {kind.__name__} without the unknown key {extra[0]!r}", sorted(data))
    missing = [f.name for f in fields if f.name not in data and not _has_default(f)]
    if missing:
        _refuse(where, f"a {kind.__name__} with the key {missing[0]!r}", sorted(data))
    return kind(**{name: _read(hints[name], item, f"{where}.{name}") for name, item in data.items()})


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _read_tuple(args: tuple[Any, ...], data: Json, where: str) -> tuple[Any, ...]:
    _checked(list, data, where)
    if len(args) == 2 and args[1] is Ellipsis:
        if args[0] in _PLAIN and set(map(type, data)) <= {args[0]} and _all_bounded(args[0], data):
            return tuple(data)  # what most of a record is: item by item, reading takes four times as long
        return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(data) != len(args):
        _refuse(where, f"{len(args)} items", data)
    pairs = enumerate(zip(args, data, strict=True))
    return tuple(_read(arg, item, f"{where}[{i}]") for i, (arg, item) in pairs)


def _checked(kind: type, data: Json, where: str) -> Any:
    if kind is float and type(data) is int:
        return _checked(float, _as_float(data, where), where)
    return _bounded(data, where) if type(data) is kind else _refuse(where, kind.__name__, data)


def _as_float(data: int, where: str) -> float:
    try:
        return float(data)
    except OverflowError:
        return cast(float, _refuse(where, "a finite number", data))


def _bounded(data: Json, where: str) -> Json:
    if type(data) is float and not math.isfinite(data):
        _refuse(where, "a finite number", data)
    if type(data) is int and not -LARGEST <= data <= LARGEST:
        _refuse(where, "a whole number of at most 64 bits", data)
    return data


def _all_bounded(kind: Any, data: list[Any]) -> bool:
    if kind is float:
        return all(map(math.isfinite, data))
    return kind is not int or (min(data, default=0) >= -LARGEST and max(data, default=0) <= LARGEST)


def _refuse(where: str, expected: str, found: Json) -> Any:
    try:
        shown = repr(found)
    except ValueError:  # a whole number of more digits than Python prints
        shown = "a number too long to print"
    raise UserError(f"{where}: expected {expected}, found {shown[:80]}{'…' if len(shown) > 80 else ''}")


def schema(kind: type) -> Json:
    """JSON Schema (draft 2020-12) of a record type, made from the type itself."""
    definitions: dict[str, Json] = {}
    top = _schema(kind, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions, **top}


_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def _schema(kind: Any, definitions: dict[str, Json]) -> Json:
    if kind is Any:
        return {}
    if dataclasses.is_dataclass(kind):
        return _schema_dataclass(cast(type, kind), definitions)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    if args[-1] is Ellipsis:
        return {"type": "array", "items": _schema(args[0], definitions)}
    return {"type": "array", "prefixItems": [_schema(arg, definitions) for arg in args], "items": False}


def _schema_dataclass(kind: type, definitions: dict[str, Json]) -> Json:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}
        hints, fields = _hints(kind), dataclasses.fields(kind)
        definitions[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").split("\n", maxsplit=1)[0],
            "properties": {f.name: _schema(hints[f.name], definitions) for f in fields},
            "required": [f.name for f in fields if not _has_default(f)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}
