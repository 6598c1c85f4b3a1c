"""PTX: a guard was decided when it was made, so its stubs are told like those of machine code."""

from __future__ import annotations

import pytest
from binaries import BINARIES, binary

from cleanroom.binary.fatbin import device_code
from cleanroom.binary.ptx import kernels


def outcome(text: bytes) -> dict[str, str]:
    return {k.name: "stub" if k.stub else "empty" if k.empty else "real" for k in kernels(text)}


def entry(body: str) -> str:
    """What one kernel with this body is."""
    return outcome(f".version 9.3\n.target sm_90\n.visible .entry k(.param .u64 p) .maxntid 32 {{ {body} }}\n".encode())["k"]


def test_kernels_that_trap_or_complain_are_stubs() -> None:
    text = (BINARIES / "old.ptx").read_bytes()
    assert outcome(text) == {"complains": "stub", "returns": "empty", "stores": "real", "traps": "stub"}


def test_what_nvcc_wrote_for_a_supported_architecture_is_real() -> None:
    ptx = next(i.data for i in device_code(binary("guards.so")) if i.kind == "ptx")
    found = outcome(ptx)
    assert len(found) == 9
    assert {name for name, what in found.items() if what != "real"} == {"empty"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ret;", "empty"),
        ("", "empty"),
        (".loc 1 2 3\n$L__BB0_1: // a comment; with ld.global.u32\n @%p1 bra $L__BB0_1; trap; ret;", "stub"),
        (".reg .pred %p<2>; setp.ne.s32 %p1, %r1, 0; @%p1 exit; brkpt; exit;", "stub"),
        ("{ .param .b32 r; call.uni (r), vprintf, (a, b); } ret;", "stub"),
        ("call __assertfail, (a, b, c, d, e); trap;", "stub"),
        ("call.uni (r), vprintf, (a, b); st.global.u32 [%rd1], 1;", "real"),
        ("call (r), malloc, (a); trap;", "real"),
        ("call (r), %rd1, (a), prototype; trap;", "real"),
        ("call_of_another_kind x; trap;", "real"),
        ("ld.global.u32 %r1, [%rd1]; trap;", "real"),
        ("mbarrier.init.shared.b64 [a], 1; trap;", "real"),
        ("/* ld.global */ trap;", "stub"),
    ],
)
def test_a_body_is_told_by_its_operations(body: str, expected: str) -> None:
    assert entry(body) == expected


@pytest.mark.parametrize(
    "text", [b"", b".entry", b".entry k", b".entry k(", b".entry k() {", b".entry k() { trap;", b"\xff\xfe.entry k() {}}"]
)
def test_text_that_is_cut_off_has_no_traceback(text: bytes) -> None:
    assert set(outcome(text).values()) <= {"empty"}
