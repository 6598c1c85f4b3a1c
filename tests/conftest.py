"""What tests share: the repository, copies of the fixture project, and the rule for when integration tests may be skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from cleanroom.project import REPOSITORY, Project
from projects import FIXTURE, project_copy

INTEGRATION = REPOSITORY / "tests" / "integration"


@cache
def what_integration_lacks() -> str:
    """Why this machine can build in no container, or an empty string: root on Linux or a Docker that answers is enough."""
    if os.uname().sysname == "Linux" and os.geteuid() == 0:
        return ""
    if shutil.which("docker") is None:
        return "not root, and there is no docker command"
    answer = subprocess.run(["docker", "version"], capture_output=True, check=False)
    return "" if answer.returncode == 0 else "not root, and no Docker answers"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies in tests/integration is an integration test, marked or not."""
    for item in items:
        if item.path.is_relative_to(INTEGRATION):
            item.add_marker("integration")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, with the reason, what this machine cannot run; in CI the same is a failure, never silence."""
    if item.get_closest_marker("integration") is None:
        return
    lacking = what_integration_lacks()
    if lacking and os.environ.get("CI"):
        pytest.fail(f"integration tests cannot run here: {lacking}", pytrace=False)
    if lacking:
        pytest.skip(f"integration tests cannot run here: {lacking}")


@pytest.fixture
def repository() -> Path:
    """The checkout that the tests run from."""
    return REPOSITORY


@pytest.fixture
def fixture_project(tmp_path: Path) -> Project:
    """A copy of the fixture project, links followed, that a test may change as it likes."""
    return Project(project_copy(FIXTURE, tmp_path / "project"))


@pytest.fixture
def envs_copy(tmp_path: Path) -> Path:
    """A copy of the repository's own envs/ that a test may break."""
    return Path(shutil.copytree(REPOSITORY / "envs", tmp_path / "envs"))
