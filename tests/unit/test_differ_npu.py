"""Device code for an NPU is device code: where it differs, no comparison calls it identical."""

from __future__ import annotations

import pytest
from binaries import binary

from cleanroom.differ.content import compare_content, only_in_one

SECTION = "a.cpython-313-aarch64-linux-gnu.so"


@pytest.mark.parametrize("name", ["npu.so", "packed.so", "aicore.o"])
def test_other_bytes_of_the_same_kernels_differ_as_device_code(name: str) -> None:
    data = binary(name)
    code = b"\xf3\xc3" if b"\xf3\xc3" in data else b"\xc3"
    at = data.index(code, data.index(b"\x7fELF", 1) if name != "aicore.o" else 64)
    other = data[:at] + b"\x90" * len(code) + data[at + len(code) :]
    (found,) = compare_content(SECTION, data, other, ())
    assert found.level == "same architectures"


def test_other_kernels_are_told() -> None:
    (found,) = compare_content(SECTION, binary("npu.so"), binary("npu.so").replace(b"_Z3addPf", b"_Z3subPf"), ())
    assert (found.part, found.level) == (".aicore_binary", "builds")


def test_code_that_only_one_build_has_is_no_identical_device_code() -> None:
    without = binary("liboffers.so")
    found = {each.part: each.level for each in compare_content(SECTION, binary("npu.so"), without, ())}
    assert found[".aicore_binary"] == "builds"
    assert only_in_one(SECTION, binary("npu.so"), "first").level == "builds"
    assert only_in_one("kernel.asc", b"text", "first").level == "builds"


def test_code_that_cannot_be_read_is_not_called_the_same() -> None:
    broken = binary("aicore.o")[:900]
    (found,) = compare_content("kernel.o", binary("aicore.o"), broken, ())
    assert found.level in ("builds", "same architectures")
