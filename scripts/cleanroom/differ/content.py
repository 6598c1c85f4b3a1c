"""Two versions of one file compared, by what kind of file it is."""

from __future__ import annotations

import csv
import gzip
import io
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePosixPath

from cleanroom.binary import aicore
from cleanroom.binary.fatbin import device_code
from cleanroom.differ.causes import (
    BYTECODE,
    DEVICE_DIFFERS,
    GZIP_HEADER,
    HOST_DIFFERS,
    LEFTOVER,
    LEFTOVERS,
    LINE_ORDER,
    LINES,
    NORMALISED,
    OTHER_KERNELS,
    RECORD_FOLLOWS,
    RECORD_ORDER,
    UNKNOWN,
    Found,
    differing_bytes,
    explain,
    few,
)
from cleanroom.differ.device import NO_MACHINE_CODE, compare_ptx, text_difference
from cleanroom.differ.elf import compare_elf
from cleanroom.errors import IntegrityError
from cleanroom.record import Level

_DEVICE_SOURCES = (".asc", ".cu", ".cuh", ".ptx", ".cubin", ".fatbin", ".h", ".hpp", ".hh", ".inl")
_KERNEL_LANGUAGES = re.compile(rb"^\s*(?:import|from)\s+(?:tilelang|triton|cutlass|tvm)\b", re.MULTILINE)
_DIFFOSCOPE_SECONDS = 120


def compare_content(path: str, first: bytes, second: bytes, same: Collection[str]) -> list[Found]:
    """The differences between two versions of the file `path`; `same` are the paths of files that do not differ."""
    found = _by_kind(path, first, second, same)
    if LEFTOVERS.match(path) and any(f.cause is UNKNOWN for f in found):
        return [Found("", NORMALISED, LEFTOVER, differing_bytes(first, second))]
    return found


def _by_kind(path: str, first: bytes, second: bytes, same: Collection[str]) -> list[Found]:
    if path.endswith(".dist-info/RECORD"):
        return _record(path, first, second, same)
    if path.endswith(".pyc"):
        return _bytecode(path, first, second, same)
    if first[:4] == second[:4] == b"\x7fELF":
        found = compare_elf(first, second)
        if found is not None:
            return found
    if first[:2] == second[:2] == b"\x1f\x8b":
        return _gzip(path, first, second, same)
    if path.endswith(".ptx"):
        return compare_ptx("", first, second)
    if _is_text(first) and _is_text(second):
        return _text(path, first, second)
    explanation = explain(first, second, "data")
    found = explanation.found("", _level_of_unknown(path, first, second))
    if not explanation.complete:
        found[-1] = replace(found[-1], detail=(*found[-1].detail, *_diffoscope(path, first, second)))
    return found


def only_in_one(path: str, data: bytes, where: str) -> Found:
    """A file that only the `where` ("first") build has."""
    detail = (f"only the {where} has this file ({len(data)} bytes)",)
    if path.endswith(".pyc"):
        return Found("", NORMALISED, BYTECODE, detail)
    if LEFTOVERS.match(path):
        return Found("", NORMALISED, LEFTOVER, detail)
    if _has_device_code(path, data):
        return Found("", OTHER_KERNELS, NO_MACHINE_CODE, detail)
    return Found("", HOST_DIFFERS, UNKNOWN, detail)


def _has_device_code(path: str, data: bytes) -> bool:
    if data[:4] == b"\x7fELF":
        try:
            return bool(device_code(data)) or any(True for _ in aicore.images(data))
        except IntegrityError:
            return True  # nobody can say that it has none
    return _is_device_source(path, data)


def _is_device_source(path: str, data: bytes) -> bool:
    """Whether kernels are compiled from this file at run time, so that it is device code as well."""
    return path.endswith(_DEVICE_SOURCES) or (path.endswith(".py") and bool(_KERNEL_LANGUAGES.search(data)))


def _level_of_unknown(path: str, first: bytes, second: bytes) -> Level:
    return DEVICE_DIFFERS if _has_device_code(path, first) or _has_device_code(path, second) else HOST_DIFFERS


def _is_text(data: bytes) -> bool:
    try:
        return b"\0" not in data and bool(data.decode("utf-8") or True)
    except UnicodeDecodeError:
        return False


def _text(path: str, first: bytes, second: bytes) -> list[Found]:
    lists = ".dist-info/" in path or ".egg-info/" in path or path.endswith((".txt", ".list", ".pth"))
    if lists and sorted(first.splitlines()) == sorted(second.splitlines()):
        return [Found("", NORMALISED, LINE_ORDER, text_difference(first, second))]
    explanation = explain(first, second, "text")
    found = explanation.found("", _level_of_unknown(path, first, second))
    if not explanation.complete:
        found[-1] = replace(found[-1], detail=text_difference(*explanation.rest))
    return found


def _record(path: str, first: bytes, second: bytes, same: Collection[str]) -> list[Found]:
    """RECORD names every file with its hash: lines of files that differ follow from them, others must be the same."""
    rows = [
        [tuple(row) for row in csv.reader(io.StringIO(side.decode("utf-8", "replace"), newline="")) if row]
        for side in (first, second)
    ]
    found = []
    changed = sorted(set(rows[0]) ^ set(rows[1]))
    root = PurePosixPath(path).parent.parent
    wrong = [row for row in changed if str(root / row[0]) in same]
    follows = [row[0] for row in changed if row not in wrong]
    if wrong:
        found.append(
            Found("", HOST_DIFFERS, UNKNOWN, few([f"the file is the same, its line is not: {','.join(row)}" for row in wrong]))
        )
    if follows:
        found.append(Found("", NORMALISED, RECORD_FOLLOWS, few(dict.fromkeys(follows))))
    names = [[row[0] for row in side] for side in rows]
    if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
        moved = [f"{a} | {b}" for a, b in zip(*names, strict=True) if a != b]
        found.append(Found("", NORMALISED, RECORD_ORDER, few(moved)))
    return found or [Found("", HOST_DIFFERS, UNKNOWN, text_difference(first, second))]


def _bytecode(path: str, first: bytes, second: bytes, same: Collection[str]) -> list[Found]:
    """Bytecode begins with a magic number, flags, and the source's time and size, or its hash (PEP 552)."""
    where = PurePosixPath(path)
    module = where.name.split(".")[0] + ".py"
    folder = where.parent.parent if where.parent.name == "__pycache__" else where.parent
    if first[:4] != second[:4]:
        return [Found("", HOST_DIFFERS, UNKNOWN, (f"compiled by different Pythons: {first[:4].hex()} | {second[:4].hex()}",))]
    if first[16:] == second[16:]:
        return [Found("header", NORMALISED, BYTECODE, (f"{first[4:16].hex(' ')} | {second[4:16].hex(' ')}",))]
    if str(folder / module) in same:
        return [Found("", NORMALISED, BYTECODE, ("the source is the same", *differing_bytes(first, second)))]
    return explain(first, second, "data").found("", HOST_DIFFERS)


def _gzip(path: str, first: bytes, second: bytes, same: Collection[str]) -> list[Found]:
    try:
        a, b = gzip.decompress(first), gzip.decompress(second)
    except (OSError, EOFError, zlib.error):
        return explain(first, second, "data").found("", HOST_DIFFERS)
    if a == b:
        return [Found("header", NORMALISED, GZIP_HEADER, differing_bytes(first, second))]
    inside = path.removesuffix(".gz")
    return [replace(f, part=f"decompressed {f.part}".rstrip()) for f in _by_kind(inside, a, b, same)]


def _diffoscope(path: str, first: bytes, second: bytes) -> tuple[str, ...]:
    """What diffoscope says about a file of a kind that is not known here."""
    tool = shutil.which("diffoscope")
    if tool is None:
        return ("diffoscope is not installed; the bytes were compared",)
    with tempfile.TemporaryDirectory(prefix="cleanroom-") as folder:
        sides = [Path(folder) / side / (PurePosixPath(path).name or "file") for side in ("first", "second")]
        for side, data in zip(sides, (first, second), strict=True):
            side.parent.mkdir()
            side.write_bytes(data)
        try:
            command = [tool, "--no-progress", "--text", "-", *map(str, sides)]
            done = subprocess.run(command, capture_output=True, check=False, timeout=_DIFFOSCOPE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            return (f"diffoscope failed: {type(error).__name__}",)
    lines = done.stdout.decode("utf-8", "replace").splitlines()[2:]
    return tuple(f"diffoscope: {line[:200]}" for line in lines[: 2 * LINES])
