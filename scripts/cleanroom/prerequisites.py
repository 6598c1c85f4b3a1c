"""Documented prerequisites against the environment that was really built in: met, deviates, or not verified."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from cleanroom.target import Prerequisite

OUTSIDE = "not part of the image"
ABSENT = "absent"


@dataclass(frozen=True)
class Assessment:
    """One documented need: what the document asks, what the environment has, and whether that meets it."""

    name: str
    documented: str
    source: str
    environment: str
    verdict: Literal["met", "deviates", "not verified"]
    note: str


def assess(prerequisites: Iterable[Prerequisite], environment: Mapping[str, str]) -> tuple[Assessment, ...]:
    """Compare each need with the environment, in the order given.

    `environment` maps the kinds of Prerequisite to what was found: "os", "gcc", "python", "toolkit",
    "distribution:<name>" (any spelling of the name). A missing key or empty value means that it was looked for and is
    not there.
    """
    found = {_key(kind): value for kind, value in environment.items()}
    return tuple(_one(need, found) for need in prerequisites)


def deviations(assessments: Iterable[Assessment]) -> tuple[str, ...]:
    """One sentence for each need that is not met as documented."""
    return tuple(
        f"{a.name}: documented {a.documented} ({a.source}), here {a.environment}" + (f"; {a.note}" if a.note else "")
        for a in assessments
        if a.verdict == "deviates"
    )


def _key(kind: str) -> str:
    prefix, colon, name = kind.partition(":")
    return f"{prefix}{colon}{canonicalize_name(name)}" if colon else kind


def _one(need: Prerequisite, found: Mapping[str, str]) -> Assessment:
    def verdict(value: str, word: Literal["met", "deviates", "not verified"], note: str = "") -> Assessment:
        return Assessment(need.name, need.requires, need.source, value, word, note)

    if need.kind == "outside":
        return verdict(OUTSIDE, "not verified")
    value = found.get(_key(need.kind), "").strip()
    if not value:
        return verdict(ABSENT, "deviates")
    if need.kind == "os":
        return verdict(value, "met" if value.split()[0].lower() == need.requires.lower() else "deviates")
    try:
        wanted = SpecifierSet(need.requires)
        version = Version(value)
    except (InvalidSpecifier, InvalidVersion):
        same = need.requires == value
        return verdict(value, "met" if same else "not verified", "" if same else "cannot be compared as versions")
    if wanted.contains(version, prereleases=True):
        return verdict(value, "met")
    return verdict(value, "deviates", _local_difference(need.requires, version))


def _local_difference(requires: str, version: Version) -> str:
    """A remark where the release is the documented one and only its build (`+cu132`) is another."""
    exact = re.fullmatch(r"==\s*([^=,*\s]+)", requires.strip())
    documented = Version(exact[1]) if exact else version
    if documented.public != version.public or documented.local == version.local:
        return ""
    asked, here = documented.local or "without a local version", version.local or "that names none"
    return f"same release; documented is the build {asked}, here the build {here}"
