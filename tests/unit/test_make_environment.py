"""Making the Python environment from wheels, with a real venv and a real pip."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cleanroom.project import IN_CONTAINER

EPOCH = 1_796_000_000


def wheel(folder: Path, name: str, requires: str = "") -> None:
    """A wheel of one module, with a RECORD as pip wants it."""
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0+local\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-1.0+local.dist-info"
    files = {f"{name}.py": "value = 1\n", f"{info}/METADATA": metadata,
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    rows = [f"{path},sha256={digest(text)},{len(text)}" for path, text in files.items()]
    with zipfile.ZipFile(folder / f"{name}-1.0+local-py3-none-any.whl", "w") as made:
        for path, text in {**files, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,", ""])}.items():
            made.writestr(path, text)


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make(into: Path, *folders: Path) -> str:
    options = [part for folder in folders for part in ("--wheels", str(folder))]
    command: list[str | Path] = [sys.executable, IN_CONTAINER / "make_environment.py", *options, "--into", into]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment made in two steps, as a build does it: first what is locked, later what was built."""
    root = tmp_path_factory.mktemp("environment")
    wheel(root / "first", "alpha", requires="a-package-that-is-nowhere==9")
    wheel(root / "second", "beta")
    wheel(root / "third", "gamma")
    assert make(root / "venv", root / "first") == f"1 wheels installed into {root / 'venv'}\n"
    assert make(root / "venv", root / "second", root / "third").startswith("2 wheels installed")
    return root / "venv"


def test_the_wheels_of_every_folder_are_installed_and_nothing_is_resolved(environment: Path) -> None:
    program = "import alpha, beta, gamma; from importlib.metadata import version; print(version('alpha'), version('beta'))"
    command = [str(environment / "bin" / "python"), "-B", "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "1.0+local 1.0+local\n"


def test_no_bytecode_and_no_path_of_a_wheel_stays(environment: Path) -> None:
    assert [str(path) for path in environment.rglob("*") if path.suffix == ".pyc" or path.name == "__pycache__"] == []
    assert list(environment.rglob("direct_url.json")) == []


def test_every_time_is_the_epoch(environment: Path) -> None:
    assert {os.lstat(path).st_mtime_ns for path in [environment, *environment.rglob("*")]} == {EPOCH * 10**9}
