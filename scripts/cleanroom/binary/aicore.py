"""Device code for Ascend's AI Core inside host binaries, where bisheng and CANN's CMake files put it.

Sources: hicann/runtime (the machine number, and the sections in which the run-time looks for kernels) and cann/asc-tools
(the sections that the vendor's object tool extracts). No compiler for AI Core was at hand: what is read here is ELF, and was
checked on ELF files that carry these names. Such a file names its kernels, and not the NPU architecture that it is for.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

from cleanroom.binary.elf import UNDEFINED, reading, symbols
from cleanroom.errors import IntegrityError

MACHINE = 0x1029
"""The ELF machine number of AI Core code, which LLVM's tools call hiipu."""

_LINKED = ".aicore_binary"
_PACKED = ".ascend.kernel."
"""bisheng puts device code into the first; CANN's CMake files into sections whose name goes on with chip and library."""
_META = ".ascend.meta."
"""In device code, one section for each kernel, named after it."""
_START = struct.Struct("<4sBB10xHH")  # magic, class, byte order, type, machine
_FUNCTION, _GLOBAL = 2, 1


def images(elf: bytes) -> Iterator[tuple[str, ...]]:
    """The mangled names of the kernels of each device file in an ELF file: a library, an object, or device code itself.

    Raises IntegrityError for a file that is damaged, and for a section that should hold such code and does not.
    """
    with reading(elf) as file:
        if file["e_machine"] == MACHINE:
            yield _kernels(elf)
            return
        held = [(s.name, s.data()) for s in file.iter_sections() if is_section(s.name)]
    for name, data in held:
        files = list(files_in(data))
        if not files and data:
            raise IntegrityError(
                f"The section {name} holds no AI Core code.",
                means=f"{len(data)} bytes are there, and no ELF file with machine {MACHINE:#x} is among them.",
                next_step="look at it with the vendor's msobjdump --dump-elf",
            )
        yield from files


def is_section(name: str) -> bool:
    """Whether a section of a host binary is one that holds AI Core code."""
    return name == _LINKED or name.startswith(_PACKED)


def files_in(section: bytes) -> Iterator[tuple[str, ...]]:
    """As images, of the bytes of such a section, or of device code itself."""
    starts = list(_starts(section))
    for start, end in itertools.pairwise([*starts, len(section)]):
        yield _kernels(section[start:end])


def _starts(data: bytes) -> Iterator[int]:
    """Where device files begin; a linker may put those of several objects behind each other, with padding between."""
    at = data.find(b"\x7fELF")
    while at != -1:
        if at + _START.size <= len(data) and _START.unpack_from(data, at)[4] == MACHINE:
            yield at
        at = data.find(b"\x7fELF", at + 4)


def _kernels(device: bytes) -> tuple[str, ...]:
    """Names of kernels: what has a section of its own for the run-time, else what is exported."""
    with reading(device) as file:
        named = [s.name.removeprefix(_META) for s in file.iter_sections() if s.name.startswith(_META)]
        if named:
            return tuple(sorted(named))
        exported = {
            symbol.name
            for table, strings in ((".symtab", ".strtab"), (".dynsym", ".dynstr"))
            for symbol in symbols(file.get_section_by_name(table), file.get_section_by_name(strings))
            if (symbol.kind, symbol.binding) == (_FUNCTION, _GLOBAL) and symbol.section != UNDEFINED
        }
        return tuple(sorted(exported))
