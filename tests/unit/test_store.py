"""The store: only whole and right files count, several processes share it, damage is found and named."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from cleanroom.errors import CleanroomError, IntegrityError
from cleanroom.lock import Entry
from cleanroom.project import REPOSITORY
from cleanroom.store import Store, WrongBytes


def entry_of(content: bytes, name: str = "thing", file: str = "") -> Entry:
    file = file or f"{name}-1.0.tar.gz"
    return Entry("source", "pypi", name, "1.0", file, len(content), hashlib.sha256(content).hexdigest())


def put(store: Store, content: bytes, name: str = "thing", file: str = "") -> Entry:
    entry = entry_of(content, name, file)
    with store.receive(entry) as part:
        part.write_bytes(content)
    return entry


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_the_environment_chooses_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLEANROOM_STORE", str(tmp_path))
    assert Store.default().root == tmp_path
    monkeypatch.delenv("CLEANROOM_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store.default().root == tmp_path / "cache/cleanroom"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store.default().root == tmp_path / ".cache/cleanroom"


def test_a_received_file_is_there_under_its_hash_and_read_only(store: Store) -> None:
    entry = put(store, b"whole")
    assert store.has(entry)
    assert store.path_of(entry.sha256).read_bytes() == b"whole"
    assert store.path_of(entry.sha256).stat().st_mode & 0o777 == 0o444
    assert not list((store.root / "incoming").iterdir())


def test_wrong_bytes_are_not_stored_and_both_hashes_are_told(store: Store) -> None:
    entry = entry_of(b"right")
    with pytest.raises(WrongBytes) as raised, store.receive(entry) as part:
        part.write_bytes(b"wrong")
    assert entry.sha256 in str(raised.value)
    assert raised.value.actual == hashlib.sha256(b"wrong").hexdigest()
    assert "thing 1.0" in str(raised.value)
    assert not store.has(entry)
    assert not list((store.root / "incoming").iterdir())


def test_an_interrupted_file_never_counts_but_can_be_resumed(store: Store) -> None:
    entry = entry_of(b"first second")
    with pytest.raises(FileNotFoundError), store.receive(entry) as part:
        part.write_bytes(b"first ") and Path("/absent").read_bytes()
    assert not store.has(entry)
    with store.receive(entry) as part:
        assert part.read_bytes() == b"first "
        with part.open("ab") as stream:
            stream.write(b"second")
    assert store.has(entry)


def test_staging_gives_exactly_the_named_files_as_links(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    folder.mkdir()
    (folder / "stale.whl").write_text("old")
    (folder / "stale folder").mkdir()
    one, two = put(store, b"1", "one", "pool/o/one_1.deb"), put(store, b"2", "two")
    (folder / "one_1.deb").write_text("something else")
    store.stage([one, two], folder)
    assert sorted(p.name for p in folder.iterdir()) == ["one_1.deb", "two-1.0.tar.gz"]
    assert (folder / "one_1.deb").read_bytes() == b"1"
    assert (folder / "one_1.deb").samefile(store.path_of(one.sha256))
    store.stage([one, two], folder)
    store.stage([two], folder)
    assert [p.name for p in folder.iterdir()] == ["two-1.0.tar.gz"]


@pytest.mark.parametrize(("damage", "said"), [(b"alt", "altered"), (b"al", "truncated"), (b"altogether", "truncated or grew")])
def test_a_damaged_object_is_named_set_aside_and_can_be_fetched_again(
    store: Store, tmp_path: Path, damage: bytes, said: str
) -> None:
    entry = put(store, b"all")
    path = store.path_of(entry.sha256)
    path.chmod(0o644)
    path.write_bytes(damage)
    with pytest.raises(IntegrityError) as raised:
        store.stage([entry], tmp_path / "staged")
    assert said in raised.value.what
    assert str(entry) in raised.value.what
    assert "fetch" in raised.value.next_step
    assert not (tmp_path / "staged").exists()
    assert (store.root / "damaged" / entry.sha256).read_bytes() == damage
    assert not store.has(entry)
    put(store, b"all")
    store.stage([entry], tmp_path / "staged")


def test_a_file_that_was_never_fetched_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="is not in the store") as raised:
        store.stage([entry_of(b"absent")], tmp_path / "staged")
    assert "fetch" in raised.value.next_step


def test_two_threads_that_want_one_file_receive_it_once(store: Store) -> None:
    entry = entry_of(b"shared")
    writers: list[int] = []

    def want() -> None:
        with store.receive(entry) as part:
            if not store.has(entry):
                writers.append(1)
                time.sleep(0.05)
                part.write_bytes(b"shared")

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(writers) == 1
    assert store.has(entry)


def test_waiting_for_another_receiver_can_be_called_off(store: Store) -> None:
    entry = entry_of(b"slow")

    def give_up() -> None:
        raise TimeoutError

    with store.receive(entry) as part:
        with pytest.raises(TimeoutError), store.receive(entry, waiting=give_up):
            pass
        part.write_bytes(b"slow")
    assert store.has(entry)


def test_a_named_lock_is_held_by_one_and_says_that_it_waits(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def second() -> None:
        with store.lock("a/b", wait_message="waiting for the other"):
            order.append("second")

    with store.lock("a/b", wait_message="not said"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert capsys.readouterr().err == "waiting for the other\n"


def child(code: str, store: Store) -> subprocess.Popen[str]:
    """A process of its own that uses the store."""
    header = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'scripts')!r})\nfrom pathlib import Path\n"
    header += f"from cleanroom.store import Store\nstore = Store(Path({str(store.root)!r}))\n"
    command = [sys.executable, "-c", header + textwrap.dedent(code)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_scratch_is_removed_afterwards_whatever_modes_it_has(store: Store) -> None:
    with store.scratch("a b") as folder:
        (folder / "locked").mkdir()
        (folder / "locked/file").write_text("x")
        (folder / "locked").chmod(0o500)
        assert folder.parent == store.root / "scratch"
    assert not list((store.root / "scratch").iterdir())


def test_scratch_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(store: Store) -> None:
    code = """
        with store.scratch("mine") as folder:
            (folder / "file").write_text("x")
            print(folder, flush=True)
            sys.stdin.read()
    """
    with child(code, store) as dead, child(code, store) as living:
        assert dead.stdout is not None
        assert living.stdout is not None
        left, used = Path(dead.stdout.readline().strip()), Path(living.stdout.readline().strip())
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert left.exists()
        store.sweep()
        assert not left.exists()
        assert (used / "file").exists()
        living.send_signal(signal.SIGKILL)


def test_a_lock_of_a_killed_process_is_free(store: Store) -> None:
    code = """
        with store.lock("engine"):
            print("held", flush=True)
            sys.stdin.read()
    """
    with child(code, store) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
        holder.wait()
        with store.lock("engine"):
            pass


def test_downloads_that_nobody_took_up_are_swept_after_a_month(store: Store) -> None:
    incoming = store.root / "incoming"
    incoming.mkdir(parents=True)
    old, new = incoming / "old", incoming / "new"
    old.write_text("x")
    new.write_text("x")
    os.utime(old, (1, 1))
    store.sweep()
    assert [p.name for p in incoming.iterdir()] == ["new"]


def test_a_store_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Store(tmp_path / "file/store")
    with pytest.raises(CleanroomError, match="cannot be written") as raised:
        put(store, b"x")
    assert "CLEANROOM_STORE" in raised.value.next_step


def test_derived_results_have_a_place_of_their_own(store: Store) -> None:
    assert store.derived_dir("base-abc").parent == store.root / "derived"
    assert store.derived_dir("../../etc").parent == store.root / "derived"
    assert store.free_bytes() > 0
