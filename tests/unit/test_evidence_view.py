"""What a person reads about the machine code in a wheel."""

from __future__ import annotations

import io
import json

import pytest

from cleanroom.console import Console
from cleanroom.evidence import ComponentEvidence, LibraryEvidence
from cleanroom.evidence_view import show

LIBRARY = LibraryEvidence(
    "a/_C.so", ("sm_100a", "sm_90a"), ("compute_100",), 12, {"sm_90a": tuple(f"_Z3k{n:02}v" for n in range(10))}
)
FOUND = ComponentEvidence("kernels", (), (), ("sm_100a",), (LIBRARY,), {"9.0": "does not run", "10.0": "runs"})


def shown(evidence: ComponentEvidence) -> str:
    stream = io.StringIO()
    show(evidence, Console(json=False, stream=stream))
    return stream.getvalue()


def test_stubs_are_counted_by_architecture_and_named_up_to_a_limit() -> None:
    text = shown(FOUND)
    assert "10 of sm_90a" in text
    assert "Stubs for sm_90a" in text
    assert "and 2 more" in text
    assert "compute_100" in text


def test_every_card_of_interest_has_its_answer() -> None:
    lines = [line.split(maxsplit=1) for line in shown(FOUND).splitlines()]
    assert ["9.0", "does not run"] in lines
    assert ["10.0", "runs"] in lines


def test_a_wheel_without_machine_code_says_so_instead_of_an_empty_table() -> None:
    empty = ComponentEvidence("deepgemm", (), (), (), (), {"10.0": "compiled at run time"})
    assert "holds no machine code" in shown(empty)


def test_for_machines_all_of_it_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    show(FOUND, Console(json=True))
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(event["result"]["libraries"][0]["stubs"]["sm_90a"]) == 10
