"""Cubins: the architecture one is for, the kernels in it, and which of those are stubs.

A cubin is an ELF file. NVIDIA documents neither its notes nor the encoding of instructions; both are read here from
what nvcc 12.8 to 13.3 writes, with `nvdisasm -hex` to name the operation codes (tests/integration/test_binary.py).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from cleanroom.arch import Arch, parse_arch
from cleanroom.binary.elf import Symbol, reading, symbols
from cleanroom.errors import ArchError, IntegrityError


@dataclass(frozen=True)
class Kernel:
    """One kernel of a cubin; device functions that it calls without inlining are part of its `code`.

    `name` is mangled, `instructions` the count without the padding at the end. `empty`: it returns at once.

    `stub`: all it does is complain. The code contains a trap, a breakpoint or a call of printf or assert, and besides
    that only what decides which thread complains and prepares the message: arithmetic on registers, reads of
    parameters and special registers, its own stack, branches. It reads and writes no global or shared memory, waits
    for nothing, calls nothing else. That is what a body guarded by `__CUDA_ARCH__` becomes on an architecture that it
    does not support. Any operation that is not known to be so harmless makes it no stub, and so does a body that only
    returns: that may be all the source says, so it takes a second architecture to tell (evidence.py does).
    Told of optimised code for capability 7.0 and later; older code has another encoding and is never called a stub.
    """

    name: str
    code: bytes
    instructions: int
    stub: bool
    empty: bool = False


def arch_of(cubin: bytes) -> Arch:
    """The architecture a cubin is for. The suffix is in the note where ptxas and nvlink keep their options.

    Compilers before CUDA 13 write no note for 9.0 and older, and a flag there tells the `a` form, the only one that
    exists. Raises IntegrityError.
    """
    with reading(cubin) as file:
        return _arch(file)


def kernels(cubin: bytes) -> tuple[Kernel, ...]:
    """The kernels of a cubin, by name. Raises IntegrityError if it is damaged."""
    with reading(cubin) as file:
        width = _WIDE if _arch(file).major >= _FIRST_WIDE else _NARROW
        sections = {section.name: section for section in file.iter_sections()}
        table = list(symbols(sections.get(".symtab"), sections.get(".strtab")))
        callees = _callees(sections, table)
        found = []
        for symbol in table:
            text = sections.get(f".text.{symbol.name}")
            if symbol.kind == _FUNCTION and symbol.other & _ENTRY_POINT and text is not None:
                found.append(_kernel(symbol.name, text.data(), callees.get(symbol.section, frozenset()), width))
    return tuple(sorted(found, key=lambda kernel: kernel.name))


_TOOL_NOTE = ".note.nv.tkinfo"
_TOOL_ARCH = re.compile(rb"(?<![\w-])(?:-arch|--gpu-name)[ =]sm_([0-9]+)([af]?)(?![\w])")
_ABI_WITH_WIDE_ARCH = 8
_OLD_ACCELERATED = 0x800


def _arch(file: ELFFile) -> Arch:
    if file["e_machine"] != "EM_CUDA":
        raise IntegrityError("A cubin was expected and this is an ELF file for another machine.")
    flags = file["e_flags"]
    if file["e_ident"]["EI_ABIVERSION"] >= _ABI_WITH_WIDE_ARCH:
        number, suffix = flags >> 8 & 0xFF, ""
    else:
        number, suffix = flags & 0xFF, "a" if flags & _OLD_ACCELERATED else ""
    note = file.get_section_by_name(_TOOL_NOTE)
    for found in _TOOL_ARCH.finditer(note.data() if note else b""):
        if int(found[1]) == number:
            suffix = found[2].decode()
    try:
        return parse_arch(f"sm_{number}{suffix}", where="a cubin")
    except ArchError as error:
        raise IntegrityError(error.what, means="The cubin is damaged, or of a format that is not known.") from None


_FUNCTION, _ENTRY_POINT = 2, 0x10


def _callees(sections: Mapping[str, Section], table: list[Symbol]) -> dict[int, frozenset[str]]:
    """By section: the functions that its code calls and that are not in it. nvcc's call graph is pairs of symbols."""
    found: dict[int, frozenset[str]] = {}
    graph = sections.get(".nv.callgraph")
    for caller, callee in struct.iter_unpack("<II", graph.data()) if graph else ():
        if callee < len(table) and table[callee].section != table[caller].section:
            section = table[caller].section
            found[section] = found.get(section, frozenset()) | {table[callee].name}
    return found


_FIRST_WIDE = 7  # capability 7.0: instructions of 128 bits, operation code in the low 12, form of the operands its top 3
_WIDE, _NARROW = 16, 8
_WIDE_INSTRUCTION = struct.Struct("<H14x")
NOP, _BPT = 0x118, 0x15C
_CALL_BY_TABLE, _CALL_BY_REGISTER = 0x343, 0x344
COMPLAINTS = frozenset({"__assertfail", "vprintf"})
HARMLESS = frozenset(
    {
        0x002,  # MOV
        0x003,  # P2R
        0x005,  # CS2R
        0x006,  # VOTE
        0x007,  # SEL
        0x00C,  # ISETP
        0x010,  # IADD3
        0x011,  # LEA
        0x012,  # LOP3
        0x013,  # IABS
        0x016,  # PRMT
        0x017,  # IMNMX
        0x019,  # SHF
        0x01C,  # PLOP3
        0x024,  # IMAD
        0x025,  # IMAD.WIDE
        0x027,  # IMAD.HI
        0x02F,  # ELECT
        0x031,  # HFMA2, which moves constants
        0x035,  # IADD; HFMA2.MMA before capability 10.0
        0x036,  # VIADD
        0x048,  # VIMNMX
        0x082,  # UMOV
        0x086,  # VOTEU
        0x087,  # USEL
        0x08C,  # UISETP
        0x090,  # UIADD3
        0x091,  # ULEA
        0x092,  # ULOP3
        0x096,  # UPRMT
        0x097,  # UIADD3.64
        0x099,  # USHF
        0x0A4,  # UIMAD
        0x0A5,  # UIMAD.WIDE
        0x0B9,  # ULDC
        0x0BB,  # ULDC by register
        0x0BD,  # UFLO
        0x0CA,  # R2UR
        0x100,  # FLO
        0x109,  # POPC
        NOP,
        0x119,  # S2R
        0x141,  # BSYNC
        0x142,  # BREAK
        0x143,  # CALL.ABS
        0x144,  # CALL.REL
        0x145,  # BSSY
        0x146,  # YIELD
        0x147,  # BRA
        0x148,  # WARPSYNC
        0x14D,  # EXIT
        0x14E,  # LEPC
        0x150,  # RET
        0x155,  # BMOV
        0x156,  # BMOV by register
        _BPT,
        0x182,  # LDC
        0x183,  # LDL
        0x187,  # STL
        0x189,  # SHFL
        0x192,  # MEMBAR, before EXIT in unoptimised code
        0x1AB,  # ERRBAR, likewise
        0x1AC,  # LDCU
        0x1C2,  # R2UR
        0x1C3,  # S2UR
    }
)


def _kernel(name: str, code: bytes, callees: frozenset[str], width: int) -> Kernel:
    if width == _NARROW:
        return Kernel(name, code, len(code) // width, stub=False)
    operations = [half & 0xFFF for (half,) in _WIDE_INSTRUCTION.iter_unpack(code)]
    while operations and operations[-1] & 0x1FF == NOP:
        operations.pop()
    kinds = {operation & 0x1FF for operation in operations}
    calls_out = _CALL_BY_TABLE in operations
    harmless = (
        kinds <= HARMLESS and _CALL_BY_REGISTER not in operations and callees <= COMPLAINTS and (bool(callees) or not calls_out)
    )
    complains = _BPT in kinds or calls_out
    return Kernel(name, code, len(operations), stub=harmless and complains, empty=harmless and not complains)
