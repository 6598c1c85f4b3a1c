"""The register-spill check: which kernels of a resource table spill, and what happens where there is nothing to check."""

from __future__ import annotations

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
    (tmp_path / "cuda.so").write_text(TABLE)
    return tmp_path / "cuda.so"


def test_kernels_with_a_stack_frame_or_local_memory_spill() -> None:
    assert parse(TABLE) == ({"_Z5cleanPf", "_Z7stackedPf", "_Z5localPf"}, {"_Z7stackedPf", "_Z5localPf"})


def test_a_kernel_that_spills_on_one_architecture_only_spills() -> None:
    assert parse(TABLE.replace("STACK:128", "STACK:0"))[1] == {"_Z7stackedPf", "_Z5localPf"}


def test_numbers_before_the_first_kernel_belong_to_none() -> None:
    assert parse(" Common:\n  GLOBAL:0 STACK:8 LOCAL:8\n Function _Z1a:\n  REG:1 STACK:0 LOCAL:0\n") == ({"_Z1a"}, set())


def test_no_table_has_no_kernel() -> None:
    assert parse("") == (set(), set())


def test_spilling_kernels_are_given_sorted_and_counted_for_the_reader(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_kernel_reg_spill_in_artifact(str(artifact)) == ["_Z5localPf", "_Z7stackedPf"]
    assert "3 kernels, 2 with local memory or a stack frame" in capsys.readouterr().out


def test_a_quiet_check_prints_nothing(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_kernel_reg_spill_in_artifact(str(artifact), quiet=True)
    assert capsys.readouterr().out == ""


def test_an_artifact_without_a_kernel_is_an_error_and_not_a_clean_result(artifact: Path) -> None:
    artifact.write_text("")
    with pytest.raises(RuntimeError, match="nothing was checked"):
        check_kernel_reg_spill_in_artifact(str(artifact))


def test_a_check_that_is_switched_off_says_so(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKIP_IT", "1")
    assert check_kernel_reg_spill_in_artifact(str(artifact), suppress_checking_env_var="SKIP_IT") == []
    assert "skipped by SKIP_IT" in capsys.readouterr().out
    monkeypatch.setenv("SKIP_IT", "0")
    assert check_kernel_reg_spill_in_artifact(str(artifact), suppress_checking_env_var="SKIP_IT") != []
