"""Build a target: from lock to wheels, image and record, in clean containers without a network."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cleanroom import __version__, image_archive
from cleanroom import fetch as fetching
from cleanroom import render as rendering
from cleanroom.base import Base
from cleanroom.check import preflight
from cleanroom.component import Component
from cleanroom.conflicts import refuse_known_conflicts
from cleanroom.console import Console, StepView
from cleanroom.contexts import contexts
from cleanroom.embedded import Surroundings
from cleanroom.engine import (
    BuildRequest,
    BuildResult,
    Compression,
    Engine,
    EngineInfo,
    LocalOutput,
    OciOutput,
    StepFailed,
    open_engine,
    stage_of,
)
from cleanroom.envs import Envs
from cleanroom.errors import BuildFailed, CannotBuildHere, IntegrityError, Interrupted, RecordError, UnknownName
from cleanroom.evidence import Evidence, write_evidence
from cleanroom.examine import examine
from cleanroom.failures import Failure, classify
from cleanroom.files import sha256_of, write_atomically
from cleanroom.gpu_checks import read_gpu_checks
from cleanroom.hygiene import read_rules
from cleanroom.jit import JitReport, probes, read_report
from cleanroom.lock import Lock
from cleanroom.npu_kernels import read_npu_kernels
from cleanroom.prerequisites import assess, deviations
from cleanroom.project import Project
from cleanroom.record import (
    NOT_VERIFIED,
    ComponentResult,
    EngineUsed,
    File,
    Image,
    Import,
    LockInfo,
    Missing,
    Record,
    Status,
    TargetInfo,
    TranslationUnits,
    read_record,
    verdict_for,
    write_record,
)
from cleanroom.resources import Resources, cores_here, memory_here, needs_of, plan
from cleanroom.room import UNPACKED_ALREADY, UNPACKED_BESIDE, make_room
from cleanroom.sensitivity import load_sensitivity
from cleanroom.step_events import Teller
from cleanroom.store import Store
from cleanroom.survey import BUILD_LOG, read_survey
from cleanroom.target import Target

IMAGE_FILE = "image.oci.tar"
IMAGE_COMPRESSION: Compression = "zstd"
TOLD = 15
"""Lines of a failed step's log that its message holds; the log is kept whole."""
WANTED = re.compile(r"(?:has requirement|requires) ([A-Za-z0-9][A-Za-z0-9._-]*)")
"""What `pip check` names as required."""


@dataclass(frozen=True)
class Options:
    """What the person who types `build` may choose. No components means all of them.

    `jit`: also compile what is compiled at run time, in the image, as evidence; a second build needs it no second time.
    """

    components: tuple[str, ...] = ()
    keep_going: bool = False
    jobs: int | None = None
    image: bool = True
    jit: bool = True


@dataclass(frozen=True)
class Job:
    """One target on one base, loaded, checked and ready to build."""

    project: Project
    envs: Envs
    target: Target
    base: Base
    lock: Lock
    rendered: rendering.Rendered
    folder: Path
    out: Path
    warnings: tuple[str, ...]
    licence_accepted: bool = False
    """Whether a person agreed to the licence of a toolkit whose quiet installation agrees in their name."""

    def component(self, name: str) -> Component:
        """A component as the target has it."""
        component, selection = self.envs.component(name), self.target.selection(name)
        return selection.of(component) if selection else component

    @property
    def probed_with(self) -> tuple[str, ...]:
        """The components that must be there before kernels compiled at run time can be tried; none where there are none."""
        return rendering.probed_with(self.envs, self.target)

    def surveyed(self, component: str) -> bool:
        """Whether there is a stage that tries every unit of a component that does not build."""
        return rendering.surveyed(self.component(component), self.target)

    def survey_of(self, component: str) -> Path:
        """Where such a stage's results are put."""
        return self.out / "components" / component / "survey"


@dataclass
class Outcome:
    """What became of one component. `result` is what the container reported about the wheel it made."""

    name: str
    status: Status = "not attempted"
    result: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    seconds: float = 0.0


def prepare(project: Project, envs: Envs, target_name: str, base_name: str | None) -> Job:
    """Load, check and pin down what will be built; nothing is fetched and nothing is started."""
    target = envs.target(target_name)
    base = envs.base_of(target, base_name)
    lock = envs.lock_of(project.root, target.name, base.name)
    warnings = preflight(envs, target, base, torch_version=lock.version_of("torch"))
    refuse_known_conflicts(lock)
    read_facts(envs)
    rendered = rendering.render(envs, target, base, lock)
    folder = project.dockerfiles_dir / rendered.name
    rendering.check(rendered, folder)
    name = target.name if base.name == target.bases[0] else rendered.name
    return Job(project, envs, target, base, lock, rendered, folder, project.out_dir / name, warnings)


def read_facts(envs: Envs) -> None:
    """Read what is only needed after a build: a mistake in it would cost the record. Raises EnvsError."""
    facts = Project().envs_dir  # about systems and upstream, whatever project the target is of
    read_rules(facts)
    read_gpu_checks(facts)
    load_sensitivity(envs)


def build(job: Job, options: Options, store: Store, console: Console) -> Record:
    """Build what `options` selects and write the record. Raises what a user can cause; a failed component does not raise.

    Finished components are kept by the engine, and finished translation units by the resume cache, so the same command
    goes on where a failure or Ctrl-C stopped it.
    """
    selected = select(job, options)
    for warning in job.warnings:
        console.warn(warning)
    if (record := up_to_date(job, options, selected)) is not None:
        console.info(f"{job.out.name} is up to date: nothing it is made of has changed since it was built.")
        return record
    resources = resources_for(job, selected, options.jobs)
    console.info(resources.rule)
    fetching.fetch(job.lock, store, console, project=job.project)
    factor = UNPACKED_ALREADY if (store.root / "engine").is_dir() else UNPACKED_BESIDE
    make_room(job.lock, factor, store, job.project, console)
    with open_engine(store, job.project, console) as engine:
        places = contexts(job.lock, job.target.platform, store, console, bootstrapped=job.base.kind == "debian")
        return build_on(engine, places, job, options, resources, store, console)


def clean_build(
    job: Job, options: Options, resources: Resources, surroundings: Surroundings, store: Store, console: Console
) -> Record:
    """Build with nothing shared but the lock and the store's fetched inputs: base, layers and objects are all made anew."""
    fetching.fetch(job.lock, store, console, project=job.project)
    make_room(job.lock, UNPACKED_BESIDE, store, job.project, console)
    with (
        open_engine(store, job.project, console, fresh=True, surroundings=surroundings) as engine,
        store.scratch("fresh-contexts") as fresh,
    ):
        bootstrapped = job.base.kind == "debian"
        places = contexts(job.lock, job.target.platform, store, console, bootstrapped=bootstrapped, fresh_in=fresh)
        return build_on(engine, places, job, options, resources, store, console)


def build_on(
    engine: Engine,
    places: Mapping[str, str],
    job: Job,
    options: Options,
    resources: Resources,
    store: Store,
    console: Console,
) -> Record:
    """Run every step on an engine, with these contexts, and write the record."""
    started, clock = datetime.now(UTC), time.monotonic()
    refuse_without_registry(job, engine)
    outcomes = {selection.component: Outcome(selection.component) for selection in job.target.components}
    with working(engine, places, job, resources, store, console) as work:
        made = work.run(select(job, options), outcomes, options)
    console.info("Examining what was built")
    wheels = {o.name: job.out / "components" / o.name / o.result["wheel"] for o in outcomes.values() if o.result}
    jit = run_time_kernels(job) if made.jit else None
    surveys = tuple(read_survey(job.survey_of(name), name) for name in made.surveyed)
    image = job.out / made.image.file if made.image else None
    evidence = examine(job.envs, job.target, job.base, job.lock, job.out, wheels, store, image=image, jit=jit, surveys=surveys)
    write_evidence(job.out / "evidence.json", evidence)
    record = to_record(job, engine.info, resources, outcomes, evidence, made.image, made.probe, started, time.monotonic() - clock)
    write_record(job.out / "record.json", record)
    return record


def run_time_kernels(job: Job) -> JitReport:
    """What became of the kernels that are compiled at run time, judged. Raises RecordError for what cannot be read."""
    folder = job.out / "jit"
    if npu_arch := job.target.toolkit.npu_arch:
        return read_npu_kernels(folder, npu_arch, job.envs.components.values())
    return read_report(folder, job.envs.jit, job.target)


@contextmanager
def working(
    engine: Engine, places: Mapping[str, str], job: Job, resources: Resources, store: Store, console: Console
) -> Iterator[Work]:
    """What runs the steps of a job, told how much of the machine it may use."""
    with store.scratch("resources") as folder:
        told = {
            "resources": {"jobs": resources.jobs, "nvcc_threads": resources.nvcc_threads},
            "cann-eula": {"accepted": job.licence_accepted},
        }
        for name, values in told.items():
            write_atomically(folder / f"{name}.json", json.dumps(values).encode())
        yield Work(job, engine, places, {name: folder / f"{name}.json" for name in told}, console)


def resources_for(job: Job, selected: Sequence[str], jobs: int | None) -> Resources:
    """How much of this machine the build of these components uses."""
    return plan(cores_here(), memory_here(), memory_needs(job, selected), jobs)


def memory_needs(job: Job, selected: Iterable[str]) -> tuple[int, ...]:
    """What the compilers of these components take side by side, in MiB."""
    return needs_of(job.envs.component(name).memory_mib for name in selected)


def select(job: Job, options: Options) -> tuple[str, ...]:
    """The components to build, in the target's order."""
    names = tuple(selection.component for selection in job.target.components)
    for name in options.components:
        if name not in names:
            raise UnknownName(
                f"{job.target.name} has no component {name!r}.",
                means=f"It has {', '.join(names)}.",
                next_step=f"nox -s build-{job.target.name} -- --component {names[0]}",
            )
    return tuple(name for name in names if not options.components or name in options.components)


def is_whole(job: Job, options: Options) -> bool:
    """Whether every component is built, and so an image can be."""
    return options.image and len(select(job, options)) == len(job.target.components)


def up_to_date(job: Job, options: Options, selected: Sequence[str]) -> Record | None:
    """The record of an earlier build of exactly these inputs whose files are all still what it says, else None."""
    try:
        record = read_record(job.out / "record.json")
    except RecordError:
        return None
    if f"sha256:{record.dockerfile_sha256}" != job.rendered.digest or record.lock.content != job.lock.content:
        return None
    if record.not_built != job.target.not_built:
        return None
    whole = is_whole(job, options)
    if whole and (record.verdict == "fails" or not record.complete or record.image is None):
        return None
    files = [record.component(name).wheel for name in selected]
    if any(file is None or not intact(job.out / file.file, file.size, file.sha256) for file in files):
        return None
    if whole and record.image is not None and manifest_digest(job.out / record.image.file) != record.image.manifest:
        return None
    return record


def intact(path: Path, size: int, sha256: str) -> bool:
    return path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256


def manifest_digest(image: Path) -> str:
    """The manifest digest that an OCI archive's index names, or an empty string where there is no whole archive."""
    try:
        with image_archive.opened(image) as archive:
            return archive.digest
    except IntegrityError:
        return ""


def refuse_without_registry(job: Job, engine: Engine) -> None:
    if job.base.kind == "image" and engine.info.kind == "embedded":
        raise CannotBuildHere(
            f"Base {job.base.name} starts from {job.base.image}@{job.base.digests[job.target.platform]}.",
            means="That image comes from an image registry, and the embedded engine has no network at all.",
            next_step=f"use a Docker that can pull it, or: nox -s build-{job.target.name} (on {job.target.bases[0]})",
        )


@dataclass(frozen=True)
class Made:
    """What the steps after the components came to. `jit`: kernels compiled at run time were tried; `surveyed`: components."""

    image: Image | None
    probe: Mapping[str, Any]
    jit: bool
    surveyed: tuple[str, ...]


@dataclass
class Work:
    """The running part of a build: steps on the engine, shown while they run, their logs kept."""

    job: Job
    engine: Engine
    contexts: Mapping[str, str]
    secrets: Mapping[str, Path]
    console: Console

    def kernels_of(self, stage: str) -> Mapping[int, str]:
        """What the numbers stand for by which a stage reports on kernels compiled at run time: of all, or of one component."""
        wanted = probes([c for c in self.job.envs.jit if stage in ("jit", f"kernels-{c.component}")], self.job.target)
        return {p.number: f"{p.component} {p.kernel.name} for {p.architecture}" for p in wanted}

    def run(self, selected: Sequence[str], outcomes: Mapping[str, Outcome], options: Options) -> Made:
        """Environment first, then the components side by side, then what can be made of those that are there."""
        with self.console.steps(f"Building {self.job.rendered.name}", 1 + len(selected)) as view:
            self.must(view, "environment", "build-environment", None)
            self.components(view, selected, outcomes, keep_going=options.keep_going or self.job.target.status != "supported")
            there = {name for name in selected if outcomes[name].status in ("built", "reused")}
            failed = tuple(name for name in selected if outcomes[name].status == "failed" and self.job.surveyed(name))
            needed = self.job.probed_with
            compiles = options.jit and bool(needed) and there.issuperset(needed)
            whole = is_whole(self.job, options) and len(there) == len(selected)
            view.expect(1 + len(selected) + len(failed) + compiles + 2 * whole)
            for name in failed:
                self.must(view, f"survey of {name}", f"survey-{name}", LocalOutput(self.job.survey_of(name)))
            if whole:
                self.must(view, "probe", "probe", LocalOutput(self.job.out / "probe"))
            if compiles:
                self.must(view, "jit", "jit", LocalOutput(self.job.out / "jit"))
            if not whole:
                return Made(None, {}, compiles, failed)
            probe = json.loads((self.job.out / "probe" / "probe.json").read_text())
            done = self.must(view, "image", "runtime", OciOutput(self.job.out / IMAGE_FILE, IMAGE_COMPRESSION))
            size = (self.job.out / IMAGE_FILE).stat().st_size
            return Made(Image(IMAGE_FILE, done.digest, size, IMAGE_COMPRESSION), probe, compiles, failed)

    def components(self, view: StepView, selected: Sequence[str], outcomes: Mapping[str, Outcome], *, keep_going: bool) -> None:
        """All at once: what bounds the load is the number of compile slots that they share."""
        with ThreadPoolExecutor(len(selected)) as pool:
            futures = [pool.submit(self.component, view, outcomes[name]) for name in selected]
            try:
                for future in as_completed(futures):
                    outcome = future.result()
                    if outcome.status == "failed" and not keep_going:
                        self.engine.cancel()
            except BaseException:
                self.engine.cancel()
                raise

    def component(self, view: StepView, outcome: Outcome) -> Outcome:
        """Build one component; its failure is classified and told, not raised."""
        started = time.monotonic()
        place = self.job.out / "components" / outcome.name
        try:
            done = self.step(view, outcome.name, f"artifacts-{outcome.name}", LocalOutput(place))
        except StepFailed as failed:
            outcome.status = "failed"
            outcome.failure = classify(failed.log)
        except Interrupted:
            outcome.status = "not attempted"
        else:
            outcome.result = json.loads((place / "result.json").read_text())
            outcome.status = "reused" if any(stage_of(s) == f"build-{outcome.name}" for s in done.cached) else "built"
            publish(place / outcome.result["wheel"], self.job.out / outcome.result["wheel"], outcome)
        outcome.seconds = time.monotonic() - started
        return outcome

    def must(self, view: StepView, name: str, target: str, output: LocalOutput | OciOutput | None) -> BuildResult:
        """A step that nothing goes on without. Raises BuildFailed with the end of its log, which is kept."""
        try:
            return self.step(view, name, target, output)
        except StepFailed as failed:
            lines = failed.log.strip().splitlines() or [failed.error]
            raise BuildFailed(
                f"{self.job.target.name}: the step {name} failed.",
                means="\n".join(lines[-TOLD:]),
                next_step=f"read logs/{name}.log in the output folder; the same command resumes",
            ) from None

    def step(self, view: StepView, name: str, target: str, output: LocalOutput | OciOutput | None) -> BuildResult:
        """Build one stage of the Dockerfile under a name people know."""
        request = BuildRequest(
            dockerfile=self.job.folder / "Dockerfile",
            context=self.job.folder,
            target=target,
            epoch=self.job.lock.epoch,
            contexts=self.contexts,
            secrets=self.secrets,
            output=output,
            platform=self.job.target.platform,
        )
        view.start(name)
        started = time.monotonic()
        tell = Teller(name, view, self.console, self.kernels_of(target))
        try:
            done = self.engine.build(request, tell)
        except StepFailed as failed:
            self.keep_log(name, failed.log)
            view.finish(name, "failed", time.monotonic() - started)
            raise
        except BaseException:
            view.finish(name, "interrupted", time.monotonic() - started)
            raise
        if done.logs:
            self.keep_log(name, "\n".join(f"{step}\n{text}" for step, text in done.logs.items()))
        view.finish(name, "done" if done.took else "unchanged", time.monotonic() - started)
        return done

    def keep_log(self, name: str, text: str) -> None:
        write_atomically(self.job.out / "logs" / f"{name}.log", (text + "\n").encode())


def publish(wheel: Path, place: Path, outcome: Outcome) -> None:
    """Put a finished wheel beside the record, after checking that it is the one the container reported."""
    data = wheel.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != outcome.result["wheel_sha256"]:
        raise IntegrityError(
            f"{wheel.name} has sha256 {found} here, the container that built it reported {outcome.result['wheel_sha256']}.",
            means="It was damaged on its way out of the engine.",
            next_step="nox -s clean, then build again",
        )
    write_atomically(place, data)


def engine_used(info: EngineInfo) -> EngineUsed:
    """An engine as records tell of it."""
    return EngineUsed(info.kind, info.version, info.buildkit, info.buildx)


def to_record(
    job: Job,
    engine: EngineInfo,
    resources: Resources,
    outcomes: Mapping[str, Outcome],
    evidence: Evidence,
    image: Image | None,
    probe: Mapping[str, Any],
    started: datetime,
    seconds: float,
) -> Record:
    """The record of a build, with every documented prerequisite compared with what was really there."""
    components = tuple(component_result(job, outcomes[s.component]) for s in job.target.components)
    imports = tuple(Import(i["component"], i["module"], bool(i["ok"]), str(i["error"])) for i in probe.get("imports", ()))
    assessments = assess(job.target.prerequisites, environment_of(job, probe))
    missing = tuple(
        Missing(s.component, m.module, m.reason) for s in job.target.components for m in job.component(s.component).missing_modules
    )
    return Record(
        tool_version=__version__,
        target=TargetInfo(job.target.name, job.target.title, job.target.status, job.target.platform),
        base=job.base.name,
        lock=LockInfo(job.lock.name, job.lock.content, job.lock.inputs),
        dockerfile_sha256=job.rendered.digest.removeprefix("sha256:"),
        engine=engine_used(engine),
        toolchain=toolchain_of(probe),
        resources=resources,
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(seconds, 1),
        verdict=verdict_for(
            components, imports, job.target.not_built, sound=not any(f.severity == "fails" for f in evidence.findings)
        ),
        components=components,
        image=image,
        imports=imports,
        prerequisites=assessments,
        deviations=(*deviations(assessments), *unmet_requirements(job, probe)),
        missing_modules=missing,
        not_built=job.target.not_built,
        not_verified=NOT_VERIFIED,
    )


def component_result(job: Job, outcome: Outcome) -> ComponentResult:
    component = job.component(outcome.name)
    source = rendering.source_of(component, job.lock)
    result = outcome.result
    wheel = File(result["wheel"], result["wheel_sha256"], result["wheel_size"]) if result else None
    total, reused = int(result.get("units", 0)), int(result.get("units_reused", 0))
    rule = component.architecture
    return ComponentResult(
        name=component.name,
        title=component.title,
        version=component.source.version,
        source=File(source.file_name, source.sha256, source.size),
        architectures_asked=() if rule.decided == "nowhere" else job.target.names_asked_of(component.name),
        status=outcome.status,
        wheel=wheel,
        seconds=float(result["seconds"]) if result else round(outcome.seconds, 1),
        cpu_seconds=float(result.get("cpu_seconds", 0)),
        peak_memory_bytes=int(result.get("peak_memory_bytes", 0)),
        translation_units=TranslationUnits(total, total - reused, reused),
        changes=tuple(result.get("changes", ())),
        failure=outcome.failure,
        log=f"components/{component.name}/{BUILD_LOG}" if result else f"logs/{component.name}.log",
    )


def environment_of(job: Job, probe: Mapping[str, Any]) -> dict[str, str]:
    """What the environment has, in the words of prerequisites: as seen from inside, else as locked."""
    locked = {f"distribution:{e.name}": e.version for e in job.lock.group("python")}
    found = {"os": "Linux", "gcc": job.base.gcc, "python": job.base.python, "toolkit": job.target.toolkit.version, **locked}
    if not probe:
        return found
    found |= {"os": probe["os"], "gcc": probe["gcc"], "python": probe["python"]}
    if probe["toolkit"]:  # only nvcc tells its release; of CANN the gate in the container compared it with the lock
        found["toolkit"] = probe["toolkit"]
    found |= {f"distribution:{name}": version for name, version in probe["distributions"].items()}
    if probe["torch"]:
        found["distribution:torch"] = probe["torch"]["version"]
    return found


def toolchain_of(probe: Mapping[str, Any]) -> dict[str, str]:
    if not probe:
        return {}
    tools = {name: str(probe[name]) for name in ("gcc", "glibc", "python", "release", "toolkit") if probe[name]}
    return {**tools, **{f"torch {key}": str(value) for key, value in probe["torch"].items()}}


def unmet_requirements(job: Job, probe: Mapping[str, Any]) -> tuple[str, ...]:
    """What `pip check` says inside the image, each line with the declared override that explains it, if there is one."""
    lines = []
    for line in probe.get("pip_check", ()):
        wanted = WANTED.search(line)
        name = canonicalize_name(wanted[1]) if wanted else ""
        reasons = [o.reason for o in job.target.overrides if canonicalize_name(Requirement(o.requirement).name) == name]
        lines.append(f"{line} ({reasons[0]})" if reasons else line)
    return tuple(lines)


def raise_for(record: Record, evidence: Evidence) -> None:
    """Raise BuildFailed where something asked for did not build or import, or is not what was asked for."""
    if record.verdict != "fails":
        return
    unsound = [f for f in evidence.findings if f.severity == "fails"]
    names = [c.name for c in record.failed] or [i.module for i in record.imports if not i.ok]
    names = names or list(dict.fromkeys(f.component for f in unsound))
    first = record.failed[0] if record.failed else None
    if first and first.failure:
        means = f"First error: {first.failure.message}"
    elif unsound:
        means = f"It compiled, but: {unsound[0].message}" + (f" (and {len(unsound) - 1} more)" if len(unsound) > 1 else "")
    else:
        means = "It compiled but does not import."
    where = first.log if first else "report.md" if unsound else "logs/probe.log"
    raise BuildFailed(
        f"{record.target.name}: {', '.join(names)} failed.",
        means=means,
        next_step=f"read {where} in the output folder; the same command resumes",
    )
