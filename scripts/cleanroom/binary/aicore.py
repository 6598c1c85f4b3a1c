"""Device code for Ascend's AI Core inside host binaries, where bisheng and CANN's CMake files put it.

Sources: hicann/runtime (the machine number, and the sections in which the run-time looks for kernels) and cann/asc-tools
(the sections that the vendor's object tool extracts). No compiler for AI Core was at hand: what is read here is ELF, and was
checked on ELF files that carry these names. Such a file names its kernels, and not the NPU architecture that it is for.
"""

from __future__ import annotations

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
        held = [(s.name, s.data()) for s in file.iter_sections() if s.name == _LINKED or s.name.startswith(_PACKED)]
    for name, data in held:
        starts = list(_starts(data))
        if not starts and data:
            raise IntegrityError(
                f"The section {name} holds no AI Core code.",
                means=f"{len(data)} bytes are there, and no ELF file with machine {MACHINE:#x} is among them.",
                next_step="look at it with the vendor's msobjdump --dump-elf",
            )
        for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
            yield _kernels(data[start:end])


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
        table = file.get_section_by_name(".symtab")
        strings = file.get_section_by_name(".strtab")
        exported = [
            s.name for s in symbols(table, strings) if (s.kind, s.binding) == (_FUNCTION, _GLOBAL) and s.section != UNDEFINED
        ]
        return tuple(sorted(exported))
