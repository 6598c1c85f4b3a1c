"""Line tables (DWARF 2 to 4), which nvcc -lineinfo puts into cubins with the modification time of every source."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.construct import ConstructError
from elftools.dwarf.structs import DWARFStructs

from cleanroom.differ.causes import BUILD_PATH, SOURCE_TIME, Cause, Explanation, explain, few

_FACTS = ("version", "minimum_instruction_length", "default_is_stmt", "line_base", "line_range")


@dataclass(frozen=True)
class Unit:
    """The lines of one translation unit. `facts` is the rest of its header, `program` the bytes that say the lines."""

    facts: tuple[object, ...]
    folders: tuple[bytes, ...]
    files: tuple[tuple[bytes, int, int, int], ...]  # name, number of its folder, modification time, size
    program: bytes
    start: int
    end: int


def compare_line_tables(first: bytes, second: bytes) -> Explanation | None:
    """Why two line tables differ; None where they are of a version that this does not read."""
    ours, theirs = _units(first), _units(second)
    if ours is None or theirs is None:
        return None
    causes: dict[Cause, list[str]] = {}
    complete = len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=False):
        complete &= _compare(a, b, causes)
    found = tuple((cause, few(dict.fromkeys(lines))) for cause, lines in causes.items())
    return Explanation(found, complete, (first, second))


def _compare(ours: Unit, theirs: Unit, causes: dict[Cause, list[str]]) -> bool:
    """Add the causes of this unit; whether they explain it all."""
    if ours.folders != theirs.folders:
        causes.setdefault(BUILD_PATH, []).extend(
            f"{a.decode(errors='replace')} | {b.decode(errors='replace')}"
            for a, b in zip(ours.folders, theirs.folders, strict=False)
            if a != b
        )
    complete = (ours.facts, ours.program, len(ours.folders)) == (theirs.facts, theirs.program, len(theirs.folders))
    complete &= len(ours.files) == len(theirs.files)
    for a, b in zip(ours.files, theirs.files, strict=False):
        if a[2] != b[2]:
            causes.setdefault(SOURCE_TIME, []).append(f"{a[0].decode(errors='replace')}: {a[2]} | {b[2]}")
        if a[0] != b[0]:
            names = explain(a[0], b[0], "debug")
            for cause, lines in names.causes:
                causes.setdefault(cause, []).extend(lines)
            complete &= names.complete
        complete &= (a[1], a[3]) == (b[1], b[3])
    return complete


def from_unit(table: bytes, offset: int) -> tuple[int, int]:
    """A place in the table as the number of its unit and the distance into the unit's program, which paths do not move."""
    for number, unit in enumerate(_units(table) or ()):
        if unit.start <= offset < unit.end:
            return number, offset - unit.start
    return -1, offset


def _units(table: bytes) -> list[Unit] | None:
    try:
        return list(_read(table))
    except (ELFError, ConstructError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None  # damaged, or no line table


def _read(table: bytes) -> Iterator[Unit]:
    at = 0
    while at < len(table):
        length, version = int.from_bytes(table[at : at + 4], "little"), int.from_bytes(table[at + 4 : at + 6], "little")
        if not 2 <= version <= 4 or length < 6 or at + 4 + length > len(table):
            raise ValueError(f"line table of version {version}")
        structs = DWARFStructs(little_endian=True, dwarf_format=32, address_size=8, dwarf_version=version)
        header = struct_parse(structs.Dwarf_lineprog_header, io.BytesIO(table), at)
        start, end = at + 10 + header["header_length"], at + 4 + length
        yield Unit(
            facts=(*(header[fact] for fact in _FACTS), tuple(header["standard_opcode_lengths"])),
            folders=tuple(header["include_directory"]),
            files=tuple((f["name"], f["dir_index"], f["mtime"], f["length"]) for f in header["file_entry"]),
            program=table[start:end],
            start=start,
            end=end,
        )
        at = end
