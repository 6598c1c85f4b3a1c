"""The migration checklist of one target: four questions, filled in with what was shown and marked open where it was not.

The questions, and what nothing here can answer, are data (envs/checklist.yaml). An item is only ticked on evidence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from cleanroom.cann import EULA_OPTION
from cleanroom.console import Console, without_control
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import EnvsError, LockError
from cleanroom.evidence import BY_LOG, is_npu
from cleanroom.files import write_atomically
from cleanroom.gpu_checks import GpuCheck, read_gpu_checks
from cleanroom.matrix import Standing, standing
from cleanroom.prerequisites import OUTSIDE
from cleanroom.project import Project
from cleanroom.report import ON_FIRST_USE, Row
from cleanroom.strict_yaml import Item, read_file
from cleanroom.verification import reaches

FILE = "checklist.yaml"
OUTPUT = "checklist.md"

State = Literal["yes", "no", "open"]


@dataclass(frozen=True)
class Open:
    """Something that has to be found out elsewhere: what, how, and which document says so. With a `component`, only of targets that
    have it.
    """

    what: str
    how: str
    source: str
    component: str


@dataclass(frozen=True)
class Question:
    """One question: what of it is shown here, whose own tests belong to it, and what stays open."""

    question: str
    shown: tuple[str, ...]
    tests: tuple[str, ...]
    open: tuple[Open, ...]


@dataclass(frozen=True)
class Answer:
    """One line: `yes` and `no` rest on `evidence`; with `open` it says what would close it, by these `commands` if any."""

    what: str
    state: State
    evidence: str
    commands: tuple[str, ...] = ()


def run(project: Project, target_name: str, base_name: str | None, console: Console) -> int:
    """Write the checklist of a target into its output folder. Raises EnvsError, UnknownName."""
    envs = load_envs(project.envs_dir)
    target = envs.target(target_name)
    stands = standing(project, target, envs.base_of(target, base_name).name)
    facts = Project().envs_dir  # about upstream, whatever project the target is of
    stands = replace(stands, lock_now=usable_lock(project, envs, stands))
    questions, checks = read_questions(facts), read_gpu_checks(facts)
    refuse_unknown_tests(questions, checks)
    answers = answers_of(stands, questions, checks)
    path = project.out_dir / stands.folder / OUTPUT
    write_atomically(path, checklist(stands, answers).encode())
    states = Counter(each.state for group in answers.values() for each in group)
    console.result({"checklist": str(path), **{state: states[state] for state in get_args(State)}})
    return 0


def refuse_unknown_tests(questions: Sequence[Question], checks: Mapping[str, GpuCheck]) -> None:
    """Raise EnvsError where a question names tests that no file describes: they would silently be left out."""
    if unknown := [name for question in questions for name in question.tests if name not in checks]:
        raise EnvsError(
            f"envs/{FILE} names the tests of {unknown[0]!r}, and envs/gpu-checks.yaml has none.",
            means=f"It has those of {', '.join(checks) or 'nothing'}.",
            next_step="correct the name in one of the two",
        )


def usable_lock(project: Project, envs: Envs, stands: Standing) -> str:
    """The checksum of the target's lock if a build would take it, empty if not."""
    try:
        return envs.lock_of(project.root, stands.target.name, stands.base).content
    except LockError:
        return ""


def read_questions(envs_dir: Path) -> tuple[Question, ...]:
    """Read `envs_dir`/checklist.yaml. Raises EnvsError with every mistake of the file."""
    return read_file(envs_dir / FILE, f"{envs_dir.name}/{FILE}", lambda item: tuple(_question(each) for each in item.items()))


def _question(item: Item) -> Question:
    fields = item.fields(["question"], ["shown", "tests", "open"])
    return Question(
        question=fields.text("question"),
        shown=fields.texts("shown", f"any of {', '.join(SHOWN)}", lambda name: name in SHOWN),
        tests=fields.texts("tests"),
        open=tuple(_open(each) for each in fields.items("open")),
    )


def _open(item: Item) -> Open:
    fields = item.fields(["what", "how", "source"], ["component"])
    return Open(fields.text("what"), fields.text("how"), fields.text("source"), fields.text("component"))


def answers_of(stands: Standing, questions: Sequence[Question], checks: Mapping[str, GpuCheck]) -> Mapping[str, tuple[Answer, ...]]:
    """The answers to every question: what was shown first, then upstream's tests, then what nothing here speaks of."""
    return {
        question.question: (
            *(answer for name in question.shown for answer in SHOWN[name](stands)),
            *(
                Answer(
                    f"{c} passes its own tests",
                    "open",
                    f"needs {checks[c].needs} ({checks[c].source})",
                    checks[c].commands_for(stands.target.vendor),
                )
                for c in question.tests
                if c in checks and stands.target.selection(c)
            ),
            *(
                Answer(o.what, "open", f"{o.how} ({o.source})")
                for o in question.open
                if not o.component or stands.target.selection(o.component)
            ),
        )
        for question in questions
    }


def checklist(stands: Standing, answers: Mapping[str, Sequence[Answer]]) -> str:
    """The whole document, as Markdown."""
    target = stands.target
    lines = [
        f"# Migration checklist: {stands.name}",
        "",
        f"{_plain(target.title)}. Status: **{target.status}** ({_plain(target.status_source)}). State: {_basis(stands)}.",
        "",
        "Ticked is what this toolkit has evidence for. Everything marked *open* has to be shown elsewhere; the commands are",
        "upstream's own, quoted and not run.",
    ]
    for number, (question, group) in enumerate(answers.items(), 1):
        lines += ["", f"## {number}. {_plain(question)}", ""]
        for answer in group:
            lines += _lines(answer)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


def _basis(stands: Standing) -> str:
    if stands.report is None:
        return f"{stands.level}" + (f", {_plain(stands.trouble).rstrip('.')}" if stands.trouble else "")
    old = ", which is not the lock in the repository now" if stands.old_lock else ""
    return f"{stands.level}, {stands.date}, from lock `{stands.lock}`{old}"


def _lines(answer: Answer) -> Iterator[str]:
    mark = "x" if answer.state == "yes" else " "
    yield f"- [{mark}] {_plain(answer.what)}: **{answer.state}**. {_plain(answer.evidence)}".rstrip(". ")
    if answer.commands:
        yield from ("", "  ```sh", *(f"  {_plain(command)}" for command in answer.commands), "  ```", "")


def _plain(text: str) -> str:
    """Text on one line, nothing in it that could end a list item or start a mark of its own."""
    return " ".join(without_control(text).split())


# What is shown here


def _needs_build(stands: Standing) -> str:
    if stands.target.toolkit.kind == "cann-installers":
        return f"docs/ascend.md, then nox -s build-{stands.target.name} -- {EULA_OPTION}"
    return f"nox -s build-{stands.target.name}"


def _listed(stands: Standing) -> Iterator[Answer]:
    supported = stands.target.status == "supported"
    said = f"{stands.target.status}: {stands.target.status_source}"
    yield Answer("DeepInfer lists the platform", "yes" if supported else "no", said)


def _locked(stands: Standing) -> Iterator[Answer]:
    what = "every input is locked by version and hash"
    if not stands.lock_now:
        yield Answer(what, "open", f"there is no lock that a build would take; nox -s lock -- {stands.target.name}")
    elif stands.lock_lacks:
        yield Answer(what, "no", f"lockfiles/{stands.target.name}-{stands.base}.lock: {stands.lock_lacks}")
    elif stands.old_lock:
        yield Answer(what, "no", f"what was built is of lock {stands.lock}, which is not the one in the repository now")
    else:
        yield Answer(what, "yes", f"lockfiles/{stands.target.name}-{stands.base}.lock, {stands.lock_now}")


def _built(stands: Standing) -> Iterator[Answer]:
    what = "every component compiles in a clean container without a network"
    report = stands.report
    if not report and stands.target.not_built:
        yield Answer("every part of the engine is a component here", "no", "; ".join(map(str, stands.target.not_built)))
    if report is None or report.level == "incomplete":
        left_out = [r.result.name for r in report.rows if r.result.status == "not attempted"] if report else []
        rest = f" (not attempted: {', '.join(left_out)})" if left_out else ""
        if report and report.record.complete:
            yield Answer(what, "no", f"not built: {'; '.join(map(str, report.record.not_built))}")
        else:
            yield Answer(what, "open", f"{_needs_build(stands)}{rest}")
        return
    failed = [r.result.name for r in report.rows if r.level == "fails"]
    if failed:
        yield Answer(what, "no", f"{', '.join(failed)} failed; out/{stands.folder}/record.json")
    else:
        record = report.record
        yield Answer(
            what, "yes", f"{', '.join(c.name for c in record.components)}; {record.started[:10]}, out/{stands.folder}/record.json"
        )


def _reproduced(stands: Standing) -> Iterator[Answer]:
    what = "a second clean build gives the same bytes"
    report = stands.report
    if report is None or report.verification is None:
        yield Answer(what, "open", f"nox -s verify-{stands.target.name}")
    else:
        same = reaches(report.built_level, "identical artifacts")
        proof = f"{report.built_level}, {report.verification.started[:10]}, out/{stands.folder}/verify/verification.json"
        yield Answer(what, "yes" if same else "no", proof)


def _prerequisites(stands: Standing) -> Iterator[Answer]:
    if stands.report is None:
        for need in stands.target.prerequisites:
            how = OUTSIDE if need.kind == "outside" else _needs_build(stands)
            yield Answer(f"{need.name} {need.requires}", "open", f"documented in {need.source}; {how}")
        return
    states: dict[str, State] = {"met": "yes", "deviates": "no", "not verified": "open"}
    for each in stands.report.record.prerequisites:
        remark = f"; {each.note}" if each.note else ""
        found = f"documented in {each.source}; here {each.environment}{remark}"
        yield Answer(f"{each.name} {each.documented}", states[each.verdict], found)


def _deviations(stands: Standing) -> Iterator[Answer]:
    what = "nothing deviates from what upstream documents"
    if stands.report is None:
        yield Answer(what, "open", _needs_build(stands))
    else:
        found = stands.report.record.deviations
        yield Answer(what, "no" if found else "yes", "; ".join(found))


def _architectures(stands: Standing) -> Iterator[Answer]:
    for selection in stands.target.components:
        what = f"{selection.component} holds code for what was asked"
        row = next((r for r in stands.report.rows if r.result.name == selection.component), None) if stands.report else None
        if row is None or row.result.status == "not attempted":
            yield Answer(what, "open", _expectation(stands, selection.component) or _needs_build(stands))
        elif row.result.status == "failed":
            first = row.result.failure.message if row.result.failure else "it did not build"
            yield Answer(what, "no", first)
        elif not row.result.architectures_asked:
            yield Answer(f"the wheel of {selection.component} is host code", "yes", "nothing in it is compiled for an architecture")
        elif row.evidence is None:
            yield Answer(what, "open", "its binaries were not read")
        elif row.found != ON_FIRST_USE or not stands.run_time_counts(selection.component)[1]:
            yield _held(what, row)
        yield from _at_run_time(selection.component, stands)


def _held(what: str, row: Row) -> Answer:
    """Stubs and kernels that are only compiled on first use are no code for an architecture."""
    asked, found, stubs = row.result.architectures_asked, row.found, row.stubs or 0
    said = f"asked {', '.join(asked)}; found {found}" + (f"; {stubs} kernels are stubs that only trap" if stubs else "")
    if found == ON_FIRST_USE:
        return Answer(what, "open", f"asked {', '.join(asked)}; its kernels are compiled on first use")
    if row.evidence and any(map(is_npu, asked)):
        told = ", ".join(dict.fromkeys(row.evidence.runs_on.values()))
        return Answer(what, "yes" if told == BY_LOG else "no", f"{said}; {told}")
    return Answer(what, "yes" if not stubs and set(asked) <= set(found.split(", ")) else "no", said)


def _at_run_time(component: str, stands: Standing) -> Iterator[Answer]:
    compiled, tried = stands.run_time_counts(component)
    if tried:
        what = f"what {component} compiles on first use compiles"
        yield Answer(
            what, "yes" if compiled == tried else "no", f"{compiled} of {tried} kernels; out/{stands.folder}/evidence.json"
        )


def _expectation(stands: Standing, component: str) -> str:
    expected = stands.target.expectation(component)
    if expected is None:
        return ""
    reason = f": {expected.reason}" if expected.reason else ""
    return f"expected {expected}{reason} ({expected.source})"


def _findings(stands: Standing) -> Iterator[Answer]:
    what = "no part was silently left out of a binary"
    report = stands.report
    if report is None or report.evidence is None:
        yield Answer(what, "open", "the binaries were not read" if report else _needs_build(stands))
        return
    weighty = [f for f in report.findings if f.severity != "note"]
    accepted = [(f, stands.target.acceptance(f.component, f.kind)) for f in weighty]
    for finding, acceptance in accepted:
        said = f"{finding.kind}: {finding.message}"
        reason = f"; accepted: {acceptance.reason}" if acceptance else ""
        yield Answer(f"nothing degrades {finding.component}", "no", said + reason)
    if not weighty:
        yield Answer(what, "yes", f"out/{stands.folder}/evidence.json")


def _imports(stands: Standing) -> Iterator[Answer]:
    what = "every module imports in the image, without a device"
    imports = stands.report.record.imports if stands.report else ()
    if not imports:
        yield Answer(what, "open", f"no image was made; {_needs_build(stands)}")
        return
    broken = [f"{i.module}: {i.error}" for i in imports if not i.ok]
    yield Answer(what, "no" if broken else "yes", "; ".join(broken) or ", ".join(i.module for i in imports))


def _changes(stands: Standing) -> Iterator[Answer]:
    what = "the sources are upstream's, unchanged"
    if stands.report is None:
        yield Answer(what, "open", _needs_build(stands))
        return
    changed = [f"{c.name}: {change}" for c in stands.report.record.components for change in c.changes]
    yield Answer(what, "no" if changed else "yes", "; ".join(changed) or "no component was changed")


def _missing_modules(stands: Standing) -> Iterator[Answer]:
    what = "nothing that a component imports is known to be missing from the image"
    if stands.report is None:
        yield Answer(what, "open", _needs_build(stands))
        return
    missing = [f"{m.module}, wanted by {m.component}: {m.reason}" for m in stands.report.record.missing_modules]
    yield Answer(what, "no" if missing else "yes", "; ".join(missing))


def _tiers(stands: Standing) -> Iterator[Answer]:
    """Only where a person has to bring the toolkit: what can be shown without it."""
    if stands.target.toolkit.kind != "cann-installers":
        return
    what = "what can be tried without CANN works"
    if stands.tiers is None:
        why = f": {stands.tiers_trouble}" if stands.tiers_trouble else ""
        yield Answer(what, "open", f"nox -s tiers-{stands.target.name}{why}")
        return
    outcomes = {tier.outcome for tier in stands.tiers.tiers}
    whole = outcomes == {"passed"} and stands.tiers.lock.content == stands.lock_now
    state: State = "no" if outcomes & {"failed", "partly"} else "yes" if whole else "open"
    yield Answer(what, state, stands.tried)


SHOWN: Mapping[str, Callable[[Standing], Iterator[Answer]]] = {
    "listed": _listed,
    "locked": _locked,
    "tiers": _tiers,
    "built": _built,
    "reproduced": _reproduced,
    "prerequisites": _prerequisites,
    "deviations": _deviations,
    "architectures": _architectures,
    "findings": _findings,
    "imports": _imports,
    "changes": _changes,
    "missing modules": _missing_modules,
}
"""What envs/checklist.yaml may name under `shown`."""
