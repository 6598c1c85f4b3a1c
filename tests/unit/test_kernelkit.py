"""The measure of register spills: which kernels of a resource table spill, and what happens where there is nothing to see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelkit import check_kernel_reg_spill_in_artifact, parse

TABLE = """
Fatbin elf code:
================
arch = sm_100a
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0 CONSTANT[3]:24
 Function _Z5cleanPf:
  REG:32 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:904 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z7stackedPf:
  REG:255 STACK:128 SHARED:0 LOCAL:0 CONSTANT[0]:904 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z5localPf:
  REG:255 STACK:0 SHARED:0 LOCAL:16 CONSTANT[0]:904 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin elf code:
================
arch = sm_103a
Resource usage:
 Common:
  GLOBAL:0
 Function _Z5cleanPf:
  REG:32 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:904 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z7stackedPf:
  REG:255 STACK:64 SHARED:0 LOCAL:0 CONSTANT[0]:904 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and below CUDA_HOME a cuobjdump that prints it."""
    tool = tmp_path / "bin" / "cuobjdump"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\ntest "$1" = -res-usage && cat "$2"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("kernelkit.FINDINGS", tmp_path / "findings.jsonl")
    (tmp_path / "cuda.so").write_text(TABLE)
    return tmp_path / "cuda.so"


def findings_beside(artifact: Path) -> list[dict[str, str]]:
    path = artifact.with_name("findings.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_kernels_with_a_stack_frame_or_local_memory_spill_each_architecture_by_itself() -> None:
    kernels, spilled = parse(TABLE)
    assert len(kernels) == 5
    assert spilled == {("sm_100a", "_Z7stackedPf", 128), ("sm_100a", "_Z5localPf", 16), ("sm_103a", "_Z7stackedPf", 64)}


def test_a_kernel_that_spills_on_one_architecture_only_spills_there() -> None:
    spilled = parse(TABLE.replace("STACK:128", "STACK:0"))[1]
    assert spilled == {("sm_100a", "_Z5localPf", 16), ("sm_103a", "_Z7stackedPf", 64)}


def test_numbers_before_the_first_kernel_belong_to_none() -> None:
    table = "arch = sm_90\n Common:\n  GLOBAL:0 STACK:8 LOCAL:8\n Function _Z1a:\n  REG:1 STACK:0 LOCAL:0\n"
    assert parse(table) == ({("sm_90", "_Z1a")}, set())


def test_no_table_has_no_kernel() -> None:
    assert parse("") == (set(), set())


def test_every_spilling_kernel_is_a_finding_and_none_stops_the_build(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_kernel_reg_spill_in_artifact(str(artifact)) == []
    assert "5 kernels measured, 3 with local memory or a stack frame" in capsys.readouterr().out
    found = findings_beside(artifact)
    assert [(f["architecture"], f["kernel"]) for f in found] == [
        ("sm_100a", "_Z5localPf"),
        ("sm_100a", "_Z7stackedPf"),
        ("sm_103a", "_Z7stackedPf"),
    ]
    assert {f["kind"] for f in found} == {"register spill"}
    assert found[1]["message"] == "128 bytes of stack frame or local memory"


def test_a_quiet_measure_prints_nothing_and_still_leaves_findings(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_kernel_reg_spill_in_artifact(str(artifact), quiet=True)
    assert capsys.readouterr().out == ""
    assert len(findings_beside(artifact)) == 3


def test_an_artifact_without_a_kernel_is_an_error_and_not_a_clean_result(artifact: Path) -> None:
    artifact.write_text("")
    with pytest.raises(RuntimeError, match="nothing was checked"):
        check_kernel_reg_spill_in_artifact(str(artifact))


def test_a_measure_that_is_switched_off_is_a_finding_too(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIP_IT", "1")
    check_kernel_reg_spill_in_artifact(str(artifact), suppress_checking_env_var="SKIP_IT")
    (skipped,) = findings_beside(artifact)
    assert skipped == {"kind": "register spill", "message": "not measured: skipped by SKIP_IT"}
