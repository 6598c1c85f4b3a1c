"""Device code compared: fat binaries by image, cubins by kernel and section, PTX as text.

Kernels are told apart by their names without what varies from build to build, and compared by their machine code.
Everything else of a cubin is compared section by section, so that no byte of it goes unexplained.
"""

from __future__ import annotations

import difflib
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cleanroom.arch import Arch
from cleanroom.binary.fatbin import DeviceCode, device_code
from cleanroom.differ.causes import (
    COMPILER,
    COMPRESSION,
    DEVICE_DIFFERS,
    HOST_DIFFERS,
    LINK_ORDER,
    NORMALISED,
    OTHER_KERNELS,
    UNKNOWN,
    Cause,
    Explanation,
    Found,
    differing_bytes,
    explain,
    few,
    plain_name,
    same_strings,
)
from cleanroom.differ.lines import compare_line_tables, from_unit
from cleanroom.differ.sections import Binary, Section, Symbol, read_binary
from cleanroom.errors import IntegrityError
from cleanroom.record import Level

NO_MACHINE_CODE = Cause(
    "only one build has this device code", "compare the architectures and sources that the builds were given", False
)

_INSTRUCTION = 16
_CODE = ".text."
_LINE_TABLES = ("debug_line", "nv_debug_line_sass")
_SYMBOL_TABLES = (".symtab", ".nv.merc.symtab")
_STRING_TABLES = (".strtab", ".shstrtab")
_FROM_CODE = (".debug_", ".nv_debug_", ".nv.merc.", ".rel", ".symtab", ".nv.callgraph", ".nv.info", "section header")
"""Sections that the assembler derives from the code: where a kernel differs, they follow."""

_BYTES = re.compile(rb"(?:\.b8 \d{1,3}\s+)+")
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIIIIIQQQ")
_MAGIC, _COMPRESSED = 0xBA55ED50, 0xF000
_LINK_TIME_CODE = 8


# fat binaries


def compare_fat(first: Binary, second: Binary, sections: Sequence[str]) -> list[Found]:
    """The device code of two host binaries whose fat binaries, in these sections, differ."""
    try:
        ours, theirs = device_code(first.data), device_code(second.data)
    except IntegrityError as error:
        return [Found(sections[0], OTHER_KERNELS, UNKNOWN, (error.what,))]
    found = list(_compare_code(ours, theirs))
    for name in sections:
        a, b = (side.sections[name].data if name in side.sections else b"" for side in (first, second))
        if a != b:
            found += _compare_containers(name, a, b, same_code=ours == theirs)
    return found or [Found(sections[0], HOST_DIFFERS, UNKNOWN, ("the fat binaries' own layout",))]


def _compare_code(ours: Sequence[DeviceCode], theirs: Sequence[DeviceCode]) -> Iterator[Found]:
    sides: list[dict[tuple[str, Arch], list[bytes]]] = [defaultdict(list), defaultdict(list)]
    for codes, side in zip((ours, theirs), sides, strict=True):
        for code in codes:
            side[code.kind, code.arch].append(code.data)
    for kind, arch in dict.fromkeys([*sides[0], *sides[1]]):
        part = f"{arch.sm} PTX" if kind == "ptx" else arch.sm
        a, b = sides[0].get((kind, arch), []), sides[1].get((kind, arch), [])
        if not a or not b:
            yield Found(part, OTHER_KERNELS, NO_MACHINE_CODE, (f"{len(a)} | {len(b)} images",))
        elif a != b:
            yield from _merged(_compare_images_of(kind, arch, part, a, b))


def _compare_images_of(kind: str, arch: Arch, part: str, ours: Sequence[bytes], theirs: Sequence[bytes]) -> Iterator[Found]:
    common = Counter(ours) & Counter(theirs)
    a, b = _without(ours, common), _without(theirs, common)
    if not a and not b:
        yield Found(part, HOST_DIFFERS, LINK_ORDER, (f"the same {len(ours)} images in another order",))
        return
    names = _names_in_ptx if kind == "ptx" else _kernel_names
    for first, second in _paired(a, b, names):
        if first is None or second is None:
            lost = names(first if first is not None else second or b"")
            where = "first" if second is None else "second"
            yield Found(part, OTHER_KERNELS, NO_MACHINE_CODE, few([f"only the {where} has an image", *sorted(lost)]))
        elif kind == "ptx":
            yield from compare_ptx(part, first, second)
        else:
            yield from compare_cubins(arch.sm, first, second)


def _without(images: Sequence[bytes], common: Counter[bytes]) -> list[bytes]:
    left = Counter(common)
    rest = []
    for image in images:
        if left[image]:
            left[image] -= 1
        else:
            rest.append(image)
    return rest


def _paired(
    ours: list[bytes], theirs: list[bytes], names: Callable[[bytes], frozenset[str]]
) -> list[tuple[bytes | None, bytes | None]]:
    """Images of the same kernels, else those that are left in their order."""
    waiting: dict[frozenset[str], list[bytes]] = defaultdict(list)
    for image in theirs:
        waiting[names(image)].append(image)
    pairs: list[tuple[bytes | None, bytes | None]] = []
    rest = []
    for image in ours:
        if waiting[names(image)]:
            pairs.append((image, waiting[names(image)].pop(0)))
        else:
            rest.append(image)
    others = [image for images in waiting.values() for image in images]
    longer = max(len(rest), len(others))
    return pairs + [(rest[i] if i < len(rest) else None, others[i] if i < len(others) else None) for i in range(longer)]


def _kernel_names(cubin: bytes) -> frozenset[str]:
    binary = read_binary(cubin)
    return frozenset(plain_name(n) for n in binary.sections if n.startswith(_CODE)) if binary else frozenset()


def _names_in_ptx(ptx: bytes) -> frozenset[str]:
    words = ptx.decode("utf-8", "replace").split()
    return frozenset(plain_name(b.rstrip("(")) for a, b in pairwise(words) if a == ".entry")


def _merged(found: Iterable[Found]) -> Iterator[Found]:
    """One difference for what is the same in many images."""
    together: dict[tuple[str, Level, Cause], list[str]] = {}
    for f in found:
        together.setdefault((f.part, f.level, f.cause), []).extend(f.detail)
    for (part, level, cause), detail in together.items():
        yield Found(part, level, cause, few(dict.fromkeys(detail)))


@dataclass(frozen=True)
class _Entry:
    """An entry of a fat binary without its sizes: what it says of itself, the source's name, the options, its bytes."""

    facts: tuple[int, ...]
    name: bytes
    options: bytes
    payload: bytes


def _compare_containers(section: str, first: bytes, second: bytes, *, same_code: bool) -> Iterator[Found]:
    ours, theirs = list(_entries(first)), list(_entries(second))
    part = f"{section} headers"
    if len(ours) != len(theirs):
        if same_code:
            yield Found(part, HOST_DIFFERS, UNKNOWN, (f"{len(ours)} | {len(theirs)} entries",))
        return
    pairs = list(zip(ours, theirs, strict=True))
    if any(a.facts != b.facts for a, b in pairs) and Counter(a.facts for a in ours) != Counter(b.facts for b in theirs):
        yield Found(part, HOST_DIFFERS, UNKNOWN, few(f"{a.facts} | {b.facts}" for a, b in pairs if a.facts != b.facts))
    for field in ("name", "options"):
        a, b = (b"\n".join(sorted(getattr(entry, field) for entry in side)) for side in (ours, theirs))
        yield from explain(a, b, "debug").found(f"{section} {field} of images", HOST_DIFFERS)
    unread = [(a.payload, b.payload) for a, b in pairs if a.facts[0] == _LINK_TIME_CODE and a.payload != b.payload]
    for a, b in unread:
        yield Found(f"{section} code for link-time optimisation", DEVICE_DIFFERS, UNKNOWN, differing_bytes(a, b))
    if same_code and not unread and any(a.payload != b.payload for a, b in pairs):
        sizes = [f"{len(a.payload)} | {len(b.payload)} bytes" for a, b in pairs if a.payload != b.payload]
        yield Found(section, NORMALISED, COMPRESSION, few(sizes))


def _entries(section: bytes) -> Iterator[_Entry]:
    """Every entry of the fat binaries in a section; fatbin.py has read it before, so that its sizes make sense."""
    at = 0
    while at + _CONTAINER.size <= len(section):
        magic, _, header, size = _CONTAINER.unpack_from(section, at)
        if magic != _MAGIC:
            at += 8 - at % 8
            continue
        start, end = at + header, min(at + header + size, len(section))
        while start + _ENTRY.size <= end:
            kind, version, length, payload, compressed, options, low, arch, name, name_size, flags, _, _ = _ENTRY.unpack_from(
                section, start
            )
            head = section[start : start + length]
            place, given = struct.unpack_from("<II", head.ljust(options + 8, b"\0"), options)
            kept = compressed or payload
            yield _Entry(
                facts=(kind, version, low, arch, flags & ~_COMPRESSED),
                name=head[name : name + name_size],
                options=head[place : place + given],
                payload=section[start + length : start + length + kept],
            )
            start += length + payload
            if not length:
                return
        at = end


# PTX


def compare_ptx(part: str, first: bytes, second: bytes) -> list[Found]:
    """Two PTX texts that differ."""
    explanation = explain(_with_strings(first), _with_strings(second), "debug")
    found = explanation.found(part, DEVICE_DIFFERS)
    if not explanation.complete:
        found[-1] = Found(part, DEVICE_DIFFERS, UNKNOWN, text_difference(*explanation.rest))
    return found


def _with_strings(ptx: bytes) -> bytes:
    """PTX with debug information spells its strings as numbers, a byte a line; here they are text again."""
    return _BYTES.sub(
        lambda run: b'.b8 "' + bytes(int(n) & 0xFF for n in re.findall(rb"\d+", run[0].replace(b".b8", b""))) + b'"\n', ptx
    )


def text_difference(first: bytes, second: bytes) -> tuple[str, ...]:
    """The first lines that differ, as diff shows them."""
    a, b = (side.decode("utf-8", "replace").splitlines() for side in (first, second))
    return few(line[:200] for line in list(difflib.unified_diff(a, b, lineterm="", n=0))[2:]) or differing_bytes(first, second)


# cubins


def compare_cubin_files(first: bytes, second: bytes) -> list[Found]:
    """Two cubins that are files of their own."""
    try:
        return list(_compare_code(device_code(first), device_code(second)))
    except IntegrityError as error:
        return [Found("", OTHER_KERNELS, UNKNOWN, (error.what,))]


def compare_cubins(arch: str, first: bytes, second: bytes) -> list[Found]:
    """Two cubins that differ; `arch` ("sm_100a") goes into the name of each part."""
    ours, theirs = read_binary(first), read_binary(second)
    if ours is None or theirs is None:
        return [Found(arch, OTHER_KERNELS, UNKNOWN, ("a cubin cannot be read", *differing_bytes(first, second)))]
    return _Cubins(arch, ours, theirs).run()


class _Cubins:
    """One pair of cubins. Sections are paired by name without what varies."""

    def __init__(self, arch: str, first: Binary, second: Binary) -> None:
        self.arch, self.first, self.second = arch, first, second
        self.ours, self.theirs = _by_plain_name(first), _by_plain_name(second)
        self.common = [name for name in self.ours if name in self.theirs]
        self.changed = [n for n in self.common if n.startswith(_CODE) and self.ours[n].data != self.theirs[n].data]
        self.follows: dict[str, list[str]] = {name: [] for name in self.changed}

    def run(self) -> list[Found]:
        others = [*self._headers(), *self._only_in_one()]
        for name in self.common:
            others += [*self._attributes(name), *self._section(name)]
        # ptxas keeps most sections twice, the second time for its own later use; what both say is told once.
        told = {(f.part, f.cause, f.detail) for f in others}
        others = [
            f for f in others if (f.part.replace(" .nv.merc.", " ."), f.cause, f.detail) not in told - {(f.part, f.cause, f.detail)}
        ]
        others = [f for f in others if not self._belongs_to_a_kernel(f)]
        kernels = [self._kernel(name) for name in self.changed]
        if self.first.unclaimed() != self.second.unclaimed():
            others.append(self._found("bytes between the sections", HOST_DIFFERS, UNKNOWN))
        if not kernels and not others:
            others.append(
                self._found("layout of the cubin", HOST_DIFFERS, UNKNOWN, differing_bytes(self.first.data, self.second.data))
            )
        return kernels + others

    def _found(self, part: str, level: Level, cause: Cause, detail: tuple[str, ...] = ()) -> Found:
        return Found(f"{self.arch} {part}", level, cause, detail)

    def _belongs_to_a_kernel(self, found: Found) -> bool:
        """Whether a difference follows from a kernel whose code differs; it is then told with that kernel."""
        part = found.part.removeprefix(f"{self.arch} ")
        if not self.changed or found.cause is not UNKNOWN:
            return False
        owner = next((n for n in self.changed if part.endswith(n.removeprefix(_CODE))), "")
        if owner or part.startswith(_FROM_CODE):
            self.follows[owner or self.changed[0]].append(part)
            return True
        return False

    def _kernel(self, name: str) -> Found:
        a, b = self.ours[name], self.theirs[name]
        mangled = a.name.removeprefix(_CODE)
        lines = _disassembled(self.first, self.second, a, b) or _instructions(a.data, b.data)
        also = sorted({part.split(mangled)[0].rstrip(".") for part in self.follows[name]})
        return self._found(
            f"kernel {mangled}", DEVICE_DIFFERS, UNKNOWN, (*lines, *([f"with it: {', '.join(also)}"] if also else []))
        )

    def _headers(self) -> Iterator[Found]:
        ours, theirs = dict(self.first.header), dict(self.second.header)
        lines = [f"{key}: {value!r} | {theirs[key]!r}" for key, value in ours.items() if value != theirs[key]]
        if self.first.segments != self.second.segments:
            lines.append(f"{len(self.first.segments)} | {len(self.second.segments)} segments, or of other kinds")
        if lines:
            yield self._found("ELF header", DEVICE_DIFFERS, UNKNOWN, few(lines))

    def _only_in_one(self) -> Iterator[Found]:
        for name in [*self.ours, *self.theirs]:
            if name in self.common:
                continue
            where = "first" if name in self.ours else "second"
            detail = (f"only the {where} has it",)
            if name.startswith(_CODE):
                section = self.ours.get(name) or self.theirs[name]
                yield self._found(f"kernel {section.name.removeprefix(_CODE)}", OTHER_KERNELS, NO_MACHINE_CODE, detail)
            else:
                debug = name.startswith((".debug", ".nv_debug", ".nv.merc.", ".rel", ".note"))
                yield self._found(name, HOST_DIFFERS if debug else DEVICE_DIFFERS, UNKNOWN, detail)

    def _attributes(self, name: str) -> Iterator[Found]:
        """What a section header says besides places: for code, `info` holds the number of registers."""
        a, b = self.ours[name], self.theirs[name]
        facts = [(s.type, s.flags, s.align, s.entry, s.info, 0 if s.data else s.size) for s in (a, b)]
        if facts[0] != facts[1]:
            yield self._found(f"section header of {name}", DEVICE_DIFFERS, UNKNOWN, (f"{facts[0]} | {facts[1]}",))

    def _section(self, name: str) -> Iterable[Found]:
        a, b = self.ours[name].data, self.theirs[name].data
        part = f"{self.arch} {name}"
        if name in _SYMBOL_TABLES:
            return self._symbols(part, name)
        if a == b or name.startswith(_CODE):
            return ()
        if name in _STRING_TABLES:
            return explain(a, b, "names", same_strings).found(f"{self.arch} names of symbols and sections", HOST_DIFFERS)
        if name.removeprefix(".nv.merc").removeprefix(".") in _LINE_TABLES:
            return (compare_line_tables(a, b) or explain(a, b, "debug")).found(part, HOST_DIFFERS)
        if ".rel" in name:
            return self._relocations(part, name)
        if ".debug" in name or ".nv_debug" in name or ".nv.merc.debug" in name or ".nv.merc.nv_debug" in name:
            return explain(a, b, "debug").found(part, HOST_DIFFERS)
        if name.startswith(".note.nv"):
            return _as_compiler(explain(a, b, "names")).found(part, HOST_DIFFERS)
        return explain(a, b, "names").found(part, DEVICE_DIFFERS)

    def _symbols(self, part: str, name: str) -> list[Found]:
        """By content, whether the tables' bytes differ or not: names are in another section."""
        ours, theirs = (
            _symbols_of(side, table[name].name) for side, table in ((self.first, self.ours), (self.second, self.theirs))
        )
        wrong = [f"{key[0]}: {ours.get(key)} | {theirs.get(key)}" for key in ours | theirs if ours.get(key) != theirs.get(key)]
        return [Found(part, HOST_DIFFERS, UNKNOWN, few(wrong))] if wrong else []

    def _relocations(self, part: str, name: str) -> list[Found]:
        target = name.replace(".rela", "").replace(".rel", "")
        tables = [side[target].data if target in side else b"" for side in (self.ours, self.theirs)]
        lines = target.removeprefix(".nv.merc").removeprefix(".") in _LINE_TABLES
        entries = [
            [
                (from_unit(table, r.offset) if lines else r.offset, r.type, plain_name(r.symbol), r.addend)
                for r in side.relocations(sections[name].name)
            ]
            for side, sections, table in zip((self.first, self.second), (self.ours, self.theirs), tables, strict=True)
        ]
        wrong = [f"{a} | {b}" for a, b in zip(*entries, strict=False) if a != b]
        if len(entries[0]) != len(entries[1]):
            wrong.insert(0, f"{len(entries[0])} | {len(entries[1])} entries")
        level = HOST_DIFFERS if "debug" in target else DEVICE_DIFFERS
        return [Found(part, level, UNKNOWN, few(wrong))] if wrong else []


def _by_plain_name(binary: Binary) -> dict[str, Section]:
    named: dict[str, Section] = {}
    for section in binary.sections.values():
        name, again = plain_name(section.name), 2
        while name in named:
            name, again = f"{plain_name(section.name)} #{again}", again + 1
        named[name] = section
    return named


def _symbols_of(binary: Binary, table: str) -> dict[tuple[str, int], tuple[object, ...]]:
    """What a table says, by plain name and number among those of that name."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], tuple[object, ...]] = {}
    for symbol in binary.symbols(table):
        name = plain_name(symbol.name or symbol.section)
        found[name, seen[name]] = _facts(symbol)
        seen[name] += 1
    return found


def _facts(symbol: Symbol) -> tuple[object, ...]:
    return (symbol.info, symbol.other, plain_name(symbol.section), symbol.value, symbol.size)


def _as_compiler(explanation: Explanation) -> Explanation:
    """What is left of a difference between the compiler's own notes is another compiler, or other options."""
    if explanation.complete:
        return explanation
    words = [set(filter(None, side.decode("utf-8", "replace").split("\0"))) for side in explanation.rest]
    texts = [" ".join(sorted(w for w in mine - other if w.isprintable())) for mine, other in (words, words[::-1])]
    cause = (COMPILER, (f"{texts[0]} | {texts[1]}",))
    return Explanation((*explanation.causes, cause), complete=True, rest=explanation.rest)


# machine code as lines


def _instructions(first: bytes, second: bytes) -> tuple[str, ...]:
    """Instructions that differ, as they stand in the code: 16 bytes each, shown as one number."""
    sides = [[data[i : i + _INSTRUCTION][::-1].hex() for i in range(0, len(data), _INSTRUCTION)] for data in (first, second)]
    matcher = difflib.SequenceMatcher(None, sides[0], sides[1], autojunk=False) if len(sides[0]) + len(sides[1]) < 4000 else None
    lines = [f"{len(sides[0])} | {len(sides[1])} instructions"] if len(sides[0]) != len(sides[1]) else []
    if matcher is None:
        lines += [f"at {i * _INSTRUCTION:#06x}: {a} | {b}" for i, (a, b) in enumerate(zip(*sides, strict=False)) if a != b]
        return few(lines)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag != "equal":
            lines += [f"- at {i * _INSTRUCTION:#06x}: {sides[0][i]}" for i in range(a0, a1)]
            lines += [f"+ at {i * _INSTRUCTION:#06x}: {sides[1][i]}" for i in range(b0, b1)]
    return few(lines)


def _disassembled(first: Binary, second: Binary, ours: Section, theirs: Section) -> tuple[str, ...]:
    """Instructions that differ as nvdisasm writes them; () where there is no nvdisasm or it does not know the code."""
    tool = shutil.which("nvdisasm")
    if tool is None:
        return ()
    texts = [_disassembly(tool, binary, section.name) for binary, section in ((first, ours), (second, theirs))]
    if not all(texts):
        return ()
    changed = [
        line
        for line in difflib.unified_diff(texts[0], texts[1], lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    return few(line[:160] for line in changed)


def _disassembly(tool: str, binary: Binary, section: str) -> list[str]:
    numbers = [n for n, s in enumerate(binary.symbols(".symtab")) if s.section == section and s.name == section.removeprefix(_CODE)]
    if not numbers:
        return []
    with tempfile.TemporaryDirectory(prefix="cleanroom-") as folder:
        cubin = Path(folder) / "image.cubin"
        cubin.write_bytes(binary.data)
        command = [tool, "-c", "-fun", str(numbers[0]), str(cubin)]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return []
    lines = done.stdout.decode("utf-8", "replace").splitlines() if done.returncode == 0 else []
    return [" ".join(line.split()) for line in lines if "/*" in line and ";" in line]
