"""Dataclasses to JSON and back, strictly: a missing, unknown or wrongly typed field is an error, never a guess."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from cleanroom.errors import RecordError


def to_json(value: Any) -> Any:
    """A dataclass, and all that it holds, as what `json` writes: fields in their order, mappings sorted."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    if isinstance(value, Mapping):
        return {key: to_json(value[key]) for key in sorted(value)}
    return _NO_TEXT.sub("\ufffd", value) if isinstance(value, str) else value


_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""What a log or a file name may hold, and no text does."""

T = TypeVar("T")


def parse_document(
    kind: type[T], text: str, *, name: str, schema: int, again: str, check: Callable[[T], None] = lambda _: None
) -> T:
    """A document with a `schema` field. `name` and `again`, how to make it anew, are for messages.

    `check` may raise ValueError for what types do not say. Raises RecordError if the text is damaged or of another schema.
    """
    try:
        data = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name} is not valid JSON: {error}.", means="It is damaged, or not a record.") from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema or isinstance(found, bool):
        raise RecordError(
            f"{name} has schema {found!r}, this version of Cleanroom reads {schema}.",
            means="It was written by another version, or is not a record.",
            next_step=f"{again}, or read it with the version that wrote it",
        )
    try:
        document = cast("T", from_json(kind, data, ""))
        check(document)
    except ValueError as error:
        raise RecordError(f"{name}: {error}.", means="It is damaged or was edited, so it is evidence of nothing.") from None
    return document


def read_document(path: Path, what: str, again: str) -> str:
    """The text of a document, for parse_document. Raises RecordError where the file is not there or is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(
            f"There is no {path.name} in {path.parent.name}/.",
            means=f"There was no {what} here, or its results were removed.",
            next_step=again,
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path.name} cannot be read: {error}.", means="It is damaged.", next_step=again) from None


def dump_document(document: Any) -> str:
    """The JSON text: `schema` first, then the fields in the order of their definition, one value a line."""
    return json.dumps(schema_first(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def schema_first(document: Any) -> dict[str, Any]:
    """As to_json, with `schema` before the other fields."""
    data = to_json(document)
    return {"schema": data.pop("schema"), **data}


def from_json(kind: Any, value: Any, where: str) -> Any:
    """`value` as an object of type `kind`, checked all the way down. Raises ValueError with the path of what is wrong."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _object(kind, value, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (inner,) = [a for a in arguments if a is not type(None)]
        return from_json(inner, value, where)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where} is {value!r}, not one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        rows = _typed(list, value, where)
        return tuple(from_json(arguments[0], row, f"{where}[{i}]") for i, row in enumerate(rows))
    if origin is Mapping:
        pairs = _typed(dict, value, where)
        return {key: from_json(arguments[1], pairs[key], f"{where}.{key}") for key in sorted(pairs)}
    if kind is float:
        try:
            number = value if isinstance(value, float) else float(_typed(int, value, where))
        except OverflowError:
            raise ValueError(f"{where} is too large a number") from None
        if not math.isfinite(number):
            raise ValueError(f"{where} is {value!r}, not a finite number")
        return number
    return _typed(kind, value, where)


def _object(kind: type[Any], value: Any, where: str) -> Any:
    data = _typed(dict, value, where or "the record")
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    prefix = f"{where}." if where else ""
    if missing := [name for name in names if name not in data]:
        raise ValueError(f"{prefix}{missing[0]} is missing")
    if unknown := sorted(set(data) - set(names)):
        raise ValueError(f"{prefix}{unknown[0]} is unknown")
    return kind(**{name: from_json(hints[name], data[name], f"{prefix}{name}") for name in names})


def _typed(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is {value!r}, not {_KINDS.get(kind, kind.__name__)}")
    if kind is str and _NO_TEXT.search(str(value)):
        raise ValueError(f"{where} holds characters that are no text")
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in found if names.count(name) > 1)!r} is there twice")
    return found


_KINDS: Mapping[type, str] = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}
