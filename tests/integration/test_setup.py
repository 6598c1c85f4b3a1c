"""Set-up and the front door on a real machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanroom.project import REPOSITORY

pytestmark = pytest.mark.integration
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="changes user or namespace, which only root may")
NOBODY = "65534"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as set-up and `nox -l` need, in another place."""
    root = tmp_path / "checkout"
    for name in ("lockfiles", "scripts", "envs"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "noxfile.py", root)
    return root


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")} | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


def test_setup_brings_nox_into_the_checkout_and_a_second_run_needs_no_network(checkout: Path) -> None:
    first = run(checkout / "scripts" / "setup")
    assert first.returncode == 0, first.stderr
    listed = run(checkout / ".venv" / "bin" / "nox", "--noxfile", checkout / "noxfile.py", "--list", "--nocolor")
    assert "build-sm100" in listed.stdout
    offline = ["unshare", "--net"] if os.geteuid() == 0 else []
    started = time.monotonic()
    second = run(*offline, checkout / "scripts" / "setup")
    assert (second.returncode, second.stdout) == (0, "setup: nothing to do\n"), second.stderr
    assert time.monotonic() - started < 5


def test_setup_starts_over_after_an_installation_that_did_not_end(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "nox").write_text("half of a program")
    assert run(checkout / "scripts" / "setup").returncode == 0
    assert run(checkout / ".venv" / "bin" / "nox", "--version").returncode == 0


def test_setup_refuses_a_nox_that_is_not_the_locked_one(checkout: Path) -> None:
    lock = checkout / "lockfiles" / "nox.txt"
    lock.write_text("".join(line.replace("sha256:", "sha256:0")[:80] + "\n" for line in lock.read_text().splitlines()))
    refused = run(checkout / "scripts" / "setup")
    assert refused.returncode == 10
    assert "Next:" in refused.stderr
    assert not (checkout / ".venv" / "complete").exists()


@NEEDS_ROOT
def test_without_root_setup_says_which_packages_to_ask_for(checkout: Path, tmp_path: Path) -> None:
    for folder in (checkout, *checkout.parents):
        if folder.is_relative_to(tmp_path.parents[1]) and folder.stat().st_uid == 0:
            folder.chmod(0o755)
    nothing_installed = tmp_path / "dpkg"
    nothing_installed.mkdir()
    nothing_installed.chmod(0o755)
    refused = run(
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        checkout / "scripts" / "setup",
        DPKG_ADMINDIR=str(nothing_installed),
    )
    assert refused.returncode == 10, refused.stderr
    assert "mmdebstrap" in refused.stderr
    assert "as root: apt-get update && apt-get install" in refused.stderr


def test_a_failing_verb_is_the_last_word_and_gives_the_exit_status_of_nox() -> None:
    ended = run(sys.executable, "-m", "nox", "--noxfile", REPOSITORY / "noxfile.py", "-s", "render", "--", "sm101")
    assert ended.returncode == 12, ended.stderr
    assert "sm100" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
