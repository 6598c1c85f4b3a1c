"""Evidence: what was really compiled, read from the wheels and held against what was asked for.

Three things are compared for every component: asked (the target), compiled (what nvcc was told, from the build log),
found (machine code in the libraries that is more than a stub). None of them implies the next: a variable that is not
understood drops an architecture, a device link loses one, a guard in the source leaves a kernel that only traps.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from cleanroom.arch import parse_arch
from cleanroom.arch_table import Table, release
from cleanroom.binary import aicore, cubin, ptx
from cleanroom.binary.cubin import Kernel
from cleanroom.binary.fatbin import images
from cleanroom.binary.wheel import is_elf, members
from cleanroom.component import Component
from cleanroom.errors import IntegrityError, RecordError
from cleanroom.files import write_atomically
from cleanroom.jit import JitReport
from cleanroom.strict_json import dump_document, parse_document, read_document
from cleanroom.survey import BUILD_LOG, Survey

SCHEMA = 2

Severity = Literal["fails", "degrades", "note"]
"""`fails`: the component is not what the target asks for. `degrades`: part of it is missing. `note`: to be known."""

RUNS, IN_PART, BY_PTX, NOT = "runs", "runs in part", "runs by PTX", "does not run"
AT_RUN_TIME, HOST_ONLY = "compiled at run time", "no device code"
BY_LOG, NOT_TOLD = "compiled for it, by the log", "not known"
"""Values of `runs_on`. In part: the code loads, but some of its kernels are stubs there. Of code for an NPU nobody here can
tell that it runs: the log says for which it was compiled, or nothing does.
"""

AI_CORE = "AI Core"
"""What device code for Ascend counts as found for: such a file does not name its NPU architecture, the compiler's call does."""

OLDEST_OF_INTEREST = "8.9"
NAMED = 5
"""Kernels named in one message; the evidence file has all of them."""


@dataclass(frozen=True)
class Finding:
    """One thing that a person should know about a component, and how much it matters."""

    component: str
    kind: str
    severity: Severity
    message: str


@dataclass(frozen=True)
class LibraryEvidence:
    """One file with device code. `architectures`: those with at least one kernel that is no stub; `ptx`: compute_100a...

    `kernels` counts different names; `stubs` are mangled names by architecture.
    """

    file: str
    architectures: tuple[str, ...]
    ptx: tuple[str, ...]
    kernels: int
    stubs: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class ComponentEvidence:
    """What one wheel holds. `runs_on` maps each compute capability of interest to one of the values above; where it was
    asked for an NPU, that architecture instead.
    """

    name: str
    asked: tuple[str, ...]
    compiled: tuple[str, ...]
    found: tuple[str, ...]
    libraries: tuple[LibraryEvidence, ...]
    runs_on: Mapping[str, str]


@dataclass(frozen=True)
class Evidence:
    """Of all components of a target, with everything that is worth telling.

    `jit`: kernels that are compiled at run time, compiled as the image would; None where they could not be tried, or there
    are none. `surveys`: of components that did not build, what became of every translation unit.
    """

    components: tuple[ComponentEvidence, ...]
    findings: tuple[Finding, ...]
    jit: JitReport | None = None
    surveys: tuple[Survey, ...] = ()
    schema: int = SCHEMA


def gather(asked: Mapping[str, tuple[str, ...]], folder: Path, components: Mapping[str, Component], table: Table) -> Evidence:
    """Read what was built and reconcile it. `asked`: architectures by component, as the vendor writes them.

    `folder` holds one folder for each component with its wheel and, from the build, units.jsonl and its log. A wheel that
    is missing or cannot be read is a finding, so that it hides nothing about the others. Raises RecordError for a damaged
    units.jsonl.
    """
    evidence, findings = [], []
    for name, architectures in asked.items():
        component = components[name]
        calls = _npu_calls(folder / name / BUILD_LOG)
        compiled = _ordered((*_compiled(folder / name / "units.jsonl"), *filter(None, calls)))
        libraries: list[_Library] = []
        try:
            libraries = list(_libraries(_only_wheel(folder / name)))
        except IntegrityError as error:
            findings.append(Finding(name, "unreadable", "fails", error.what))
        else:
            findings += _reconcile(component, architectures, compiled, libraries, table)
            findings += _reconcile_npu(name, set(filter(is_npu, architectures)), calls, libraries)
        at_run_time = component.architecture.decided == "run-time"
        made = _component(name, architectures, compiled, libraries, table, at_run_time=at_run_time)
        runs_on = {npu: _npu_outcome(libraries, npu, calls, at_run_time=at_run_time) for npu in filter(is_npu, architectures)}
        evidence.append(replace(made, runs_on=runs_on) if runs_on else made)
    return Evidence(tuple(evidence), tuple(findings))


def of_wheel(wheel: Path, table: Table) -> ComponentEvidence:
    """What any wheel holds, a third party's included. Raises IntegrityError if it cannot be read."""
    libraries = list(_libraries(wheel))
    return _component(_distribution(wheel), (), (), libraries, table)


def dump_evidence(evidence: Evidence) -> str:
    """The JSON text of the evidence."""
    return dump_document(evidence)


def write_evidence(path: Path, evidence: Evidence) -> None:
    """Write whole or not at all."""
    write_atomically(path, dump_evidence(evidence).encode())


def read_evidence(path: Path) -> Evidence:
    """Read strictly. Raises RecordError if the file is missing, damaged, or of another schema."""
    again = f"nox -s build-{path.parent.name}"
    return parse_document(Evidence, read_document(path, "build", again), name=path.name, schema=SCHEMA, again=again)


# --- what is in a wheel ----------------------------------------------------------------------------------------------

_Body = Literal["real", "empty", "stub"]


@dataclass(frozen=True)
class _Library:
    """One file with device code: what each kernel is in each image. PTX goes by its name compute_100, Ascend's by AI_CORE."""

    file: str
    bodies: Mapping[str, Mapping[str, _Body]]

    def stubs(self, architecture: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, body in self.bodies.get(architecture, {}).items() if body == "stub"))

    def kernels(self, architecture: str) -> frozenset[str]:
        return frozenset(self.bodies.get(architecture, {}))

    @property
    def working(self) -> tuple[str, ...]:
        """Machine code and PTX with at least one kernel that is no stub."""
        return _ordered(a for a, bodies in self.bodies.items() if any(body != "stub" for body in bodies.values()))

    @property
    def found(self) -> tuple[str, ...]:
        return tuple(a for a in self.working if not _is_ptx(a))

    @property
    def ptx(self) -> tuple[str, ...]:
        return tuple(a for a in self.working if _is_ptx(a))

    @property
    def evidence(self) -> LibraryEvidence:
        names = {name for bodies in self.bodies.values() for name in bodies}
        stubs = {a: self.stubs(a) for a in _ordered(self.bodies) if self.stubs(a)}
        return LibraryEvidence(self.file, self.found, self.ptx, len(names), stubs)


def is_npu(architecture: str) -> bool:
    """Whether an architecture is one of Ascend's."""
    return architecture.startswith("dav-")


def _is_ptx(architecture: str) -> bool:
    return architecture.startswith("compute_")


def _libraries(wheel: Path) -> Iterator[_Library]:
    for file, data in members(wheel):
        if is_elf(data):
            try:
                library = _library(file, data)
            except IntegrityError as error:
                raise IntegrityError(f"{wheel.name}: {file}: {error.what}", means=error.means, next_step=error.next_step) from None
            if library.bodies:
                yield library


def _library(file: str, data: bytes) -> _Library:
    bodies: dict[str, dict[str, _Body]] = {}
    for image in images(data):
        known = bodies.setdefault(image.arch.sm if image.kind == "cubin" else image.arch.compute, {})
        for kernel in cubin.kernels(image.data) if image.kind == "cubin" else ptx.kernels(image.data):
            # The same kernel may come from several source files, and any of them may be the one that is loaded.
            known[kernel.name] = max(known.get(kernel.name, "stub"), _body(kernel), key=("stub", "empty", "real").index)
    for kernels in aicore.images(data):
        bodies.setdefault(AI_CORE, {}).update(dict.fromkeys(kernels, "real"))
    return _Library(file, _with_guarded(bodies))


def _body(kernel: Kernel) -> _Body:
    return "stub" if kernel.stub else "empty" if kernel.empty else "real"


def _with_guarded(bodies: Mapping[str, Mapping[str, _Body]]) -> dict[str, dict[str, _Body]]:
    """A kernel that returns at once on one architecture and works on another is a stub on the first: guarded in silence."""
    working = {name for kernels in bodies.values() for name, body in kernels.items() if body == "real"}
    return {
        architecture: {n: "stub" if body == "empty" and n in working else body for n, body in kernels.items()}
        for architecture, kernels in bodies.items()
    }


def _component(
    name: str,
    asked: tuple[str, ...],
    compiled: tuple[str, ...],
    libraries: list[_Library],
    table: Table,
    *,
    at_run_time: bool = False,
) -> ComponentEvidence:
    return ComponentEvidence(
        name=name,
        asked=asked,
        compiled=compiled,
        found=_ordered(a for library in libraries for a in library.found),
        libraries=tuple(library.evidence for library in libraries),
        runs_on={c: _outcome(libraries, c, table, at_run_time=at_run_time) for c in capabilities_of_interest(table)},
    )


def _npu_outcome(libraries: list[_Library], npu: str, calls: Collection[str], *, at_run_time: bool) -> str:
    if not libraries:
        return AT_RUN_TIME if at_run_time else HOST_ONLY
    if not any(AI_CORE in library.working for library in libraries):
        return NOT
    return BY_LOG if set(calls) == {npu} else NOT_TOLD


def capabilities_of_interest(table: Table) -> tuple[str, ...]:
    """Those that somebody may want to run on: from 8.9 on, under their present name, in order."""
    present = (name for name, capability in table.capabilities.items() if not capability.renamed_to)
    return tuple(sorted((name for name in present if release(name) >= release(OLDEST_OF_INTEREST)), key=release))


def _outcome(libraries: list[_Library], capability: str, table: Table, *, at_run_time: bool) -> str:
    """The worst of all libraries that hold device code: a component runs where all of it runs."""
    if not libraries:
        return AT_RUN_TIME if at_run_time else HOST_ONLY
    outcomes = {_library_outcome(library, capability, table) for library in libraries}
    return next(outcome for outcome in (NOT, BY_PTX, IN_PART, RUNS) if outcome in outcomes)


def _library_outcome(library: _Library, capability: str, table: Table) -> str:
    whole = _support([a for a in library.working if not library.stubs(a)], capability, table)
    support = _support(library.working, capability, table)
    return support if whole == support else IN_PART


def _support(architectures: Iterable[str], capability: str, table: Table) -> str:
    return table.support([parse_arch(a, where="device code") for a in architectures if a != AI_CORE], capability)


def _only_wheel(folder: Path) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        what = "no wheel" if not wheels else f"{len(wheels)} wheels"
        raise IntegrityError(f"There is {what} of {folder.name}, so nothing is known of its device code.")
    return wheels[0]


def _distribution(wheel: Path) -> str:
    try:
        return str(parse_wheel_filename(wheel.name)[0])
    except InvalidWheelFilename:
        return wheel.stem


def _compiled(log: Path) -> tuple[str, ...]:
    """What nvcc was asked for over all translation units, as the launcher of compilers wrote it down."""
    found: set[str] = set()
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
        for line in lines:
            unit = json.loads(line)
            if unit["compiler"] == "nvcc" and unit["exit_status"] == 0:
                found.update(map(str, unit["architectures"]))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{log.parent.name}/{log.name} cannot be read: {error}.",
            means="It is damaged, so what was compiled is not known.",
            next_step="build the target again",
        ) from None
    return _ordered(found)


_ASC_CALL = re.compile(r"(?:^|[\s/])bisheng\s(?=.*\s-c\s)(?=.*\.asc(?:\s|$)).*$", re.MULTILINE)
_NPU_ARCH = re.compile(r"--npu-arch[= ](\S+)")


def _npu_calls(log: Path) -> Counter[str]:
    """How many calls of bisheng for AscendC source the log of a build shows, by the architecture that they name, "" for none.

    It is not called through the launcher, and host code that it compiles too names no architecture.
    """
    try:
        calls = _ASC_CALL.findall(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return Counter()
    return Counter(named[1] if (named := _NPU_ARCH.search(call)) else "" for call in calls)


def _ordered(architectures: Iterable[str]) -> tuple[str, ...]:
    """Each once, by kind and number: sm_90a before sm_100a."""
    return tuple(sorted(set(architectures), key=lambda a: (a.split("_")[0], [int(n) for n in re.findall(r"\d+", a)], a)))


# --- asked, compiled, found ------------------------------------------------------------------------------------------


def _reconcile(
    component: Component, asked: tuple[str, ...], compiled: tuple[str, ...], libraries: list[_Library], table: Table
) -> list[Finding]:
    name = component.name
    npus = set(filter(is_npu, asked))
    parsed = [parse_arch(a, where=name) for a in asked if a not in npus]
    wanted = {a.sm for a in parsed if a.cubin} | {a.compute for a in parsed if a.ptx} | ({AI_CORE} if npus else set())
    findings = [f for library in libraries for f in _findings_of(name, library, wanted, table)]
    if component.architecture.decided != "build":
        if libraries:
            files = _listed(library.file for library in libraries)
            message = f"{files} holds device code, although the component is said to compile none when it is built"
            findings.append(Finding(name, "unexpected device code", "degrades", message))
        return findings
    if not libraries:
        message = f"asked for {_listed(asked)}, and there is no device code in the wheel at all"
        return [Finding(name, "missing architecture", "fails", message)]
    for library in libraries:
        for architecture in _ordered(wanted - set(library.working)):
            kind = "missing PTX" if _is_ptx(architecture) else "missing architecture"
            findings.append(Finding(name, kind, "fails", _why_missing(architecture, compiled, library)))
        for architecture in _ordered(set(library.working) - wanted):
            message = f"{library.file} holds {architecture}, which was not asked for"
            findings.append(Finding(name, "surplus architecture", "note", message))
        findings += _missing_kernels(name, library, wanted & set(library.working))
    return findings


def _reconcile_npu(name: str, asked: set[str], calls: Counter[str], libraries: Iterable[_Library]) -> Iterator[Finding]:
    """AI Core code does not say which architecture it is for, so the compiler's calls have to."""
    if not asked or not any(AI_CORE in library.working for library in libraries):
        return
    wanted, named = _listed(sorted(asked)), set(calls) - {""}
    if named - asked:
        text = f"asked for {wanted}, and bisheng was called for {_listed(sorted(named))}"
        yield Finding(name, "missing architecture", "fails", text)
    elif named == asked and not calls[""]:
        text = f"AI Core code does not name its architecture; all {calls.total()} calls of bisheng for AscendC source name {wanted}"
        yield Finding(name, "NPU architecture by the log", "note", text)
    else:
        text = f"asked for {wanted}; {calls['']} of {calls.total()} calls of bisheng for AscendC source name no architecture"
        yield Finding(name, "NPU architecture not told", "degrades", text)


def _findings_of(name: str, library: _Library, wanted: Collection[str], table: Table) -> Iterator[Finding]:
    for architecture in _ordered(library.bodies):
        if stubs := library.stubs(architecture):
            total = len(library.kernels(architecture))
            message = f"{library.file}: {len(stubs)} of {total} {architecture} kernels are stubs: {_named(stubs)}"
            yield Finding(name, "stub kernels", "degrades" if architecture in wanted else "note", message)
    for architecture in library.ptx:
        where = [c for c in capabilities_of_interest(table) if _support([architecture], c, table) != NOT]
        message = f"{library.file} holds PTX {architecture}, which a driver can compile for {_listed(where)}"
        yield Finding(name, "PTX", "note", message)


def _why_missing(architecture: str, compiled: Collection[str], library: _Library) -> str:
    start = f"{library.file}: asked for {architecture}"
    if library.stubs(architecture):
        return f"{start}, and all {len(library.stubs(architecture))} kernels compiled for it are stubs"
    there = f"the library holds {_listed(_ordered(library.bodies))}"
    if architecture in compiled:
        return f"{start} and nvcc compiled for it, but {there}: it was lost when the device code was linked"
    return (
        f"{start}, its compiler was never told to compile for it, and {there}"
        if architecture != AI_CORE
        else f"{start}, but {there}"
    )


def _missing_kernels(name: str, library: _Library, architectures: set[str]) -> Iterator[Finding]:
    """Kernels that one of the asked architectures has and another has not."""
    everywhere = {kernel for a in architectures for kernel in library.kernels(a)}
    for architecture in _ordered(architectures):
        if missing := sorted(everywhere - library.kernels(architecture)):
            others = _listed(_ordered(a for a in architectures if library.kernels(a) & set(missing)))
            message = f"{library.file}: {len(missing)} kernels of {others} are not there for {architecture}: {_named(missing)}"
            yield Finding(name, "missing kernels", "degrades", message)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _named(mangled: Collection[str]) -> str:
    return some([readable(name) for name in sorted(mangled)], NAMED)


def some(names: Sequence[str], shown: int, what: str = "") -> str:
    """The first of many names, and how many more there are of `what`."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more{what}" if more > 0 else "")


def readable(mangled: str) -> str:
    """The qualified name in a mangled one, without arguments: a person looks for it in the source."""
    text = mangled.removeprefix("_ZN").removeprefix("_Z")
    parts = []
    while text != mangled and (length := re.match(r"[1-9][0-9]*", text)):
        start, end = length.end(), length.end() + int(length[0])
        parts.append(text[start:end])
        text = text[end:]
    return "::".join(parts) or mangled
