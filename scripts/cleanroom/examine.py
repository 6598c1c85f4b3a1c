"""Examine what a build made: the machine code, the libraries, what the containers noted, what the sources lack.

Everything that is worth telling becomes a finding. The target's YAML says which of them it accepts, and why; on a supported
target any other that degrades the result costs the verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from pathlib import Path

from cleanroom import evidence, hygiene
from cleanroom.base import Base
from cleanroom.envs import Envs
from cleanroom.evidence import Evidence, Finding, Severity
from cleanroom.failure_tables import SILENT
from cleanroom.image_hygiene import examine_image
from cleanroom.inventory import inventory
from cleanroom.jit import JitReport
from cleanroom.lock import Lock
from cleanroom.project import Project
from cleanroom.store import Store
from cleanroom.survey import BUILD_LOG, Survey
from cleanroom.target import Target

RUN_TIME_KERNEL = "run-time kernel"
DEGRADES: Severity = "degrades"
NOTE: Severity = "note"

FINDINGS = "findings.jsonl"
"""What a container leaves beside the wheel, one finding a line."""


def examine(
    envs: Envs,
    target: Target,
    base: Base,
    lock: Lock,
    out: Path,
    wheels: Mapping[str, Path],
    store: Store,
    *,
    image: Path | None = None,
    jit: JitReport | None = None,
    surveys: tuple[Survey, ...] = (),
) -> Evidence:
    """Read what was built: by component, in the folder `out` of the target, and the image (an OCI archive) if one was made.

    Raises RecordError for a damaged note, IntegrityError for an image that cannot be read.
    """
    asked = {name: target.names_asked_of(name) for name in wheels if architectures_matter(envs, name)}
    folder = out / "components"
    gathered = evidence.gather(asked, folder, envs.components, envs.table)
    rules = hygiene.read_rules(Project().envs_dir)  # about systems and drivers, whatever project the target is of
    others = {e.name: store.path_of(e.sha256) for e in lock.group("python") if e.file_name.endswith(".whl")}
    place = hygiene.Place(
        platform=target.platform,
        glibc=base.glibc,
        packages=frozenset(e.name for e in lock.group("base")),
        libraries=hygiene.libraries_in(others.values()),
        traces=hygiene.machine_traces(),
        toolkit=target.toolkit.kind,
    )
    problems = inventory(envs, target, lock, store).problems
    found = (
        *gathered.findings,
        *hygiene.examine(wheels, others, place, rules),
        *hygiene.unresolved(wheels, others.values(), rules, target.toolkit.kind),
        *(examine_image(image, place, rules) if image else ()),
        *noted(folder, wheels),
        *warned(folder, wheels),
        *(at_run_time(jit) if jit else ()),
        *(problem for problem in problems if problem.component in wheels),
    )
    return replace(gathered, findings=settled(found, target, wheels), jit=jit, surveys=surveys)


def at_run_time(report: JitReport) -> Iterator[Finding]:
    """What compiling in the image said that envs/jit/ does not expect."""
    for result in report.surprises:
        name = f"{result.family} {result.kernel}" + (f" ({result.variant})" if result.variant else "")
        text = f"{name} for {result.architecture}: {result.outcome}, expected {result.expected} ({result.reason})"
        why = f"; {result.errors[0]}" if result.errors else ""
        yield Finding(result.component, RUN_TIME_KERNEL, NOTE if result.outcome == "compiled" else DEGRADES, text + why)
    for kind, lines, severity in (
        ("run-time kernels not tried", report.uncovered, DEGRADES),
        ("run-time kernels gone", report.gone, NOTE),
        ("run-time flags", report.drift, DEGRADES),
    ):
        for line in lines:
            component, _, text = line.partition(": ")
            yield Finding(component, kind, severity, text)


def architectures_matter(envs: Envs, component: str) -> bool:
    return envs.component(component).architecture.decided != "nowhere"


def noted(folder: Path, components: Iterable[str]) -> Iterator[Finding]:
    """What the container of each component wrote down, one finding for each kind, with how often and the first of them."""
    for component in components:
        path = folder / component / FINDINGS
        notes = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        for kind in sorted({note["kind"] for note in notes}):
            same = [note for note in notes if note["kind"] == kind]
            kernel = evidence.readable(same[0]["kernel"]) if "kernel" in same[0] else ""
            what = " ".join(part for part in (same[0].get("architecture", ""), kernel) if part) or kind
            yield Finding(component, kind, "degrades", f"{what}: {same[0]['message']}{_and_more(same)}")


def warned(folder: Path, components: Iterable[str]) -> Iterator[Finding]:
    """What the tools only warned of in the log of each component, although it is not what was asked for."""
    for component in components:
        path = folder / component / BUILD_LOG
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        for kind, pattern in SILENT:
            if found := list(dict.fromkeys(match["message"] for line in lines if (match := pattern.match(line)))):
                yield Finding(component, kind, "degrades", f"only a warning in the log: {found[0]}{_and_more(found)}")


def _and_more(found: Sized) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""


def settled(findings: Iterable[Finding], target: Target, built: Iterable[str]) -> tuple[Finding, ...]:
    """Findings as the target judges them: accepted ones are notes, and a supported target fails on any other degradation."""
    result = []
    used = set()
    for finding in findings:
        accepted = target.acceptance(finding.component, finding.kind)
        if accepted is not None and finding.severity != "note":
            used.add(accepted)
            result.append(replace(finding, severity="note", message=f"{finding.message} - accepted: {accepted.reason}"))
        elif finding.severity == "degrades" and target.status == "supported":
            text = f"{finding.message} - not accepted in the target's YAML"
            result.append(replace(finding, severity="fails", message=text))
        else:
            result.append(finding)
    for accepted in target.accepts:
        if accepted.component in set(built) and accepted not in used:
            text = f"the target accepts {accepted.kind!r}, but nothing of that kind was found"
            result.append(Finding(accepted.component, "unused acceptance", "note", text))
    return tuple(dict.fromkeys(result))
