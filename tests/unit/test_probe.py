"""Imports in the finished image: what fails, and what only lacks the GPU driver's library."""

from __future__ import annotations

import subprocess
from pathlib import Path

import probe
import pytest


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules to import, and a stand-in for the driver that is never loaded by itself."""
    stub = tmp_path / "libcuda.so"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, "-xc", "-"]
    subprocess.run(command, input="int cuInit(void) { return 100; }", text=True, check=True)
    monkeypatch.setattr(probe, "STAND_IN", stub)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "fine.py").write_text("")
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere")
    (tmp_path / "driven.py").write_text("import ctypes\nctypes.CDLL('libcuda.so.1').cuInit()")
    (tmp_path / "wrong.py").write_text("import ctypes\nctypes.CDLL('libcuda.so.1').no_such_function()")
    return tmp_path


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("module", "ok", "said"),
    [
        ("fine", True, ""),
        ("broken", False, "No module named 'no_such_module_anywhere'"),
        ("driven", True, "with a stand-in for the driver's libcuda.so.1"),
        ("wrong", False, "undefined symbol: no_such_function"),
    ],
)
def test_only_the_missing_driver_is_forgiven_and_the_result_says_so(module: str, ok: bool, said: str) -> None:
    result = probe.try_import("any", module)
    assert result["ok"] is ok
    assert said in str(result["error"])


@pytest.mark.usefixtures("modules")
def test_a_process_that_dies_is_a_failed_import(modules: Path) -> None:
    (modules / "dies.py").write_text("import os\nos._exit(3)")
    assert probe.try_import("any", "dies") == {"component": "any", "module": "dies", "ok": False, "error": "exit status 3"}
