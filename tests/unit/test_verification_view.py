"""What people see after `verify`, compared with what it looked like when it was last read and found good."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from records import record
from verifications import differing, verification

from cleanroom.console import Console
from cleanroom.verification import LEVELS, Variation, Verification
from cleanroom.verification_view import ONLY_BYTES, SAYS, SHOWN_CAUSES, by_cause, place_of, summarise

GOLDEN = Path(__file__).parent / "data" / "verifications"
OUT = Path("out/sm100")
experimental = replace(record(), target=replace(record().target, name="sm120", status="experimental"))
CASES = {
    "identical": verification(),
    "differs": differing(),
    "wheels-only": verification(experimental, level="identical artifacts", image_second=None, image_level="incomplete"),
    "varied": verification(
        level="builds", variations=(Variation("time zone", "Asia/Tokyo", "builds", ("deepep: _C.so, .comment: a date",)),)
    ),
}


def shown(made: Verification, out: Path = OUT) -> str:
    stream = io.StringIO()
    summarise(made, Console(stream=stream), out=out)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


@pytest.mark.parametrize("name", CASES)
def test_a_summary_looks_as_it_did(name: str) -> None:
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("CLEANROOM_WRITE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(shown(CASES[name]))
    assert shown(CASES[name]) == golden.read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_level_stands_first_and_what_it_does_not_say_is_always_there(name: str) -> None:
    lines = [line for line in shown(CASES[name]).split("\n") if line]
    assert lines[0].endswith(f": {CASES[name].level}")
    assert lines[1].startswith(SAYS[CASES[name].level])
    assert ONLY_BYTES in lines
    assert len(lines) <= 25, "ten seconds of reading"


def test_every_level_is_explained() -> None:
    assert list(SAYS) == list(LEVELS)


def test_differences_of_one_cause_are_told_once_and_the_worst_comes_first() -> None:
    causes = by_cause(differing().components[0].differences)
    assert [(c.title, len(c.differences)) for c in causes] == [("unknown cause", 1), ("build path", 30)]


def test_only_the_first_causes_are_shown_and_the_rest_is_counted() -> None:
    same = differing()
    one = same.components[0].differences[0]
    many = tuple(replace(one, cause=f"cause {n}") for n in range(SHOWN_CAUSES + 3))
    text = shown(replace(same, components=(replace(same.components[0], differences=many),), image_differences=()))
    assert text.count("build in the same folder") == SHOWN_CAUSES
    assert "3 more causes are in the report." in text


def test_a_difference_without_a_place_is_one_of_the_archive() -> None:
    assert place_of(replace(differing().components[0].differences[0], file="", part="")) == "the archive itself"


def test_json_says_the_levels_and_where_everything_is() -> None:
    stream, events = io.StringIO(), io.StringIO()
    summarise(differing(), Console(json=True, stream=stream, events=events), out=OUT)
    assert stream.getvalue() == ""
    assert json.loads(events.getvalue()) == {
        "event": "result",
        "result": {
            "level": "same architectures",
            "components": {"deepep": "same architectures", "deepinfer": "identical artifacts"},
            "image": "same architectures",
            "verification": "out/sm100/verify/verification.json",
            "report": "out/sm100/report.html",
        },
    }
