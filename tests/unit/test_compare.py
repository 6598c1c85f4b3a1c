"""What changed between two records, as release notes want it."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from locks import ENTRIES, entry, lock
from records import failed_record, record

from cleanroom.compare import Built, Options, Section, compare, lock_of, markdown, run
from cleanroom.console import Console
from cleanroom.errors import RecordError
from cleanroom.lock import Lock, lock_path, write_lock
from cleanroom.project import Project
from cleanroom.record import File, Image, LockInfo, Record, dump_record, write_record

GOLDEN = Path(__file__).parent / "data" / "compare"

OLD = lock()
NEW = lock(
    inputs="sha256:" + "2f" * 32,
    entries=(
        *(e for e in ENTRIES if e.name not in ("setuptools", "libdw-dev", "deepinfer-ep")),
        entry("python", "pypi", "setuptools", "84.2.1", "setuptools-84.2.1-py3-none-any.whl"),
        entry("python", "pypi", "ninja", "1.13.0", "ninja-1.13.0-py3-none-manylinux_2_17_x86_64.whl"),
        replace(entry("source", "pypi", "deepinfer-ep", "2.5.0", "deepinfer_ep-2.5.0.tar.gz"), sha256="9" * 64),
    ),
)


def of(made: Lock, **changes: object) -> Record:
    return record(lock=LockInfo("fixture-debian13", made.content, made.inputs), **changes)


def newer() -> Record:
    """Another lock: one component rebuilt differently, the other unchanged, one more deviation."""
    first, second = record().components
    wheel = File("wheels/deepinfer_deepep-2.5.0-cp313-cp313-linux_x86_64.whl", "cd" * 32, 1_900_000)
    return of(
        NEW,
        components=(replace(first, wheel=wheel), replace(second, status="reused", seconds=0.0)),
        image=Image("image.oci.tar", "sha256:" + "f2" * 32, 8_120_345_600, "zstd"),
        toolchain={**record().toolchain, "nvcc": "13.4.92"},
        deviations=(*record().deviations, "torch: documented ==2.13.0+cu132, here 2.13.0"),
        missing_modules=(),
        started="2026-12-02T04:13:00Z",
    )


def changes(sections: tuple[Section, ...], title: str) -> list[tuple[str, str, str]]:
    (found,) = [s for s in sections if s.title == title]
    return [(c.kind, c.what, c.after or c.before) for c in found.changes]


def same_as_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("CLEANROOM_WRITE_GOLDENS"):
        path.write_text(text)
    assert text == path.read_text()


def test_two_equal_records_have_no_difference() -> None:
    sections = compare(Built("a", of(OLD), OLD), Built("b", of(OLD), OLD))
    assert [s.title for s in sections if s.changes] == []
    assert "Unchanged: what was built, locked inputs" in markdown(Built("a", of(OLD), OLD), Built("b", of(OLD), OLD), sections)


def test_inputs_are_compared_entry_by_entry_hashes_included() -> None:
    sections = compare(Built("a", of(OLD), OLD), Built("b", newer(), NEW))
    assert [(kind, what) for kind, what, _ in changes(sections, "Locked inputs")] == [
        ("removed", "build: libdw-dev"),
        ("changed", "python: setuptools"),
        ("changed", "source: deepinfer-ep"),
        ("added", "python: ninja"),
    ]


def test_only_the_wheels_whose_bytes_differ_are_told() -> None:
    sections = compare(Built("a", of(OLD), OLD), Built("b", newer(), NEW))
    assert [(kind, what) for kind, what, _ in changes(sections, "Wheels")] == [("changed", "deepep")]
    assert changes(sections, "Components") == []  # reused is no other result than built
    assert [what for _, what, _ in changes(sections, "Image")] == ["manifest"]
    assert [(k, w) for k, w, _ in changes(sections, "Toolchain in the image")] == [("changed", "nvcc")]


def test_what_is_newly_missing_or_no_longer_missing_is_told() -> None:
    sections = compare(Built("a", of(OLD), OLD), Built("b", newer(), NEW))
    assert [(kind, what[:22]) for kind, what, _ in changes(sections, "Deviations and what is missing")] == [
        ("removed", "deep_select is missing"),
        ("added", "torch: documented ==2."),
    ]


def test_a_component_that_fails_now_says_why() -> None:
    sections = compare(Built("a", of(OLD), OLD), Built("b", failed_record(), OLD))
    (added,) = [c for c in changes(sections, "Components") if c[1] == "deepgemm"]
    assert added[0] == "added"
    assert "failed: missing header" in added[2]
    assert ("changed", "verdict of the build", "fails") in changes(sections, "What was built")


def test_a_lock_that_is_not_at_hand_is_named_instead_of_guessed() -> None:
    sections = compare(Built("a", of(OLD), None), Built("b", newer(), NEW))
    (found,) = [s for s in sections if s.title == "Locked inputs"]
    assert len(found.changes) == 1
    assert f"not at hand: fixture-debian13 {OLD.content[7:19]}" in found.note


def test_two_locks_with_the_same_entries_say_so() -> None:
    other = replace(OLD, inputs="sha256:" + "7f" * 32)
    sections = compare(Built("a", of(OLD), OLD), Built("b", of(other), other))
    (found,) = [s for s in sections if s.title == "Locked inputs"]
    assert (found.changes, found.note) == ((), "Other locks with the very same entries.")


def test_the_lock_is_found_by_its_checksum_not_by_its_name(tmp_path: Path) -> None:
    place = tmp_path / "fixture-debian13.lock"
    write_lock(place, NEW)
    assert lock_of(of(OLD), [place, tmp_path / "absent.lock"]) is None
    assert lock_of(newer(), [place]) == replace(NEW, entries=lock_of(newer(), [place]).entries)  # type: ignore[union-attr]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    write_record(project.out_dir / "fixture" / "record.json", of(OLD))
    write_lock(lock_path(tmp_path, "fixture-debian13"), NEW)
    write_lock(project.out_dir / "fixture" / "fixture-debian13.lock", OLD)
    write_record(tmp_path / "elsewhere" / "record.json", newer())
    return project


def said(project: Project, first: str, second: str, *, json_too: bool = False, **options: Path) -> str:
    stream, events = io.StringIO(), io.StringIO()
    run(project, first, second, Options(**options), Console(json=json_too, stream=stream, events=events))
    return (events if json_too else stream).getvalue().replace(str(project.root), "<project>")


def test_the_comparison_looks_as_it_did_by_target_name_folder_and_file(project: Project) -> None:
    text = said(project, "fixture", str(project.root / "elsewhere"))
    same_as_golden("terminal.txt", text)
    by_file = said(project, "fixture", str(project.root / "elsewhere" / "record.json"))
    assert by_file.replace("/record.json", "") == text


def test_the_release_notes_look_as_they_did(project: Project) -> None:
    place = project.root / "notes.md"
    said(project, "fixture", str(project.root / "elsewhere"), markdown=place)
    same_as_golden("notes.md", place.read_text().replace(str(project.root), "<project>"))


def test_for_machines_it_is_one_object(project: Project) -> None:
    (line,) = said(project, "fixture", str(project.root / "elsewhere"), json_too=True).splitlines()
    result = json.loads(line)["result"]
    assert result["first"] == "fixture"
    assert [s["title"] for s in result["sections"] if s["changes"]][:2] == ["Locked inputs", "Toolchain in the image"]


@pytest.mark.parametrize("name", ["nowhere", "", "../../etc", "elsewhere.json"])
def test_a_record_that_is_not_there_is_refused(project: Project, name: str) -> None:
    with pytest.raises(RecordError):
        said(project, "fixture", name)


def test_a_damaged_record_is_refused(project: Project) -> None:
    path = project.root / "broken.json"
    path.write_text("{")
    with pytest.raises(RecordError, match="not valid JSON"):
        said(project, str(path), "fixture")


def test_backticks_and_lines_in_a_message_do_not_break_the_notes() -> None:
    worse = of(OLD, deviations=("a `quoted`\nthing | x",))
    text = markdown(*(pair := (Built("a", of(OLD), OLD), Built("b", worse, OLD))), compare(*pair))
    assert "- added `a 'quoted' thing | x`" in text


def test_what_was_never_built_here_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="'sm77' is no record: there is neither such a file or folder, nor out/sm77/"):
        run(Project(tmp_path), "sm77", "sm78", Options(), Console(stream=io.StringIO()))


def test_of_two_records_the_damaged_one_is_named(tmp_path: Path) -> None:
    for name, text in (("one", dump_record(record())), ("two", "{")):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "record.json").write_text(text)
    with pytest.raises(RecordError, match=r"^two: record\.json is not valid JSON"):
        run(Project(tmp_path), "one", "two", Options(), Console(stream=io.StringIO()))
