"""What containers report while a step runs, as people see it: compiler runs counted, the first refusal of each kind at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cleanroom.console import Console, StepView
from cleanroom.engine import StepEvent
from cleanroom.failures import MARK, cause, classify


@dataclass
class Teller:
    """Tells the events of one step. `kernels`: what the numbers of probes of kernels compiled at run time stand for."""

    step: str
    view: StepView
    console: Console
    kernels: Mapping[int, str]
    units: int = 0
    tried: int = 0
    seen: set[tuple[str, str]] = field(default_factory=set)

    def __call__(self, event: StepEvent) -> None:
        if event.status in ("log", "transfer") and not event.text.startswith(MARK):
            self.view.log(self.step, event.text)
        elif event.text.startswith(MARK):
            try:
                self._report(json.loads(event.text.removeprefix(MARK)))
            except (ValueError, KeyError, TypeError):  # a build may print anything, and this is for the eye only
                self.view.log(self.step, event.text)

    def _report(self, report: Mapping[str, Any]) -> None:
        match report["event"]:
            case "unit":
                self.units += 1
                self.view.log(self.step, f"unit {self.units}: {report['unit']} {' '.join(report['architectures'])}")
            case "refused":
                self._refused(str(report["unit"]), str(report["text"]))
            case "kernel":
                self.tried += 1
                name = self.kernels.get(report["number"], f"kernel {report['number']}")
                self.view.log(self.step, f"{self.tried} of {len(self.kernels)}: {name} {report['outcome']}")
                if report["errors"]:
                    self._refused(name, "\n".join(report["errors"]))

    def _refused(self, what: str, log: str) -> None:
        failure = classify(log)
        if (reason := cause(failure)) not in self.seen:
            self.seen.add(reason)
            self.console.info(f"{self.step}: {what}: {failure.message}")
