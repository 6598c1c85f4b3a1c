"""The tiers of evidence that need no CANN, in real containers. The long ones are left to `nox -s tiers-ascend950`."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from cleanroom.console import Console
from cleanroom.envs import load_envs
from cleanroom.project import REPOSITORY, Project
from cleanroom.store import Store
from cleanroom.tiers import Tier, run
from projects import project_copy

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tier]:
    project = Project(project_copy(REPOSITORY, tmp_path_factory.mktemp("ascend")))
    envs = load_envs(project.envs_dir)
    only = ("stages", "host code")
    done = run(project, envs, envs.target("ascend950"), platform.machine(), Store.default(), Console(), only=only)
    assert (Path(project.out_dir) / "ascend950" / "tiers.json").is_file()
    return {tier.name: tier for tier in done.tiers}


def test_the_stages_before_cann_build(tiers: dict[str, Tier]) -> None:
    assert tiers["stages"].outcome == "passed", tiers["stages"].failures


def test_host_code_passes_the_compiler(tiers: dict[str, Tier]) -> None:
    assert int(tiers["host code"].figures["gcc"].split(".")[0]) >= 13
    assert tiers["host code"].outcome == "passed", tiers["host code"].failures


def test_a_tier_that_was_not_asked_for_says_so(tiers: dict[str, Tier]) -> None:
    assert tiers["extension"].outcome == "not run"
    assert tiers["lowering"].outcome == "not run"
    assert tiers["inputs"].outcome == "not run"
