"""What containers start from: one base per YAML file under envs/bases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Base:
    """`debian`: bootstrapped from locked packages. `image`: an official image by digest, from a registry."""

    name: str
    title: str
    kind: Literal["debian", "image"]
    suite: str
    suites: tuple[str, ...]
    python: str
    gcc: str
    glibc: str
    packages: tuple[str, ...]
    image: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    digest_source: str = ""
