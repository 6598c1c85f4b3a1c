"""A survey: what became of every translation unit of a component that does not build, each with its first error.

scripts/in_container/survey.py makes one, in a container that goes on where a build stops.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cleanroom.binary import cubin
from cleanroom.binary.fatbin import images
from cleanroom.errors import IntegrityError, RecordError
from cleanroom.failures import Failure, cause, classify

Outcome = Literal["compiled", "stub", "refused"]
"""`stub`: the compiler said yes, and no kernel of the object does anything but stop."""
Gate = Literal[
    "setup.py",
    "host compiler",
    "static assertion",
    "nvcc",
    "ptxas",
    "missing instruction",
    "missing header",
    "missing implementation",
]
"""What said no. `missing implementation`: nothing did, and that is the trouble: a stub was made."""
STUB = Failure("other", "it compiles, and does nothing but stop: the source has no code for this architecture", None, None, (), "")

BUILD_LOG = "build.log"
"""What a container's build wrote, beside what it made."""


@dataclass(frozen=True)
class Unit:
    """One compiler run. `seconds`: CPU time; `failure`: the first error of a refused one."""

    unit: str
    architectures: tuple[str, ...]
    outcome: Outcome
    seconds: float
    failure: Failure | None


@dataclass(frozen=True)
class Cause:
    """One reason, and how many units met it; `first` is one of them."""

    gate: Gate
    failure: Failure
    count: int
    first: str


@dataclass(frozen=True)
class Survey:
    """All units of one component that are compiled for an architecture.

    `failure` is what ended the build; where no unit was attempted, that is what refuses.
    """

    component: str
    units: tuple[Unit, ...]
    failure: Failure | None

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """Units by outcome; an outcome that no unit has counts 0."""
        found = Counter(unit.outcome for unit in self.units)
        return {outcome: found[outcome] for outcome in get_args(Outcome)}

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Every reason once, the most frequent first."""
        refused = [(unit.unit, unit.failure or STUB) for unit in self.units if unit.outcome != "compiled"]
        if not self.units and self.failure:
            return grouped([(self.failure.where, self.failure)])
        return grouped(refused)


def grouped(failures: Iterable[tuple[str, Failure]]) -> tuple[Cause, ...]:
    """Named failures by what makes them the same, the most frequent first."""
    by_cause: dict[tuple[str, str], list[tuple[str, Failure]]] = {}
    for name, failure in failures:
        by_cause.setdefault(cause(failure), []).append((name, failure))
    causes = (Cause(gate_of(same[0][1]), same[0][1], len(same), same[0][0]) for same in by_cause.values())
    return tuple(sorted(causes, key=lambda each: -each.count))


def gate_of(failure: Failure) -> Gate:
    """Which part of a build said no."""
    if failure == STUB:
        return "missing implementation"
    text = "\n".join((failure.message, *failure.excerpt))
    if failure.kind in ("static assertion", "missing header"):
        return "static assertion" if failure.kind == "static assertion" else "missing header"
    if failure.kind not in ("architecture refused", "compile error", "unsupported host compiler"):
        return "setup.py"
    if "ptxas" in text:
        return "missing instruction" if "not supported on .target" in text or "requires .target" in text else "ptxas"
    return "nvcc" if failure.kind == "architecture refused" or (failure.file or "").endswith((".cu", ".cuh")) else "host compiler"


def read_survey(folder: Path, component: str) -> Survey:
    """Read what a container left in `folder`: units.jsonl, build.log, and objects/.

    Raises RecordError if it is damaged. Without units.jsonl no unit was attempted: something refused before.
    """
    log = folder / BUILD_LOG
    failure = classify(log.read_text(errors="replace")) if log.is_file() else None
    units = folder / "units.jsonl"
    try:
        events = [json.loads(line) for line in units.read_text().splitlines()] if units.is_file() else []
        said = {event["unit"]: str(event["text"]) for event in events if event["event"] == "refused"}
        found = tuple(_unit(event, said, folder / "objects") for event in events if event["event"] == "unit")
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{units} cannot be read: {error}.", means="It is damaged.", next_step="build the target again") from None
    return Survey(component, found, failure)


def holds_only_stubs(data: bytes) -> bool:
    """Whether an object has kernels that only stop, and none that does anything. Raises IntegrityError if it cannot be read.

    Beside stubs an empty kernel is no work either: CUB puts one into every object that includes it.
    """
    kernels = [kernel for image in images(data) if image.kind == "cubin" for kernel in cubin.kernels(image.data)]
    return any(kernel.stub for kernel in kernels) and all(kernel.stub or kernel.empty for kernel in kernels)


def _unit(event: Mapping[str, Any], said: Mapping[str, str], objects: Path) -> Unit:
    """One event of the log; whether the object does anything only its machine code tells."""
    name, architectures = str(event["unit"]), tuple(map(str, event["architectures"]))
    seconds = float(event["cpu_seconds"])
    if event["exit_status"] != 0:
        return Unit(name, architectures, "refused", seconds, classify(said.get(name, "")))
    made = objects / (hashlib.sha256(str(event["output"]).encode()).hexdigest()[:16] + ".o")
    try:
        stub = made.is_file() and holds_only_stubs(made.read_bytes())
    except IntegrityError:
        stub = False
    return Unit(name, architectures, "stub" if stub else "compiled", seconds, None)
