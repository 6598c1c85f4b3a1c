"""Cleaning: what can be made again goes, fetched inputs stay unless asked for."""

from __future__ import annotations

import fcntl
import io
import os
import threading
from pathlib import Path

import pytest

from cleanroom.clean import clean, disk_use
from cleanroom.console import Console
from cleanroom.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    for name in ("objects", "incoming", "locks", "derived", "scratch", "engine"):
        (store.root / name / "deep").mkdir(parents=True)
        (store.root / name / "deep" / "file").write_bytes(b"x" * 2048)
    return store


def cleaned(store: Store, *, inputs_too: bool) -> tuple[set[str], str]:
    stream = io.StringIO()
    clean(store, Console(stream=stream), inputs_too=inputs_too)
    return {path.name for path in store.root.iterdir()} if store.root.is_dir() else set(), stream.getvalue()


def test_what_can_be_made_again_goes_and_fetched_inputs_stay(store: Store) -> None:
    left, told = cleaned(store, inputs_too=False)
    assert left == {"objects", "incoming", "locks"}
    assert (store.root / "objects" / "deep" / "file").exists()
    assert all(f"removed {name}: " in told for name in ("derived", "scratch", "engine"))


def test_fetched_inputs_go_when_asked_for(store: Store) -> None:
    assert "objects" not in cleaned(store, inputs_too=True)[0]


def test_a_store_that_never_was_is_clean(tmp_path: Path) -> None:
    assert cleaned(Store(tmp_path / "nowhere"), inputs_too=True) == (set(), "")


def test_a_second_cleaning_finds_nothing(store: Store) -> None:
    cleaned(store, inputs_too=False)
    assert cleaned(store, inputs_too=False)[1] == ""


def test_the_scratch_of_a_process_that_works_is_kept(store: Store) -> None:
    with store.scratch("resolve") as folder:
        left, told = cleaned(store, inputs_too=False)
        assert "scratch" in left
        assert folder.is_dir()
        assert "kept scratch: another process works in it" in told
    assert "scratch" not in cleaned(store, inputs_too=False)[0]


def test_a_build_that_uses_the_engine_is_waited_for(store: Store) -> None:
    handle = os.open(store.root / "engine" / "in-use", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    stream = io.StringIO()
    waiting = threading.Thread(target=clean, args=(store, Console(stream=stream)), kwargs={"inputs_too": False})
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    assert (store.root / "engine").is_dir()
    assert (store.root / "derived").is_dir()
    os.close(handle)
    waiting.join(10)
    assert not waiting.is_alive()
    assert not (store.root / "engine").exists()
    assert "waiting for it" in stream.getvalue()


def test_disk_use_counts_each_file_once_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_bytes(b"x" * 100)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 23)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "file")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    assert disk_use(tmp_path / "a") == 123
