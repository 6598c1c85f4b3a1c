"""Files that an operator brings: copied only if they are the locked ones."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from cleanroom.errors import CannotBuildHere, IntegrityError
from cleanroom.lock import Entry
from cleanroom.sources import Gone, Part
from cleanroom.sources.operator import FOLDER, OperatorSource

DATA = b"#!/bin/sh\nexit 0\n"
ENTRY = Entry("toolkit", "operator", "toolkit", "9.2.0", "toolkit.run", len(DATA), hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def part(tmp_path: Path) -> Part:
    path = tmp_path / "part"
    path.write_bytes(b"left over")
    return Part(path, ENTRY.size, lambda _: None, threading.Event())


def test_the_locked_file_is_copied_whole(tmp_path: Path, part: Part) -> None:
    (tmp_path / "toolkit.run").write_bytes(DATA)
    OperatorSource(tmp_path).fetch(ENTRY, part)
    assert part.path.read_bytes() == DATA


def test_a_file_altered_since_it_was_locked_is_not_copied(tmp_path: Path, part: Part) -> None:
    (tmp_path / "toolkit.run").write_bytes(DATA.replace(b"0", b"1"))
    with pytest.raises(IntegrityError, match="is not the file that was locked"):
        OperatorSource(tmp_path).fetch(ENTRY, part)
    assert part.path.read_bytes() == b"left over"


def test_without_a_folder_the_message_says_what_to_bring(monkeypatch: pytest.MonkeyPatch, part: Part) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(CannotBuildHere, match=r"toolkit\.run has to be brought by a person") as caught:
        OperatorSource().fetch(ENTRY, part)
    assert ENTRY.sha256 in caught.value.means
    assert FOLDER in caught.value.next_step


def test_the_environment_may_name_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: Part) -> None:
    (tmp_path / "toolkit.run").write_bytes(DATA)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    OperatorSource().fetch(ENTRY, part)
    assert part.complete


def test_a_folder_without_the_file_says_what_it_has(tmp_path: Path, part: Part) -> None:
    (tmp_path / "other.run").write_bytes(DATA)
    source = OperatorSource(tmp_path)
    with pytest.raises(Gone):
        source.fetch(ENTRY, part)
    assert "other.run" in source.explain(ENTRY)
