"""The lock: what is written is read back, and what a hand or a disk did to it is found."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from locks import ENTRIES, entry, lock

from cleanroom.errors import LockError
from cleanroom.files import sha256_of, write_atomically
from cleanroom.lock import Entry, Lock, dump_lock, lock_path, read_lock, write_lock

PLACE = "fixture-debian13.lock"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / PLACE
    path.write_text(text)
    return path


def refusal(path: Path, *, inputs: str | None = None) -> LockError:
    with pytest.raises(LockError) as caught:
        read_lock(path, inputs=inputs)
    assert caught.value.next_step
    return caught.value


def round_trip(tmp_path: Path, written_lock: Lock) -> Lock:
    write_lock(tmp_path / PLACE, written_lock)
    return read_lock(tmp_path / PLACE)


def test_a_lock_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    whole = lock(notes=('numpy 2 asks for more: `see` "there"', "a: colon, a # hash"))
    again = round_trip(tmp_path, whole)
    assert replace(again, entries=tuple(sorted(again.entries))) == replace(whole, entries=tuple(sorted(whole.entries)))
    assert again.content == whole.content
    assert dump_lock(again) == dump_lock(whole)


def test_a_lock_without_a_base_is_named_after_its_target(tmp_path: Path) -> None:
    engine = lock(target="engine", base="")
    assert (engine.name, lock().name) == ("engine", "fixture-debian13")
    write_lock(tmp_path / "engine.lock", engine)
    assert read_lock(tmp_path / "engine.lock").base == ""
    assert lock_path(tmp_path, engine.name) == tmp_path / "lockfiles" / "engine.lock"


def test_a_lock_without_entries_is_a_lock(tmp_path: Path) -> None:
    assert round_trip(tmp_path, lock(entries=())).entries == ()


def test_the_order_of_entries_changes_neither_text_nor_content() -> None:
    backwards = lock(entries=tuple(reversed(ENTRIES)))
    assert dump_lock(backwards) == dump_lock(lock())
    assert backwards.content == lock().content


def test_every_entry_is_one_line_sorted_within_its_group() -> None:
    rows = [line for line in dump_lock(lock()).splitlines() if line.startswith("  - {")]
    assert len(rows) == len(ENTRIES)
    assert all(row.count("sha256: ") == 1 and row.endswith("}") for row in rows)
    sources = [re.search(r"name: ([^,]+)", row)[1] for row in rows if ".tar.gz" in row]  # type: ignore[index]
    assert sources == ["cleanroom-vectors", "deepinfer-ep", "deepinfer-flashmla", "deepinfer-gemm"]


def test_groups_come_in_the_order_of_use() -> None:
    assert list(yaml.safe_load(dump_lock(lock()))["entries"]) == ["base", "build", "toolkit", "python", "source"]


@pytest.mark.parametrize(
    "version",
    [
        "1.10",
        "1",
        "0e1",
        "1e5",
        "0x10",
        "0o17",
        "010",
        "1_000",
        "2026-11-30",
        "12:30",
        "1.0.0",
        "1:2.3~rc1-4+b1",
        ".5",
        "~",
        "null",
        "= 1",
        "-1",
        "+1",
        "1!2.0",
    ],
)
def test_a_version_that_yaml_would_take_for_something_else_stays_text(tmp_path: Path, version: str) -> None:
    one = lock(entries=(entry("python", "pypi", "thing", version, "thing.whl"),))
    assert round_trip(tmp_path, one).version_of("thing") == version


@pytest.mark.parametrize(
    "name", ["no", "yes", "on", "off", "true", "null", "y", "n", "3to2", "libstdc++6", "_a", "a b", "é", "#x", "a:b"]
)
def test_a_name_that_yaml_would_take_for_something_else_stays_text(tmp_path: Path, name: str) -> None:
    (again,) = round_trip(tmp_path, lock(entries=(entry("base", "debian", name, "1.0", "thing.deb"),))).entries
    assert again.name == name


@pytest.mark.parametrize("name", ["No", "NO", "Yes", "On", "OFF", "True", "FALSE", "Null", "NULL"])
def test_a_capitalised_yaml_word_stays_text_too(tmp_path: Path, name: str) -> None:
    (again,) = round_trip(tmp_path, lock(entries=(entry("python", "pypi", name, "1.0", "thing.whl"),))).entries
    assert again.name == name


@pytest.mark.parametrize("sha256", ["1" * 64, "01" * 32, "0" * 64])
def test_a_hash_without_a_letter_stays_text(tmp_path: Path, sha256: str) -> None:
    (again,) = round_trip(tmp_path, lock(entries=(replace(ENTRIES[0], sha256=sha256),))).entries
    assert again.sha256 == sha256


def test_content_depends_on_each_field() -> None:
    whole = lock()
    first = whole.entries[0]
    changes: list[dict[str, object]] = [{"version": "2"}, {"size": 1}, {"sha256": "0" * 64}, {"file": "x"}, {"name": "x"}]
    others = [replace(whole, entries=(replace(first, **c), *whole.entries[1:])) for c in changes]  # type: ignore[arg-type]
    others += [replace(whole, epoch=1), replace(whole, inputs="sha256:0"), replace(whole, notes=("x",)), lock(base="python312")]
    assert len({other.content for other in [whole, *others]}) == len(others) + 1


def test_a_lock_that_is_not_there_says_what_to_type(tmp_path: Path) -> None:
    error = refusal(tmp_path / "sm100-debian13.lock")
    assert "no lock sm100-debian13.lock" in error.what
    assert error.next_step == "nox -s lock -- sm100"


def test_a_lock_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    assert "not valid YAML" in refusal(written(tmp_path, "schema: [1")).what


@pytest.mark.parametrize("text", ["", "schema: 2\n", "just words\n", "- schema: 1\n", "schema: '1'\n"])
def test_a_file_of_another_schema_is_refused(tmp_path: Path, text: str) -> None:
    assert "schema" in refusal(written(tmp_path, text)).what


@pytest.mark.parametrize(
    ("old", "new"),
    [('2.41-12+deb13u3"', '2.41-12+deb13u4"'), ("size: 10", "size: 11"), ("target: fixture", "target: sm100"),
     ("source_date_epoch: 1796000000", "source_date_epoch: 1796000001"), ("content: sha256:", "content: sha256:0")],
)  # fmt: skip
def test_a_lock_edited_by_hand_is_refused(tmp_path: Path, old: str, new: str) -> None:  # D25
    text = dump_lock(lock())
    assert old in text
    assert "was changed after it was written" in refusal(written(tmp_path, text.replace(old, new, 1))).what


def test_an_entry_removed_by_hand_is_refused(tmp_path: Path) -> None:
    lines = [line for line in dump_lock(lock()).splitlines(keepends=True) if "libdw-dev" not in line and "build:" not in line]
    assert "was changed after it was written" in refusal(written(tmp_path, "".join(lines))).what


def test_a_lock_of_other_inputs_is_stale(tmp_path: Path) -> None:
    path = tmp_path / PLACE
    write_lock(path, lock())
    assert read_lock(path, inputs=lock().inputs).inputs == lock().inputs
    error = refusal(path, inputs="sha256:" + "2f" * 32)
    assert "is stale" in error.what
    assert error.next_step == "nox -s lock -- fixture"


@pytest.mark.parametrize("sha256", ["''", "null", "abc", "'" + "g" * 64 + "'", "'" + "a" * 63 + "'", "'" + "A" * 64 + "'"])
def test_an_entry_without_a_valid_hash_is_refused(tmp_path: Path, sha256: str) -> None:
    text = dump_lock(lock()).replace(f"sha256: {ENTRIES[0].sha256}", f"sha256: {sha256}")
    error = refusal(written(tmp_path, text))
    assert "libc6 lacks" in error.what
    assert "sha256" in error.what


@pytest.mark.parametrize("field", ["kind", "name", "version", "file", "size", "sha256"])
def test_an_entry_that_lacks_a_field_is_refused_by_that_field(tmp_path: Path, field: str) -> None:
    text = re.sub(rf"(- \{{.*?){field}: [^,}}]+(, )?", r"\1", dump_lock(lock(entries=ENTRIES[:1])))
    assert f"lacks {field}" in refusal(written(tmp_path, text.replace(", }", "}"))).what


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    error = refusal(written(tmp_path, dump_lock(lock()).replace("kind: debian", "kind: conda")))
    assert "has kind 'conda'" in error.what
    assert "debian, pypi, image, folder" in error.means


@pytest.mark.parametrize("file", ["../thing.deb", "pool/../../thing.deb", "/etc/passwd", ".."])
def test_a_path_that_leaves_its_folder_is_refused(tmp_path: Path, file: str) -> None:
    path = tmp_path / PLACE
    write_lock(path, lock(entries=(entry("base", "debian", "thing", "1", file),)))
    assert "leaves its folder" in refusal(path).what


def test_one_file_with_two_hashes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / PLACE
    write_lock(path, lock(entries=(ENTRIES[0], replace(ENTRIES[0], sha256="0a" * 32))))
    assert "listed twice with two hashes" in refusal(path).what


@pytest.mark.parametrize("size", ["many", "'12 MB'", "[1]", "{}", "1.5", "true", "-1"])
def test_a_size_that_is_no_whole_number_is_refused(tmp_path: Path, size: str) -> None:
    refusal(written(tmp_path, re.sub(r"size: \d+", f"size: {size}", dump_lock(lock(entries=ENTRIES[:1])))))


@pytest.mark.parametrize("epoch", ["soon", "1.5", "true", "null"])
def test_an_epoch_that_is_no_whole_number_is_refused(tmp_path: Path, epoch: str) -> None:
    text = dump_lock(lock()).replace("source_date_epoch: 1796000000", f"source_date_epoch: {epoch}")
    assert "source_date_epoch" in refusal(written(tmp_path, text)).what


@pytest.mark.parametrize("entries", ["[1]", "words", "5", "{base: 5}", "{base: words}", "{base: [words]}", "{base: {a: b}}"])
def test_entries_of_another_shape_are_refused(tmp_path: Path, entries: str) -> None:
    refusal(written(tmp_path, re.sub(r"entries:.*", f"entries: {entries}\n", dump_lock(lock()), flags=re.DOTALL)))


def test_notes_of_another_shape_are_refused(tmp_path: Path) -> None:
    refusal(written(tmp_path, dump_lock(lock()).replace("notes: []", "notes: 5")))


def test_a_lock_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / PLACE).write_bytes(b"schema: 1\n\xff\xfe\x00")
    refusal(tmp_path / PLACE)


def test_a_file_name_is_the_last_part_of_its_path() -> None:
    assert ENTRIES[0].file_name == "libc6_2.41-12+deb13u3_amd64.deb"
    assert str(ENTRIES[0]) == "libc6 2.41-12+deb13u3 (libc6_2.41-12+deb13u3_amd64.deb)"


def test_a_group_is_given_sorted_and_alone() -> None:
    assert [e.name for e in lock().group("python", "base")] == ["libc6", "setuptools"]
    assert lock().version_of("setuptools") == "80.9.0"
    assert lock().version_of("torch") is None


def test_an_entry_is_frozen() -> None:
    with pytest.raises(AttributeError):
        ENTRIES[0].name = "other"  # type: ignore[misc]
    assert isinstance(ENTRIES[0], Entry)


def test_writing_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on" / "the" / "way" / "file"
    write_atomically(path, b"a longer first text")
    write_atomically(path, b"short", mode=0o600)
    assert path.read_bytes() == b"short"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["file"]


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, b"text")
    assert path.is_dir()
    assert os.listdir(tmp_path) == ["folder"]


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_of(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_lock_copied_over_another_is_refused(tmp_path: Path) -> None:
    write_lock(tmp_path / "sm90-debian13.lock", lock(target="sm100"))
    with pytest.raises(LockError, match="holds the lock sm100-debian13"):
        read_lock(tmp_path / "sm90-debian13.lock")


@pytest.mark.parametrize("text", ["extra: 1\n", "entries:\n  pythn: []\n"])
def test_a_key_or_group_that_nothing_reads_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fixture-debian13.lock"
    write_lock(path, lock(entries=()))
    path.write_text(path.read_text().replace("entries: {}\n", text))
    with pytest.raises(LockError, match="which is unknown"):
        read_lock(path)


def test_a_lock_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fixture-debian13.lock").write_text("[" * 20_000)
    with pytest.raises(LockError, match="not valid YAML"):
        read_lock(tmp_path / "fixture-debian13.lock")
