"""Kernels for an NPU that are compiled at run time: what TileLang and bisheng made of them in the image, judged.

The counterpart of jit.py's report for a vendor whose compiler nobody here has: the kernels stand in lower_tilelang.py, one
for a part of the families only, and all of them are expected to compile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cleanroom.binary import aicore
from cleanroom.component import Component
from cleanroom.errors import IntegrityError, RecordError
from cleanroom.jit import JitReport, JitResult, Result
from cleanroom.strict_json import from_json

FILE = "npu_kernels.json"
REASON = "upstream has it for this architecture"


@dataclass(frozen=True)
class _Lowered:
    """One kernel as the container writes it; `stage` is how far it came, `error` what ended it, empty where nothing did."""

    kernel: str
    arguments: str
    stage: str
    error: str
    seconds: float
    file: str
    sha256: str
    lines: int
    binary: str


@dataclass(frozen=True)
class _Answers:
    npu_arch: str
    kernels: tuple[_Lowered, ...]


def read_npu_kernels(folder: Path, npu_arch: str, components: Iterable[Component]) -> JitReport:
    """Judge what lower_tilelang.py left in `folder`. Raises RecordError if it is missing, damaged or of another architecture."""
    path = folder / FILE
    try:
        answers: _Answers = from_json(_Answers, json.loads(path.read_bytes()), "")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}.", means="It is damaged.", next_step="build the target again") from None
    if answers.npu_arch != npu_arch:
        text = f"{path} is of {answers.npu_arch}, not of {npu_arch}."
        raise RecordError(text, means="It is of another build.", next_step="build the target again")
    owners = {module: component.name for component in components for module in component.modules}
    results = tuple(_judged(answers.kernels, folder, npu_arch, owners))
    return JitReport(1, round(sum(r.seconds for r in results), 1), results, (), (), (), ())


def _judged(rows: Iterable[_Lowered], folder: Path, npu_arch: str, owners: Mapping[str, str]) -> Iterator[JitResult]:
    for row in rows:
        package, _, rest = row.kernel.partition(".")
        module, _, kernel = rest.rpartition(".")
        outcome, errors = _outcome(row, folder)
        yield JitResult(
            component=owners.get(package, package),
            family=module.replace(".", "/"),
            kernel=kernel,
            variant="",
            target_architecture=npu_arch,
            architecture=npu_arch,
            outcome=outcome,
            expected="compiled",
            reason=REASON,
            seconds=row.seconds,
            cpu_seconds=0.0,
            instructions=0,
            size=(folder / row.binary).stat().st_size if outcome == "compiled" else 0,
            sha256=row.sha256,
            command=(),
            errors=errors,
        )


def _outcome(row: _Lowered, folder: Path) -> tuple[Result, tuple[str, ...]]:
    """The compiler's word, except where what it made holds no kernel."""
    if row.error:
        return ("refused" if row.stage == "compile" else "failed"), (row.error,)
    try:
        if any(aicore.images((folder / row.binary).read_bytes())):
            return "compiled", ()
    except (OSError, IntegrityError) as error:
        return "failed", (f"{row.binary} cannot be read: {error}",)
    return "failed", (f"{row.binary} holds no AI Core kernel",)
