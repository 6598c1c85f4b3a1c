"""Summaries compared with what they looked like when they were last read and found good."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from records import component, failed_record, not_attempted, record

from cleanroom.console import Console
from cleanroom.record import Import, Record
from cleanroom.summary import ONLY_COMPILED, summarise

GOLDEN = Path(__file__).parent / "data" / "summaries"
OUT = Path("out/sm100")

broken = record(
    verdict="fails",
    imports=(Import("deepep", "deep_ep", ok=False, error="ImportError: libnccl.so.2: cannot open shared object file"),),
)
partial = record(
    verdict="incomplete",
    target=replace(record().target, name="sm120", status="experimental"),
    components=(
        component("deepep", "2.5.0"),
        not_attempted("deepinfer", "0.1.0"),
    ),
    image=None,
    imports=(),
    deviations=(),
    missing_modules=(),
)
PUBLISHED = "Nothing is published for this lock yet."
CASES = {"builds": record(), "fails": failed_record(), "does-not-import": broken, "incomplete": partial}


def shown(made: Record, out: Path = OUT) -> str:
    stream = io.StringIO()
    summarise(made, Console(stream=stream), out=out, published=PUBLISHED)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


@pytest.mark.parametrize("name", CASES)
def test_a_summary_looks_as_it_did(name: str) -> None:
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("CLEANROOM_WRITE_GOLDENS"):
        golden.write_text(shown(CASES[name]))
    assert shown(CASES[name]) == golden.read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_the_first_word_and_what_it_does_not_say_is_always_there(name: str) -> None:
    lines = [line for line in shown(CASES[name]).split("\n") if line]
    assert lines[0].endswith(f": {CASES[name].verdict}")
    assert ONLY_COMPILED in lines


def test_what_failed_stands_before_the_table() -> None:
    text = shown(failed_record())
    assert text.index("deepgemm failed: missing header at /build/nj/jit.hpp:2") < text.index("component ")
    assert text.index("Hint: ") < text.index("component ")
    assert text.index("Log: out/sm100/logs/deepgemm.log") < text.index("component ")


def test_plain_output_carries_no_escape_sequence() -> None:
    assert "\x1b" not in shown(failed_record())


def test_a_folder_elsewhere_is_shown_whole(tmp_path: Path) -> None:
    assert f"record: {tmp_path}/record.json" in shown(record(), tmp_path)


def test_json_says_the_verdict_and_where_the_record_is() -> None:
    stream, events = io.StringIO(), io.StringIO()
    summarise(failed_record(), Console(json=True, stream=stream, events=events), out=OUT, published=PUBLISHED)
    assert stream.getvalue() == ""
    assert json.loads(events.getvalue()) == {
        "event": "result",
        "result": {
            "verdict": "fails",
            "components": {"deepgemm": "failed", "deepep": "reused", "deepinfer": "not attempted"},
            "record": "out/sm100/record.json",
            "published": PUBLISHED,
        },
    }
