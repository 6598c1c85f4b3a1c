"""Records for tests: values as a real build gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cleanroom.failures import classify
from cleanroom.prerequisites import Assessment
from cleanroom.record import (
    NOT_VERIFIED,
    ComponentResult,
    EngineUsed,
    File,
    Image,
    Import,
    LockInfo,
    Missing,
    Record,
    TargetInfo,
    TranslationUnits,
)
from cleanroom.resources import Resources

LOGS = Path(__file__).parent / "data" / "logs"


def component(name: str, version: str, **changes: object) -> ComponentResult:
    """A component that built in 164.3 s."""
    built = ComponentResult(
        name=name,
        title=name.title(),
        version=version,
        source=File(f"deepinfer_{name}-{version}.tar.gz", "5a" * 32, 204507),
        architectures_asked=("sm_100a",),
        status="built",
        wheel=File(f"wheels/deepinfer_{name}-{version}-cp313-cp313-linux_x86_64.whl", "ab" * 32, 1_834_112),
        seconds=164.3,
        cpu_seconds=238.1,
        peak_memory_bytes=2_214_592_512,
        translation_units=TranslationUnits(3, 3, 0),
        changes=(),
        failure=None,
        log=f"logs/{name}.log",
    )
    return replace(built, **changes)  # type: ignore[arg-type]


def not_attempted(name: str, version: str) -> ComponentResult:
    """A component that was left out."""
    return component(
        name,
        version,
        status="not attempted",
        wheel=None,
        seconds=0.0,
        cpu_seconds=0.0,
        peak_memory_bytes=0,
        translation_units=TranslationUnits(0, 0, 0),
        log="",
    )


def record(**changes: object) -> Record:
    """Two components of sm100 built, everything imports."""
    whole = Record(
        tool_version="0.1.0",
        target=TargetInfo("sm100", "NVIDIA SM100 (B200, GB200) with CUDA 13", "supported", "linux/amd64"),
        base="debian13",
        lock=LockInfo("sm100-debian13", "sha256:" + "c0" * 32, "sha256:" + "1e" * 32),
        dockerfile_sha256="d0" * 32,
        engine=EngineUsed("embedded", "26.1.5", "0.12.5", "0.13.1"),
        toolchain={"python": "3.13.5", "gcc": "14.2.0", "nvcc": "13.3.73", "torch": "2.13.0+cu130"},
        resources=Resources(2, 25_769_803_776, 2, 1, "2 compile jobs at once, 1 nvcc threads each"),
        started="2026-11-30T04:13:00Z",
        seconds=401.2,
        verdict="builds",
        components=(
            component("deepep", "2.5.0"),
            component("deepinfer", "0.1.0", architectures_asked=(), seconds=210.4, changes=("provided a/b.py: it is missing",)),
        ),
        image=Image("image.oci.tar", "sha256:" + "f1" * 32, 8_120_345_600, "zstd"),
        imports=(Import("deepep", "deep_ep", ok=True, error=""), Import("deepinfer", "deepinfer", ok=True, error="")),
        prerequisites=(
            Assessment("Python", "==3.12.*", "DeepInfer README", "3.13.5", "deviates", ""),
            Assessment("NVIDIA driver", ">=580", "CUDA 13", "not part of the image", "not verified", ""),
        ),
        deviations=("Python: documented ==3.12.* (DeepInfer README), here 3.13.5",),
        missing_modules=(Missing("deepinfer", "deep_select", "DeepSelect is in no source archive"),),
        not_built=(),
        not_verified=NOT_VERIFIED,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def failed_record() -> Record:
    """One component failed on a missing header, one was never attempted, one was reused."""
    failure = classify((LOGS / "ninja-parallel.log").read_text(encoding="utf-8"))
    return record(
        verdict="fails",
        components=(
            component("deepgemm", "2.8.2", status="failed", wheel=None, failure=failure),
            component("deepep", "2.5.0", status="reused"),
            not_attempted("deepinfer", "0.1.0"),
        ),
        image=None,
        imports=(),
    )
