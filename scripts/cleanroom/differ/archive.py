"""Wheels compared: what the archive says about its members, and the members themselves."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import IO

from cleanroom.differ.causes import (
    COMPRESSION,
    HOST_DIFFERS,
    NORMALISED,
    PERMISSIONS,
    UNKNOWN,
    ZIP_ORDER,
    ZIP_TIME,
    Cause,
    Found,
    differing_bytes,
    few,
    graded,
)
from cleanroom.differ.content import compare_content, only_in_one
from cleanroom.errors import IntegrityError
from cleanroom.files import sha256_of
from cleanroom.record import Level
from cleanroom.verification import Difference

_LOCAL = struct.Struct("<4s5H3I2H")
_CHUNK = 1 << 20
_ANYONE_WRITES = 0o022 << 16
"""Bits of a member's attributes that a umask decides; the mode is in the upper half."""

_EXTENDED_TIME = 0x5455

Located = tuple[str, Found]
"""The path of a file in the archive, "" for the archive itself, and a difference in it."""


def compare_wheels(component: str, first: Path, second: Path) -> tuple[Level, tuple[Difference, ...]]:
    """The level that two wheels of `component` reach, and each difference between them, the weakest first.

    Raises IntegrityError if one of them cannot be read.
    """
    with _wheel(first) as ours, _wheel(second) as theirs:
        if sha256_of(first) == sha256_of(second):
            return "identical artifacts", ()
        found = _compare(ours, theirs)
    return graded(component, found or [("", _layout(first, second))], "identical artifacts")


def _compare(ours: _Wheel, theirs: _Wheel) -> list[Located]:
    common = [name for name in ours.members if name in theirs.members]
    same = {name for name in common if _same_content(ours, theirs, name)}
    found: list[Located] = [("", f) for f in _compare_headers(ours, theirs, common, same)]
    for name in common:
        if name not in same:
            found += [(name, f) for f in compare_content(name, ours.read(name), theirs.read(name), same)]
    for wheel, other, where in ((ours, theirs, "first"), (theirs, ours, "second")):
        found += [(name, only_in_one(name, wheel.read(name), where)) for name in wheel.members if name not in other.members]
    return found


def _layout(first: Path, second: Path) -> Found:
    """The bytes differ, but nothing that was looked at does: no difference may pass silently."""
    return Found(
        "", HOST_DIFFERS, UNKNOWN, ("the layout of the archive", *differing_bytes(first.read_bytes(), second.read_bytes()))
    )


# reading


@dataclass(frozen=True)
class _Member:
    """A member with what both of its headers say, and where its bytes start."""

    info: zipfile.ZipInfo
    times: tuple[object, ...]
    facts: tuple[object, ...]
    start: int


class _Wheel:
    """An open wheel. A name that occurs again gets its number appended, so that no member hides another."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, stream: IO[bytes]) -> None:
        self.path, self.archive, self.stream = path, archive, stream
        self.members: dict[str, _Member] = {}
        infos = archive.infolist()
        by_place = sorted(infos, key=lambda info: info.header_offset)
        ends = {id(a): b.header_offset for a, b in pairwise(by_place)}
        for info in infos:
            name, again = info.filename, 2
            while name in self.members:
                name, again = f"{info.filename} (number {again})", again + 1
            self.members[name] = self._member(info, ends.get(id(info), archive.start_dir))
        self.before = self._bytes(0, by_place[0].header_offset) if by_place else b""

    def _bytes(self, start: int, end: int) -> bytes:
        self.stream.seek(start)
        return self.stream.read(max(0, end - start))

    def _member(self, info: zipfile.ZipInfo, end: int) -> _Member:
        head = self._bytes(info.header_offset, info.header_offset + _LOCAL.size)
        _, version, flags, method, time, date, _, _, _, name_size, extra_size = _LOCAL.unpack(head)
        start = info.header_offset + _LOCAL.size + name_size + extra_size
        extra = self._bytes(start - extra_size, start)
        behind = self._bytes(start + info.compress_size, end)
        kept, times = _split_extra(extra)
        central, central_times = _split_extra(info.extra)
        return _Member(
            info=info,
            times=(info.date_time, date, time, times, central_times),
            facts=(
                *(info.create_system, info.create_version, info.extract_version, info.flag_bits, info.internal_attr),
                *(info.volume, central, info.comment, version, flags, method == info.compress_type, kept),
                # After a member of unknown size come its checksum and sizes, which are compared elsewhere.
                len(behind) if info.flag_bits & 8 else behind,
            ),
            start=start,
        )

    def read(self, name: str) -> bytes:
        with _reading(self.path):
            return self.archive.read(self.members[name].info)

    def pieces(self, name: str) -> Iterator[bytes]:
        with _reading(self.path), self.archive.open(self.members[name].info) as content:
            while piece := content.read(_CHUNK):
                yield piece

    def packed(self, name: str) -> tuple[int, bytes]:
        member = self.members[name]
        return member.info.compress_type, self._bytes(member.start, member.start + member.info.compress_size)


@contextmanager
def _wheel(path: Path) -> Iterator[_Wheel]:
    with ExitStack() as stack:
        with _reading(path):
            stream = stack.enter_context(path.open("rb"))
            wheel = _Wheel(path, stack.enter_context(zipfile.ZipFile(stream)), stream)
        yield wheel


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    # RuntimeError: encrypted; NotImplementedError: a compression that Python does not know
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, struct.error, RuntimeError) as error:
        raise IntegrityError(
            f"{path} cannot be read as a wheel: {error}.",
            means="It is missing, cut off or damaged, or is not a wheel.",
            next_step="build it again, or give the path of a .whl file",
        ) from None


def _split_extra(extra: bytes) -> tuple[bytes, bytes]:
    """A header's extra field without, and only, the blocks that hold times."""
    kept, times, at = b"", b"", 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        block = extra[at : at + 4 + size]
        kept, times = (kept, times + block) if kind == _EXTENDED_TIME else (kept + block, times)
        at += 4 + size
    return kept + extra[at:], times


def _same_content(ours: _Wheel, theirs: _Wheel, name: str) -> bool:
    a, b = ours.members[name].info, theirs.members[name].info
    if (a.CRC, a.file_size) != (b.CRC, b.file_size):
        return False
    return all(piece == other for piece, other in zip_longest(ours.pieces(name), theirs.pieces(name)))


# what the archive says


def _shown_time(member: _Member) -> str:
    year, month, day, *clock = member.info.date_time
    return f"{year}-{month:02}-{day:02} {':'.join(f'{n:02}' for n in clock)}"


def _compare_headers(ours: _Wheel, theirs: _Wheel, common: list[str], same: set[str]) -> Iterator[Found]:
    def differ(part: str, cause: Cause, value: Callable[[_Member], object], shown: Callable[[_Member], object]) -> Iterator[Found]:
        pairs = [(name, ours.members[name], theirs.members[name]) for name in common]
        lines = [f"{name}: {shown(a)} | {shown(b)}" for name, a, b in pairs if value(a) != value(b)]
        if lines:
            yield Found(part, NORMALISED if cause.harmless else HOST_DIFFERS, cause, few(lines))

    yield from differ("member times", ZIP_TIME, lambda m: m.times, _shown_time)
    modes = {name: (ours.members[name].info.external_attr, theirs.members[name].info.external_attr) for name in common}
    only_umask = all(a & ~_ANYONE_WRITES == b & ~_ANYONE_WRITES for a, b in modes.values())
    yield from differ(
        "member permissions",
        PERMISSIONS if only_umask else UNKNOWN,
        lambda m: m.info.external_attr,
        lambda m: f"{m.info.external_attr >> 16:o}",
    )
    yield from differ("member headers", UNKNOWN, lambda m: m.facts, lambda m: m.facts)
    theirs_in_order = [name for name in theirs.members if name in ours.members]
    if common != theirs_in_order:
        moved = [f"{a} | {b}" for a, b in zip(common, theirs_in_order, strict=True) if a != b]
        yield Found("member order", NORMALISED, ZIP_ORDER, few(moved))
    if packed := [name for name in common if name in same and ours.packed(name) != theirs.packed(name)]:
        sizes = [f"{n}: {ours.members[n].info.compress_size} | {theirs.members[n].info.compress_size} bytes" for n in packed]
        yield Found("member compression", NORMALISED, COMPRESSION, few(sizes))
    for part, a, b in (
        ("archive comment", ours.archive.comment, theirs.archive.comment),
        ("bytes before the first member", ours.before, theirs.before),
    ):
        if a != b:
            yield Found(part, HOST_DIFFERS, UNKNOWN, differing_bytes(a, b))
