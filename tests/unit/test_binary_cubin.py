"""Cubins: architecture, kernels, and the stubs among them."""

from __future__ import annotations

import pytest
from binaries import binary

from cleanroom.binary.cubin import Kernel, arch_of, kernels
from cleanroom.binary.fatbin import device_code
from cleanroom.errors import IntegrityError


def cubin(arch: str, name: str = "guards.so") -> bytes:
    return next(i.data for i in device_code(binary(name)) if str(i.arch) == arch)


def by_name(arch: str) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in kernels(cubin(arch))}


GUARDED = {"guard_trap", "guard_message", "guard_in_function"}


def test_the_architecture_is_the_one_that_the_compiler_was_asked_for() -> None:
    assert [str(arch_of(cubin(arch))) for arch in ("sm_100a", "sm_100f", "sm_120a")] == ["sm_100a", "sm_100f", "sm_120a"]
    assert str(arch_of(cubin("sm_75", "lost.so"))) == "sm_75"


def test_a_cubin_of_an_older_compiler_is_read_as_well() -> None:
    old = binary("old.cubin")
    assert str(arch_of(old)) == "sm_90a"
    assert {k.name: (k.stub, k.empty) for k in kernels(old)} == {
        "complains": (True, False),
        "returns": (False, True),
        "stores": (False, False),
        "traps": (True, False),
    }


def test_without_the_compilers_note_the_number_is_still_known() -> None:
    without = cubin("sm_100f").replace(b".note.nv.tkinfo", b".note.nv.xxxxxx")
    assert str(arch_of(without)) == "sm_100"


def test_a_note_about_another_architecture_is_not_believed() -> None:
    assert str(arch_of(cubin("sm_100a").replace(b"-arch sm_100a", b"-arch sm_103a"))) == "sm_100"


def test_bodies_that_only_complain_are_stubs_where_the_guard_excludes_the_architecture() -> None:
    assert {name for name, kernel in by_name("sm_120a").items() if kernel.stub} == GUARDED
    assert not any(kernel.stub for kernel in kernels(cubin("sm_100a")))
    assert not any(kernel.stub for kernel in kernels(cubin("sm_100f")))


def test_small_honest_kernels_are_no_stubs() -> None:
    honest = {"adds", "stores_one", "checks_then_stores", "calls_a_pointer"}
    assert not any(kernel.stub or kernel.empty for name, kernel in by_name("sm_120a").items() if name in honest)


def test_a_body_that_only_returns_is_empty_and_by_itself_no_stub() -> None:
    assert {name for name, kernel in by_name("sm_120a").items() if kernel.empty} == {"empty", "guard_silent"}
    assert {name for name, kernel in by_name("sm_100a").items() if kernel.empty} == {"empty"}


def test_instructions_are_counted_without_the_padding() -> None:
    kernel = by_name("sm_120a")["guard_trap"]
    assert kernel.instructions == 3  # stack pointer, trap, the loop behind it
    assert len(kernel.code) == 256


def test_a_stub_with_one_store_to_global_memory_is_no_stub() -> None:
    data, kernel = cubin("sm_120a"), by_name("sm_120a")["guard_trap"]
    store = by_name("sm_120a")["stores_one"].code[4 * 16 : 5 * 16]
    assert int.from_bytes(store[:2], "little") & 0xFFF == 0x986  # STG
    changed = data.replace(kernel.code, store + kernel.code[16:], 1)
    assert {k.name: k for k in kernels(changed)}["guard_trap"].stub is False


def test_a_call_that_the_call_graph_does_not_explain_makes_it_no_stub() -> None:
    data = cubin("sm_120a")
    assert {k.name for k in kernels(data.replace(b"vprintf", b"xprintf")) if k.stub} == {"guard_trap"}
    assert {k.name for k in kernels(data.replace(b".nv.callgraph", b".nv.xxxxxxxxx")) if k.stub} == {"guard_trap"}


def test_device_code_without_a_kernel_has_none() -> None:
    assert kernels(cubin("sm_75", "lost.so")) == ()
    assert kernels(cubin("sm_100a", "speed.o")) == ()


def test_a_kernel_is_found_after_the_device_link() -> None:
    assert [kernel.name for kernel in kernels(cubin("sm_100a", "linked.so"))] == ["calls_helper"]


def test_a_library_for_the_host_is_no_cubin() -> None:
    for read in (arch_of, kernels):
        with pytest.raises(IntegrityError, match="another machine"):
            read(binary("needy.so"))


def test_no_damage_ends_in_a_traceback() -> None:
    data = cubin("sm_120a")
    for position in range(0, len(data), len(data) // 30):
        for broken in (data[:position], data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]):
            try:
                kernels(broken)
            except IntegrityError:
                continue
