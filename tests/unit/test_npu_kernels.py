"""Kernels that an NPU's engine compiles at run time, judged by what the container left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from binaries import binary

from cleanroom.envs import Envs, load_envs
from cleanroom.errors import RecordError
from cleanroom.jit import JitReport
from cleanroom.npu_kernels import FILE, read_npu_kernels
from cleanroom.project import REPOSITORY

ROPE = "tile_kernels.transform.rope_asc.get_rope_kernel_asc"
GATHER = "deepinfer.model_executor.layers.tilelang_ops.asc.gather.gather_tl"


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


def row(kernel: str, **changes: object) -> dict[str, object]:
    """A kernel that was lowered and compiled."""
    name = kernel.rpartition(".")[2]
    whole = {"kernel": kernel, "arguments": "{}", "stage": "compile", "error": "", "seconds": 2.5}
    return {**whole, "file": f"{name}.asc", "sha256": "ab" * 32, "lines": 90, "binary": f"{name}.aibin", **changes}


def judged(envs: Envs, folder: Path, *rows: dict[str, object], npu_arch: str = "dav-3510") -> JitReport:
    (folder / FILE).write_text(json.dumps({"npu_arch": "dav-3510", "kernels": rows}))
    return read_npu_kernels(folder, npu_arch, envs.components.values())


def test_what_bisheng_made_counts_by_component_and_family(envs: Envs, tmp_path: Path) -> None:
    for name in ("get_rope_kernel_asc", "gather_tl"):
        (tmp_path / f"{name}.aibin").write_bytes(binary("aicore.o"))
    report = judged(envs, tmp_path, row(ROPE), row(GATHER))
    assert [(r.component, r.family, r.kernel, r.outcome) for r in report.results] == [
        ("tilekernels", "transform/rope_asc", "get_rope_kernel_asc", "compiled"),
        ("deepinfer", "model_executor/layers/tilelang_ops/asc/gather", "gather_tl", "compiled"),
    ]
    assert report.surprises == ()
    assert report.seconds == 5.0
    assert {r.architecture for r in report.results} == {"dav-3510"}


def test_a_compiler_that_says_no_is_told_apart_from_a_kernel_that_could_not_be_tried(envs: Envs, tmp_path: Path) -> None:
    refused = row(ROPE, error="error: no matching function", binary="")
    failed = row(GATHER, stage="lower", error="ValueError: TileLang gave no AscendC kernel", file="", sha256="", lines=0, binary="")
    report = judged(envs, tmp_path, refused, failed)
    assert [(r.outcome, r.errors) for r in report.results] == [
        ("refused", ("error: no matching function",)),
        ("failed", ("ValueError: TileLang gave no AscendC kernel",)),
    ]
    assert len(report.surprises) == 2


def test_what_holds_no_code_for_an_npu_did_not_compile(envs: Envs, tmp_path: Path) -> None:
    (tmp_path / "get_rope_kernel_asc.aibin").write_bytes(binary("needy.so"))
    (tmp_path / "gather_tl.aibin").write_bytes(b"something else")
    report = judged(envs, tmp_path, row(ROPE), row(GATHER), row("tile_kernels.moe.gone.gone_tl"))
    assert [r.outcome for r in report.results] == ["failed"] * 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"npu_arch": "dav-3510", "kernels": [{}]}', '{"npu_arch": "dav-3510"}'])
def test_what_is_damaged_is_evidence_of_nothing(envs: Envs, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RecordError, match="cannot be read"):
        read_npu_kernels(tmp_path, "dav-3510", envs.components.values())


def test_another_architecture_is_another_build(envs: Envs, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="of dav-3510, not of dav-2201"):
        judged(envs, tmp_path, npu_arch="dav-2201")
