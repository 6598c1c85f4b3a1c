"""An ELF file's parts, read for comparison: 64-bit little-endian ones, which host libraries and cubins are."""

from __future__ import annotations

import hashlib
import io
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

EM_CUDA = 190
ALLOC, EXECUTE = 2, 4
STT_FILE = 4
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_REL = struct.Struct("<QQ")
_UNDEFINED, _RESERVED = 0, 0xFF00


@dataclass(frozen=True)
class Section:
    """A section header and its bytes, none for one that occupies no space in the file. `link` and `info` are raw."""

    name: str
    type: str
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int
    data: bytes

    @cached_property
    def digest(self) -> bytes:
        """Tells sections of other content apart faster than their bytes do, where it is asked often."""
        return hashlib.sha256(self.data).digest()

    @property
    def loaded(self) -> bool:
        return bool(self.flags & ALLOC)

    @property
    def code(self) -> bool:
        return bool(self.flags & EXECUTE)


@dataclass(frozen=True)
class Symbol:
    """A symbol; `section` is a name, or "undefined", "absolute" and the like. `file` is the source of a local one."""

    name: str
    info: int
    other: int
    section: str
    value: int
    size: int
    file: str

    @property
    def type(self) -> int:
        return self.info & 15


@dataclass(frozen=True)
class Relocation:
    offset: int
    type: int
    symbol: str
    addend: int


@dataclass(frozen=True)
class Binary:
    """A whole ELF file. Sections by name; a name that occurs again gets its number appended."""

    data: bytes
    machine: int
    header: Mapping[str, object]
    segments: tuple[tuple[object, ...], ...]
    sections: Mapping[str, Section]
    spans: tuple[tuple[int, int], ...]

    @cached_property
    def _numbered(self) -> list[str]:
        return list(self.sections)

    def section_name(self, number: int) -> str:
        if number >= _RESERVED or number == _UNDEFINED:
            return {0: "undefined", 0xFFF1: "absolute", 0xFFF2: "common"}.get(number, f"reserved {number:#x}")
        return self._numbered[number] if number < len(self._numbered) else f"section {number}"

    def symbols(self, table: str) -> list[Symbol]:
        """The symbols of a table, in its order."""
        return self._symbols.get(table, [])

    @cached_property
    def _symbols(self) -> dict[str, list[Symbol]]:
        tables = {}
        for name, section in self.sections.items():
            if section.entry == _SYMBOL.size and ("symtab" in name or "dynsym" in name):
                tables[name] = list(self._read_symbols(section))
        return tables

    def _read_symbols(self, section: Section) -> Iterator[Symbol]:
        strings = self.sections[self.section_name(section.link)].data if section.link else b""
        file = ""
        whole = len(section.data) // _SYMBOL.size * _SYMBOL.size
        for name, info, other, index, value, size in _SYMBOL.iter_unpack(section.data[:whole]):
            end = strings.find(b"\0", name)
            text = strings[name : end if end >= 0 else None].decode("utf-8", "surrogateescape")
            if info & 15 == STT_FILE:
                file = text
            yield Symbol(text, info, other, self.section_name(index), value, size, file if info >> 4 == 0 else "")

    def relocations(self, name: str) -> list[Relocation]:
        """The entries of a relocation section; symbols by name, section symbols by the section's."""
        section = self.sections[name]
        symbols = self.symbols(self.section_name(section.link))
        entry = _RELOCATION if section.entry == _RELOCATION.size else _REL
        whole = len(section.data) // entry.size * entry.size
        found = []
        for offset, info, *addend in entry.iter_unpack(section.data[:whole]):
            number = info >> 32
            symbol = symbols[number] if number < len(symbols) else None
            text = "" if symbol is None else symbol.name or symbol.section
            found.append(Relocation(offset, info & 0xFFFFFFFF, text if number else "", addend[0] if addend else 0))
        return found

    @cached_property
    def _by_address(self) -> tuple[list[int], list[Section]]:
        loaded = sorted((s for s in self.sections.values() if s.loaded and s.size), key=lambda s: s.address)
        return [s.address for s in loaded], loaded

    def section_at(self, address: int) -> Section | None:
        """The loaded section that this address is in, or at whose end it is."""
        starts, loaded = self._by_address
        number = bisect_right(starts, address) - 1
        if number < 0:
            return None
        section = loaded[number]
        return section if address <= section.address + section.size else None

    def symbol_at(self, section: str, offset: int) -> str:
        """The name of the function or object that this place is in, empty where the symbol table does not say."""
        where = self.sections[section].address + offset
        for table in self._symbols.values():
            for symbol in table:
                if symbol.section == section and symbol.value <= where < symbol.value + symbol.size:
                    return symbol.name
        return ""

    def unclaimed(self) -> list[bytes]:
        """Bytes of the file that belong to no header and no section, zeros that only fill up left out."""
        gaps, at = [], 0
        for start, end in sorted(self.spans):
            if start > at:
                gaps.append(self.data[at:start].strip(b"\0"))
            at = max(at, end)
        gaps.append(self.data[at:].strip(b"\0"))
        return [gap for gap in gaps if gap]


def read_binary(data: bytes) -> Binary | None:
    """Read an ELF file; None where it is of another kind than this program compares by section, or damaged."""
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    try:
        return _read(data)
    except (ELFError, ConstructError, struct.error, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError):
        return None  # whatever the library stumbles over in a damaged file


def _read(data: bytes) -> Binary:
    elf = ELFFile(io.BytesIO(data))
    header = elf.header
    sections: dict[str, Section] = {}
    spans = [(0, header["e_ehsize"])]
    spans += [(header["e_phoff"], header["e_phoff"] + header["e_phentsize"] * header["e_phnum"])]
    spans += [(header["e_shoff"], header["e_shoff"] + header["e_shentsize"] * elf.num_sections())]
    for section in elf.iter_sections():
        raw, name = section.header, section.name
        held = 0 if raw["sh_type"] in ("SHT_NOBITS", "SHT_NULL") else raw["sh_size"]
        start = raw["sh_offset"]
        if held and start + held > len(data):
            raise ValueError(f"section {name} ends outside the file")
        spans.append((start, start + held))
        unique, again = name, 2
        while unique in sections:
            unique, again = f"{name} #{again}", again + 1
        sections[unique] = Section(
            name=unique,
            type=str(raw["sh_type"]),
            flags=raw["sh_flags"],
            address=raw["sh_addr"],
            offset=start,
            size=raw["sh_size"],
            link=raw["sh_link"],
            info=raw["sh_info"],
            align=raw["sh_addralign"],
            entry=raw["sh_entsize"],
            data=data[start : start + held],
        )
    kept = ("e_type", "e_machine", "e_version", "e_flags")
    facts = {key: header[key] for key in kept} | {"e_ident": data[:16], "e_entry": header["e_entry"]}
    segments = tuple((s["p_type"], s["p_flags"], s["p_align"]) for s in elf.iter_segments())
    return Binary(data, int.from_bytes(data[18:20], "little"), facts, segments, sections, tuple(spans))
