"""The command line: what reaches a person when something is wrong that no verb foresaw."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from standings import project_at

from cleanroom.__main__ import main
from cleanroom.project import REPOSITORY


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cleanroom", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY / "scripts")


def test_a_place_that_cannot_be_written_to_is_named_and_no_traceback_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project_at(tmp_path)
    (tmp_path / "out").write_text("a file where a folder is needed")
    assert main(["--project", str(tmp_path), "matrix"]) == 10
    said = capsys.readouterr().err
    assert f"{tmp_path / 'out'}" in said
    assert "cannot be used" in said
    assert "Next: " in said


def test_a_reader_that_leaves_is_no_mistake(tmp_path: Path) -> None:
    project_at(tmp_path)
    program = f"{sys.executable} -m cleanroom --project {tmp_path} matrix | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, cwd=REPOSITORY / "scripts")
    assert done.stdout.splitlines()[-1] in ("141", "0"), done.stderr
    assert "Traceback" not in done.stderr


def test_an_architecture_that_is_not_known_is_corrected_where_it_was_typed() -> None:
    done = run("trial", "--arch", "sm_999")
    assert done.returncode == 13
    assert "envs/targets" not in done.stderr
    assert "--arch" in done.stderr
