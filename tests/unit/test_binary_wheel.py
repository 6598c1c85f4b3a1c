"""Wheels are read where they are, in the order of their paths, and never believed."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import pytest
from binaries import binary, wheel

from cleanroom.binary.wheel import is_elf, members
from cleanroom.errors import IntegrityError


def test_files_come_in_the_order_of_their_paths_whatever_the_order_in_the_wheel(tmp_path: Path) -> None:
    made = wheel(tmp_path, {"b/z.py": b"z", "a.py": b"a", "b/a.so": b"s", "b/": b""})
    assert list(members(made)) == [("a.py", b"a"), ("b/a.so", b"s"), ("b/z.py", b"z")]
    assert list(members(made, lambda path: path.endswith(".so"))) == [("b/a.so", b"s")]


@pytest.mark.parametrize("path", ["../outside.py", "/etc/passwd", "a/../../b", "a\\..\\b"])
def test_a_path_outside_the_wheel_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(IntegrityError, match="outside"):
        list(members(wheel(tmp_path, {path: b""})))


def test_a_path_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    made = wheel(tmp_path, {"a.py": b"1"})
    with warnings.catch_warnings(), zipfile.ZipFile(made, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a.py", b"2")
    with pytest.raises(IntegrityError, match="twice"):
        list(members(made))


def test_what_is_no_wheel_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("no archive")
    cut = wheel(tmp_path, {"a.py": b"1" * 999})
    cut.write_bytes(cut.read_bytes()[:-30])
    for path in (tmp_path / "text.whl", tmp_path / "nowhere.whl", tmp_path, cut):
        with pytest.raises(IntegrityError) as raised:
            list(members(path))
        assert path.name in raised.value.what


def test_a_file_whose_bytes_changed_is_an_error(tmp_path: Path) -> None:
    made = wheel(tmp_path, {"a.py": b"original"})
    made.write_bytes(made.read_bytes().replace(b"original", b"modified"))
    with pytest.raises(IntegrityError, match="CRC"):
        list(members(made))


def test_libraries_objects_and_cubins_are_elf_files_and_text_is_not() -> None:
    assert all(is_elf(binary(name)) for name in ("guards.so", "speed.o"))
    assert not any(is_elf(data) for data in (b"", b"\x7fEL", b"#!/bin/sh"))
