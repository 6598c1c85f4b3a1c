"""What is built for: one target per YAML file under envs/targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cleanroom.arch import Arch

Status = Literal["supported", "experimental", "fixture"]


@dataclass(frozen=True)
class Toolkit:
    """The device compiler: which kind, which release ("13.3"), and the exact packages it is assembled from."""

    kind: Literal["cuda-wheels"]
    version: str
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """One component of a target. Empty `architectures` means the target's own; otherwise `reason` says why not."""

    component: str
    architectures: tuple[Arch, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Override:
    """A requirement that replaces what a dependency asks for, never without a reason."""

    requirement: str
    instead_of: str
    reason: str
    source: str


@dataclass(frozen=True)
class Prerequisite:
    """One documented need. `kind` says where the environment's value comes from:

    `os`, `gcc`, `python`, `toolkit`, `distribution:<name>`, or `outside` (not part of the image).
    `requires` is a version specifier, or literal text for `os` and `outside`.
    """

    name: str
    requires: str
    kind: str
    source: str


@dataclass(frozen=True)
class Target:
    """A platform and architecture to build for, with everything that is pinned for it."""

    name: str
    title: str
    status: Status
    status_source: str
    platform: str
    vendor: Literal["nvidia", "ascend"]
    architectures: tuple[Arch, ...]
    bases: tuple[str, ...]
    toolkit: Toolkit
    components: tuple[Selection, ...]
    overrides: tuple[Override, ...]
    prerequisites: tuple[Prerequisite, ...]

    def architectures_of(self, component: str) -> tuple[Arch, ...]:
        """The architectures asked of one component: its own list, else the target's."""
        for selection in self.components:
            if selection.component == component and selection.architectures:
                return selection.architectures
        return self.architectures
