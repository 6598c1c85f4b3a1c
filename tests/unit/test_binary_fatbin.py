"""Fat binaries: what nvcc put into libraries and objects, byte for byte, and nothing that is damaged."""

from __future__ import annotations

import hashlib
import struct

import pytest
from binaries import binary

from cleanroom.binary.fatbin import device_code
from cleanroom.errors import IntegrityError

ENTRIES = struct.pack("<IHH", 0xBA55ED50, 1, 16)


def listing(name: str) -> list[str]:
    return [str(image.arch) for image in device_code(binary(name))]


def damaged(name: str, offset: int, replacement: bytes) -> bytes:
    """The binary with some bytes replaced, counted from its last fat binary."""
    data = bytearray(binary(name))
    start = data.rindex(ENTRIES) + offset
    data[start : start + len(replacement)] = replacement
    return bytes(data)


def test_every_image_is_listed_with_the_suffix_that_names_of_cubins_lose() -> None:
    assert listing("guards.so") == ["sm_100a", "sm_100f", "sm_120a", "compute_100"]


def test_images_are_the_very_bytes_that_cuobjdump_extracts() -> None:
    found = [hashlib.sha256(image.data).hexdigest()[:16] for image in device_code(binary("guards.so"))]
    assert found == EXTRACTED


EXTRACTED = ["b3f6a232e95e5819", "87da38b8a81e1a80", "eb1ef2bbdc1c6d98", "986626b4557a16b9"]
"""sha256 of what `cuobjdump -xelf all -xptx all` of 13.3.73 wrote for guards.so, shortened."""


def test_both_ways_of_compression_and_none_are_read() -> None:
    cubin, ptx = device_code(binary("speed.o"))  # LZ4; guards.so is zstd
    assert (cubin.kind, str(cubin.arch), ptx.kind, str(ptx.arch)) == ("cubin", "sm_100a", "ptx", "compute_100a")
    assert ptx.data.split() == b".version 9.3 .target sm_100a .address_size 64".split()


def test_a_cubin_by_itself_is_device_code() -> None:
    cubin = device_code(binary("speed.o"))[0].data
    assert [image.data for image in device_code(cubin)] == [cubin]


def test_a_library_has_what_the_device_linker_made_and_not_what_its_objects_had() -> None:
    assert listing("linked.so") == ["sm_100a"]
    assert listing("lost.so") == ["sm_75"]
    assert b"sm_75" not in binary("linked.so")


def test_a_library_without_device_code_has_none() -> None:
    assert device_code(binary("needy.so")) == ()


def test_a_fat_binary_outside_its_own_section_is_found() -> None:
    data = binary("speed.o")
    start = data.index(ENTRIES)
    size = 16 + struct.unpack_from("<Q", data, start + 8)[0]
    assert [str(i.arch) for i in device_code(binary("needy.so") + data[start : start + size])] == ["sm_100a", "compute_100a"]


def test_a_header_that_a_tool_carries_as_a_pattern_is_no_fat_binary() -> None:
    assert device_code(binary("needy.so") + ENTRIES + bytes(8)) == ()
    assert device_code(binary("needy.so") + ENTRIES) == ()


@pytest.mark.parametrize(
    ("offset", "replacement", "says"),
    [
        (0, b"\0\0\0\0", "is not a fat binary"),
        (8, b"\xff\xff\xff\xff", "is not a fat binary"),
        (16, b"\x63", "unknown kind 99"),
        (20, b"\x00\x00\x00\x00", "the sizes in an entry make no sense"),
        (24, b"\xff\xff\xff\x00", "the sizes in an entry make no sense"),
        (16 + 56, b"\xff", "decompress"),
        (16 + 120, b"\0\0\0\0\0\0\0\0", "does not decompress"),
    ],
)
def test_damage_is_an_error_that_says_what_does_not_fit(offset: int, replacement: bytes, says: str) -> None:
    with pytest.raises(IntegrityError) as raised:
        device_code(damaged("guards.so", offset, replacement))
    assert says in str(raised.value)
    assert "cuobjdump" in raised.value.next_step


@pytest.mark.parametrize("length", [0, 3, 16, 63, 64, 300, 5000, 15000])
def test_a_file_that_is_cut_off_is_an_error(length: int) -> None:
    with pytest.raises(IntegrityError):
        device_code(binary("guards.so")[:length])


def test_no_single_wrong_byte_ends_in_a_traceback() -> None:
    data = binary("speed.o")
    for position in range(0, len(data), len(data) // 60):
        broken = bytearray(data)
        broken[position] ^= 0xFF
        try:
            device_code(bytes(broken))
        except IntegrityError:
            continue
