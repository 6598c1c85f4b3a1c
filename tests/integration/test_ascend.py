"""Ascend in real containers: CANN's installation up to the gate, with files that stand in for it, and the cheap tiers.

Nothing here is CANN, and the gate must say so: what stands in for the installers is taken the whole way from `lock` to the
container, and is refused there for every part that it lacks. The long tiers are left to `nox -s tiers-ascend950`.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
from pathlib import Path

import pytest
import yaml

from cleanroom.console import Console
from cleanroom.contexts import contexts
from cleanroom.engine import BuildRequest, StepFailed, open_engine
from cleanroom.envs import load_envs
from cleanroom.failures import classify
from cleanroom.lock import lock_path, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.store import Store
from cleanroom.tiers import Tier, run
from projects import FIXTURE, cleanroom, project_copy

pytestmark = pytest.mark.integration

TARGET = "ascend950_x86"
TOOLKIT, OPS = "Ascend-cann-toolkit_9.2.0_linux-x86_64.run", "Ascend-cann-950-ops_9.2.0_linux-x86_64.run"
INSTALLS = """#!/bin/bash
SHA="{sum}"
skip="6"
[ "$1" = --check ] && exit 0
for word; do case $word in --install-path=*) place=${word#*=};; esac; done; d=$place/cann-9.2.0; mkdir -p $d/bin; {does}
exit 0
"""


def stand_in(folder: Path, name: str, does: str) -> None:
    """A file like an installer: the checksum of what follows its script, a check of itself, a quiet installation."""
    archive = f"what would be in {name}\n".encode()
    script = INSTALLS.replace("{sum}", hashlib.sha256(archive).hexdigest()).replace("{does}", does)
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(script.encode() + archive)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture project with a target for Ascend on this machine's platform, its toolkit that of the repository's."""
    place = project_copy(FIXTURE, tmp_path_factory.mktemp("npu"))
    shutil.copy(REPOSITORY / "envs" / "cann.yaml", place / "envs")
    target = yaml.safe_load((REPOSITORY / "envs" / "targets" / f"{TARGET}.yaml").read_text())
    target |= {"name": "npu", "status": "fixture", "components": {"vectors": {}}}
    target["prerequisites"] = [p for p in target["prerequisites"] if not p["kind"].startswith("distribution:")]
    kept = {key: value for key, value in target.items() if key not in ("overrides", "examined", "expected")}
    (place / "envs" / "targets" / "npu.yaml").write_text(yaml.safe_dump(kept | {"overrides": []}))
    for verb in ("lock", "render"):
        done = cleanroom(place, verb, "npu")
        assert done.returncode == 0, done.stderr
    return place


def test_without_cann_one_message_says_what_to_bring_and_nothing_starts(project: Path) -> None:
    done = cleanroom(project, "build", "npu")
    assert done.returncode == 23
    for expected in ("Ascend-cann-toolkit_", "Ascend-cann-950-ops_", "hiascend.com", "none of them is a build of the target"):
        assert expected in done.stderr


@pytest.fixture(scope="module")
def supplied(project: Path) -> Path:
    """The same project with something supplied: a compiler that compiles nothing, and few of CANN's files."""
    folder = project / "installers"
    bisheng = "printf '#!/bin/sh\\nexit 0\\n' > $d/bin/bisheng; cp $d/bin/bisheng $d/bin/ld.lld; chmod a+x $d/bin/*"
    stand_in(folder, TOOLKIT, bisheng)
    stand_in(folder, OPS, "mkdir -p $d/lib64; touch $d/lib64/libhccl.so")
    for verb in (("lock", "npu", "--cann", str(folder)), ("render", "npu")):
        done = cleanroom(project, *verb)
        assert done.returncode == 0, done.stderr
    return project


def test_what_was_supplied_is_locked_by_name_version_size_and_sha256(supplied: Path) -> None:
    entries = {e.name: e for e in read_lock(lock_path(supplied, "npu-debian13")).group("toolkit") if e.kind == "operator"}
    assert {name: (e.version, e.file) for name, e in entries.items()} == {"toolkit": ("9.2.0", TOOLKIT), "ops": ("9.2.0", OPS)}
    data = (supplied / "installers" / OPS).read_bytes()
    assert (entries["ops"].size, entries["ops"].sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_the_licence_is_asked_for_before_anything_is_installed(supplied: Path) -> None:
    done = cleanroom(supplied, "build", "npu")
    assert done.returncode == 23
    assert "--accept-cann-eula" in done.stderr


def test_what_only_stands_in_for_cann_is_installed_and_refused_by_the_gate(supplied: Path) -> None:  # D43, D45
    done = cleanroom(supplied, "build", "npu", "--accept-cann-eula")
    assert done.returncode == 21, done.stderr
    log = "\n".join(path.read_text() for path in (supplied / "out" / "npu" / "logs").glob("*.log"))
    assert "acl/acl.h is not in /opt/cann" in log, log
    assert "devlib/libascend_hal.so is not in /opt/cann" in log
    assert "prerequisites of a build for dav-3510 are not met" in log
    for there in ("bisheng is not on PATH", "libhccl.so is not in", "ASCEND_HOME_PATH is", "g++ is"):
        assert there not in log, "what was installed is found, and its variables are set in the next step"


def test_an_installer_altered_after_it_was_locked_is_refused(supplied: Path, tmp_path: Path) -> None:
    altered = tmp_path / "altered"
    shutil.copytree(supplied / "installers", altered)
    with (altered / OPS).open("ab") as stream:
        stream.write(b"more")
    done = cleanroom(supplied, "lock", "npu", "--cann", str(altered))
    assert done.returncode == 18
    assert "was altered or is incomplete" in done.stderr


# --- tiers of evidence


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tier]:
    project = Project(project_copy(REPOSITORY, tmp_path_factory.mktemp("ascend")))
    envs = load_envs(project.envs_dir)
    only = ("stages",)
    done = run(
        project, envs, envs.target("ascend950"), platform.machine(), Store.default(), Console(stream=io.StringIO()), only=only
    )
    assert (Path(project.out_dir) / "ascend950" / "tiers.json").is_file()
    return {tier.name: tier for tier in done.tiers}


def test_the_stages_before_cann_build(tiers: dict[str, Tier]) -> None:
    assert tiers["stages"].outcome == "passed", tiers["stages"].failures


def test_a_tier_that_was_not_asked_for_says_so(tiers: dict[str, Tier]) -> None:
    assert {tiers[name].outcome for name in ("extension", "host code", "lowering", "inputs")} == {"not run"}


def test_importing_torch_npu_where_cann_is_absent_is_told_with_what_helps(tiers: dict[str, Tier], tmp_path: Path) -> None:  # D42
    project, store = Project(REPOSITORY), Store.default()
    folder = tmp_path / "context"
    shutil.copytree(project.dockerfiles_dir / f"{TARGET}-debian13", folder)
    step = '\nFROM tier-environment AS imports\nRUN --network=none ["/opt/venv/bin/python", "-c", "import torch_npu"]\n'
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + step)
    lock = read_lock(lock_path(project.root, f"{TARGET}-debian13"))
    with open_engine(store, project, Console(stream=io.StringIO())) as engine:
        places = contexts(lock, "linux/amd64", store, Console(stream=io.StringIO()), bootstrapped=True)
        with pytest.raises(StepFailed) as failed:
            engine.build(BuildRequest(folder / "Dockerfile", folder, "imports", lock.epoch, places), lambda _: None)
    failure = classify(failed.value.log)
    assert failure.kind == "python error in setup", failed.value.log
    assert "libhccl.so" in failure.message
    assert "CANN" in failure.hint
