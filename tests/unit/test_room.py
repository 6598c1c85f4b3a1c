"""Room on the disk: old layers make way before a build is refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleanroom import room
from cleanroom.console import Console
from cleanroom.errors import DiskFull
from cleanroom.lock import Lock, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.store import Store

GB = 10**9


class Disk:
    """A disk with some bytes free, an engine that can give some back, and what was said about both."""

    def __init__(self, free: int, in_layers: int, kind: str = "embedded") -> None:
        self.free, self.in_layers, self.kind = free, in_layers, kind
        self.said = io.StringIO()
        self.started = 0

    @contextmanager
    def engine(self, *_arguments: Any) -> Iterator[Any]:
        self.started += 1
        yield SimpleNamespace(info=SimpleNamespace(kind=self.kind), drop_layers=self.drop)

    def drop(self) -> None:
        self.free, self.in_layers = self.free + self.in_layers, 0


@pytest.fixture
def lock() -> Lock:
    """Inputs of exactly one gigabyte."""
    lock = read_lock(REPOSITORY / "lockfiles" / "engine.lock")
    return replace(lock, entries=(replace(lock.entries[0], size=GB),))


def made_room(disk: Disk, lock: Lock, folder: Path, monkeypatch: pytest.MonkeyPatch, *, state: bool = True) -> None:
    store = Store(folder)
    if state:
        (folder / "engine").mkdir()
        (folder / "engine" / "objects").write_bytes(b"x" * 4096)
    monkeypatch.setattr(Store, "free_bytes", lambda _self: disk.free)
    monkeypatch.setattr(room, "open_engine", disk.engine)
    room.make_room(lock, 2, store, Project(), Console(stream=disk.said))


def test_with_room_enough_no_engine_is_started(lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(free=2 * GB, in_layers=GB)
    made_room(disk, lock, tmp_path, monkeypatch)
    assert (disk.started, disk.in_layers) == (0, GB)


def test_layers_of_earlier_builds_make_way(lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(free=GB, in_layers=7 * GB)
    made_room(disk, lock, tmp_path, monkeypatch)
    assert disk.free == 8 * GB
    assert "1.00 GB are free and 2.00 GB are needed: removing layers" in disk.said.getvalue()
    assert "7.00 GB freed; compiled objects were kept" in disk.said.getvalue()


def test_what_was_removed_has_to_fit_again(lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the inputs is enough beside the layers of earlier builds, and not without them."""
    with pytest.raises(DiskFull, match=r"4\.00 GB are free .* needs about 7\.00 GB"):
        made_room(Disk(free=GB, in_layers=3 * GB), lock, tmp_path, monkeypatch)


def test_what_does_not_fit_all_the_same_is_refused_with_what_could_still_go(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(free=GB, in_layers=GB // 2)
    with pytest.raises(DiskFull, match=r"1\.50 GB are free .* needs about 7\.00 GB") as refused:
        made_room(disk, lock, tmp_path, monkeypatch)
    assert "nox -s clean (4.10 kB of engine state)" in (refused.value.next_step or "")


def test_a_docker_of_the_machine_keeps_its_layers(lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(free=GB, in_layers=3 * GB, kind="docker")
    with pytest.raises(DiskFull):
        made_room(disk, lock, tmp_path, monkeypatch)
    assert disk.in_layers == 3 * GB


def test_without_engine_state_there_is_nothing_to_remove(lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(free=GB, in_layers=0)
    with pytest.raises(DiskFull) as refused:
        made_room(disk, lock, tmp_path, monkeypatch, state=False)
    assert disk.started == 0
    assert "clean" not in (refused.value.next_step or "")
