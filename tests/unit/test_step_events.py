"""What containers report while a step runs is told as it comes: counted, and each kind of refusal once."""

from __future__ import annotations

import io
import json

from cleanroom.console import Console
from cleanroom.engine import StepEvent
from cleanroom.step_events import Teller

REFUSED = "ptxas a.ptx, line {}; error   : Instruction 'tcgen05.fence' not supported on .target 'sm_120f'"


def told(*texts: str) -> list[str]:
    stream = io.StringIO()
    console = Console(stream=stream)
    with console.steps("Trying", 1) as view:
        view.start("jit")
        teller = Teller("jit", view, console, {1: "deepgemm gemm for sm_120f", 2: "deepep copy for sm_120f"})
        for text in texts:
            teller(StepEvent("jit", "log", text))
        view.finish("jit", "done", 1.0)
    return stream.getvalue().splitlines()


def kernel(number: int, *errors: str) -> str:
    report = {"event": "kernel", "number": number, "outcome": "refused" if errors else "compiled", "errors": errors}
    return f"::cleanroom:: {json.dumps(report)}"


def test_a_refusal_is_told_at_once_and_its_kind_once() -> None:
    lines = told(kernel(1, REFUSED.format(9)), kernel(2, REFUSED.format(77)), kernel(2, "a.cu(3): error: static assertion failed"))
    said = [line for line in lines if line.startswith("jit: ")]
    assert said == [
        "jit: deepgemm gemm for sm_120f: Instruction 'tcgen05.fence' not supported on .target 'sm_120f'",
        "jit: deepep copy for sm_120f: static assertion failed",
    ]


def test_kernels_and_units_are_counted() -> None:
    assert any("1 of 2: deepgemm gemm for sm_120f compiled" in line for line in told(kernel(1)))
    unit = json.dumps({"event": "unit", "unit": "a.cu", "architectures": ["sm_90a"]})
    assert any("unit 1: a.cu sm_90a" in line for line in told(f"::cleanroom:: {unit}"))


def test_a_line_that_only_looks_like_a_report_is_a_line() -> None:
    for text in ("::cleanroom:: {", "::cleanroom:: []", '::cleanroom:: {"event": "kernel"}', '::cleanroom:: {"event": 5}'):
        assert isinstance(told(text), list)
