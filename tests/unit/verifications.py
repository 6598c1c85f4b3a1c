"""Verifications and evidence for tests, of the records in records.py."""

from __future__ import annotations

from dataclasses import replace

from records import record

from cleanroom.evidence import ComponentEvidence, Evidence, Finding, LibraryEvidence
from cleanroom.jit import JitReport, JitResult, Result
from cleanroom.record import Record
from cleanroom.verification import ComponentVerification, Condition, Difference, Verification

KERNEL = "_ZN5sm1006decode6kernelILi64EEEvNS_6ParamsE"


def verification(of: Record | None = None, **changes: object) -> Verification:
    """A second build of a record that gave the same wheels and the same image."""
    first = of or record()
    whole = Verification(
        tool_version="0.1.0",
        target=first.target,
        base=first.base,
        lock=first.lock,
        engine=first.engine,
        started="2026-11-30T06:00:00Z",
        seconds=388.0,
        conditions=(Condition("start", first.started, "2026-11-30T06:00:00Z"), Condition("compile jobs", "2", "3")),
        level="identical image",
        components=tuple(ComponentVerification(c.name, "identical artifacts", c.wheel, c.wheel, ()) for c in first.components),
        image_first=first.image,
        image_second=first.image,
        image_level="identical image",
        image_differences=(),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def differing() -> Verification:
    """One kernel and thirty debug sections of deepep differ, and with them the image."""
    same = verification()
    deepep, deepinfer = same.components
    assert deepep.second is not None
    assert same.image_second is not None
    library = "deep_ep/_C.cpython-313-x86_64-linux-gnu.so"
    kernel = Difference("deepep", library, f"sm_100a kernel {KERNEL}", "same architectures", "unknown", "", ("-MOV R1", "+MOV R2"))
    paths = tuple(
        Difference("deepep", library, f".debug_str.{n}", "identical device code", "build path", "build in the same folder", ())
        for n in range(30)
    )
    other = replace(
        deepep, level="same architectures", second=replace(deepep.second, sha256="cd" * 32), differences=(*paths, kernel)
    )
    layer = Difference("image", "opt/venv/deep_ep/_C.so", "", "same architectures", "the wheel of deepep", "", ())
    return replace(
        same,
        level="same architectures",
        components=(other, deepinfer),
        image_second=replace(same.image_second, manifest="sha256:" + "9e" * 32),
        image_level="same architectures",
        image_differences=(layer,),
    )


def jit_result(kernel: str, outcome: Result) -> JitResult:
    """One kernel of deepep, compiled in the image; it has work to do, so that anything but `compiled` is a surprise."""
    names = ("deepep", "impls/ep", kernel, "", "sm_100a", "sm_100f")
    return JitResult(*names, outcome, "compiled", "it has work to do", 9.5, 8.1, 900, 48000, "ab" * 32, ("nvcc", "kernel.cu"), ())


def evidence(**changes: object) -> Evidence:
    """What the binaries hold: sm_100a code in deepep, none in deepinfer; what is missing was accepted."""
    runs = {"9.0": "does not run", "10.0": "runs", "12.0": "does not run"}
    library = LibraryEvidence("deep_ep/_C.cpython-313-x86_64-linux-gnu.so", ("sm_100a",), (), 12, {})
    whole = Evidence(
        components=(
            ComponentEvidence("deepep", ("sm_100a",), ("sm_100a",), ("sm_100a",), (library,), runs),
            ComponentEvidence("deepinfer", (), (), (), (), dict.fromkeys(runs, "no device code")),
        ),
        findings=(Finding("deepinfer", "missing module", "degrades", "deep_select is provided by nothing"),),
        jit=JitReport(2, 60.0, (jit_result("dispatch_impl", "compiled"), jit_result("combine_impl", "stub")), (), (), (), ()),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def stubbed() -> Evidence:
    """As `evidence`, but what was compiled for sm_100a only stops."""
    whole = evidence()
    deepep, deepinfer = whole.components
    library = replace(deepep.libraries[0], stubs={"sm_100a": (KERNEL,)})
    failing = Finding("deepep", "missing architecture", "fails", "sm_100a was asked for, and its only kernel is a stub")
    found = replace(deepep, found=(), libraries=(library,), runs_on={"10.0": "does not run"})
    return replace(whole, components=(found, deepinfer), findings=(*whole.findings, failing))
