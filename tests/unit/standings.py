"""Output folders for tests: a project of the repository's targets with what builds would have left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from locks import lock
from records import component, not_attempted, record

from cleanroom.evidence import ComponentEvidence, Evidence, LibraryEvidence, write_evidence
from cleanroom.failures import Failure
from cleanroom.lock import lock_path, write_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.record import LockInfo, Record, TargetInfo, write_record
from cleanroom.verification import ComponentVerification, Condition, Verification, write_verification

NAMES = ("flashmla", "deepgemm", "deepep", "tilekernels", "deepinfer")
VERSIONS = {"flashmla": "1.0.0", "deepgemm": "2.8.2", "deepep": "2.5.0", "tilekernels": "2.1.0", "deepinfer": "0.1.0"}


TARGETS = ("sm100", "sm103", "sm120", "sm89", "sm90")
"""What the tests look at: a new target of the repository changes no expected page."""


def project_at(root: Path) -> Project:
    """The repository's envs with these targets, and room for results and locks."""
    envs = root / "envs"
    envs.mkdir()
    for path in (REPOSITORY / "envs").iterdir():
        if path.name != "targets":
            (envs / path.name).symlink_to(path)
    (envs / "targets").mkdir()
    for name in TARGETS:
        (envs / "targets" / f"{name}.yaml").symlink_to(REPOSITORY / "envs" / "targets" / f"{name}.yaml")
    (root / "lockfiles").mkdir()
    return Project(root)


def built(project: Project, target: str, *, architecture: str, content: str, status: str = "supported") -> Record:
    """Write the record of a target all of whose components were built from a lock of this content checksum."""
    asked = {name: () if name == "deepinfer" else (architecture,) for name in NAMES}
    made = record(
        target=TargetInfo(target, f"NVIDIA {target.upper()}", status, "linux/amd64"),
        lock=LockInfo(f"{target}-debian13", content, "sha256:" + "1e" * 32),
        components=tuple(component(n, VERSIONS[n], architectures_asked=asked[n]) for n in NAMES),
    )
    write_record(project.out_dir / target / "record.json", made)
    return made


def failing(project: Project, made: Record, name: str) -> Record:
    """Write the same record with one component failed and the last one left out."""
    why = Failure(
        "architecture refused", "Instruction 'griddepcontrol' requires .target sm_90 or higher", "combine.ptx", 81, (), ""
    )
    parts = [
        replace(c, status="failed", wheel=None, failure=why) if c.name == name else c
        for c in made.components
        if c.name != "deepinfer"
    ]
    worse = replace(made, verdict="fails", components=(*parts, not_attempted("deepinfer", "0.1.0")), image=None, imports=())
    write_record(project.out_dir / made.target.name / "record.json", worse)
    return worse


def verified(project: Project, made: Record) -> None:
    """Write a verification that found every wheel identical."""
    parts = tuple(ComponentVerification(c.name, "identical artifacts", c.wheel, c.wheel, ()) for c in made.components)
    verification = Verification(
        tool_version="0.1.0",
        target=made.target,
        base=made.base,
        lock=made.lock,
        engine=made.engine,
        started="2026-12-01T06:00:00Z",
        seconds=3600.0,
        conditions=(Condition("job count", "2", "3"),),
        level="identical artifacts",
        components=parts,
        image_first=made.image,
        image_second=made.image,
        image_level="identical image",
        image_differences=(),
    )
    write_verification(project.out_dir / made.target.name / "verify" / "verification.json", verification)


def read_binaries(project: Project, made: Record, *, stubs: int = 0) -> None:
    """Write evidence: machine code in FlashMLA alone, the rest host code or compiled on first use."""
    target = made.target.name
    asked = {c.name: c.architectures_asked for c in made.components}
    names = {a: tuple(f"kernel{i}" for i in range(stubs)) for a in asked["flashmla"]} if stubs else {}
    library = LibraryEvidence("flash_mla/cuda.so", asked["flashmla"], (), 40, names)
    late = {"10.0": "compiled at run time"}
    parts = [ComponentEvidence("flashmla", asked["flashmla"], asked["flashmla"], asked["flashmla"], (library,), {"10.0": "runs"})]
    parts += [ComponentEvidence(n, asked[n], (), (), (), late if asked[n] else {}) for n in NAMES[1:]]
    write_evidence(project.out_dir / target / "evidence.json", Evidence(tuple(parts), ()))


def locked(project: Project, target: str) -> str:
    """Write a small lock for a target; its content checksum."""
    made = lock(target=target)
    write_lock(lock_path(project.root, made.name), made)
    return made.content


def damaged(project: Project, target: str) -> None:
    """A record that was cut off."""
    path = project.out_dir / target / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 1})[:-3])
