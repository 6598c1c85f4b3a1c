"""What integration tests share: the fixture target, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from projects import FIXTURE, cleanroom, project_copy


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the fixture project in which the fixture target was built, image and all."""
    project = project_copy(FIXTURE, tmp_path_factory.mktemp("fixture"))
    done = cleanroom(project, "build", "fixture")
    assert done.returncode == 0, done.stderr
    return project
