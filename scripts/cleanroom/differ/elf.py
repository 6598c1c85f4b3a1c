"""Two ELF files compared by section; device code in them goes to device.py."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cleanroom.binary import aicore
from cleanroom.differ import device, npu
from cleanroom.differ.addresses import first_unmoved, same_place
from cleanroom.differ.causes import (
    ADDRESSES,
    BUILD_ID,
    COMPILER,
    HOST_DIFFERS,
    LINK_ORDER,
    NORMALISED,
    UNKNOWN,
    Found,
    differing_bytes,
    explain,
    few,
    plain_name,
    same_strings,
)
from cleanroom.differ.lines import compare_line_tables
from cleanroom.differ.sections import EM_CUDA, STT_FILE, Binary, Relocation, Symbol, read_binary

FAT_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_NOTE = 16
"""Bytes of a build id's note before the id itself."""

_TAG = struct.Struct("<QQ")
_NAMES_ONLY = (".strtab", ".dynstr", ".shstrtab")
_FROM_CODE = (".symtab", ".eh_frame", ".gcc_except_table", ".debug_")
_FROM_NAMES = (".gnu.hash", ".hash")


def compare_elf(first: bytes, second: bytes) -> list[Found] | None:
    """The differences between two ELF files that differ; None where they cannot be read by section."""
    ours, theirs = read_binary(first), read_binary(second)
    if ours is None or theirs is None:
        return None
    if ours.machine == theirs.machine == EM_CUDA:
        return device.compare_cubin_files(first, second)
    if aicore.MACHINE in (ours.machine, theirs.machine):
        return [npu.compare_aicore("", first, second)]
    return _Comparison(ours, theirs).run()


class _Comparison:
    """One pair of host binaries. `run` gives the differences, the host's and the device code's."""

    def __init__(self, first: Binary, second: Binary) -> None:
        self.first, self.second = first, second
        self.found: list[Found] = []
        self.moved: list[str] = []
        self.link_order = False

    def run(self) -> list[Found]:
        self._headers()
        self._symbol_tables()
        for name in dict.fromkeys([*self.first.sections, *self.second.sections]):
            if name not in self.first.sections or name not in self.second.sections:
                self._only_in_one(name)
            else:
                self._attributes(name)
                if self.first.sections[name].data != self.second.sections[name].data:
                    self._section(name)
        if self._device_sections_differ():
            self.found += device.compare_fat(self.first, self.second, FAT_SECTIONS)
        if self.moved:
            self.found.append(Found(", ".join(self.moved), NORMALISED, ADDRESSES, few(self._sizes())))
        if self.first.unclaimed() != self.second.unclaimed():
            self._unknown("bytes between the sections", b"".join(self.first.unclaimed()), b"".join(self.second.unclaimed()))
        if not self.found:
            self._rest()
        return self._with_followers()

    def _with_followers(self) -> list[Found]:
        """Where code differs, tables that the compiler derives from it follow; they are named with it."""
        code = next((f for f in self.found if f.cause is UNKNOWN and f.part == ".text"), None)
        follow = [f for f in self.found if f.cause is UNKNOWN and f.part.startswith(_FROM_CODE)] if code else []
        if code is None or not follow:
            return self.found
        named = replace(code, detail=(*code.detail, f"with it: {', '.join(f.part for f in follow)}"))
        return [named if f is code else f for f in self.found if f not in follow]

    def _unknown(self, part: str, first: bytes, second: bytes) -> None:
        self.found.append(Found(part, HOST_DIFFERS, UNKNOWN, differing_bytes(first, second)))

    def _differ(self, part: str, detail: Sequence[str]) -> None:
        self.found.append(Found(part, HOST_DIFFERS, UNKNOWN, few(detail)))

    def _device_sections_differ(self) -> bool:
        return any(self._data(name)[0] != self._data(name)[1] for name in FAT_SECTIONS)

    def _data(self, name: str) -> tuple[bytes, bytes]:
        a, b = self.first.sections.get(name), self.second.sections.get(name)
        return (a.data if a else b"", b.data if b else b"")

    def _sizes(self) -> list[str]:
        pairs = ((s, self.second.sections.get(name)) for name, s in self.first.sections.items())
        grown = [f"{a.name}: {a.size} | {b.size} bytes" for a, b in pairs if b and a.size != b.size and a.loaded]
        return grown or ["no section changed its size; something moved inside one"]

    # headers

    def _headers(self) -> None:
        for key, value in self.first.header.items():
            other = self.second.header[key]
            moves = key == "e_entry" and same_place(self.first, self.second, int(str(value)), int(str(other)))
            if value != other and not moves:
                self._differ("ELF header", [f"{key}: {value!r} | {other!r}"])
        if self.first.segments != self.second.segments:
            self._differ("program headers", [f"{self.first.segments} | {self.second.segments}"])

    def _attributes(self, name: str) -> None:
        """What a section header says besides where its bytes are."""
        ours, theirs = self.first.sections[name], self.second.sections[name]
        lines = [
            f"{field}: {a} | {b}"
            for field, a, b in (
                ("type", ours.type, theirs.type),
                ("flags", ours.flags, theirs.flags),
                ("alignment", ours.align, theirs.align),
                ("entry size", ours.entry, theirs.entry),
                ("linked section", self.first.section_name(ours.link), self.second.section_name(theirs.link)),
                ("size", ours.size if not ours.data else 0, theirs.size if not theirs.data else 0),
            )
            if a != b
        ]
        if lines:
            self._differ(f"section header of {name}", lines)

    def _only_in_one(self, name: str) -> None:
        if name in FAT_SECTIONS:
            return  # told by the comparison of device code
        if aicore.is_section(name):
            self.found.append(npu.compare_aicore(name, *self._data(name)))
            return
        where = "first" if name in self.first.sections else "second"
        cause = BUILD_ID if name == ".note.gnu.build-id" else UNKNOWN
        level = NORMALISED if cause.harmless else HOST_DIFFERS
        self.found.append(Found(name, level, cause, (f"only the {where} has it",)))

    def _rest(self) -> None:
        """The bytes differ, but nothing that was looked at does: no difference may pass silently."""
        self._unknown("file layout", self.first.data, self.second.data)

    # sections

    def _section(self, name: str) -> None:
        a, b = self._data(name)
        handler = self._handlers().get(name)
        kind = self.first.sections[name].type
        if name in FAT_SECTIONS or name in self.first_symbols:
            return
        if aicore.is_section(name):
            self.found.append(npu.compare_aicore(name, a, b))
        elif handler is not None:
            handler(name)
        elif kind in ("SHT_RELA", "SHT_REL"):
            self._relocations(name)
        elif kind == "SHT_DYNAMIC":
            self._dynamic(name)
        elif name in _NAMES_ONLY:
            self.found += explain(a, b, "names", same_strings).found(name, HOST_DIFFERS)
        elif name.startswith(".debug"):
            self._debug(name)
        else:
            self._content(name)

    def _handlers(self) -> Mapping[str, Callable[[str], None]]:
        return {".note.gnu.build-id": self._build_id, ".comment": self._comment} | dict.fromkeys(_FROM_NAMES, self._hashes)

    def _build_id(self, name: str) -> None:
        a, b = self._data(name)
        if a[8:_NOTE] != b[8:_NOTE]:  # kind and owner of the note
            self._unknown(name, a, b)
        else:
            self.found.append(Found(name, NORMALISED, BUILD_ID, (f"{a[_NOTE:].hex()} | {b[_NOTE:].hex()}",)))

    def _comment(self, name: str) -> None:
        a, b = (data.strip(b"\0").replace(b"\0", b"; ").decode("utf-8", "replace") for data in self._data(name))
        self.found.append(Found(name, HOST_DIFFERS, COMPILER, (f"{a} | {b}",)))

    def _hashes(self, name: str) -> None:
        """Hash tables of exported names are made from those names; they differ where names do, and only then."""
        if {s.name for s in self.first.symbols(".dynsym")} == {s.name for s in self.second.symbols(".dynsym")}:
            self._content(name)
        else:
            exported = b"\0".join(s.name.encode() for s in self.first.symbols(".dynsym"))
            others = b"\0".join(s.name.encode() for s in self.second.symbols(".dynsym"))
            self.found += explain(exported, others, "names", same_strings).found(name, HOST_DIFFERS)

    def _debug(self, name: str) -> None:
        if name == ".debug_line":
            lines = compare_line_tables(self.first.sections[name].data, self.second.sections[name].data)
            if lines is not None:
                self.found += lines.found(name, HOST_DIFFERS)
                return
        a, b = self._data(name)
        explained = explain(a, b, "debug", same_strings if name.endswith("_str") else bytes.__eq__)
        if not explained.complete and first_unmoved(self.first, self.second, name) is None:
            self.moved.append(name)
        else:
            self.found += explained.found(name, HOST_DIFFERS)

    def _content(self, name: str) -> None:
        """Code and data: the same but for strings of a known cause, or the same but for addresses that moved."""
        a, b = self._data(name)
        section = self.first.sections[name]
        explained = None if section.code else explain(a, b, "data")
        if explained is not None and explained.complete:
            self.found += explained.found(name, HOST_DIFFERS)
            return
        unmoved = first_unmoved(self.first, self.second, name)
        if unmoved is None:
            self.moved.append(name)
        elif self.link_order and len(a) == len(b):
            self.found.append(Found(name, HOST_DIFFERS, LINK_ORDER, (f"{len(a)} bytes, in another order",)))
        elif explained is not None:
            self.found += explained.found(name, HOST_DIFFERS)
        else:
            self._code(name, unmoved)

    def _code(self, name: str, at: int) -> None:
        a, b = self._data(name)
        where = [self.first.symbol_at(name, at), self.second.symbol_at(name, at)]
        inside = [f"in {' | '.join(dict.fromkeys(where))}"] if all(where) else []
        changed = self._changed_functions(name)
        piece = f"at {at:#x}: {a[at : at + 16].hex(' ')} | {b[at : at + 16].hex(' ')}"
        sizes = [] if len(a) == len(b) else [f"{len(a)} | {len(b)} bytes"]
        self.found.append(Found(name, HOST_DIFFERS, UNKNOWN, few([*sizes, *inside, piece, *changed])))

    def _changed_functions(self, section: str) -> list[str]:
        """Functions whose size changed, or that only one side has: the likely reason where code grew."""
        sizes = [
            {s.name: s.size for s in side.symbols(".symtab") if s.section == section and s.size}
            for side in (self.first, self.second)
        ]
        names = [plain_name(n) for n in dict.fromkeys([*sizes[0], *sizes[1]]) if sizes[0].get(n) != sizes[1].get(n)]
        return [f"size changed: {name}" for name in dict.fromkeys(names)]

    # tables

    @property
    def first_symbols(self) -> set[str]:
        return {n for n in self.first.sections if self.first.symbols(n)} & {
            n for n in self.second.sections if self.second.symbols(n)
        }

    def _symbol_tables(self) -> None:
        for name in sorted(self.first_symbols):
            if self._data(name)[0] != self._data(name)[1] or name == ".symtab":
                self._symbols(name)

    def _symbols(self, table: str) -> None:
        ours, theirs = self.first.symbols(table), self.second.symbols(table)
        files = [[plain_name(s.name) for s in side if s.type == STT_FILE] for side in (ours, theirs)]
        if files[0] != files[1] and Counter(files[0]) == Counter(files[1]):
            self.link_order = True
            order = [f"{a} | {b}" for a, b in zip(*files, strict=True) if a != b]
            self.found.append(Found(table, HOST_DIFFERS, LINK_ORDER, few(order)))
            return
        pairs = _pairs(ours, theirs)
        wrong = [
            f"{a.name if a else '-'} | {b.name if b else '-'}"
            for a, b in pairs
            if a is None or b is None or not self._same_symbol(a, b)
        ]
        if wrong:
            self._differ(table, wrong)
        elif any(a and b and a.value != b.value for a, b in pairs):
            self.moved.append(table)
        # Otherwise only order and places follow from names that differ; the table of names tells why.

    def _same_symbol(self, ours: Symbol, theirs: Symbol) -> bool:
        a, b = self.first.sections.get(ours.section), self.second.sections.get(theirs.section)
        if (ours.info, ours.other, ours.section, ours.size) != (theirs.info, theirs.other, theirs.section, theirs.size):
            return False
        if a is None or b is None or ours.value == theirs.value:
            return ours.value == theirs.value
        return (
            ours.value - a.address == theirs.value - b.address
            or same_place(self.first, self.second, ours.value, theirs.value)
            or (a.data != b.data and _held(self.first, ours) == _held(self.second, theirs) != b"")
        )

    def _relocations(self, name: str) -> None:
        ours, theirs = self.first.relocations(name), self.second.relocations(name)
        wrong = [f"{a} | {b}" for a, b in zip(ours, theirs, strict=False) if not self._same_relocation(a, b)]
        if len(ours) != len(theirs):
            wrong.insert(0, f"{len(ours)} | {len(theirs)} entries")
        if wrong and self.link_order:
            self.found.append(Found(name, HOST_DIFFERS, LINK_ORDER, few(wrong)))
        elif wrong:
            self._differ(name, wrong)
        else:
            self.moved.append(name)

    def _same_relocation(self, ours: Relocation, theirs: Relocation) -> bool:
        if ours.type != theirs.type or plain_name(ours.symbol) != plain_name(theirs.symbol):
            return False
        if not same_place(self.first, self.second, ours.offset, theirs.offset):
            return False
        return ours.addend == theirs.addend or (not ours.symbol and same_place(self.first, self.second, ours.addend, theirs.addend))

    def _dynamic(self, name: str) -> None:
        a, b = (list(_TAG.iter_unpack(data)) for data in self._data(name))
        wrong = [f"tag {x[0]:#x}: {x[1]:#x} | {y[1]:#x}" for x, y in zip(a, b, strict=False) if not self._same_tag(x, y)]
        if len(a) != len(b):
            wrong.insert(0, f"{len(a)} | {len(b)} entries")
        if wrong:
            self._differ(name, wrong)
        else:
            self.moved.append(name)

    def _same_tag(self, ours: tuple[int, int], theirs: tuple[int, int]) -> bool:
        if ours[0] != theirs[0] or ours[1] == theirs[1]:
            return ours == theirs
        sizes = {(s.size, self.second.sections[n].size) for n, s in self.first.sections.items() if n in self.second.sections}
        return (ours[1], theirs[1]) in sizes or same_place(self.first, self.second, ours[1], theirs[1])


def _held(binary: Binary, symbol: Symbol) -> bytes:
    section = binary.sections[symbol.section]
    start = symbol.value - section.address
    return section.data[start : start + symbol.size]


def _pairs(ours: Sequence[Symbol], theirs: Sequence[Symbol]) -> list[tuple[Symbol | None, Symbol | None]]:
    """Symbols of one plain name and file, in their order."""
    sides: list[dict[tuple[str, str], list[Symbol]]] = [{}, {}]
    for symbols, side in zip((ours, theirs), sides, strict=True):
        for symbol in symbols:
            side.setdefault((plain_name(symbol.name or symbol.section), plain_name(symbol.file)), []).append(symbol)
    pairs: list[tuple[Symbol | None, Symbol | None]] = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        a, b = sides[0].get(key, []), sides[1].get(key, [])
        pairs += [(a[i] if i < len(a) else None, b[i] if i < len(b) else None) for i in range(max(len(a), len(b)))]
    return pairs
