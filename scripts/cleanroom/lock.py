"""The lock: every input of a target on one base, by name, version, file, size and sha256.

A lock never says where a file is served; the machine's own apt and pip configuration does. Text form: YAML, one
entry a line, sorted, so that a diff reads like a changelog. Two checksums guard it: `inputs` is over the YAML it was
resolved from (a stale lock), `content` is over its own entries (a lock edited by hand).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from cleanroom.errors import LockError
from cleanroom.files import write_atomically

SCHEMA = 1

Kind = Literal["debian", "pypi", "image", "folder", "operator"]
Group = Literal["base", "build", "toolkit", "python", "headers", "source", "engine"]
"""base: the root file system; build: Debian packages only the build stages need; toolkit: CUDA wheels,
unpacked into their own tree, or CANN installers; python: wheels of the environment; headers: CUDA wheels of which the
image takes the headers only; source: archives that are compiled; engine: the embedded engine."""

COMPILED_WITH: tuple[Group, ...] = ("base", "build", "toolkit", "python")
"""What compilers, and what they compile against, come from."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORDS = ("yes", "no", "y", "n", "true", "false", "null", "on", "off")
"""What YAML takes for something else than text."""
_FIELDS = ("name", "version", "file", "size", "sha256")


@dataclass(frozen=True, order=True)
class Entry:
    """One locked file. `file`: the pool path for Debian, the bare file name otherwise. `size` in bytes."""

    group: Group
    kind: Kind
    name: str
    version: str
    file: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.file.rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.file_name})"


@dataclass(frozen=True)
class Lock:
    """All inputs of one target on one base. `epoch` is SOURCE_DATE_EPOCH: seconds since 1970, the time of resolving."""

    target: str
    base: str
    inputs: str
    epoch: int
    notes: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        return f"{self.target}-{self.base}" if self.base else self.target

    @property
    def content(self) -> str:
        """Checksum of everything a build depends on; records and expected digests name it."""
        body = [self.target, self.base, self.inputs, self.epoch, *self.notes]
        rows = [[e.group, e.kind, e.name, e.version, e.file, e.size, e.sha256] for e in sorted(self.entries)]
        return "sha256:" + hashlib.sha256(json.dumps([body, rows]).encode()).hexdigest()

    def group(self, *groups: Group) -> tuple[Entry, ...]:
        """The entries of these groups, sorted."""
        return tuple(sorted(e for e in self.entries if e.group in groups))

    def version_of(self, name: str) -> str | None:
        """The locked version of a distribution or package by name, None where the lock has none."""
        return next((e.version for e in self.entries if e.name == name), None)


def lock_path(root: Path, name: str) -> Path:
    """Where the lock called `name` (`sm100-debian13`, `engine`) is kept."""
    return root / "lockfiles" / f"{name}.lock"


def dump_lock(lock: Lock) -> str:
    """The text of a lock: stable, sorted, one entry a line."""
    lines = [
        "# Written by `nox -s lock`; do not edit by hand. Names, versions and hashes only: apt and pip say from where.",
        f"schema: {SCHEMA}",
        f"target: {lock.target}",
        f"base: {json.dumps(lock.base)}",
        f"inputs: {lock.inputs}",
        f"content: {lock.content}",
        f"source_date_epoch: {lock.epoch}",
        "notes:" if lock.notes else "notes: []",
        *(f"- {json.dumps(note)}" for note in lock.notes),
        "entries:" if lock.entries else "entries: {}",
    ]
    for group in get_args(Group):
        entries = lock.group(group)
        if not entries:
            continue
        lines.append(f"  {group}:")
        for e in entries:
            values: dict[str, str | int] = {k: getattr(e, k) for k in ("kind", *_FIELDS)}
            lines.append("  - {" + ", ".join(f"{k}: {_scalar(v)}" for k, v in values.items()) + "}")
    return "\n".join(lines) + "\n"


def _scalar(value: str | int) -> str:
    """Plain where YAML reads it back as the same text, quoted otherwise."""
    if isinstance(value, int):
        return str(value)
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./+-]*|[0-9a-f]{64}", value)
    return value if plain and not value.isdigit() and value.lower() not in _WORDS else json.dumps(value)


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock whole or not at all."""
    write_atomically(path, dump_lock(lock).encode())


_KEYS = frozenset({"schema", "target", "base", "inputs", "content", "source_date_epoch", "notes", "entries"})


def read_lock(path: Path, *, inputs: str | None = None) -> Lock:
    """Read and check a lock.

    Raises LockError if it is missing, unreadable, edited by hand, lacks a hash, or (given `inputs`, the checksum of
    the YAML as it is now) is stale.
    """
    name = path.stem
    again = f"nox -s lock -- {name.split('-')[0]}"
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise LockError(f"There is no lock {path.name}.", means="Nothing is pinned for it yet.", next_step=again) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path.name} cannot be read: {error}.", means="It is damaged, or not a lock.", next_step=again) from None
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise LockError(f"{path.name} is not valid YAML: {error}", means="It was damaged or edited.", next_step=again) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise LockError(
            f"{path.name} has schema {found!r}, this version reads {SCHEMA}.",
            means="It was written by another version of Cleanroom, or is not a lock.",
            next_step=again,
        )
    lock = Lock(
        target=str(data.get("target", "")),
        base=str(data.get("base", "")),
        inputs=str(data.get("inputs", "")),
        epoch=_integer(path, data, "source_date_epoch", again),
        notes=tuple(str(n) for n in _a(list, path, data, "notes", again)),
        entries=tuple(_entries(path, _a(dict, path, data, "entries", again), again)),
    )
    if lock.content != data.get("content"):
        raise LockError(
            f"{path.name} was changed after it was written: its content is {lock.content}, it says {data.get('content')}.",
            means="A lock edited by hand is not what the resolver chose, so it is not used.",
            next_step=f"git checkout lockfiles/{path.name}, or: {again}",
        )
    strange = sorted(map(str, {*data} - _KEYS)) + sorted(map(str, {*(data.get("entries") or ())} - {*get_args(Group)}))
    if strange or lock.name != path.stem:
        raise LockError(
            f"{path.name} holds {strange[0]!r}, which is unknown." if strange else f"{path.name} holds the lock {lock.name}.",
            means="It was edited, or copied over another one.",
            next_step=f"git checkout lockfiles/{path.name}, or: {again}",
        )
    if inputs is not None and lock.inputs != inputs:
        raise LockError(
            f"{path.name} is stale: it was resolved from {lock.inputs}, the files under envs/ now give {inputs}.",
            means="What the target, a component or the base asks for changed after locking.",
            next_step=again,
        )
    return lock


def _integer(path: Path, data: Mapping[str, Any], key: str, again: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise LockError(f"{path.name}: {key} is {value!r}, not a whole number.", means="The lock is damaged.", next_step=again)
    return value


def _a(kind: type[Any], path: Path, data: Mapping[str, Any], key: str, again: str) -> Any:
    """A list or mapping of the lock; empty where the key is absent."""
    value = data.get(key) or kind()
    if not isinstance(value, kind):
        raise LockError(f"{path.name}: {key} is {value!r}, not a {kind.__name__}.", means="The lock is damaged.", next_step=again)
    return value


def _entries(path: Path, data: Mapping[str, Any], again: str) -> Iterable[Entry]:
    seen: dict[tuple[str, str], str] = {}
    for group in get_args(Group):
        for row in _a(list, path, data, group, again):
            if not isinstance(row, dict):
                raise LockError(f"{path.name}: {group} holds {row!r}, no entry.", means="It is damaged.", next_step=again)
            missing = [k for k in ("kind", *_FIELDS) if row.get(k) in (None, "")]
            label = row.get("name") or row.get("file") or "an entry"
            if missing or not _SHA256.fullmatch(str(row.get("sha256", ""))):
                raise LockError(
                    f"{path.name}: {label} lacks {', '.join(missing) or 'a valid sha256'}.",
                    means="A file without its hash cannot be checked, so it is never fetched.",
                    next_step=again,
                )
            if row["kind"] not in get_args(Kind):
                known = ", ".join(get_args(Kind))
                raise LockError(f"{path.name}: {label} has kind {row['kind']!r}.", means=f"Known: {known}.", next_step=again)
            if not isinstance(row["size"], int):
                raise LockError(f"{path.name}: {label} has size {row['size']!r}, not a number of bytes.", next_step=again)
            text = {key: str(row[key]) for key in ("name", "version", "file", "sha256")}
            entry = Entry(group=group, kind=row["kind"], size=row["size"], **text)
            if ".." in entry.file.split("/") or entry.file.startswith("/"):
                outside = f"{path.name}: {label} has the file path {entry.file!r}, which leaves its folder."
                raise LockError(outside, next_step=again)
            other = seen.setdefault((group, entry.file_name), entry.sha256)
            if other != entry.sha256:
                raise LockError(f"{path.name}: {entry.file_name} is listed twice with two hashes.", next_step=again)
            yield entry
