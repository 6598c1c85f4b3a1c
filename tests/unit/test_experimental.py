"""What holds for the experimental targets of this repository."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from cleanroom.envs import Envs, load_envs
from cleanroom.project import REPOSITORY

NAMES = ("sm90", "sm89", "sm103", "sm120")
LOCKS = REPOSITORY / "lockfiles"


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


def entries(name: str) -> list[str]:
    return re.findall(r"^  - \{kind: .*\}$", (LOCKS / f"{name}.lock").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_pinned_is_the_supported_targets(envs: Envs, name: str) -> None:
    target, supported = envs.target(name), envs.target("sm100")
    assert target.status == "experimental"
    assert "experimental" in target.title
    assert target.bases == ("debian13",)
    assert (target.platform, target.toolkit) == (supported.platform, supported.toolkit)
    assert (target.overrides, target.prerequisites) == (supported.overrides, supported.prerequisites)
    assert [s.component for s in target.components] == [s.component for s in supported.components]


@pytest.mark.parametrize("name", NAMES)
def test_the_lock_has_the_supported_targets_entries_and_epoch(name: str) -> None:
    mine, theirs = (LOCKS / f"{each}-debian13.lock" for each in (name, "sm100"))
    assert len(entries(mine.stem)) > 200
    assert entries(mine.stem) == entries(theirs.stem)
    epoch = re.compile(r"^source_date_epoch: (\d+)$", re.MULTILINE)
    assert epoch.findall(mine.read_text()) == epoch.findall(theirs.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_image_and_its_label_say_experimental(name: str) -> None:
    text = (REPOSITORY / "dockerfiles" / f"{name}-debian13" / "Dockerfile").read_text()
    assert f'org.opencontainers.image.title="cleanroom-{name}-debian13-experimental"' in text
    assert 'cleanroom.status="experimental"' in text


@pytest.mark.parametrize("name", NAMES)
def test_everything_expected_has_a_source_and_counts_of_the_same_units(envs: Envs, name: str) -> None:
    expected = envs.target(name).expected
    assert all(len(e.source) > 10 and len(e.reason) > 10 for e in expected)
    assert {e.of for e in expected if e.outcome == "partly"} <= {29}


@pytest.mark.parametrize("name", NAMES)
def test_flashmla_compiles_for_the_target_and_nothing_it_did_not_ask(envs: Envs, name: str) -> None:
    target = envs.target(name)
    asked = target.architectures_of("flashmla")
    assert set(target.architectures) <= set(asked)
    changes = json.loads((REPOSITORY / f"dockerfiles/{name}-debian13/components/flashmla.json").read_text())["substitute"]
    listed = [f"[{', '.join(json.dumps(arch.sm) for arch in asked)}]"]
    assert [change["replace"] for change in changes] == (
        [] if set(asked) == set(envs.component("flashmla").architecture.default) else listed
    )


def test_the_documentation_says_what_the_targets_say(envs: Envs) -> None:
    text = (REPOSITORY / "docs" / "experimental.md").read_text()
    for name in NAMES:
        (arch,) = envs.target(name).architectures
        assert f"| `{name}` | `{arch}` |" in text
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        assert yaml.safe_load(block)


def test_no_rendered_component_has_a_substitution_twice() -> None:
    specifications = sorted((REPOSITORY / "dockerfiles").glob("*/components/*.json"))
    for path in specifications:
        changes = [(c["file"], c["match"]) for c in json.loads(path.read_text())["substitute"]]
        assert len(changes) == len(set(changes)), path
    changed = {path.parts[-3] for path in specifications if json.loads(path.read_text())["substitute"]}
    assert {"sm120-debian13", "sm89-debian13", "sm90-debian13"} <= changed
