"""The result of `verify`: two clean builds of the same lock, compared, with the level that they reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from cleanroom.files import write_atomically
from cleanroom.record import EngineUsed, File, Image, Level, LockInfo, TargetInfo, check_utc
from cleanroom.strict_json import dump_document, parse_document, read_document

SCHEMA = 1

LEVELS: tuple[Level, ...] = get_args(Level)
"""Strongest first."""


def weakest(levels: Iterable[Level]) -> Level:
    """The level that a whole reaches whose parts reach these; a whole without parts is `incomplete`."""
    return max(levels, key=LEVELS.index, default="incomplete")


def reaches(level: Level, wanted: Level) -> bool:
    """Whether `level` is at least as strong as `wanted`."""
    return LEVELS.index(level) <= LEVELS.index(wanted)


@dataclass(frozen=True)
class Difference:
    """One place where two builds differ.

    `file` is the path inside the wheel or the image's layers, empty for the archive itself; `part` an ELF section,
    "sm_100a kernel <mangled name>", "sm_100a PTX" or a field of the archive, empty for the whole file; `level` the
    strongest level that is still true with this difference.
    """

    component: str
    file: str
    part: str
    level: Level
    cause: str
    remedy: str
    detail: tuple[str, ...]


@dataclass(frozen=True)
class ComponentVerification:
    """What the comparison of one component's two wheels came to. A wheel is None where that build made none."""

    name: str
    level: Level
    first: File | None
    second: File | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Condition:
    """Something about the second build that was different on purpose."""

    name: str
    first: str
    second: str


@dataclass(frozen=True)
class Variation:
    """A further clean build with one condition changed: the level it reaches, and the places where it differs."""

    condition: str
    value: str
    level: Level
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """Two clean builds compared. `started` is UTC, `seconds` the wall time of the second build and the comparison.

    `variations` are the further builds of `--vary`, empty without it.
    """

    tool_version: str
    target: TargetInfo
    base: str
    lock: LockInfo
    engine: EngineUsed
    started: str
    seconds: float
    conditions: tuple[Condition, ...]
    level: Level
    components: tuple[ComponentVerification, ...]
    image_first: Image | None
    image_second: Image | None
    image_level: Level
    image_differences: tuple[Difference, ...]
    variations: tuple[Variation, ...] = ()
    schema: int = SCHEMA


def write_verification(path: Path, verification: Verification) -> None:
    """Write a verification whole or not at all."""
    write_atomically(path, dump_document(verification).encode())


def read_verification(path: Path) -> Verification:
    """Read a verification. Raises RecordError if it is missing, damaged, or of another schema version."""
    again = f"nox -s verify-{path.parent.parent.name}"
    text = read_document(path, "verification", again)
    return parse_document(Verification, text, name=path.name, schema=SCHEMA, again=again, check=_check)


def _check(verification: Verification) -> None:
    """What types do not say: a level follows from what was compared, and nobody declares it."""
    check_utc(verification.started)
    for each in verification.components:
        same = each.first and each.second and each.first.sha256 == each.second.sha256
        if reaches(each.level, "identical artifacts") and not same:
            raise ValueError(f"components.{each.name} is {each.level!r}, and its two wheels are not the same bytes")
    first, second = verification.image_first, verification.image_second
    image = first and second and first.manifest == second.manifest
    if verification.image_level == "identical image" and not image:
        raise ValueError("image_level is 'identical image', and there are no two images with one manifest")
    wheels = weakest(c.level for c in verification.components)
    strongest: Level = "identical image" if image and reaches(wheels, "identical artifacts") else wheels
    allowed = weakest((strongest, *(v.level for v in verification.variations)))
    if not reaches(allowed, verification.level):
        raise ValueError(f"level is {verification.level!r}, and what was compared comes to {allowed!r}")
