"""Tiers of evidence: what can be tried of a target whose toolkit only an operator can bring, before it was brought.

Each tier says exactly what it shows, and none of them is a build of the target. They run in clean containers of this
machine's platform; where the target is for another one, in those of the target that is the same but for the platform.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from elftools.elf.dynamic import DynamicSection

from cleanroom import __version__
from cleanroom import fetch as fetching
from cleanroom import render as rendering
from cleanroom.binary.elf import UNDEFINED, reading, symbols
from cleanroom.binary.wheel import is_elf, members
from cleanroom.build import engine_used
from cleanroom.console import Console
from cleanroom.contexts import contexts
from cleanroom.engine import BuildRequest, Engine, LocalOutput, StepEvent, StepFailed, open_engine
from cleanroom.envs import Envs
from cleanroom.errors import CannotBuildHere, IntegrityError, UnknownName
from cleanroom.files import write_atomically
from cleanroom.lock import Lock
from cleanroom.project import Project
from cleanroom.record import EngineUsed, LockInfo, check_utc
from cleanroom.resources import cores_here, memory_here, needs_of, plan
from cleanroom.store import Store
from cleanroom.strict_json import dump_document, parse_document, read_document
from cleanroom.target import MACHINES, Target

SCHEMA = 2
FILE = "tiers.json"

Outcome = Literal["passed", "partly", "failed", "not run"]


@dataclass(frozen=True)
class Definition:
    """A tier: its name, what it shows when it passes, and what it does not show."""

    name: str
    shows: str
    shows_not: str


INPUTS = Definition(
    "inputs",
    "every artifact that the target's lock names was fetched for its platform and has the locked sha256",
    "that CANN fits, or that anything compiles",
)
STAGES = Definition(
    "stages",
    "BuildKit parses the Dockerfile, and the stages before CANN build: base, Python environment, build packages",
    "any stage that needs CANN",
)
EXTENSION = Definition(
    "extension",
    "DeepInfer's NPU extension compiles and links, by its own setup.py, against the headers and libraries of the torch-npu wheel",
    "that it loads: torch_npu needs CANN's libraries, and a device",
)
LOWERING = Definition(
    "lowering",
    "TileLang lowers kernels of TileKernels and DeepInfer to AscendC source for the target's architecture",
    "that bisheng accepts that source, or that it is right",
)
HOST_CODE = Definition(
    "host code",
    "g++ accepts the host code of FlashMLA's and DeepJIT's Ascend backends with torch-npu's ACL headers (-fsyntax-only)",
    "device code (.asc), bisheng's opinion, linking",
)
DEFINITIONS = (INPUTS, STAGES, EXTENSION, LOWERING, HOST_CODE)
NOT_REACHED = (
    "CANN installed: an operator has to bring it",
    "device code compiled: needs bisheng, which is in CANN",
    "FlashMLA's wheel for the NPU: needs bisheng and CANN's headers",
    "anything run on an NPU: there is none",
)
"""What no tier reaches, beside the parts that the target says are not built."""


@dataclass(frozen=True)
class Tier:
    """One tier and what came of it. `platform`: of the containers or artifacts; `figures`: what was counted or measured."""

    name: str
    shows: str
    shows_not: str
    outcome: Outcome
    platform: str
    seconds: float
    figures: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tiers:
    """All tiers of a target, `started` in UTC. `ran_on` is the target whose containers were used; never a verdict of the target."""

    tool_version: str
    target: str
    lock: LockInfo
    ran_on: str
    engine: EngineUsed
    started: str
    tiers: tuple[Tier, ...]
    not_reached: tuple[str, ...]
    schema: int = SCHEMA


def read_tiers(path: Path) -> Tiers:
    """Read strictly. Raises RecordError if the file is missing, damaged, or of another schema."""
    again = f"nox -s tiers-{path.parent.name}"
    text = read_document(path, "run of tiers", again)
    return parse_document(Tiers, text, name=path.name, schema=SCHEMA, again=again, check=lambda t: check_utc(t.started))


def labels() -> tuple[str, ...]:
    """One line for each tier, for the message of a target that cannot be built."""
    return tuple(f"{d.name}: {d.shows}" for d in DEFINITIONS)


def stand_in(envs: Envs, target: Target, machine: str) -> Target:
    """The target whose containers run here: this one, or the one that is the same but for the platform.

    Raises CannotBuildHere if this machine's platform has none, UnknownName for a target that needs nobody to bring a toolkit.
    """
    if target.toolkit.kind != "cann-installers":
        raise UnknownName(
            f"{target.name} has no tiers of evidence.",
            means="Everything it needs can be fetched.",
            next_step=f"nox -s build-{target.name}",
        )
    same = [t for t in envs.targets.values() if (t.vendor, t.toolkit.soc) == (target.vendor, target.toolkit.soc)]
    for each in (target, *same):
        if MACHINES[each.platform] == machine:
            return each
    raise CannotBuildHere(f"No target for {target.toolkit.soc} has containers for {machine}.", means="Tiers run without emulation.")


def run(
    project: Project, envs: Envs, target: Target, machine: str, store: Store, console: Console, *, only: tuple[str, ...] = ()
) -> Tiers:
    """Run the tiers (all, or those named in `only`) and write them to the output folder of the target.

    A tier that fails is a result and raises nothing. Raises what fetching and starting the engine raise.
    """
    if unknown := set(only) - {d.name for d in DEFINITIONS}:
        raise UnknownName(f"There is no tier {min(unknown)!r}.", means="Tiers are " + ", ".join(d.name for d in DEFINITIONS) + ".")
    started = datetime.now(UTC)
    here = stand_in(envs, target, machine)
    lock, lock_here = (envs.lock_of(project.root, each.name, each.bases[0]) for each in (target, here))
    out = project.out_dir / target.name
    done = (
        [_tier(INPUTS, target.platform, console, lambda: _inputs(lock, store, console, project))]
        if INPUTS.name in (only or [INPUTS.name])
        else []
    )
    fetching.fetch(lock_here, store, console, project=project)
    with open_engine(store, project, console) as engine, store.scratch("tiers") as scratch:
        places = contexts(lock_here, here.platform, store, console, bootstrapped=True)
        containers = _Containers(project, here, lock_here, engine, places, scratch, out, envs)
        for definition, work in containers.work().items():
            if not only or definition.name in only:
                done.append(_tier(definition, here.platform, console, work))
        info = engine.info
    tiers = tuple(next((t for t in done if t.name == d.name), _not_run(d, here.platform)) for d in DEFINITIONS)
    result = Tiers(
        tool_version=__version__,
        target=target.name,
        lock=LockInfo(lock.name, lock.content, lock.inputs),
        ran_on=here.name,
        engine=engine_used(info),
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        tiers=tiers,
        not_reached=(*NOT_REACHED, *(f"{n.part}: {n.reason}" for n in target.not_built)),
    )
    write_atomically(out / FILE, dump_document(result).encode())
    return result


@dataclass(frozen=True)
class Found:
    """What a tier's work came to."""

    outcome: Outcome
    figures: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


def _tier(definition: Definition, platform: str, console: Console, work: Callable[[], Found]) -> Tier:
    console.info(f"Tier {definition.name} ({platform})")
    began = time.monotonic()
    try:
        found = work()
    except StepFailed as failed:
        found = Found("failed", failures=tuple(failed.log.strip().splitlines()[-15:]) or (failed.error,))
    seconds = round(time.monotonic() - began, 1)
    console.info(f"Tier {definition.name}: {found.outcome} ({seconds:.0f} s)")
    return Tier(
        definition.name, definition.shows, definition.shows_not, found.outcome, platform, seconds, found.figures, found.failures
    )


def _not_run(definition: Definition, platform: str) -> Tier:
    return Tier(definition.name, definition.shows, definition.shows_not, "not run", platform, 0.0)


def _inputs(lock: Lock, store: Store, console: Console, project: Project) -> Found:
    summary = fetching.fetch(lock, store, console, project=project)
    failures = []
    for entry in lock.entries:
        try:
            store.check(entry)
        except IntegrityError as error:
            failures.append(error.what)
    figures = {"artifacts": str(summary.files), "bytes": str(summary.total_bytes)}
    return Found("failed" if failures else "passed", figures, tuple(failures))


@dataclass
class _Containers:
    """The tiers that run in containers."""

    project: Project
    target: Target
    lock: Lock
    engine: Engine
    contexts: Mapping[str, str]
    scratch: Path
    out: Path
    envs: Envs

    def work(self) -> dict[Definition, Callable[[], Found]]:
        return {STAGES: self.stages, HOST_CODE: self.host_code, LOWERING: self.lowering, EXTENSION: self.extension}

    def build(self, stage: str) -> Path:
        """Build one stage; where its files are afterwards."""
        folder = self.project.dockerfiles_dir / self.lock.name
        rendering.check(rendering.render(self.envs, self.target, self.envs.base(self.target.bases[0]), self.lock), folder)
        needs = needs_of(self.envs.component(s.component).memory_mib for s in self.target.components)
        resources = plan(cores_here(), memory_here(), needs)
        secret = self.scratch / "resources.json"
        write_atomically(secret, json.dumps({"jobs": resources.jobs, "nvcc_threads": resources.nvcc_threads}).encode())
        place = self.out / "tiers" / stage
        request = BuildRequest(
            dockerfile=folder / "Dockerfile",
            context=folder,
            target=stage,
            epoch=self.lock.epoch,
            contexts=self.contexts,
            secrets={"resources": secret},
            output=LocalOutput(place) if stage != "tier-environment" else None,
            platform=self.target.platform,
        )
        self.engine.build(request, _ignore)
        return place

    def stages(self) -> Found:
        self.build("tier-environment")
        return Found("passed", {"stages": "system, environment, tier-environment"})

    def host_code(self) -> Found:
        report = json.loads((self.build("tier-host-code") / "host-code.json").read_text())
        return _counted(report["files"], {"gcc": report["gcc"]}, lambda f: f"{f['component']} {f['file']}")

    def lowering(self) -> Found:
        report = json.loads((self.build("tier-lowering") / "lowering.json").read_text())
        return _counted(report["kernels"], {"architecture": report["npu_arch"]}, lambda k: str(k["kernel"]))

    def extension(self) -> Found:
        place = self.build("tier-extension")
        result = json.loads((place / "result.json").read_text())
        return extension_found(place / result["wheel"], result)


def _counted(rows: list[dict[str, Any]], figures: Mapping[str, str], name: Callable[[dict[str, Any]], str]) -> Found:
    failures = tuple(f"{name(row)}: {row['error']}" for row in rows if row["error"])
    outcome: Outcome = "passed" if not failures else "partly" if len(failures) < len(rows) else "failed"
    return Found(outcome, {**figures, "passed": str(len(rows) - len(failures)), "of": str(len(rows))}, failures)


def extension_found(wheel: Path, result: Mapping[str, Any]) -> Found:
    """Whether the extension in a wheel is one for the NPU: it needs libtorch_npu, and leaves ACL's functions to CANN."""
    libraries = [(name, data) for name, data in members(wheel) if is_elf(data) and "/_C." in name]
    if len(libraries) != 1:
        return Found("failed", failures=(f"{wheel.name} holds {len(libraries)} extensions, one was expected",))
    (name, data) = libraries[0]
    with reading(data) as elf:
        dynamic = elf.get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        needed = [str(vars(tag)["needed"]) for tag in dynamic.iter_tags("DT_NEEDED")]
        table, strings = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".dynstr")
        undefined = [s.name for s in symbols(table, strings) if s.section == UNDEFINED]
    acl = sorted(s for s in undefined if s.startswith("acl"))
    failures = []
    if "libtorch_npu.so" not in needed:
        failures.append(f"{name} does not need libtorch_npu.so: it was not built for the NPU")
    if cuda := [n for n in needed if "cuda" in n]:
        failures.append(f"{name} needs {', '.join(cuda)}: it was built for CUDA")
    if not acl:
        failures.append(f"{name} calls nothing of ACL: the NPU's sources are not in it")
    figures = {
        "wheel": str(result["wheel"]),
        "sha256": str(result["wheel_sha256"]),
        "translation units": str(result["units"]),
        "cpu seconds": str(result["cpu_seconds"]),
        "needs": " ".join(needed),
        "left to CANN": " ".join(acl),
    }
    return Found("failed" if failures else "passed", figures, tuple(failures))


def _ignore(_event: StepEvent) -> None:
    """The log of a step is in its failure."""
