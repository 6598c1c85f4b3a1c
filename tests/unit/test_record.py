"""Records are written whole, read strictly, and name nothing of the machine."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import component, failed_record, record

from cleanroom import record as module
from cleanroom.errors import RecordError
from cleanroom.failures import Failure
from cleanroom.prerequisites import Assessment
from cleanroom.record import Import, Record, dump_record, parse_record, read_record, verdict_for, write_record
from cleanroom.resources import Resources
from cleanroom.target import NotBuilt

DOCUMENT = Path(__file__).parents[2] / "docs" / "record.md"
TYPES = (
    Failure,
    Assessment,
    Resources,
    NotBuilt,
    *(t for t in vars(module).values() if isinstance(t, type) and t.__module__ == module.__name__),
)


@pytest.mark.parametrize("make", [record, failed_record])
def test_what_is_written_is_what_is_read(make: Callable[[], Record], tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", make())
    again = read_record(tmp_path / "record.json")
    assert again == make()
    assert dump_record(again) == dump_record(make())


def test_the_schema_comes_first_and_mappings_are_sorted() -> None:
    data = json.loads(dump_record(record()))
    assert next(iter(data)) == "schema"
    assert list(data["toolchain"]) == ["gcc", "nvcc", "python", "torch"]


def test_two_dumps_are_the_same_bytes_whatever_the_order_of_the_toolchain() -> None:
    turned = record(toolchain=dict(reversed(record().toolchain.items())))
    assert dump_record(turned) == dump_record(record())


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    data = json.loads(dump_record(failed_record()))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("base"), "base is missing"),
        (lambda d: d["target"].pop("title"), "target.title is missing"),
        (lambda d: d["components"][0].pop("wheel"), "components[0].wheel is missing"),
        (lambda d: d.update(extra=1), "extra is unknown"),
        (lambda d: d["components"][1]["source"].update(url="x"), "components[1].source.url is unknown"),
        (lambda d: d.update(seconds="12"), "seconds is '12', not a whole number"),
        (lambda d: d.update(seconds=True), "seconds is True, not a whole number"),
        (lambda d: d.update(seconds=float("inf")), "seconds is inf, not a finite number"),
        (lambda d: d.update(verdict="fine"), "verdict is 'fine', not one of"),
        (lambda d: d["components"][0].update(status="maybe"), "components[0].status is 'maybe', not one of"),
        (lambda d: d.update(toolchain={"gcc": 14}), "toolchain.gcc is 14, not text"),
        (lambda d: d.update(components={}), "components is {}, not a list"),
        (lambda d: d.update(target=None), "target is None, not an object"),
        (lambda d: d.update(started="yesterday"), "started is 'yesterday'"),
        (lambda d: d.update(started="2026-11-30T04:13:00+01:00"), "not a UTC time"),
        (lambda d: d.update(dockerfile_sha256="D0"), "dockerfile_sha256 is 'D0', not a sha256"),
        (lambda d: d["components"][1]["wheel"].update(sha256=""), "components.deepep.wheel.sha256 is '', not a sha256"),
        (lambda d: d["components"][0].update(log="/var/log/x"), "components.deepgemm.log is '/var/log/x', not a path"),
        (lambda d: d["components"][0].update(log="../x"), "components.deepgemm.log is '../x', not a path inside"),
        (lambda d: d["components"][0].update(failure=None), "components.deepgemm failed, but its failure is null"),
        (lambda d: d["components"][1].update(wheel=None), "components.deepep is reused, but its wheel is null"),
        (lambda d: d["components"][0]["failure"].update(kind="bad luck"), "components[0].failure.kind is 'bad luck'"),
    ],
)
def test_an_edited_record_is_refused_with_the_field(change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(RecordError, match=re.escape(message)):
        parse_record(edited(change))


@pytest.mark.parametrize("schema", [1, 3, 0, None, "1", True, 1.5])
def test_another_schema_is_refused_before_anything_else(schema: object) -> None:
    with pytest.raises(RecordError, match="this version of Cleanroom reads 2"):
        parse_record(json.dumps({"schema": schema}))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", "\x00", "[" * 100_000])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        parse_record(text)


def test_a_missing_record_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as caught:
        read_record(tmp_path / "sm100" / "record.json")
    assert caught.value.next_step == "nox -s build-sm100"


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path / "record.json")


def test_a_record_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, record())
    before = path.read_bytes()
    with pytest.raises(RecordError):
        write_record(path, record(components=(component("x", "1", log="/var/log/x"),)))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_a_record_names_no_folder_and_no_host_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "someone" / "cleanroom"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    host = socket.gethostname()
    excerpt = (f"{here}/store is gone", f"{tmp_path}/someone/.cache")
    failure = Failure("other", f"no answer from {host}", None, None, excerpt, "")
    told = record(
        components=(component("x", "1", status="failed", failure=failure),),
        imports=(Import("x", "x", ok=False, error=f"at {host}: refused"),),
        verdict="fails",
    )
    text = dump_record(told)
    assert str(tmp_path) not in text
    assert "<here>/store is gone" in text
    assert "<home>/.cache" in text
    if host != "localhost":
        assert "no answer from <host>" in text
        assert "at <host>: refused" in text


def test_a_host_called_linux_does_not_change_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "linux")
    assert json.loads(dump_record(record()))["target"]["platform"] == "linux/amd64"


def test_verdicts_follow_from_what_happened() -> None:
    built, reused = component("a", "1"), component("b", "1", status="reused")
    left, failed = component("c", "1", status="not attempted"), component("d", "1", status="failed")
    broken = Import("a", "a", ok=False, error="undefined symbol")
    assert verdict_for([built, reused]) == "builds"
    assert verdict_for([built, left]) == "incomplete"
    assert verdict_for([built, left, failed]) == "fails"
    assert verdict_for([built], [broken]) == "fails"
    assert verdict_for([]) == "incomplete"
    lacking = [NotBuilt("DeepSelect", "no pinned source")]
    assert verdict_for([built, reused], not_built=lacking) == "incomplete"
    assert verdict_for([built, failed], not_built=lacking) == "fails"


def test_components_are_found_by_name() -> None:
    assert record().component("deepep").version == "2.5.0"
    assert [c.name for c in failed_record().failed] == ["deepgemm"]
    with pytest.raises(KeyError):
        record().component("flashmla")


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type) -> None:
    section = re.search(rf"^### {kind.__name__}\b.*?(?=^##|\Z)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/record.md has no section {kind.__name__}"
    documented = re.findall(r"^\| `(\w+)` \|", section[0], re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(verdict="identical image"), "verdict is 'identical image', and what the record holds comes to"),
        (lambda d: d.update(verdict="builds"), "verdict is 'builds', and what the record holds comes to 'fails'"),
        (lambda d: d["components"].append(d["components"][0]), "is there twice"),
        (lambda d: d.update(deviations=["\x00"]), "characters that are no text"),
        (lambda d: d.update(deviations=["\ud800"]), "characters that are no text"),
        (lambda d: d.update(seconds=10**400), "too large a number"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(change: Callable[[dict[str, Any]], object], says: str) -> None:
    with pytest.raises(RecordError, match=re.escape(says)):
        parse_record(edited(change))


def test_a_key_that_is_there_twice_is_refused() -> None:
    text = dump_record(record()).replace('"verdict":', '"verdict": "builds",\n  "verdict":')
    with pytest.raises(RecordError, match="'verdict' is there twice"):
        parse_record(text)


def test_what_is_no_text_is_written_as_something_that_can_be_read(tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", record(deviations=("a\0b\ud800",)))
    assert read_record(tmp_path / "record.json").deviations == ("a\ufffdb\ufffd",)
