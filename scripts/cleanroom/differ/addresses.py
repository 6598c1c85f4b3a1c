"""Proof that bytes differ only because something before them moved: both sides point to the same things.

A section that grew by eight bytes shifts whatever follows, so that code, tables and pointers differ all over a library
although they mean the same. Each differing value is read as the address or distance that it can be at its place, and
accepted only where it leads to the same place in both files. What cannot be shown stays a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cleanroom.differ.causes import explain, next_difference
from cleanroom.differ.sections import Binary, Section

FAT_BINARY = b"\x50\xed\x55\xba"
_AFTER = (4, 5, 6, 8)
"""x86-64 counts a distance from the end of the instruction: the four bytes themselves, and an immediate value after them."""
_TEXTS = (".debug_str", ".debug_line_str")
_LONGEST = 1 << 16
_SAMPLE = 16
_TEXT = re.compile(rb"[\t\n\r\x20-\x7e]+")


def same_place(first: Binary, second: Binary, here: int, there: int) -> bool:
    """Whether an address in the first file and one in the second lead to the same thing."""
    found = first.section_at(here), second.section_at(there)
    if found[0] is None or found[1] is None:
        return found[0] is found[1] and here == there
    # An address may also be the end of the section before the one found, which begins where that one ends.
    for name in dict.fromkeys((found[0].name, found[1].name)):
        ours, theirs = first.sections.get(name), second.sections.get(name)
        if ours and theirs and _same_offset(ours, theirs, here - ours.address, there - theirs.address):
            return True
    return False


def _same_offset(ours: Section, theirs: Section, here: int, there: int) -> bool:
    if not (0 <= here <= ours.size and 0 <= there <= theirs.size):
        return False
    if here == there and (ours.size == theirs.size or here == 0):
        return True
    if here == ours.size and there == theirs.size:
        return True
    if not ours.data or not theirs.data:
        return False
    if ours.data.startswith(FAT_BINARY):
        # Fat binaries are compared by themselves; here it counts that the same one of them is meant.
        begins = ours.data.startswith(FAT_BINARY, here) and theirs.data.startswith(FAT_BINARY, there)
        return begins and ours.data.count(FAT_BINARY, 0, here) == theirs.data.count(FAT_BINARY, 0, there)
    if ours.code or ours.digest == theirs.digest:
        return False
    a, b = _text_at(ours.data, here), _text_at(theirs.data, there)
    if a and b:
        return a == b or explain(a, b, "data").complete
    a, b = ours.data[here : here + _SAMPLE], theirs.data[there : there + _SAMPLE]
    return a == b != b""


def _text_at(data: bytes, offset: int) -> bytes:
    """The zero-ended text that begins here, empty where there is none."""
    end = data.find(b"\0", offset, offset + _LONGEST)
    text = data[offset:end] if end > offset else b""
    return text if _TEXT.fullmatch(text) else b""


def first_unmoved(first: Binary, second: Binary, name: str) -> int | None:
    """The offset of the first difference in this section that no move explains; None where there is none."""
    ours, theirs = first.sections[name], second.sections[name]
    if len(ours.data) != len(theirs.data):
        return next_difference(ours.data, theirs.data)
    free = 0
    at = next_difference(ours.data, theirs.data)
    while at < len(ours.data):
        end = next((e for e in _values(first, second, ours, theirs, at, free)), None)
        if end is None:
            return at
        free = end
        at = next_difference(ours.data, theirs.data, free)
    return None


def _values(first: Binary, second: Binary, ours: Section, theirs: Section, at: int, free: int) -> Iterator[int]:
    """Where each value that contains the byte `at`, begins not before `free`, and means the same on both sides, ends."""
    if not ours.loaded:
        yield from _references(first, second, ours, theirs, at, free)
        return
    if ours.code:
        for start in range(max(free, at - 3), at + 1):
            if start + 4 <= len(ours.data):
                a, b = (
                    int.from_bytes(s.data[start : start + 4], "little", signed=True) + s.address + start for s in (ours, theirs)
                )
                if any(same_place(first, second, a + after, b + after) for after in _AFTER):
                    yield start + 4
        return
    start = at & ~7
    if start >= free and start + 8 <= len(ours.data):
        a, b = (int.from_bytes(s.data[start : start + 8], "little") for s in (ours, theirs))
        if a and b and same_place(first, second, a, b):
            yield start + 8
    aligned = at & ~3
    for start in range(max(free, at - 3), at + 1) if ours.name == ".eh_frame" else (aligned,):
        if start < free or start + 4 > len(ours.data):
            continue
        a, b = (int.from_bytes(s.data[start : start + 4], "little", signed=True) for s in (ours, theirs))
        # A distance counts from where it stands (frames of functions) or from its table (their index, jump tables).
        if (
            same_place(first, second, a + ours.address + start, b + theirs.address + start)
            or (start == aligned and same_place(first, second, a + ours.address, b + theirs.address))
            or (start == aligned and b - a in _shifts(first, second, ours, theirs))
        ):
            yield start + 4


def _references(first: Binary, second: Binary, ours: Section, theirs: Section, at: int, free: int) -> Iterator[int]:
    """Debug information names texts by their place among all texts, which the linker may order otherwise."""
    texts = [(first.sections[n].data, second.sections[n].data) for n in _TEXTS if n in first.sections and n in second.sections]
    for start in range(max(free, at - 3), at + 1):
        a, b = (int.from_bytes(s.data[start : start + 4], "little") for s in (ours, theirs))
        for mine, other in texts:
            x, y = _text_at(mine, a), _text_at(other, b)
            if x and y and (x == y or explain(x, y, "debug").complete):
                yield start + 4


def _shifts(first: Binary, second: Binary, ours: Section, theirs: Section) -> set[int]:
    """By how much distances from this section to code may have changed: the table of a jump may begin anywhere in it."""
    moved = theirs.address - ours.address
    return {
        second.sections[s.name].address - s.address - moved for s in first.sections.values() if s.code and s.name in second.sections
    } - {0}
