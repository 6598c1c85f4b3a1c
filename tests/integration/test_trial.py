"""A trial, as a port author types it: real containers, one unit that only stops on the architecture, and one page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cleanroom.envs import load_envs
from projects import FIXTURE, cleanroom, project_copy

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the fixture project in which sm_120a was tried, and written as a target."""
    project = project_copy(FIXTURE, tmp_path_factory.mktemp("trial"))
    done = cleanroom(project, "trial", "--arch", "sm_120a", "--from", "fixture", "--write", "sm120")
    assert done.returncode == 0, done.stderr
    assert "partly" in done.stdout
    return project


def test_every_unit_is_tried_and_one_that_only_stops_does_not_count(tried: Path) -> None:
    trial = json.loads((tried / "out" / "trial-sm_120a" / "trial.json").read_text())
    (part,) = trial["parts"]
    assert (part["component"], part["verdict"]) == ("vectors", "partly")
    assert (part["tried"], part["compiled"], part["stubs"], part["refused"]) == (3, 2, 1, 0)
    assert [(cause["gate"], Path(cause["first"]).name) for cause in part["causes"]] == [("missing implementation", "convert.cu")]
    assert trial["changes"] == ["architecture sm_120a"]


def test_the_page_is_there_in_both_forms(tried: Path) -> None:
    for name in ("trial.md", "trial.html"):
        assert "2 of 3 translation units, 1 stub" in (tried / "out" / "trial-sm_120a" / name).read_text()


def test_what_was_tried_is_a_target_that_can_be_locked(tried: Path) -> None:
    target = load_envs(tried / "envs").target("sm120")
    assert (target.status, str(target.expectation("vectors"))) == ("experimental", "partly: 2 of 3")
    assert cleanroom(tried, "lock", "sm120").returncode == 0
    assert cleanroom(tried, "render", "sm120").returncode == 0
