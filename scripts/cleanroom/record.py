"""The record: what went into one build of a target and what came out, for programs to read.

Written as JSON, read back strictly: a missing, unknown or wrongly typed field is an error, never a guess. docs/record.md
describes each field. A record holds nothing that names the machine: paths are relative to its own folder, and host
name, home and working folder are taken out of quoted text.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from cleanroom.failures import Failure
from cleanroom.files import write_atomically
from cleanroom.prerequisites import Assessment
from cleanroom.resources import Resources
from cleanroom.strict_json import parse_document, read_document, schema_first
from cleanroom.target import NotBuilt

SCHEMA = 2

Level = Literal[
    "identical image",
    "identical artifacts",
    "identical after named normalisations",
    "identical device code",
    "same architectures",
    "builds",
    "incomplete",
    "fails",
]
"""Strongest first. One build alone reaches `builds` at most; `incomplete`: nothing failed, but not all was attempted."""

Status = Literal["built", "reused", "failed", "not attempted"]
"""`reused`: taken from an earlier build of the same inputs."""


@dataclass(frozen=True)
class File:
    """A file by its name in the record's own folder (or the lock's file name), its sha256 and its size in bytes."""

    file: str
    sha256: str
    size: int


@dataclass(frozen=True)
class TargetInfo:
    """What was built for, as envs/ said at the time."""

    name: str
    title: str
    status: str
    platform: str


@dataclass(frozen=True)
class LockInfo:
    """Which lock: its name, the checksum of its entries, and the checksum of the YAML that it was resolved from."""

    name: str
    content: str
    inputs: str


@dataclass(frozen=True)
class EngineUsed:
    """The container engine and its versions, empty where it does not say."""

    kind: str
    version: str
    buildkit: str
    buildx: str


@dataclass(frozen=True)
class TranslationUnits:
    """Compiler runs of one component: `total` is `compiled` now plus `reused` from an earlier, interrupted build."""

    total: int
    compiled: int
    reused: int


@dataclass(frozen=True)
class ComponentResult:
    """What became of one component. Zero seconds and bytes where it was not attempted; `log` is a relative path."""

    name: str
    title: str
    version: str
    source: File
    architectures_asked: tuple[str, ...]
    status: Status
    wheel: File | None
    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    translation_units: TranslationUnits
    changes: tuple[str, ...]
    failure: Failure | None
    log: str


@dataclass(frozen=True)
class Image:
    """The runtime image as a file: `manifest` is the digest of its per-platform manifest, `size` is bytes of the file."""

    file: str
    manifest: str
    size: int
    compression: str


@dataclass(frozen=True)
class Import:
    """One module imported in a fresh container of the runtime image, without a GPU. `error` is its last line."""

    component: str
    module: str
    ok: bool
    error: str


@dataclass(frozen=True)
class Missing:
    """A module that a component imports at some point and that nothing in the image provides."""

    component: str
    module: str
    reason: str


@dataclass(frozen=True)
class Record:
    """The whole result of one build. `started` is UTC, `seconds` the wall time; `toolchain` maps tools to versions."""

    tool_version: str
    target: TargetInfo
    base: str
    lock: LockInfo
    dockerfile_sha256: str
    engine: EngineUsed
    toolchain: Mapping[str, str]
    resources: Resources
    started: str
    seconds: float
    verdict: Level
    components: tuple[ComponentResult, ...]
    image: Image | None
    imports: tuple[Import, ...]
    prerequisites: tuple[Assessment, ...]
    deviations: tuple[str, ...]
    missing_modules: tuple[Missing, ...]
    not_built: tuple[NotBuilt, ...]
    not_verified: tuple[str, ...]
    schema: int = SCHEMA

    def component(self, name: str) -> ComponentResult:
        """The result of one component by name. Raises KeyError for one that the target has not."""
        for result in self.components:
            if result.name == name:
                return result
        raise KeyError(name)

    @property
    def complete(self) -> bool:
        """Whether everything that the target consists of was built, apart from what it says is not built."""
        return bool(self.components) and all(c.status in ("built", "reused") for c in self.components)

    @property
    def failed(self) -> tuple[ComponentResult, ...]:
        """The components that did not build, in order."""
        return tuple(c for c in self.components if c.status == "failed")


NOT_VERIFIED = (
    "correct results: nothing was computed and compared with a reference",
    "speed: nothing was measured",
    "running on a GPU: no kernel was started",
)
"""What a build never shows, whatever its verdict."""


def verdict_for(
    components: Iterable[ComponentResult],
    imports: Iterable[Import] = (),
    not_built: Sequence[NotBuilt] = (),
    *,
    sound: bool = True,
) -> Level:
    """`fails` if a component failed, a module does not import, or what was built is not `sound`, that is what was asked for.

    Otherwise `incomplete` if a component was left out or a part of the engine is no component, else `builds`.
    """
    statuses = {c.status for c in components}
    if "failed" in statuses or not all(i.ok for i in imports) or not sound:
        return "fails"
    return "incomplete" if "not attempted" in statuses or not statuses or not_built else "builds"


def dump_record(record: Record) -> str:
    """The JSON text of a record: fields in the order of their definition, mappings sorted, one value a line."""
    return json.dumps(_anonymous(schema_first(record)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_record(path: Path, record: Record) -> None:
    """Write a record whole or not at all. Raises RecordError for one that could not be read back."""
    text = dump_record(record)
    parse_record(text, name=path.name)
    write_atomically(path, text.encode())


def read_record(path: Path) -> Record:
    """Read a record. Raises RecordError if it is missing, damaged, or of another schema version."""
    return parse_record(read_document(path, "build", f"nox -s build-{path.parent.name}"), name=path.name)


def parse_record(text: str, *, name: str = "record.json") -> Record:
    """The record in a JSON text; `name` is for messages. Raises RecordError as read_record does."""
    return parse_document(Record, text, name=name, schema=SCHEMA, again="build the target again", check=_check)


def check_utc(started: str) -> None:
    """Raise ValueError for what is not the UTC time of a start."""
    try:
        datetime.strptime(started, "%Y-%m-%dT%H:%M:%SZ").astimezone()
    except ValueError:
        raise ValueError(f"started is {started!r}, not a UTC time such as 2026-01-31T09:00:00Z") from None


def _check(record: Record) -> None:
    """What types do not say."""
    check_utc(record.started)
    names = [c.name for c in record.components]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"the component {twice} is there twice")
    # Findings that fail a build are in the evidence and not here: only that makes a verdict another one than its parts come to.
    if record.verdict not in ("fails", own := verdict_for(record.components, record.imports, record.not_built)):
        raise ValueError(f"verdict is {record.verdict!r}, and what the record holds comes to {own!r}")
    paths = [("image.file", record.image.file)] if record.image else []
    hashes = [("dockerfile_sha256", record.dockerfile_sha256)]
    for c in record.components:
        where = f"components.{c.name}"
        paths += [(f"{where}.log", c.log), (f"{where}.source.file", c.source.file)]
        hashes.append((f"{where}.source.sha256", c.source.sha256))
        if c.wheel:
            paths.append((f"{where}.wheel.file", c.wheel.file))
            hashes.append((f"{where}.wheel.sha256", c.wheel.sha256))
        if c.status == "failed" and c.failure is None:
            raise ValueError(f"{where} failed, but its failure is null")
        if c.status in ("built", "reused") and c.wheel is None:
            raise ValueError(f"{where} is {c.status}, but its wheel is null")
    for where, path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{where} is {path!r}, not a path inside the record's folder")
    for where, value in hashes:
        if not re.fullmatch(r"[0-9a-f]{64}", value):
            raise ValueError(f"{where} is {value!r}, not a sha256")


_QUOTED = ("message", "excerpt", "error", "hint")
"""Fields that quote what a program printed, the only place where a host name could be."""


def _anonymous(value: Any, *, quoted: bool = False) -> Any:
    """Folders of this machine become names for them everywhere, its host name in quoted output."""
    if isinstance(value, dict):
        return {key: _anonymous(inner, quoted=quoted or key in _QUOTED) for key, inner in value.items()}
    if isinstance(value, list):
        return [_anonymous(inner, quoted=quoted) for inner in value]
    if not isinstance(value, str):
        return value
    for folder, name in ((Path.cwd(), "<here>"), (Path.home(), "<home>")):
        if folder != folder.parent:
            value = re.sub(re.escape(str(folder)) + r"(?![\w.-])", name, value)
    host = socket.gethostname()
    if quoted and host and host != "localhost":
        value = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "<host>", value)
    return value
