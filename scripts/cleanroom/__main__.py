"""The command line: `python -m cleanroom VERB`, which the nox sessions call."""

from __future__ import annotations

import argparse
import contextlib
import errno
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cleanroom.cann import EULA_OPTION
from cleanroom.console import Console
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import CleanroomError, DiskFull, Interrupted, RecordError
from cleanroom.lock import lock_path, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.store import Store
from cleanroom.verification import LEVELS, Verification, read_verification

if TYPE_CHECKING:
    from cleanroom.build import Job
    from cleanroom.published import Published
    from cleanroom.record import Record

# Each verb imports what it needs when it runs: half of the program is for talking to package indexes, and a verb that
# answers from what is there should not wait for it to load.


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, dispatch, and turn every failure a user can cause into a message and an exit code."""
    options = parser().parse_args(arguments)
    console = Console(json=options.json)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    try:
        return int(options.verb(options, console))
    except CleanroomError as error:
        console.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        stopped = Interrupted("Interrupted.", means="Finished work is kept.", next_step="type the same command to go on")
        console.error(stopped)
        return stopped.exit_code
    except BrokenPipeError:
        return 141  # what a shell reports for a reader that left
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            told: CleanroomError = DiskFull(
                f"No space left: {error}.", means="Nothing half-written was kept.", next_step="free space"
            )
        elif isinstance(error, (IsADirectoryError, NotADirectoryError, PermissionError, FileExistsError)) and error.filename:
            told = CleanroomError(
                f"{error.filename2 or error.filename} cannot be used: {error.strerror}.",
                means="Nothing half-written was kept.",
                next_step="look at what is there, or name another place",
            )
        else:
            raise
        console.error(told)
        return told.exit_code


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    """All verbs and their options."""
    top = argparse.ArgumentParser(prog="cleanroom", description="Reproducible build environments for DeepInfer.")
    top.add_argument("--project", type=Path, default=REPOSITORY, help="the folder that holds envs/ and lockfiles/")
    verbs = top.add_subparsers(required=True, metavar="VERB")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="one JSON object a line, for machines")

    def verb(name: str, run: Callable[[argparse.Namespace, Console], int], text: str) -> argparse.ArgumentParser:
        command = verbs.add_parser(name, parents=[common], help=text, description=text)
        command.set_defaults(verb=run)
        return command

    lock = verb("lock", lock_verb, "Resolve every input of targets and write their locks")
    lock.add_argument("targets", nargs="*", metavar="TARGET")
    lock.add_argument("--base", help="only this base")
    lock.add_argument("--check", action="store_true", help="write nothing; fail where a lock is missing, stale or edited")
    lock.add_argument("--cann", type=Path, metavar="DIR", help="the folder that holds the installers of CANN")
    fetch_ = verb("fetch", fetch_verb, "Bring every locked input of a target into the store")
    fetch_.add_argument("target")
    fetch_.add_argument("--base")
    render = verb("render", render_verb, "Render the Dockerfiles of targets")
    render.add_argument("targets", nargs="*", metavar="TARGET")
    render.add_argument("--check", action="store_true", help="write nothing; fail where a committed file has drifted")
    build = verb("build", build_verb, "Build a target in clean containers: wheels, image, record")
    build.add_argument("target")
    build.add_argument("--base")
    build.add_argument("--component", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    build.add_argument("--keep-going", action="store_true", help="build what can be built when a component fails")
    build.add_argument("--jobs", type=positive, metavar="N", help="compilers at once, over all components")
    build.add_argument("--no-image", action="store_true", help="wheels only: no image, no probe")
    build.add_argument(EULA_OPTION, action="store_true", help="agree to CANN's licence, which its installation does in your name")
    verify = verb("verify", verify_verb, "Build again on a clean slate, compare with a record, and explain what differs")
    verify.add_argument("target")
    verify.add_argument("--base")
    verify.add_argument("--record", type=Path, metavar="FILE", help="the build to check; by default the one in out/")
    verify.add_argument("--component", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    verify.add_argument("--jobs", type=positive, metavar="N", help="by default one more than the first build had")
    verify.add_argument("--no-image", action="store_true", help="compare wheels only")
    verify.add_argument(
        "--at-least", choices=LEVELS, default="identical artifacts", metavar="LEVEL", help="weaker than this is a failure"
    )
    verify.add_argument(EULA_OPTION, action="store_true", help="agree to CANN's licence, which its installation does in your name")
    verify.add_argument("--vary", action="store_true", help="also a clean build for each condition, changed by itself")
    verify.add_argument("--publish", action="store_true", help="replace what is published beside the lock by what agreed here")
    without = verb("tiers", tiers_verb, "Run what can be shown of a target without the toolkit that an operator has to bring")
    without.add_argument("target")
    without.add_argument("--tier", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    sources = verb("inventory", inventory_verb, "Say what depends on the architecture: in a target's locked sources, or in a wheel")
    what = sources.add_mutually_exclusive_group(required=True)
    what.add_argument("target", nargs="?")
    what.add_argument("--wheel", type=Path, metavar="FILE", help="the machine code that any wheel holds")
    sources.add_argument("--base")
    table = verb("matrix", matrix_verb, "Show all targets and components from the records present")
    table.add_argument("--gpu", metavar="NAME", help="only what it means for one card, such as H100")
    questions = verb(
        "checklist", checklist_verb, "Write the migration checklist of a target, filled in as far as there is evidence"
    )
    questions.add_argument("target")
    questions.add_argument("--base")
    between = verb("compare", compare_verb, "Say what changed between two records")
    between.add_argument("first", help="a target, a folder or a record")
    between.add_argument("second")
    between.add_argument("--markdown", type=Path, metavar="FILE", help="also write it to this file")
    attempt = verb("trial", trial_verb, "Try an architecture or other flags over a target, without writing a file")
    attempt.add_argument("--arch", required=True, metavar="ARCH", help="such as sm_120a")
    attempt.add_argument("--from", dest="start", default="sm100", metavar="TARGET", help="the target to start from (sm100)")
    attempt.add_argument("--component", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    attempt.add_argument("--cuda", default="", metavar="RELEASE", help="another CUDA release, such as 13.5")
    attempt.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE", help="a variable of builds")
    attempt.add_argument("--substitute", action="append", default=[], metavar="COMPONENT:FILE:OLD=>NEW")
    attempt.add_argument("--write", default="", metavar="NAME", help="write what was tried as the target envs/targets/NAME.yaml")
    attempt.add_argument("--jobs", type=positive, metavar="N", help="compilers at once, over all components")
    verb("doctor", doctor_verb, "Say whether this machine can build, and what is missing")
    tidy = verb("clean", clean_verb, "Remove engine state and scratch; keep fetched inputs")
    tidy.add_argument("--store", action="store_true", help="also remove every fetched input")
    return top


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def pairs(envs: Envs, targets: Sequence[str], base: str | None) -> list[tuple[str, str]]:
    """The (target, base) names that a command line means: all of them where it names none."""
    chosen = [envs.target(name) for name in targets] or list(envs.targets.values())
    for target in chosen if targets else ():
        envs.base_of(target, base)
    if base is not None:
        envs.base(base)
    return [(t.name, b) for t in chosen for b in t.bases if base in (None, b)]


def lock_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.lock import dump_lock, write_lock
    from cleanroom.resolve import resolve, resolve_engine

    project = Project(options.project)
    names = [name for name in options.targets if name != "engine"]
    envs = load_envs(project.envs_dir)
    wanted = pairs(envs, names, options.base) if names or not options.targets else []
    for target, base in wanted:
        path = lock_path(project.root, f"{target}-{base}")
        if options.check:
            envs.lock_of(project.root, target, base)
            console.info(f"{path.name} is current")
            continue
        lock = resolve(envs, envs.target(target), envs.base(base), project, Store.default(), console, supplied=options.cann)
        changed = not path.exists() or path.read_text() != dump_lock(lock)
        write_lock(path, lock)
        console.info(f"{path.name}: {len(lock.entries)} entries, {'written' if changed else 'unchanged'}")
    if "engine" in options.targets and options.check:
        read_lock(lock_path(REPOSITORY, "engine"))
        console.info("engine.lock is whole")
    elif "engine" in options.targets:
        write_lock(lock_path(REPOSITORY, "engine"), resolve_engine(console))
        console.info("engine.lock: written")
    return 0


def fetch_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.fetch import fetch

    project = Project(options.project)
    envs = load_envs(project.envs_dir)
    target = envs.target(options.target)
    base = envs.base_of(target, options.base).name
    lock = envs.lock_of(project.root, target.name, base)
    store = Store.default()
    for each in (read_lock(lock_path(REPOSITORY, "engine")), lock):
        console.result({"lock": each.name, **vars_of(fetch(each, store, console, project=project))})
    return 0


def vars_of(summary: object) -> dict[str, object]:
    return {name: getattr(summary, name) for name in getattr(summary, "__dataclass_fields__", {})}


def render_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.render import check, render, write

    project = Project(options.project)
    envs = load_envs(project.envs_dir)
    for target, base in pairs(envs, options.targets, None):
        lock = envs.lock_of(project.root, target, base)
        rendered = render(envs, envs.target(target), envs.base(base), lock)
        folder = project.dockerfiles_dir / rendered.name
        if options.check:
            check(rendered, folder)
            console.info(f"{rendered.name}: as rendered")
        else:
            changed = write(rendered, folder)
            console.info(f"{rendered.name}: {', '.join(changed) if changed else 'unchanged'}")
    return 0


def prepared(project: Project, envs: Envs, options: argparse.Namespace) -> Job:
    """The job, unless something is missing that only a person can bring: installers, or consent to their licence."""
    from cleanroom import cann, tiers
    from cleanroom.build import prepare

    job = prepare(project, envs, options.target, options.base)
    cann.require_supplied(envs.cann, job.target, job.lock, tiers=tiers.labels())
    cann.require_licence(envs.cann, job.target, accepted=options.accept_cann_eula)
    return replace(job, licence_accepted=options.accept_cann_eula)


def build_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom import build as building
    from cleanroom.evidence import read_evidence
    from cleanroom.report import write_report
    from cleanroom.summary import summarise

    project = Project(options.project)
    envs = load_envs(project.envs_dir)
    job = prepared(project, envs, options)
    published_of(job)  # a mistake in it would be told only after the build
    chosen = building.Options(tuple(options.component), options.keep_going, options.jobs, not options.no_image)
    record = building.build(job, chosen, Store.default(), console)
    evidence = read_evidence(job.out / "evidence.json")
    comparison = with_published(job, record)
    write_report(job.out, record, verification_of(job.out, console), evidence, comparison)
    summarise(record, console, out=job.out, published=comparison, surveys=evidence.surveys)
    building.raise_for(record, evidence)
    return 0


def with_published(job: Job, record: Record) -> str:
    """How a build compares with what is published beside its lock, in one sentence."""
    from cleanroom.published import compare

    return compare(record, published_of(job))[1]


def published_of(job: Job) -> Published | None:
    """What is published beside the lock of a job. Raises LockError if it is damaged."""
    from cleanroom.published import published_path, read_published

    return read_published(published_path(lock_path(job.project.root, job.lock.name)))


def trial_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom import trial as trials
    from cleanroom.trial_view import show

    project, store = Project(options.project), Store.default()
    envs = load_envs(project.envs_dir)
    if options.write:
        trials.refuse_taken_name(envs, options.write)
    chosen = trials.Options(
        arch=options.arch,
        start=options.start,
        components=tuple(options.component),
        cuda=options.cuda,
        settings=tuple(options.settings),
        substitutes=tuple(options.substitute),
        write=options.write,
        jobs=options.jobs,
    )
    made = trials.trial(project, envs, chosen, store, console)
    show(made, project.out_dir / made.name, console)
    if options.write:
        path = trials.write_target(envs, options.write, made.yaml)
        console.info(f"{path} is written. Next: nox -s lock -- {options.write}, then nox -s render -- {options.write}")
    return 0


def verification_of(out: Path, console: Console) -> Verification | None:
    """The result of an earlier verify; the report says itself whether it is of the same build."""
    from cleanroom.verify import FOLDER

    path = out / FOLDER / "verification.json"
    try:
        return read_verification(path) if path.is_file() else None
    except RecordError as error:
        console.warn(f"{error.what} The report is written without it.")
        return None


def verify_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom import verification_view
    from cleanroom import verify as verifying
    from cleanroom.evidence import read_evidence
    from cleanroom.record import read_record
    from cleanroom.report import write_report

    project = Project(options.project)
    job = prepared(project, load_envs(project.envs_dir), options)
    chosen = verifying.Options(
        options.record,
        tuple(options.component),
        options.jobs,
        image=not options.no_image,
        publish=options.publish,
        vary=options.vary,
    )
    if options.record is None:
        read_evidence(job.out / "evidence.json")  # the report needs it, and would miss it only after the second build
    verification = verifying.verify(job, chosen, Store.default(), console)
    if options.record is None:
        record = read_record(job.out / "record.json")
        write_report(job.out, record, verification, read_evidence(job.out / "evidence.json"), with_published(job, record))
    verification_view.summarise(verification, console, out=job.out)
    verifying.raise_for(verification, options.at_least)
    return 0


def tiers_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.tiers import run
    from cleanroom.tiers_view import show

    project = Project(options.project)
    envs = load_envs(project.envs_dir)
    target = envs.target(options.target)
    result = run(project, envs, target, platform.machine(), Store.default(), console, only=tuple(options.tier))
    show(result, console, out=project.out_dir / target.name)
    return 0


def inventory_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.fetch import fetch
    from cleanroom.inventory import inventory
    from cleanroom.inventory_view import show

    project = Project(options.project)
    envs = load_envs(project.envs_dir)
    if options.wheel is not None:
        from cleanroom.evidence import of_wheel
        from cleanroom.evidence_view import show as show_wheel

        show_wheel(of_wheel(options.wheel, envs.table), console)
        return 0
    target = envs.target(options.target)
    base = envs.base_of(target, options.base).name
    lock = envs.lock_of(project.root, target.name, base)
    fetch(replace(lock, entries=lock.group("source")), Store.default(), console, project=project)
    show(inventory(envs, target, lock, Store.default()), console)
    return 0


def matrix_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.matrix import Options, run

    return run(Project(options.project), Options(options.gpu), console)


def checklist_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.checklist import run

    return run(Project(options.project), options.target, options.base, console)


def compare_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.compare import Options, run

    return run(Project(options.project), options.first, options.second, Options(options.markdown), console)


def doctor_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.doctor import doctor

    return doctor(Project(options.project), Store.default(), console)


def clean_verb(options: argparse.Namespace, console: Console) -> int:
    from cleanroom.clean import clean

    clean(Store.default(), console, inputs_too=options.store)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
