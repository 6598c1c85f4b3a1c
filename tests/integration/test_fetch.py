"""Resolving and fetching for real: the machine's apt, its package index, and a machine that is cut off from both."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cleanroom.console import Console
from cleanroom.envs import load_envs
from cleanroom.errors import ResolveError
from cleanroom.fetch import fetch
from cleanroom.lock import Lock, read_lock, write_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.resolve import resolve
from cleanroom.sources.apt import open_private_apt
from cleanroom.store import Store

pytestmark = pytest.mark.integration

SUITES = ("trixie", "trixie-updates", "trixie-security")
REMOVED_KEYS = Path("/usr/share/keyrings/debian-archive-removed-keys.gpg")


def quiet() -> Console:
    return Console(stream=io.StringIO())


def lock_fixture(project: Project, store: Store) -> Lock:
    envs = load_envs(project.envs_dir)
    return resolve(envs, envs.target("fixture"), envs.base("debian13"), project, store, quiet())


def test_resolving_again_gives_the_same_lock_and_a_machine_can_fetch_it(fixture_project: Project, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first = lock_fixture(fixture_project, store)
    path = tmp_path / "fixture-debian13.lock"
    write_lock(path, first)
    assert read_lock(path).content == first.content
    again = lock_fixture(fixture_project, store)
    assert (again.entries, again.notes, again.inputs) == (first.entries, first.notes, first.inputs)
    assert {e.name for e in first.group("base")} > {"libc6", "apt", "g++-14", "python3.13", "perl-base"}
    assert {e.name for e in first.group("toolkit")} > {"nvidia-cuda-nvcc", "nvidia-nvvm"}
    assert {e.kind for e in first.group("source")} == {"folder"}
    assert all(e.file.endswith(".whl") for e in first.group("python", "toolkit"))
    assert not [e for e in first.entries if "://" in e.file]
    small = Lock(first.target, first.base, first.inputs, first.epoch, first.notes, first.group("python", "source"))
    assert fetch(small, store, quiet(), project=fixture_project).fetched == len(small.entries)
    store.stage(small.group("python"), tmp_path / "wheels")
    assert len(list((tmp_path / "wheels").iterdir())) == len(small.group("python"))
    assert not list((store.root / "scratch").iterdir())


def test_what_apt_adds_for_the_build_stage_is_only_what_the_base_lacks(tmp_path: Path) -> None:
    apt = open_private_apt(tmp_path, "linux/amd64", SUITES)
    there = apt.install([*apt.needed(), "libdw1t64"])
    added = apt.install(["libdw-dev"], on_top_of=there)
    assert {p.name for p in there} >= {"libc6", "libdw1t64", "dpkg", "apt"}
    assert "libdw-dev" in {p.name for p in added}
    assert not {p.name for p in there} & {p.name for p in added}
    with pytest.raises(ResolveError, match="no way to install") as raised:
        apt.install(["no-such-package-anywhere"])
    assert "no-such-package-anywhere" in raised.value.means


@pytest.mark.skipif(not REMOVED_KEYS.exists(), reason="debian-archive-keyring has no removed keys here")
def test_an_archive_that_is_signed_by_another_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResolveError, match="signature of the Debian archive") as raised:
        open_private_apt(tmp_path, "linux/amd64", SUITES[:1], keyring=str(REMOVED_KEYS))
    assert str(REMOVED_KEYS) in raised.value.means


CUT_OFF = """
import io, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from cleanroom import resolve as resolving
from cleanroom.console import Console
from cleanroom.envs import load_envs
from cleanroom.errors import CleanroomError
from cleanroom.fetch import fetch
from cleanroom.lock import read_lock
from cleanroom.project import Project
from cleanroom.sources import download, pypi
from cleanroom.store import Store
download.PAUSES = pypi.PAUSES = ()
project, store, console = Project(Path(sys.argv[2])), Store(Path(sys.argv[3])), Console(stream=io.StringIO())
envs = load_envs(project.envs_dir)
steps = [
    lambda: resolving.resolve(envs, envs.target("fixture"), envs.base("debian13"), project, store, console),
    lambda: resolving.open_private_apt(Path(sys.argv[4]), "linux/amd64", ["trixie"]),
    lambda: fetch(read_lock(Path(sys.argv[5])), store, console, project=project),
]
for step in steps:
    try:
        step()
        print("no error")
    except CleanroomError as error:
        print(type(error).__name__, "|", error.what.replace(chr(10), " "), "|", error.next_step)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a process without a network is made with unshare, as root")
def test_a_machine_without_a_network_says_what_is_missing(fixture_project: Project, tmp_path: Path) -> None:
    lock = REPOSITORY / "lockfiles/engine.lock"
    (tmp_path / "apt").mkdir()
    command = ["unshare", "--net", sys.executable, "-c", CUT_OFF, str(REPOSITORY / "scripts"), str(fixture_project.root)]
    command += [str(tmp_path / "store"), str(tmp_path / "apt"), str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    resolving, apt, fetching = done.stdout.splitlines()
    assert resolving.startswith("ResolveError | The Debian archive")
    assert "network" in resolving
    assert apt.startswith("ResolveError | The Debian archive (trixie) cannot be read.")
    count = len(read_lock(lock).entries)
    assert fetching.startswith(f"FetchError | Fetching engine: {count} of {count} missing files")
    assert "nox -s doctor" in fetching
