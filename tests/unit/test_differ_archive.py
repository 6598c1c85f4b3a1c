"""Wheels compared: every planted difference is found, localised and named; identical ones are never called different."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cleanroom.differ import compare_wheels
from cleanroom.errors import IntegrityError
from cleanroom.verification import Difference

CODE = b'NAME = "engine"\n\n\ndef answer():\n    return 42\n'
INFO = "engine-1.0.dist-info"
FILES: Mapping[str, bytes] = {
    "engine/__init__.py": CODE,
    "engine/data.bin": bytes(range(256)) * 8,
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n",
    f"{INFO}/RECORD": f"engine/__init__.py,sha256=a,47\nengine/data.bin,sha256=b,2048\n{INFO}/METADATA,sha256=c,48\n{INFO}/RECORD,,\n".encode(),
}
TIME = (2026, 11, 30, 7, 0, 0)


def wheel(
    path: Path,
    files: Mapping[str, bytes] = FILES,
    *,
    time: tuple[int, int, int, int, int, int] = TIME,
    mode: int = 0o100644,
    order: Sequence[str] = (),
    level: int = 6,
    compression: int = zipfile.ZIP_DEFLATED,
    comment: bytes = b"",
    extra: bytes = b"",
) -> Path:
    with zipfile.ZipFile(path, "w", compression, compresslevel=level) as archive:
        for name in order or files:
            info = zipfile.ZipInfo(name, time)
            info.external_attr, info.compress_type, info.extra = mode << 16, compression, extra
            archive.writestr(info, files[name], compresslevel=level)
        archive.comment = comment
    return path


def compared(first: Path, second: Path) -> tuple[str, list[tuple[str, str, str]]]:
    level, differences = compare_wheels("engine", first, second)
    assert all(d.component == "engine" for d in differences)
    assert all(d.remedy for d in differences)
    return level, [(d.file, d.part, d.cause) for d in differences]


def changed(tmp_path: Path, name: str, before: bytes, after: bytes) -> tuple[str, tuple[Difference, ...]]:
    first = wheel(tmp_path / "first.whl", {**FILES, name: before})
    second = wheel(tmp_path / "second.whl", {**FILES, name: after})
    return compare_wheels("engine", first, second)


def test_identical_wheels_are_identical_artifacts(tmp_path: Path) -> None:
    assert compare_wheels("engine", wheel(tmp_path / "a.whl"), wheel(tmp_path / "b.whl")) == ("identical artifacts", ())


def test_other_member_times_are_named(tmp_path: Path) -> None:
    level, found = compared(wheel(tmp_path / "a.whl"), wheel(tmp_path / "b.whl", time=(2026, 11, 30, 7, 0, 2)))
    assert level == "identical after named normalisations"
    assert found == [("", "member times", "times in the archive")]


def test_times_in_extra_fields_are_named(tmp_path: Path) -> None:
    stamps = [struct.pack("<HHBI", 0x5455, 5, 1, moment) for moment in (1_764_000_000, 1_764_000_001)]
    level, found = compared(wheel(tmp_path / "a.whl", extra=stamps[0]), wheel(tmp_path / "b.whl", extra=stamps[1]))
    assert level == "identical after named normalisations"
    assert found == [("", "member times", "times in the archive")]


def test_another_member_order_is_named(tmp_path: Path) -> None:
    level, found = compared(wheel(tmp_path / "a.whl"), wheel(tmp_path / "b.whl", order=sorted(FILES, reverse=True)))
    assert level == "identical after named normalisations"
    assert found == [("", "member order", "order of members in the archive")]


@pytest.mark.parametrize("other", [{"level": 1}, {"compression": zipfile.ZIP_STORED}])
def test_another_compression_of_the_same_content_is_named(tmp_path: Path, other: Mapping[str, int]) -> None:
    files = {**FILES, "engine/text.txt": "".join(f"line {n * n} of {n}\n" for n in range(3000)).encode()}
    level, found = compared(wheel(tmp_path / "a.whl", files), wheel(tmp_path / "b.whl", files, **other))  # type: ignore[arg-type]
    assert level == "identical after named normalisations"
    assert found == [("", "member compression", "compression only: the same content compressed otherwise")]


def test_a_umask_is_named_and_a_lost_executable_bit_is_not_called_harmless(tmp_path: Path) -> None:
    first = wheel(tmp_path / "a.whl")
    level, found = compared(first, wheel(tmp_path / "b.whl", mode=0o100664))
    assert level == "identical after named normalisations"
    assert found == [("", "member permissions", "permission bits (umask)")]
    level, found = compared(first, wheel(tmp_path / "c.whl", mode=0o100755))
    assert level == "identical device code"
    assert found == [("", "member permissions", "unknown")]


def test_what_an_archive_says_besides_is_not_overlooked(tmp_path: Path) -> None:
    first = wheel(tmp_path / "a.whl")
    assert compared(first, wheel(tmp_path / "b.whl", comment=b"made here"))[1] == [("", "archive comment", "unknown")]
    assert compared(first, wheel(tmp_path / "c.whl", extra=struct.pack("<HHI", 0x7777, 4, 1)))[1] == [
        ("", "member headers", "unknown")
    ]
    shifted = tmp_path / "d.whl"
    shifted.write_bytes(b"#!/bin/sh\n" + first.read_bytes())
    assert compared(first, shifted)[1] == [("", "bytes before the first member", "unknown")]


def test_no_single_changed_byte_goes_unreported(tmp_path: Path) -> None:
    first = wheel(tmp_path / "a.whl", {"engine/__init__.py": CODE})
    data = first.read_bytes()
    second = tmp_path / "b.whl"
    for at in range(len(data)):
        second.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            level, differences = compare_wheels("engine", first, second)
        except IntegrityError:
            continue  # no longer an archive: said, not overlooked
        assert differences, f"byte {at}"
        harmless = level == "identical after named normalisations"
        assert not harmless or [d.part for d in differences] in (
            ["member times"],
            ["member permissions"],
            ["member compression"],  # other bits that decompress to the same
        ), f"byte {at}"


def test_lines_of_record_in_another_order_are_named(tmp_path: Path) -> None:
    record = FILES[f"{INFO}/RECORD"]
    shuffled = b"".join(sorted(record.splitlines(keepends=True), reverse=True))
    level, differences = changed(tmp_path, f"{INFO}/RECORD", record, shuffled)
    assert level == "identical after named normalisations"
    assert [(d.file, d.cause) for d in differences] == [(f"{INFO}/RECORD", "order of lines in RECORD")]


def test_record_follows_a_file_that_differs_and_is_wrong_about_one_that_does_not(tmp_path: Path) -> None:
    record = FILES[f"{INFO}/RECORD"]
    other = {"engine/__init__.py": CODE.replace(b"42", b"43"), f"{INFO}/RECORD": record.replace(b"sha256=a", b"sha256=x")}
    level, found = compared(wheel(tmp_path / "a.whl"), wheel(tmp_path / "b.whl", {**FILES, **other}))
    assert level == "identical device code"
    assert found == [
        ("engine/__init__.py", "", "unknown"),
        (f"{INFO}/RECORD", "", "RECORD lists hash and size of files that differ"),
    ]
    level, differences = changed(tmp_path, f"{INFO}/RECORD", record, record.replace(b"sha256=b", b"sha256=x"))
    assert level == "identical device code"
    assert [d.cause for d in differences] == ["unknown"]
    assert "engine/data.bin" in differences[0].detail[0]


def test_changed_text_is_unknown_and_shows_the_lines(tmp_path: Path) -> None:
    level, differences = changed(tmp_path, "engine/__init__.py", CODE, CODE.replace(b"42", b"43"))
    assert level == "identical device code"
    assert [(d.file, d.cause) for d in differences] == [("engine/__init__.py", "unknown")]
    assert "-    return 42" in differences[0].detail
    assert "+    return 43" in differences[0].detail


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (b'BUILT = "2026-11-30 07:00:01"\n', b'BUILT = "2026-12-01 08:30:00"\n', "embedded date or time"),
        (b"built at Nov 30 2026 07:34:40\n", b"built at Dec  1 2026 07:34:41\n", "embedded date or time"),
        (b"version 1.0.dev20261130\n", b"version 1.0.dev20261201\n", "embedded date or time"),
        (b"build_time: 1764000000\n", b"build_time: 1764000123\n", "embedded date or time"),
        (b"Built by alice@one\n", b"Built by bob@two.example\n", "user or host name"),
        (b'BUILD_HOST = "one"\n', b'BUILD_HOST = "second-machine"\n', "user or host name"),
        (b"# from /build/a/engine/core.cpp\n", b"# from /other/b/engine/core.cpp\n", "path of a source file"),
        (b"log /tmp/pip-req-build-abcd1234 x\n", b"log /tmp/pip-req-build-zyxw9876 x\n", "temporary file name"),
    ],
)
def test_known_causes_in_text_are_named(tmp_path: Path, before: bytes, after: bytes, cause: str) -> None:
    level, differences = changed(tmp_path, "engine/notes.py", before, after)
    assert level == "identical after named normalisations"
    assert [d.cause.startswith(cause) for d in differences] == [True]


def test_a_known_cause_does_not_hide_another_change_in_the_same_file(tmp_path: Path) -> None:
    first = b'BUILT = "2026-11-30 07:00:01"\nLIMIT = 1\n'
    level, differences = changed(tmp_path, "engine/notes.py", first, b'BUILT = "2026-12-01 07:00:01"\nLIMIT = 2\n')
    assert level == "identical device code"
    assert {d.cause for d in differences} == {"unknown", "embedded date or time (__DATE__, __TIME__, a generator's stamp)"}
    assert "-LIMIT = 1" in next(d.detail for d in differences if d.cause == "unknown")


def test_a_path_that_is_no_source_file_is_named_but_not_called_harmless(tmp_path: Path) -> None:
    level, differences = changed(tmp_path, "engine/env.py", b"NCCL = '/opt/a/lib'\n", b"NCCL = '/opt/b/lib'\n")
    assert level == "identical device code"
    assert [d.cause for d in differences] == ["a path of the building machine"]


def test_bytecode_is_named_where_its_source_is_the_same(tmp_path: Path) -> None:
    header = struct.pack("<4sIII", b"\xf3\x0d\r\n", 0, 1_764_000_000, len(CODE))
    name = "engine/__pycache__/__init__.cpython-313.pyc"
    level, differences = changed(tmp_path, name, header + b"code", header[:8] + b"\x01" + header[9:] + b"code")
    assert level == "identical after named normalisations"
    assert [(d.file, d.part) for d in differences] == [(name, "header")]
    level, differences = changed(tmp_path, name, header + b"code", header + b"CODE")
    assert (level, differences[0].cause.split(":")[0]) == ("identical after named normalisations", "Python bytecode")
    assert compare_wheels("engine", wheel(tmp_path / "a.whl"), wheel(tmp_path / "b.whl", {**FILES, name: header}))[0] == level
    alone = "engine/__pycache__/gone.cpython-313.pyc"
    assert changed(tmp_path, alone, header + b"code", header + b"CODE")[0] == "identical device code"


def test_a_gzip_header_is_told_from_gzipped_content(tmp_path: Path) -> None:
    level, differences = changed(tmp_path, "engine/x.gz", gzip.compress(CODE, mtime=1), gzip.compress(CODE, mtime=2))
    assert level == "identical after named normalisations"
    assert [d.part for d in differences] == ["header"]
    other = gzip.compress(CODE.replace(b"42", b"43"), mtime=1)
    level, differences = changed(tmp_path, "engine/x.gz", gzip.compress(CODE, mtime=1), other)
    assert (level, differences[0].part) == ("identical device code", "decompressed")


def test_sources_of_kernels_compiled_at_run_time_count_as_device_code(tmp_path: Path) -> None:
    for name, text in (("engine/kernel.cuh", b"x = 1;"), ("engine/kernel.py", b"import tilelang\nx = 1\n")):
        assert changed(tmp_path, name, text, text.replace(b"1", b"2"))[0] == "same architectures"
        with_it = wheel(tmp_path / "with.whl", {**FILES, name: text})
        level, found = compared(with_it, wheel(tmp_path / "without.whl"))
        assert (level, found) == ("builds", [(name, "", "only one build has this device code")])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    level, differences = compare_wheels(
        "engine", wheel(tmp_path / "a.whl"), wheel(tmp_path / "b.whl", {**FILES, "engine/new.txt": b"x"})
    )
    assert level == "identical device code"
    assert [(d.file, d.detail) for d in differences] == [("engine/new.txt", ("only the second has this file (1 bytes)",))]


def test_binary_data_shows_its_bytes_and_says_that_diffoscope_was_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    data = FILES["engine/data.bin"]
    level, differences = changed(tmp_path, "engine/data.bin", data, data[:700] + b"\xff" + data[701:])
    assert level == "identical device code"
    assert differences[0].detail[0].startswith("at 0x2bc:")
    assert "diffoscope is not installed" in differences[0].detail[-1]


def test_the_weakest_difference_comes_first(tmp_path: Path) -> None:
    first = wheel(tmp_path / "a.whl", {**FILES, "engine/k.cuh": b"1"})
    second = wheel(tmp_path / "b.whl", {**FILES, "engine/k.cuh": b"2", "engine/new.txt": b"x"}, time=(2027, 1, 1, 0, 0, 0))
    level, differences = compare_wheels("engine", first, second)
    assert level == "same architectures"
    assert [d.level for d in differences] == ["same architectures", "identical device code", "identical after named normalisations"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no more", b"text" * 100])
def test_a_file_that_is_no_wheel_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.whl").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"broken\.whl cannot be read as a wheel"):
        compare_wheels("engine", wheel(tmp_path / "good.whl"), tmp_path / "broken.whl")
    with pytest.raises(IntegrityError, match=r"absent\.whl"):
        compare_wheels("engine", tmp_path / "absent.whl", tmp_path / "good.whl")


def test_a_damaged_member_is_an_error_that_names_the_wheel(tmp_path: Path) -> None:
    good = wheel(tmp_path / "good.whl", compression=zipfile.ZIP_STORED)
    data = bytearray(good.read_bytes())
    data[data.find(CODE) + 5] ^= 1
    (tmp_path / "bad.whl").write_bytes(data)
    with pytest.raises(IntegrityError, match=r"bad\.whl"):
        compare_wheels("engine", good, tmp_path / "bad.whl")
