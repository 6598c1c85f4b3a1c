"""Device code inside host binaries: the fat binaries that nvcc puts into objects and libraries.

NVIDIA does not document the container. The layout here is read from what nvcc 12.8 to 13.3 writes, and the result is
checked against `cuobjdump` (tests/integration/test_binary.py); what it does not know it refuses, never skips. A fat
binary is a header of 16 bytes (magic, version, header size, size of what follows) and entries, each a header of its
own and a payload: a cubin, PTX text, or intermediate code for link-time optimisation.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import lz4.block  # type: ignore[import-untyped]  # it ships no types
import zstandard

from cleanroom.arch import Arch, parse_arch
from cleanroom.binary import cubin
from cleanroom.binary.elf import reading
from cleanroom.errors import IntegrityError

_HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of all entries
_START = struct.pack("<IHH", 0xBA55ED50, 1, _HEADER.size)
_ENTRY = struct.Struct("<HHIQI20xQ8xQ")  # kind, version, header size, payload size, compressed size, flags, raw size
_PTX, _CUBIN, _IR, _MERCURY = 1, 2, 8, 16
_LZ4, _ZSTD = 0x2000, 0x8000
_LARGEST = 1 << 31
"""No image is this large; a larger size is damage, and nothing to allocate memory for."""

_LINKED = ".nv_fatbin"
_UNLINKED = "__nv_relfatbin"
"""Code for the device linker (-rdc=true). It stays in a linked library, but the run-time never loads it from there."""

_PTX_TARGET = re.compile(rb"^\s*\.target\s+sm_([0-9]+[af]?)\b", re.MULTILINE)


@dataclass(frozen=True)
class DeviceCode:
    """One image: machine code (`cubin`) or PTX text, decompressed. `arch` is what the image says of itself."""

    kind: Literal["cubin", "ptx"]
    arch: Arch
    data: bytes


def device_code(elf: bytes) -> tuple[DeviceCode, ...]:
    """Every image that an ELF file (library, object, or a cubin itself) offers to the CUDA run-time; () if none.

    Of a linked library that is what the device linker made, not the relocatable code it was made from: a library whose
    device link lost an architecture does not have it. Raises IntegrityError for a file that is damaged or unknown.
    """
    return tuple(images(elf))


def images(elf: bytes) -> Iterator[DeviceCode]:
    """As device_code, one image in memory at a time: for libraries that decompress to gigabytes."""
    with reading(elf) as file:
        is_cubin = file["e_machine"] == "EM_CUDA"
        linked = file["e_type"] != "ET_REL"
        spans = [(s.name, s["sh_offset"], s["sh_offset"] + s["sh_size"]) for s in file.iter_sections() if not s.is_null()]
    if is_cubin:
        yield DeviceCode("cubin", cubin.arch_of(elf), elf)
        return
    skipped = [(start, end) for name, start, end in spans if linked and name == _UNLINKED]
    containers = list(_containers(elf))
    for name, start, end in spans:
        if name == _LINKED:
            _check_covered(elf, start, end, containers)
    for start, end in containers:
        if not any(first <= start < last for first, last in skipped):
            yield from _images_in(elf, start + _HEADER.size, end)


def _containers(elf: bytes) -> Iterator[tuple[int, int]]:
    """First byte and end of every fat binary. Not only in its own section: programs also carry some as plain data.

    Tools that write fat binaries hold an empty header: what does not fit is left out here, and missed by _check_covered
    where it does belong.
    """
    position = 0
    while (start := elf.find(_START, position)) >= 0:
        position = start + len(_START)
        if start + _HEADER.size <= len(elf):
            size = _HEADER.unpack_from(elf, start)[3]
            if 0 < size <= len(elf) - start - _HEADER.size:
                position = start + _HEADER.size + size
                yield start, position


def _check_covered(elf: bytes, start: int, end: int, containers: list[tuple[int, int]]) -> None:
    """Between the fat binaries of their section there is only zero padding, or one of them is damaged."""
    inside = [(a, b) for a, b in containers if start <= a < end]
    for gap_start, gap_end in zip([start, *(b for _, b in inside)], [*(a for a, _ in inside), end], strict=True):
        if elf[gap_start:gap_end].strip(b"\0"):
            raise _damaged(gap_start, "what stands there is not a fat binary")


def _images_in(elf: bytes, position: int, end: int) -> Iterator[DeviceCode]:
    while position < end:
        if position + _ENTRY.size > end:
            raise _damaged(position, "an entry is cut off")
        kind, _, header, size, compressed, flags, raw = _ENTRY.unpack_from(elf, position)
        start, following = position + header, position + header + size
        if header < _ENTRY.size or following > end or compressed > size or raw > _LARGEST:
            raise _damaged(position, "the sizes in an entry make no sense")
        if kind not in (_PTX, _CUBIN, _IR, _MERCURY):
            raise _damaged(position, f"an entry is of the unknown kind {kind}")
        if kind != _IR:  # intermediate code for the device linker: nothing can load it
            payload = elf[start : start + compressed] if compressed else elf[start:following]
            yield _image(kind, _decompressed(payload, flags, raw, position), position)
        position = following


def _decompressed(payload: bytes, flags: int, raw: int, position: int) -> bytes:
    try:
        if flags & _ZSTD:
            data = zstandard.ZstdDecompressor().decompress(payload, max_output_size=raw)
        elif flags & _LZ4:
            data = lz4.block.decompress(payload, uncompressed_size=raw)
        else:
            return payload
    except (zstandard.ZstdError, lz4.block.LZ4BlockError, MemoryError, ValueError) as error:
        raise _damaged(position, f"an image does not decompress ({error})") from None
    if len(data) != raw:
        raise _damaged(position, f"an image of {raw} bytes decompresses to {len(data)}")
    return data


def _image(kind: int, data: bytes, position: int) -> DeviceCode:
    if kind != _PTX:
        return DeviceCode("cubin", cubin.arch_of(data), data)
    target = _PTX_TARGET.search(data)
    if target is None:
        raise _damaged(position, "its PTX has no .target")
    arch = parse_arch(f"compute_{target[1].decode()}", where="PTX")
    return DeviceCode("ptx", arch, data.rstrip(b"\0"))


def _damaged(position: int, why: str) -> IntegrityError:
    return IntegrityError(
        f"The fat binary at byte {position} cannot be read: {why}.",
        means="The file is damaged, or from a toolkit whose format this version of Cleanroom does not know.",
        next_step="compare with: cuobjdump --list-elf --list-ptx FILE",
    )
