"""Code for AI Core: where host binaries hold it, and what it says of itself."""

from __future__ import annotations

import pytest
from binaries import binary

from cleanroom.binary.aicore import images
from cleanroom.errors import IntegrityError

KERNELS = ("_Z3addPf", "_Z4normPf")


def test_a_host_library_holds_one_or_several_files_of_it_in_a_section_of_its_own() -> None:
    assert list(images(binary("npu.so"))) == [KERNELS] * 2


def test_device_code_by_itself_is_read_too() -> None:
    assert list(images(binary("aicore.o"))) == [KERNELS]


def test_kernels_are_told_by_their_functions_where_no_section_names_them() -> None:
    bare = binary("aicore.o").replace(b".ascend.meta.", b".rodata.meta.")
    assert list(images(bare)) == [KERNELS]


def test_sections_of_canns_cmake_files_are_read() -> None:
    assert list(images(binary("packed.so"))) == [KERNELS]


def test_libraries_for_the_host_or_for_cuda_hold_none() -> None:
    assert list(images(binary("needy.so"))) == list(images(binary("linked.so"))) == []


def test_a_section_for_it_that_holds_something_else_is_an_error() -> None:
    other = binary("npu.so").replace((0x1029).to_bytes(2, "little"), (0x103E).to_bytes(2, "little"))
    with pytest.raises(IntegrityError, match="holds no AI Core code"):
        list(images(other))


def test_kernels_of_a_linked_and_stripped_file_are_told_by_what_it_exports() -> None:
    linked = bytearray(binary("needy.so"))
    linked[18:20] = (0x1029).to_bytes(2, "little")
    assert list(images(bytes(linked))) == [("needy",)]
