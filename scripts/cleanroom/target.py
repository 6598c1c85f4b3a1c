"""What is built for: one target per YAML file under envs/targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cleanroom.arch import Arch
from cleanroom.component import Component, MissingModule, Substitution, Variable

Status = Literal["supported", "experimental", "fixture"]
Outcome = Literal["compiles", "partly", "refuses"]
"""`refuses`: nothing that would run comes out; refused by a tool, or compiled to stubs that only trap."""

ToolkitKind = Literal["cann-installers", "cuda-wheels"]
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""What the kernel of a platform calls its machine."""


@dataclass(frozen=True)
class Toolkit:
    """The device compiler: which kind, which release ("13.3"), and what it is made of.

    `packages`: pins of wheels, or names of installers in envs/cann.yaml. `headers`: pins of wheels of which kernels that
    are compiled at run time need the headers, and no build does. The rest is for toolkits that bring their own needs:
    the chip (`soc`) and its architecture, Debian packages, Python requirements, and the variables of the image
    (`environment`) and of builds only (`build_environment`).
    """

    kind: ToolkitKind
    version: str
    packages: tuple[str, ...]
    headers: tuple[str, ...] = ()
    soc: str = ""
    npu_arch: str = ""
    system: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    environment: tuple[Variable, ...] = ()
    build_environment: tuple[Variable, ...] = ()


@dataclass(frozen=True)
class Selection:
    """One component of a target. Empty `architectures` means the target's own; otherwise `reason` says why not.

    `substitute` are changes to the component's source that only this target needs. What follows replaces the component's
    own where it is given, again for the `reason`; `environment` replaces variables one by one.
    """

    component: str
    architectures: tuple[Arch, ...] = ()
    reason: str = ""
    substitute: tuple[Substitution, ...] = ()
    requirements_file: str = ""
    environment: tuple[Variable, ...] = ()
    extensions: tuple[str, ...] = ()
    missing_modules: tuple[MissingModule, ...] = ()

    def of(self, component: Component) -> Component:
        """The component as this target has it."""
        mine = {v.name: v for v in self.environment}
        return replace(
            component,
            substitute=(*component.substitute, *self.substitute),
            requirements_file=self.requirements_file or component.requirements_file,
            environment=tuple({**{v.name: v for v in component.environment}, **mine}.values()),
            extensions=self.extensions or component.extensions,
            missing_modules=self.missing_modules or component.missing_modules,
        )


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
class Expectation:
    """What a build of one component should come to, and who says so ("measured here" is a source too).

    `compiles` and `of` count translation units: always for `partly`, where a few compile all the same for `refuses`; a stub does
    not count as compiled. `stubs` counts kernels of the wheel, where every unit compiles and one comes out.
    """

    component: str
    outcome: Outcome
    compiles: int
    of: int
    reason: str
    source: str
    stubs: int | None = None

    def __str__(self) -> str:
        return f"{self.outcome}: {self.compiles} of {self.of}" if self.of else self.outcome


@dataclass(frozen=True)
class Accepted:
    """A finding that does not cost the target its verdict, and why. `kind` is a Finding's, `component` its component."""

    component: str
    kind: str
    reason: str


@dataclass(frozen=True)
class NotBuilt:
    """A part of upstream's engine that is no component of this target, and why. No build of it is more than incomplete."""

    part: str
    reason: str

    def __str__(self) -> str:
        return f"{self.part} ({self.reason})"


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
    expected: tuple[Expectation, ...] = ()
    accepts: tuple[Accepted, ...] = ()
    not_built: tuple[NotBuilt, ...] = ()
    examined: tuple[str, ...] = ()
    """Components that are not built for this target, but whose source a tier of evidence reads."""

    @property
    def architecture_names(self) -> tuple[str, ...]:
        """The architectures as the vendor's tools write them: sm_100a, dav-3510."""
        return tuple(a.sm for a in self.architectures) or ((self.toolkit.npu_arch,) if self.toolkit.npu_arch else ())

    def selection(self, component: str) -> Selection | None:
        """How the target has one component, None where it has it not."""
        return next((s for s in self.components if s.component == component), None)

    def expectation(self, component: str) -> Expectation | None:
        """What is expected of one component, None where nothing is said."""
        return next((e for e in self.expected if e.component == component), None)

    def acceptance(self, component: str, kind: str) -> Accepted | None:
        """Why a finding of this kind is accepted of this component, None where it is not."""
        return next((a for a in self.accepts if (a.component, a.kind) == (component, kind)), None)

    def architectures_of(self, component: str) -> tuple[Arch, ...]:
        """The architectures asked of one component: its own list, else the target's."""
        for selection in self.components:
            if selection.component == component and selection.architectures:
                return selection.architectures
        return self.architectures

    def names_asked_of(self, component: str) -> tuple[str, ...]:
        """As architectures_of, in the vendor's words and for every vendor: sm_100a+PTX, dav-3510."""
        return tuple(map(str, self.architectures_of(component))) or self.architecture_names
