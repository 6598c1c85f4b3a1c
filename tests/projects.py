"""Copies of projects that tests may change, and the command line as a user types it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cleanroom.project import REPOSITORY

FIXTURE = REPOSITORY / "tests" / "fixture"


def project_copy(source: Path, place: Path) -> Path:
    """What a project consists of, links followed, without what was built there before."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in ("envs", "dockerfiles", "lockfiles", "sources"):
        if (source / name).is_dir():
            shutil.copytree(source / name, place / name, ignore=ignored)
    return place


def cleanroom(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a verb on a project."""
    return subprocess.run(
        [sys.executable, "-m", "cleanroom", "--project", str(project), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )


def lock_and_render(project: Path) -> None:
    """What a change of sources or YAML needs before a build."""
    for verb in ("lock", "render"):
        done = cleanroom(project, verb, "fixture")
        assert done.returncode == 0, done.stderr
