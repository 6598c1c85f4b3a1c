"""Try an architecture, or other flags, over a target that exists, without writing a file: who refuses, where, and why.

Everything is an experiment: kernels compiled at run time are tried one by one, and of what is compiled when a wheel is
built every translation unit, whatever becomes of the others. Nothing is run, and nothing of it is a build of a target.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from cleanroom import fetch as fetching
from cleanroom import jit as jitting
from cleanroom import render as rendering
from cleanroom.arch import Arch, parse_arch
from cleanroom.build import Job, Outcome, Work, resources_for, working
from cleanroom.check import preflight
from cleanroom.component import Substitution, Variable
from cleanroom.conflicts import refuse_known_conflicts
from cleanroom.console import Console
from cleanroom.contexts import contexts
from cleanroom.engine import LocalOutput, open_engine
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import ArchError, EnvsError, UnknownName
from cleanroom.failures import Failure, classify
from cleanroom.files import write_atomically
from cleanroom.jit import JitReport, JitResult, read_report
from cleanroom.project import Project
from cleanroom.resolve import toolkit_of_release
from cleanroom.room import UNPACKED_ALREADY, make_room
from cleanroom.store import Store
from cleanroom.strict_json import dump_document
from cleanroom.survey import STUB, Cause, Survey, gate_of, grouped, read_survey
from cleanroom.target import Selection, Target

Verdict = Literal["compiles", "partly", "refuses", "not tried"]


@dataclass(frozen=True)
class Options:
    """What the person who types `trial` may choose. `substitutes`: COMPONENT:FILE:OLD=>NEW; `settings`: NAME=VALUE."""

    arch: str
    start: str
    components: tuple[str, ...] = ()
    cuda: str = ""
    settings: tuple[str, ...] = ()
    substitutes: tuple[str, ...] = ()
    write: str = ""
    jobs: int | None = None


@dataclass(frozen=True)
class Part:
    """What one component came to. `what` names what was counted: translation units, or kernels compiled at run time.

    `reference`: what is known of the same on the target that the trial starts from.
    """

    component: str
    title: str
    verdict: Verdict
    what: str
    tried: int
    compiled: int
    stubs: int
    refused: int
    failed: int
    reference: str
    causes: tuple[Cause, ...]

    @property
    def counts(self) -> str:
        """`62 of 79 kernels compiled at run time, 3 stubs`."""
        if not self.tried:
            return self.what
        stubs = "stub" if self.stubs == 1 else "stubs"
        more = [f"{count} {name}" for count, name in ((self.stubs, stubs), (self.failed, "could not be tried")) if count]
        return ", ".join([f"{self.compiled} of {self.tried} {self.what}", *more])


@dataclass(frozen=True)
class Trial:
    """One trial. `changes`: what it did differently from target `start`; `yaml`: the file that would make it a target."""

    name: str
    architecture: str
    start: str
    base: str
    lock: str
    toolkit: str
    changes: tuple[str, ...]
    started: str
    seconds: float
    parts: tuple[Part, ...]
    yaml: str
    schema: int = 1


def trial(project: Project, envs: Envs, options: Options, store: Store, console: Console) -> Trial:
    """Try it and write trial.json, and what the containers left, to out/trial-<architecture>.

    Raises ArchError and ToolchainError for what cannot work, UnknownName, EnvsError for an option that cannot be read,
    and whatever a build raises. That something is refused does not raise: it is what a trial is for.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    job = prepare(project, envs, options, store, console)
    for warning in job.warnings:
        console.warn(warning)
    refuse_unreadable(envs, options, job)
    rendering.write(job.rendered, job.folder)
    names = [s.component for s in job.target.components]
    resources = resources_for(job, names, options.jobs)
    console.info(resources.rule)
    fetching.fetch(job.lock, store, console, project=project)
    make_room(job.lock, UNPACKED_ALREADY, store, project, console)
    outcomes = {name: Outcome(name) for name in names}
    with ExitStack() as stack:
        engine = stack.enter_context(open_engine(store, project, console))
        places = contexts(job.lock, job.target.platform, store, console, bootstrapped=job.base.kind == "debian")
        work = stack.enter_context(working(engine, places, job, resources, store, console))
        report = attempt(work, outcomes, options, envs)
    parts = tuple(part_of(name, job, envs, options, outcomes[name], report) for name in names)
    made = Trial(
        name=job.out.name,
        architecture=job.target.architecture_names[0],
        start=options.start,
        base=job.base.name,
        lock=job.lock.content,
        toolkit=job.target.toolkit.version,
        changes=changes(options, job),
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - clock, 1),
        parts=parts,
        yaml=target_yaml(envs, options, job, parts, started),
    )
    write_atomically(job.out / "trial.json", dump_document(made).encode())
    return made


# --- what is tried ---------------------------------------------------------------------------------------------------


def prepare(project: Project, envs: Envs, options: Options, store: Store, console: Console) -> Job:
    """The job of a target that exists only here. Nothing is fetched, and only another CUDA release asks the network."""
    start = envs.target(options.start)
    if start.vendor != "nvidia":
        raise UnknownName(f"{start.name} has no compute capabilities.", means="A trial starts from a target for NVIDIA GPUs.")
    arch = parse_arch(options.arch, where="--arch")
    base = envs.base(start.bases[0])
    target = target_of(start, arch, options)
    lock = envs.lock_of(project.root, start.name, base.name)
    if options.cuda and options.cuda != start.toolkit.version:
        toolkit, entries = toolkit_of_release(start.toolkit, options.cuda, target, base, store, console)
        target = replace(target, toolkit=toolkit)
        kept = [e for e in lock.entries if e.group not in ("toolkit", "headers")]
        lock = replace(lock, entries=tuple(sorted((*kept, *entries))))
    refuse_known_conflicts(lock)
    lock = replace(lock, target=target.name)
    like = start.architectures[0]
    envs = replace(envs, targets={**envs.targets, target.name: target}, jit=jitting.extended(envs.jit, arch, like))
    try:
        warnings = preflight(envs, target, base, torch_version=lock.version_of("torch"))
    except ArchError as error:  # there is no file of this target to correct
        error.next_step = error.next_step.replace(f"envs/targets/{target.name}.yaml", "--arch")
        raise
    out = project.out_dir / f"trial-{arch.sm}"
    return Job(project, envs, target, base, lock, rendering.render(envs, target, base, lock), out / "dockerfile", out, warnings)


def target_of(start: Target, arch: Arch, options: Options) -> Target:
    """The target that a trial is of: an experiment of which nothing is expected and nothing accepted."""
    names = [s.component for s in start.components]
    if unknown := [name for name in options.components if name not in names]:
        raise UnknownName(f"{start.name} has no component {unknown[0]!r}.", means=f"It has {', '.join(names)}.")
    variables = tuple(setting(text) for text in options.settings)
    changes = [substitution(text, names) for text in options.substitutes]
    selections = tuple(
        replace(
            selection,
            architectures=(),
            reason="a trial",
            environment=(*selection.environment, *variables),
            substitute=(*selection.substitute, *(change for name, change in changes if name == selection.component)),
        )
        for selection in start.components
        if not options.components or selection.component in options.components
    )
    return replace(
        start,
        name=re.sub(r"[^a-z0-9_]", "_", f"trial_{arch.sm}"),
        title=f"{arch.sm} tried over {start.name}",
        status="experimental",
        architectures=(arch,),
        components=selections,
        expected=(),
        accepts=(),
    )


def setting(text: str) -> Variable:
    """NAME=VALUE. Raises EnvsError for anything else."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise EnvsError(f"--set {text}: this is not NAME=VALUE.", next_step="for example: --set NVCC_PREPEND_FLAGS=-lineinfo")
    return Variable(name, value, "tried with --set")


def substitution(text: str, components: Sequence[str]) -> tuple[str, Substitution]:
    """COMPONENT:FILE:OLD=>NEW, for text that is in the file once. Raises EnvsError for anything else."""
    place, arrow, new = text.partition("=>")
    component, _, rest = place.partition(":")
    file, _, old = rest.partition(":")
    if not (arrow and component in components and file and old):
        raise EnvsError(
            f"--substitute {text}: this is not COMPONENT:FILE:OLD=>NEW.",
            means=f"COMPONENT is one of {', '.join(components)}; OLD must be in the file exactly once.",
            next_step="for example: --substitute 'flashmla:setup.py:-O3=>-O2'",
        )
    return component, Substitution(file, old, new, 1, "tried with --substitute")


# --- trying it -------------------------------------------------------------------------------------------------------


def attempt(work: Work, outcomes: Mapping[str, Outcome], options: Options, envs: Envs) -> JitReport | None:
    """Side by side: every translation unit, and each wheel of host code with the kernels that it compiles at run time.

    A component is told as soon as it is known, the cheapest within minutes of the environment.
    """
    job = work.job
    surveyed = [name for name in outcomes if job.surveyed(name)]
    hosts = [name for name in outcomes if name not in surveyed]
    steps = 1 + len(outcomes) + sum(c.component in hosts for c in job.envs.jit)
    with work.console.steps(f"Trying {job.target.architecture_names[0]}", steps) as view:
        work.must(view, "environment", "build-environment", None)

        def survey(name: str) -> None:
            work.must(view, f"survey of {name}", f"survey-{name}", LocalOutput(job.survey_of(name)))
            told(name, None)

        def host(name: str) -> JitReport | None:
            outcome = work.component(view, outcomes[name])
            kernels = [c for c in job.envs.jit if c.component == name]
            if outcome.status not in ("built", "reused") or not kernels:
                return None
            place = job.out / "jit" / name
            work.must(view, f"kernels of {name}", f"kernels-{name}", LocalOutput(place))
            report = read_report(place, kernels, job.target)
            told(name, report)
            return report

        def told(name: str, report: JitReport | None) -> None:
            part = part_of(name, job, envs, options, outcomes[name], report)
            work.console.info(f"{name}: {part.verdict}, {part.counts} ({options.start}: {part.reference})")

        with ThreadPoolExecutor(len(outcomes)) as pool:
            surveys: list[Future[Any]] = [pool.submit(survey, name) for name in surveyed]
            reports = [pool.submit(host, name) for name in hosts]
            try:
                for done in as_completed((*surveys, *reports)):
                    done.result()
            except BaseException:  # Ctrl-C as well: the threads would go on behind the message
                work.engine.cancel()
                raise
    return jitting.together(report for each in reports if (report := each.result()))


# --- what it came to -------------------------------------------------------------------------------------------------


def part_of(name: str, job: Job, envs: Envs, options: Options, outcome: Outcome, report: JitReport | None) -> Part:
    """One component: its units where it is compiled for an architecture, else its kernels, else whether host code built."""
    title = envs.component(name).title
    if job.surveyed(name):
        return of_units(title, read_survey(job.survey_of(name), name), reference_of(envs, options, name))
    if outcome.failure is not None:
        cause = Cause(gate_of(outcome.failure), outcome.failure, 1, outcome.failure.where)
        return Part(name, title, "refuses", "the wheel does not build", 0, 0, 0, 0, 0, "", (cause,))
    results = [each for each in report.results if each.component == name] if report else []
    if not results:
        tried = outcome.status in ("built", "reused") and name not in rendering.probed_with(job.envs, job.target)
        return Part(name, title, "compiles" if tried else "not tried", "host code only" if tried else "", 0, 0, 0, 0, 0, "", ())
    return of_kernels(name, title, results, envs, options)


def of_units(title: str, survey: Survey, reference: str) -> Part:
    """A component whose wheel holds machine code."""
    counts, tried = survey.counts, len(survey.units)
    verdict = verdict_of(counts["compiled"], tried)
    numbers = (tried, counts["compiled"], counts["stub"], counts["refused"], 0)
    what = "translation units" if tried else "no translation unit was attempted"
    return Part(survey.component, title, verdict, what, *numbers, reference, survey.causes if verdict != "compiles" else ())


def of_kernels(name: str, title: str, results: Sequence[JitResult], envs: Envs, options: Options) -> Part:
    """A component whose kernels are compiled at run time. The reference is what the same kernels are known to give."""
    counts = Counter(result.outcome for result in results)
    like = envs.target(options.start).architectures[0].sm
    families = {f.name: f.expected.outcomes for c in envs.jit if c.component == name for f in c.families}
    known = [families[result.family][like] for result in results if like in families[result.family]]
    causes = grouped((f"{each.family} {each.kernel}", reason_of(each)) for each in results if each.outcome != "compiled")
    numbers = (len(results), counts["compiled"], counts["stub"], counts["refused"], counts["failed"])
    reference = f"{known.count('compiled')} of {len(known)}"
    return Part(
        name, title, verdict_of(counts["compiled"], len(results)), "kernels compiled at run time", *numbers, reference, causes
    )


def reason_of(result: JitResult) -> Failure:
    """Why a kernel is not compiled to something that works."""
    return STUB if result.outcome == "stub" else classify("\n".join(result.errors))


def verdict_of(compiled: int, tried: int) -> Verdict:
    return "refuses" if compiled == 0 else "compiles" if compiled == tried else "partly"


def reference_of(envs: Envs, options: Options, component: str) -> str:
    """What the starting target says of a component: its own expectation, else that it is supported."""
    start = envs.target(options.start)
    expectation = start.expectation(component)
    return str(expectation) if expectation else f"{start.status}: all of them"


def changes(options: Options, job: Job) -> tuple[str, ...]:
    """What is different from the starting target, as a person would say it."""
    made = [f"architecture {job.target.architecture_names[0]}"]
    made += [f"CUDA {options.cuda}"] if options.cuda else []
    return (*made, *(f"set {text}" for text in options.settings), *(f"substitute {text}" for text in options.substitutes))


# --- making it permanent ---------------------------------------------------------------------------------------------


def target_yaml(envs: Envs, options: Options, job: Job, parts: Sequence[Part], when: datetime) -> str:
    """The target's file, with what was measured as what is expected."""
    content: dict[str, Any] = yaml.safe_load(envs.files[f"targets/{options.start}.yaml"])
    name = options.write or job.target.name
    toolkit = {**content["toolkit"], "version": job.target.toolkit.version, "packages": list(job.target.toolkit.packages)}
    if job.target.toolkit.headers:
        toolkit["headers"] = list(job.target.toolkit.headers)
    changed = {
        "name": name,
        "title": f"NVIDIA {job.target.architecture_names[0]}, experimental",
        "status": "experimental",
        "status_source": content["status_source"],
        "platform": content["platform"],
        "vendor": content["vendor"],
        "architectures": [str(arch) for arch in job.target.architectures],
        "bases": [job.base.name],
        "toolkit": toolkit,
        "components": {s.component: selected(s) for s in job.target.components},
        "expected": {part.component: expected(part, job, when) for part in parts},
    }
    rest = {key: value for key, value in content.items() if key not in changed and key != "accepts"}
    return yaml.safe_dump({**changed, **rest}, sort_keys=False, width=120, allow_unicode=True)


def refuse_unreadable(envs: Envs, options: Options, job: Job) -> None:
    """Before hours are spent: what is tried must be something that a target's file can say. Raises EnvsError."""
    untried = [Part(s.component, "", "not tried", "", 0, 0, 0, 0, 0, "", ()) for s in job.target.components]
    name = options.write or job.target.name
    with tempfile.TemporaryDirectory(prefix="cleanroom-") as folder:
        copy = Path(folder) / envs.folder.name
        shutil.copytree(envs.folder, copy)
        (copy / "targets" / f"{name}.yaml").write_text(target_yaml(envs, options, job, untried, datetime.now(UTC)))
        load_envs(copy)


def selected(selection: Selection) -> dict[str, Any]:
    """One component of the file: what the trial set and substituted."""
    made: dict[str, Any] = {}
    if selection.environment or selection.substitute:
        made["reason"] = selection.reason
    if selection.environment:
        made["environment"] = {v.name: {"value": v.value, "reason": v.reason} for v in selection.environment}
    if selection.substitute:
        keys = ("file", "match", "replace", "count", "reason")
        made["substitute"] = [{key: getattr(change, key) for key in keys} for change in selection.substitute]
    return made


def expected(part: Part, job: Job, when: datetime) -> dict[str, Any]:
    """What a build of the component will come to, from what was measured."""
    source = f"measured here on {when:%Y-%m-%d} with CUDA {job.target.toolkit.version}"
    first = f": {part.causes[0].failure.message}" if part.causes else ""
    if part.verdict == "not tried":
        return {"outcome": "compiles", "reason": "not tried", "source": "nothing was measured"}
    if not job.surveyed(part.component) and part.tried:
        return {"outcome": "compiles", "reason": f"the wheel is host code; at run time {part.counts}", "source": source}
    if part.verdict == "partly":
        numbers = {"compiles": part.compiled, "of": part.tried}
        outcome = "refuses" if part.refused else "partly"  # one refused unit, and no wheel comes out
        return {"outcome": outcome, **numbers, "reason": f"{part.refused} refused, {part.stubs} stubs{first}", "source": source}
    return {"outcome": part.verdict, "reason": (part.counts + first) or part.what, "source": source}


def write_target(envs: Envs, name: str, text: str) -> Path:
    """Write the file as envs/targets/<name>.yaml. Raises EnvsError where one is there already."""
    refuse_taken_name(envs, name)
    path = envs.folder / "targets" / f"{name}.yaml"
    write_atomically(path, text.encode())
    return path


def refuse_taken_name(envs: Envs, name: str) -> None:
    """The name that --write gives must be free and a name; asked before hours are spent. Raises EnvsError."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise EnvsError(f"--write {name}: a target's name is small letters, digits and _.", next_step="for example: --write sm110")
    if (envs.folder / "targets" / f"{name}.yaml").exists():
        raise EnvsError(f"There is a target {name} already.", means="A trial overwrites none.", next_step="choose another name")
