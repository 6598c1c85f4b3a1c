"""CANN's installers: what fits is locked with size and sha256, what does not is refused with the reason, before any build."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from locks import lock

from cleanroom.cann import examine, expected_names, is_release, require_licence, require_supplied
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import CannotBuildHere, IntegrityError, ToolchainError
from cleanroom.project import REPOSITORY
from cleanroom.target import Target

TOOLKIT = "Ascend-cann-toolkit_9.2.0_linux-aarch64.run"
OPS = "Ascend-cann-950-ops_9.2.0_linux-aarch64.run"


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


@pytest.fixture(scope="module")
def target(envs: Envs) -> Target:
    return envs.target("ascend950")


def installer(folder: Path, name: str, *, altered: bool = False, checksum: bool = True) -> Path:
    """A file built as Makeself builds one: a script that names its own length and the sha256 of the archive behind it."""
    archive = f"the archive of {name}\n".encode() * 50
    digest = hashlib.sha256(archive).hexdigest() if checksum else "0" * 64
    script = f'#!/bin/sh\n# This script was generated using Makeself 2.4.0\nMD5="{"0" * 32}"\nSHA="{digest}"\nskip="6"\nexit 0\n'
    path = folder / name
    path.write_bytes(script.encode() + archive + (b"more" if altered else b""))
    return path


def test_installers_that_fit_are_locked_with_size_and_sha256(tmp_path: Path, envs: Envs, target: Target) -> None:
    paths = [installer(tmp_path, TOOLKIT), installer(tmp_path, OPS)]
    supplied = examine(tmp_path, envs.cann, target)
    assert [(e.group, e.kind, e.name, e.version, e.file) for e in supplied.entries] == [
        ("toolkit", "operator", "ops", "9.2.0", OPS),
        ("toolkit", "operator", "toolkit", "9.2.0", TOOLKIT),
    ]
    assert {e.sha256 for e in supplied.entries} == {hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
    assert {e.size for e in supplied.entries} == {p.stat().st_size for p in paths}
    assert "brought by an operator" in supplied.notes[-1]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([TOOLKIT.replace("9.2.0", "9.1.0"), OPS.replace("9.2.0", "9.1.0")], "is CANN 9.1.0, this target is for CANN 9.2"),
        ([TOOLKIT.replace("9.2.0", "9.3.0-beta.1"), OPS], "is CANN 9.3.0-beta.1, this target is for CANN 9.2"),
        (
            [TOOLKIT, OPS, TOOLKIT.replace("9.2.0", "9.2.1")],
            "there are two CANNs: versions 9.2.0 and 9.2.1, toolkit more than once",
        ),
        ([TOOLKIT.replace("aarch64", "x86_64"), OPS], "is for x86_64, this target is for aarch64 (linux/arm64)"),
        ([TOOLKIT, OPS.replace("950", "910b")], "holds operators of ascend910b, this target says soc: ascend950"),
        ([TOOLKIT, "Ascend-cann-kernels-910b_9.2.0_linux-aarch64.run"], "holds operators of ascend910b"),
        ([TOOLKIT, OPS, "Ascend-cann-something_9.2.0_linux-aarch64.run"], "is not an installer that is known here"),
    ],
)
def test_installers_that_do_not_fit_are_refused_with_the_reason(
    tmp_path: Path, envs: Envs, target: Target, files: list[str], complaint: str
) -> None:
    for name in files:
        installer(tmp_path, name)
    with pytest.raises(ToolchainError) as caught:
        examine(tmp_path, envs.cann, target)
    assert complaint in caught.value.what
    assert TOOLKIT.replace("9.2.0", "9.2.<n>") in caught.value.next_step


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, envs: Envs, target: Target) -> None:
    installer(tmp_path, TOOLKIT.replace("9.2.0", "9.1.0").replace("aarch64", "x86_64"))
    installer(tmp_path, OPS.replace("950", "910b"))
    with pytest.raises(ToolchainError) as caught:
        examine(tmp_path, envs.cann, target)
    assert len(caught.value.what.splitlines()) == 5  # release, machine, chip, and two versions


def test_a_missing_installer_is_named_with_where_it_comes_from(tmp_path: Path, envs: Envs, target: Target) -> None:
    installer(tmp_path, TOOLKIT)
    with pytest.raises(CannotBuildHere, match="Ascend-cann-950-ops") as caught:
        examine(tmp_path, envs.cann, target)
    assert "hiascend" in caught.value.means


def test_an_altered_installer_is_refused_before_anything_of_it_runs(tmp_path: Path, envs: Envs, target: Target) -> None:
    installer(tmp_path, TOOLKIT)
    installer(tmp_path, OPS, altered=True)
    with pytest.raises(IntegrityError, match="was altered or is incomplete"):
        examine(tmp_path, envs.cann, target)


def test_a_page_that_a_server_sent_instead_is_no_installer(tmp_path: Path, envs: Envs, target: Target) -> None:
    installer(tmp_path, TOOLKIT)
    (tmp_path / OPS).write_text("<html>please log in</html>")
    with pytest.raises(IntegrityError, match="does not begin as a script"):
        examine(tmp_path, envs.cann, target)


def test_what_cannot_be_checked_is_noted(tmp_path: Path, envs: Envs, target: Target) -> None:
    installer(tmp_path, TOOLKIT.replace("9.2.0", "9.2.0-beta.2"))
    installer(tmp_path, OPS.replace("9.2.0", "9.2.0-beta.2"), checksum=False)
    notes = "\n".join(examine(tmp_path, envs.cann, target).notes)
    assert notes.count("is a pre-release") == 2
    assert "950-ops_9.2.0-beta.2_linux-aarch64.run: no checksum was found in the installer" in notes


def test_the_folder_must_exist(tmp_path: Path, envs: Envs, target: Target) -> None:
    with pytest.raises(CannotBuildHere, match="There is no folder"):
        examine(tmp_path / "nowhere", envs.cann, target)


@pytest.mark.parametrize(
    ("version", "fits"),
    [("9.2", True), ("9.2.0", True), ("9.2.0-beta.2", True), ("9.2.0_20260930220649", True), ("9.20.0", False), ("9.1.0", False)],
)
def test_a_version_is_of_a_release_by_its_numbers(version: str, fits: bool) -> None:
    assert is_release(version, "9.2") is fits


def test_without_cann_one_message_says_what_is_missing_and_what_runs_meanwhile(envs: Envs, target: Target) -> None:
    with pytest.raises(CannotBuildHere) as caught:
        require_supplied(envs.cann, target, lock(), tiers=("lowering: kernels to AscendC source",))
    text = str(caught.value)
    assert caught.value.exit_code == 23
    for _, name in expected_names(envs.cann, target):
        assert name in text
    assert "hiascend" in text
    assert "none of them is a build of the target" in text
    assert "lowering: kernels to AscendC source" in text
    assert "lock -- ascend950 --cann DIR" in text


def test_with_cann_in_the_lock_nothing_is_missing(tmp_path: Path, envs: Envs, target: Target) -> None:
    installer(tmp_path, TOOLKIT)
    installer(tmp_path, OPS)
    require_supplied(envs.cann, target, replace(lock(), entries=examine(tmp_path, envs.cann, target).entries))


def test_a_target_without_cann_asks_for_nothing(envs: Envs) -> None:
    require_supplied(envs.cann, envs.target("sm100"), lock())
    require_licence(envs.cann, envs.target("sm100"), accepted=False)


def test_the_licence_is_never_accepted_for_somebody(envs: Envs, target: Target) -> None:
    with pytest.raises(CannotBuildHere, match="was not accepted") as caught:
        require_licence(envs.cann, target, accepted=False)
    assert "in your name" in caught.value.means
    assert "--accept-cann-eula" in caught.value.next_step
    require_licence(envs.cann, target, accepted=True)
