"""What is compiled: one component per YAML file under envs/components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cleanroom.arch import Arch


@dataclass(frozen=True)
class Source:
    """Where the source archive comes from. `pypi`: the sdist of `name`==`version`. `folder`: a tree of this repository."""

    kind: Literal["pypi", "folder"]
    name: str
    version: str
    path: str = ""


@dataclass(frozen=True)
class Variable:
    """An environment variable of the build; `{version}`, `{nvcc_threads}`, `{torch_arch_list}` are filled in."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Substitution:
    """A declared change to an upstream file; fails the build unless `match` occurs exactly `count` times."""

    file: str
    match: str
    replace: str
    count: int
    reason: str


@dataclass(frozen=True)
class Provided:
    """A file of our own placed into the source tree because the archive lacks it. `origin` is under scripts/in_container."""

    file: str
    origin: str
    reason: str


@dataclass(frozen=True)
class ArchitectureRule:
    """Where the component decides its architecture: at `build`, at `run-time`, or `nowhere` (host code only)."""

    decided: Literal["build", "run-time", "nowhere"]
    by: str
    default: tuple[Arch, ...] = ()
    environment: tuple[Variable, ...] = ()
    substitute: tuple[Substitution, ...] = ()


@dataclass(frozen=True)
class MissingModule:
    """A module the component imports that nothing in the environment provides."""

    module: str
    reason: str


@dataclass(frozen=True)
class Component:
    """One thing that is compiled from source, with its needs and the files its wheel must contain."""

    name: str
    title: str
    source: Source
    distribution: str
    modules: tuple[str, ...]
    architecture: ArchitectureRule
    system_build: tuple[str, ...]
    system_run: tuple[str, ...]
    python_build: tuple[str, ...]
    python_requirements: tuple[str, ...]
    requirements_file: str
    environment: tuple[Variable, ...]
    substitute: tuple[Substitution, ...]
    provides: tuple[Provided, ...]
    extensions: tuple[str, ...]
    contains: tuple[str, ...]
    missing_modules: tuple[MissingModule, ...]
    memory_mib: tuple[int, ...]
    minutes: int
