"""The build tag of an experiment's wheel, as the container puts it there."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cleanroom.project import IN_CONTAINER

NAME = "things-1.0-py3-none-any.whl"
FILES = {
    "things/__init__.py": "VALUE = 1\n",
    "things-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: things\nVersion: 1.0\n",
    "things-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
RECORD = "things-1.0.dist-info/RECORD"


def record() -> str:
    """The RECORD that belongs to FILES: the tool that puts the tag there checks every hash."""
    hashes = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=") for name, text in FILES.items()
    }
    return "".join(f"{name},sha256={hashes[name]},{len(text)}\n" for name, text in FILES.items()) + f"{RECORD},,\n"


def tagged(folder: Path) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        for name, text in {**FILES, RECORD: record()}.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    (folder / "result.json").write_text(json.dumps({"component": "things", "wheel": NAME, "wheel_sha256": "", "wheel_size": 0}))
    command = [sys.executable, IN_CONTAINER / "tag_wheel.py", "--tag", "0_experimental", "--folder", folder]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1796019347"})
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return tagged(tmp_path / "out")


def test_the_name_says_that_it_is_an_experiment_and_the_result_names_it(wheel: Path) -> None:
    assert wheel.name == "things-1.0-0_experimental-py3-none-any.whl"
    result = json.loads((wheel.parent / "result.json").read_text())
    assert (result["component"], result["wheel"], result["wheel_size"]) == ("things", wheel.name, wheel.stat().st_size)
    assert result["wheel_sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_what_is_in_it_stays_as_it_was_built(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("things/__init__.py").decode() == FILES["things/__init__.py"]
        assert "Build: 0_experimental" in archive.read("things-1.0.dist-info/WHEEL").decode()
        assert sorted(archive.namelist()) == sorted([*FILES, RECORD])


def test_it_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    assert tagged(tmp_path / "a").read_bytes() == tagged(tmp_path / "b").read_bytes()
