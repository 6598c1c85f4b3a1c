"""The Ascend target: what its YAML refuses, what its Dockerfile keeps, and what the scripts in the container say without CANN."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cleanroom.envs import Envs, load_envs
from cleanroom.errors import CannotBuildHere, EnvsError, UnknownName
from cleanroom.lock import lock_path, read_lock
from cleanroom.project import IN_CONTAINER, REPOSITORY
from cleanroom.render import Rendered, render
from cleanroom.tiers import DEFINITIONS, labels, stand_in

TARGETS = ("ascend950", "ascend950_x86")
ELF_X86 = b"\x7fELF" + bytes(14) + (62).to_bytes(2, "little") + bytes(44)
ELF_ARM = b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little") + bytes(44)


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


@pytest.fixture(scope="module", params=TARGETS)
def rendered(request: pytest.FixtureRequest, envs: Envs) -> Rendered:
    target = envs.target(request.param)
    lock = read_lock(lock_path(REPOSITORY, f"{target.name}-debian13"))
    return render(envs, target, envs.base("debian13"), lock)


# --- data


@pytest.mark.parametrize(
    ("line", "instead", "complaint"),
    [
        ("  soc: ascend950\n", "", "the key 'soc' is missing"),
        ("  soc: ascend950\n", "  soc: ascend999\n", "'ascend999' is not known; did you mean 'ascend950'?"),
        ("  packages: [toolkit, ops]\n", "  packages: [toolkit]\n", "lacks ops"),
        ("  kind: cann-installers\n", "  kind: cuda-wheels\n", "'cuda-wheels' is not known"),
        ("    reason: the same source archive holds the NPU kernels, built as flash_mla.npu\n", "", "without a reason"),
    ],
)
def test_a_target_that_contradicts_itself_is_refused(envs_copy: Path, line: str, instead: str, complaint: str) -> None:
    path = envs_copy / "targets" / "ascend950.yaml"
    text = path.read_text()
    assert line in text
    path.write_text(text.replace(line, instead))
    with pytest.raises(EnvsError) as caught:
        load_envs(envs_copy)
    assert complaint in caught.value.what
    assert "ascend950.yaml:" in caught.value.what


def test_the_architecture_follows_from_the_chip(envs: Envs) -> None:
    assert {envs.target(name).architecture_names for name in TARGETS} == {("dav-3510",)}
    assert envs.target("sm100").architecture_names == ("sm_100a",)


def test_the_two_platforms_differ_in_nothing_but_what_names_them(envs: Envs) -> None:
    arm, x86 = (envs.target(name) for name in TARGETS)
    assert (arm.platform, x86.platform) == ("linux/arm64", "linux/amd64")
    assert (arm.status, x86.status) == ("supported", "experimental")
    assert (arm.toolkit.version, arm.toolkit.soc, arm.overrides) == (x86.toolkit.version, x86.toolkit.soc, x86.overrides)
    assert [s.component for s in arm.components] == [s.component for s in x86.components]


@pytest.mark.parametrize("name", TARGETS)
def test_the_lock_holds_the_documented_torch_npu_for_the_platform_and_nothing_of_cann(envs: Envs, name: str) -> None:
    lock = read_lock(lock_path(REPOSITORY, f"{name}-debian13"))
    machine = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}[envs.target(name).platform]
    (torch_npu,) = [e for e in lock.entries if e.name == "torch-npu"]
    assert torch_npu.version == "2.13.0rc1"
    assert torch_npu.file.endswith(f"manylinux_2_28_{machine}.whl")
    assert lock.group("toolkit") == ()
    assert any("CANN 9.2 was not supplied" in note for note in lock.notes)


# --- the Dockerfile


def stages(dockerfile: str) -> dict[str, str]:
    """Each stage's text by name; its first line says what it starts from."""
    parts = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)[1:]
    return {part.splitlines()[0].split(" AS ")[1]: part for part in parts}


def test_everything_before_cann_can_be_built_without_it(rendered: Rendered) -> None:
    found = stages(rendered.files["Dockerfile"])
    for name in (
        "system",
        "environment",
        "tier-environment",
        "build-tier-extension",
        "build-tier-lowering",
        "build-tier-host-code",
    ):
        assert "/opt/cann" not in found[name], name
    assert found["environment"].startswith("system AS")
    assert found["toolkit"].startswith("environment AS")
    assert found["build-environment"].startswith("toolkit AS")
    assert found["runtime"].startswith("toolkit AS")


def test_no_step_depends_on_a_script_sourced_in_another(rendered: Rendered) -> None:
    dockerfile = rendered.files["Dockerfile"]
    assert not re.search(r"\bsource\s+\S*set_env|\. \S*set_env", dockerfile)
    for name in ("ASCEND_HOME_PATH", "LD_LIBRARY_PATH", "PATH"):
        assert re.search(rf"^(ENV |    ){name}=/opt/", stages(dockerfile)["toolkit"], re.MULTILINE), name


def test_the_drivers_stub_is_for_builds_and_the_probe_and_never_in_the_image(rendered: Rendered) -> None:
    found = stages(rendered.files["Dockerfile"])
    assert "devlib" in found["probe-runtime"]
    assert "devlib" not in found["toolkit"] + found["runtime"]
    for path, text in rendered.files.items():
        if path.startswith("components/"):
            assert "devlib" in text, path


def test_the_licence_comes_as_a_secret_and_a_rendered_file_never_accepts_it(rendered: Rendered) -> None:
    assert "--mount=type=secret,id=cann-eula" in stages(rendered.files["Dockerfile"])["toolkit"]
    assert "accepted" not in rendered.files["Dockerfile"]


def test_nothing_of_cuda_is_left_in_the_dockerfile(rendered: Rendered) -> None:
    assert not re.search(r"cuda|nvcc|GPU", rendered.files["Dockerfile"], re.IGNORECASE)


def test_no_build_looks_for_a_device(rendered: Rendered) -> None:
    deepinfer = json.loads(rendered.files["components/deepinfer.json"])
    assert 'os.environ["DEEPINFER_ACCELERATOR"] == "ascend"' in [s["replace"] for s in deepinfer["substitute"]]
    assert {"name": "DEEPINFER_ACCELERATOR", "value": "ascend"} in deepinfer["environment"]
    flashmla = json.loads(rendered.files["components/flashmla.json"])
    assert {"name": "FLASH_MLA_BUILD_TARGET_PLATFORM", "value": "ASCEND"} in flashmla["environment"]
    assert flashmla["extensions"] == ["flash_mla/npu.*.so"]
    assert flashmla["architectures"] == ["dav-3510"]


def test_the_tier_without_cann_has_nothing_of_cann_on_a_path(rendered: Rendered) -> None:
    tier, whole = (json.loads(rendered.files[f"{kind}/deepinfer.json"]) for kind in ("tiers", "components"))
    assert "/opt/cann" not in json.dumps(tier)
    assert tier["substitute"] == whole["substitute"]
    assert tier["resume_key"] != whole["resume_key"]


def test_a_part_that_somebody_has_the_source_of_becomes_a_component_as_documented(envs_copy: Path) -> None:
    document = (REPOSITORY / "docs" / "ascend.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    (envs_copy / "components" / "deepselect.yaml").write_text(example)
    path = envs_copy / "targets" / "ascend950.yaml"
    lines = [line for line in path.read_text().splitlines() if "module: deep_select" not in line and "part: DeepSelect" not in line]
    path.write_text("\n".join(lines).replace("  tilekernels: {}", "  tilekernels: {}\n  deepselect: {}"))
    target = load_envs(envs_copy).target("ascend950")
    assert [s.component for s in target.components] == ["flashmla", "tilekernels", "deepselect", "deepinfer"]
    assert [part.part for part in target.not_built] == ["DeepGEMM for Ascend", "DeepEP for Ascend"]


# --- tiers


def test_tiers_run_in_containers_of_this_machines_platform(envs: Envs) -> None:
    assert stand_in(envs, envs.target("ascend950"), "x86_64").name == "ascend950_x86"
    assert stand_in(envs, envs.target("ascend950"), "aarch64").name == "ascend950"
    with pytest.raises(CannotBuildHere):
        stand_in(envs, envs.target("ascend950"), "riscv64")
    with pytest.raises(UnknownName):
        stand_in(envs, envs.target("sm100"), "x86_64")


def test_every_tier_says_what_it_does_not_show() -> None:
    assert all(d.shows and d.shows_not for d in DEFINITIONS)
    assert len(labels()) == len(DEFINITIONS) == 5


# --- inside the container


def installer(folder: Path, name: str, tree: str, *, check: int = 0, bisheng: bytes = ELF_ARM) -> None:
    """An installer as far as ours looks at it: `--check`, then a quiet installation into --install-path."""
    octal = "".join(f"\\{byte:03o}" for byte in bisheng)
    (folder / name).write_text(
        f"""#!/bin/bash
[ "$1" = --check ] && exit {check}
for word; do case $word in --install-path=*) place=${{word#*=}};; esac; done
mkdir -p "$place/{tree}/bin" && printf '{octal}' > "$place/{tree}/bin/bisheng"
"""
    )


def install(tmp_path: Path, *, accepted: object = True) -> subprocess.CompletedProcess[str]:
    eula = tmp_path / "eula"
    eula.write_text(json.dumps({"accepted": accepted}))
    options = ["--installers", tmp_path / "in", "--release", "9.2", "--machine", "aarch64", "--into", tmp_path / "cann"]
    return subprocess.run(
        [sys.executable, IN_CONTAINER / "install_cann.py", *options, "--eula", eula, "--prefix", tmp_path / "Ascend"],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1796000000"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def supplied(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("Ascend-cann-toolkit_9.2.0_linux-aarch64.run", "Ascend-cann-950-ops_9.2.0_linux-aarch64.run"):
        installer(folder, name, "cann-9.2.0")
    return folder


def test_installers_go_into_one_tree_that_a_link_leads_to(tmp_path: Path, supplied: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cann").resolve() == tmp_path / "Ascend" / "cann-9.2.0"
    assert "CANN 9.2.0 is installed" in done.stdout


@pytest.mark.parametrize("accepted", [False, None, "yes", 1])
def test_nothing_is_installed_unless_a_person_accepted_the_licence(tmp_path: Path, supplied: Path, accepted: object) -> None:
    done = install(tmp_path, accepted=accepted)
    assert done.returncode == 1
    assert "licence was not accepted" in done.stderr
    assert not (tmp_path / "Ascend").exists()


def test_two_trees_after_installation_are_refused(tmp_path: Path, supplied: Path) -> None:
    installer(supplied, "Ascend-cann-nnal_9.2.0_linux-aarch64.run", "cann-9.1.0")
    done = install(tmp_path)
    assert done.returncode == 1
    assert "two CANN trees" in done.stderr
    assert not (tmp_path / "cann").is_symlink()


def test_an_installer_that_is_named_for_another_release_than_it_holds_is_refused(tmp_path: Path, supplied: Path) -> None:
    for path in list(supplied.iterdir()):
        installer(supplied, path.name, "cann-9.3.0")
    assert "the installed CANN is 9.3.0, this target is for 9.2" in install(tmp_path).stderr


def test_an_installer_that_is_named_for_another_machine_than_it_holds_is_refused(tmp_path: Path, supplied: Path) -> None:
    for path in list(supplied.iterdir()):
        installer(supplied, path.name, "cann-9.2.0", bisheng=ELF_X86)
    assert "is for x86_64, this target is for aarch64" in install(tmp_path).stderr


def test_an_installer_that_fails_its_own_check_is_not_run(tmp_path: Path, supplied: Path) -> None:
    installer(supplied, "Ascend-cann-toolkit_9.2.0_linux-aarch64.run", "cann-9.2.0", check=1)
    done = install(tmp_path)
    assert "does not pass its own check" in done.stderr
    assert not (tmp_path / "Ascend").exists()


def test_without_installers_the_step_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert "nox -s lock -- TARGET --cann DIR" in install(tmp_path).stderr


def test_the_gate_names_everything_that_a_build_would_miss(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, IN_CONTAINER / "check_cann.py", "--cann", tmp_path, "--machine", "aarch64", "--npu-arch", "dav-3510"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for expected in (
        "bisheng is not on PATH",
        "ld.lld is not on PATH",
        "acl/acl.h is not in",
        "libhccl.so is not in",
        "libascend_hal.so is not in",
        "stands for the driver's library",
        "a script that was sourced in another step has no effect",
    ):
        assert expected in done.stderr, expected
