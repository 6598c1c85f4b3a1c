"""Fetching from a real server that breaks off, lies, forgets and falls silent."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fileserver import Served, breaks_after, instead, serving, status, waits, whole

from cleanroom import fetch as fetching
from cleanroom.console import Console
from cleanroom.errors import DiskFull, FetchError, IntegrityError
from cleanroom.fetch import FetchSummary, fetch
from cleanroom.lock import Entry, Lock, dump_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.sources import Part, Stopped, download
from cleanroom.store import Store

CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A package index that pip is configured for, and no long pauses."""
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0, 0.0))
    with serving() as served:
        monkeypatch.setenv("PIP_INDEX_URL", f"{served.address}/simple/")
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def wheel(content: bytes = CONTENT, name: str = "thing") -> Entry:
    sha256 = hashlib.sha256(content).hexdigest()
    return Entry("python", "pypi", name, "1.0", f"{name}-1.0-py3-none-any.whl", len(content), sha256)


def lock_of(*entries: Entry) -> Lock:
    return Lock("sm100", "debian13", "sha256:" + "0" * 64, 1_796_000_000, (), entries)


def run(store: Store, *entries: Entry, said: io.StringIO | None = None) -> FetchSummary:
    return fetch(lock_of(*entries), store, Console(stream=said or io.StringIO()), project=Project(REPOSITORY))


def test_missing_files_are_fetched_once_and_then_nothing_is_asked(server: Served, store: Store) -> None:
    entries = [wheel(CONTENT + bytes([n]), f"thing{n}") for n in range(12)]
    for n, entry in enumerate(entries):
        server.project(entry.name, {entry.file: CONTENT + bytes([n])})
    summary = run(store, *entries)
    assert (summary.files, summary.fetched, summary.fetched_bytes) == (12, 12, 12 * (len(CONTENT) + 1))
    assert all(store.has(e) for e in entries)
    asked = len(server.requests)
    assert run(store, *entries).fetched == 0
    assert len(server.requests) == asked


def test_a_truncated_download_never_counts(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [breaks_after(1000)] * 4
    with pytest.raises(FetchError, match="1 of 1 missing files") as raised:
        run(store, entry)
    assert "the transfer broke off" in raised.value.what
    assert not store.has(entry)


def test_a_broken_download_goes_on_where_it_stopped(server: Served, store: Store) -> None:
    entry = wheel()
    path = f"/files/{entry.file}"
    server.project("thing", {entry.file: CONTENT})
    server.answers[path] = [breaks_after(1000)] * 4
    with pytest.raises(FetchError):
        run(store, entry)
    received = (store.root / "incoming" / entry.sha256).stat().st_size
    assert 0 < received <= 1000
    run(store, entry)
    assert (path, f"bytes={received}-") in server.requests
    store.check(entry)


def test_a_server_without_ranges_is_asked_from_the_beginning(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [breaks_after(1000), whole]
    run(store, entry)
    store.check(entry)


def test_stale_bytes_of_an_earlier_attempt_do_not_condemn_the_file(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    (store.root / "incoming").mkdir(parents=True)
    (store.root / "incoming" / entry.sha256).write_bytes(b"stale")
    run(store, entry)
    store.check(entry)


def test_the_same_wrong_bytes_twice_were_changed_upstream(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    other = b"X" * len(CONTENT)
    server.answers[f"/files/{entry.file}"] = [instead(other), instead(other)]
    with pytest.raises(IntegrityError, match="changed upstream") as raised:
        run(store, entry)
    assert entry.sha256 in raised.value.what
    assert hashlib.sha256(other).hexdigest() in raised.value.what
    assert "thing 1.0" in raised.value.what
    assert not store.has(entry)


def test_a_shorter_file_twice_was_changed_upstream(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [instead(CONTENT[:500])] * 2
    with pytest.raises(IntegrityError, match=r"changed upstream.*500 bytes"):
        run(store, entry)
    assert not store.has(entry)


def test_two_different_wrong_answers_were_damaged_in_transfer(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [instead(b"X" * len(CONTENT)), instead(b"Y" * len(CONTENT))]
    with pytest.raises(IntegrityError, match="damaged in transfer"):
        run(store, entry)
    assert not store.has(entry)


def test_one_wrong_answer_is_asked_again(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [instead(b"X" * len(CONTENT))]
    run(store, entry)
    store.check(entry)


def test_an_index_that_lists_another_hash_is_believed_without_a_download(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: b"replaced"})
    with pytest.raises(IntegrityError, match="changed upstream: the index now lists"):
        run(store, entry)
    assert server.count(f"/files/{entry.file}") == 0


def test_a_file_that_has_gone_is_explained_with_what_is_there_and_what_to_type(server: Served, store: Store) -> None:
    entry, other = wheel(), wheel(b"other", "other")
    server.project("thing", {"thing-1.2-py3-none-any.whl": b"new", "thing-1.3rc1-py3-none-any.whl": b"pre"})
    with pytest.raises(FetchError) as raised:
        run(store, entry)
    assert "thing 1.0" in raised.value.what
    assert "newest version there now is 1.2" in raised.value.means
    assert "nox -s lock -- sm100" in raised.value.next_step
    with pytest.raises(FetchError, match="2 locked files are no longer there") as raised:
        run(store, entry, other)
    assert "no project other" in raised.value.means


def test_a_busy_server_is_asked_again(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [status(503), status(429)]
    run(store, entry)
    store.check(entry)


def test_a_refusing_server_is_quoted(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [status(403)]
    with pytest.raises(FetchError, match="answers 403"):
        run(store, entry)


def test_without_a_network_the_number_of_missing_files_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(download, "PAUSES", (0.0,))
    monkeypatch.setattr("cleanroom.sources.pypi.PAUSES", (0.0,))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/simple/")
        with pytest.raises(FetchError, match=r"2 of 2 missing files \(2.10 MB\)") as raised:
            run(store, wheel(), wheel(CONTENT + b"1", "other"))
    assert "connection refused" in raised.value.what
    assert "network" in raised.value.next_step


def test_a_password_of_the_index_is_in_no_message(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cleanroom.sources.pypi.PAUSES", ())
    credential = "someone:hidden"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{credential}@127.0.0.1:9/simple/")
    with pytest.raises(FetchError) as raised:
        run(store, wheel())
    assert "hidden" not in str(raised.value)
    assert "127.0.0.1:9" in str(raised.value)


def test_too_little_room_is_told_before_anything_is_fetched(server: Served, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = Entry("python", "pypi", "huge", "1", "huge-1-py3-none-any.whl", 1 << 60, "0" * 64)
    with pytest.raises(DiskFull, match="fetching needs"):
        run(store, huge)
    assert not server.requests
    assert not (store.root / "incoming").exists()


def test_an_object_of_the_wrong_size_is_fetched_again(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    run(store, entry)
    path = store.path_of(entry.sha256)
    path.chmod(0o644)
    path.write_bytes(b"cut")
    said = io.StringIO()
    assert run(store, entry, said=said).fetched == 1
    assert "wrong size" in said.getvalue()
    store.check(entry)


def test_images_are_left_to_the_engine(store: Store) -> None:
    image = Entry("base", "image", "python:3.12-trixie", "sha256:" + "1" * 64, "python:3.12-trixie", 0, "1" * 64)
    assert run(store, image).files == 0


def test_progress_says_the_total_and_ends_at_it(server: Served, store: Store) -> None:
    entry = wheel()
    server.project("thing", {entry.file: CONTENT})
    server.answers[f"/files/{entry.file}"] = [breaks_after(1000), instead(b"X" * len(CONTENT))]
    said = io.StringIO()
    run(store, entry, said=said)
    assert said.getvalue().splitlines()[0] == "Fetching sm100-debian13: 1.05 MB"
    assert said.getvalue().splitlines()[-1].startswith("Fetching sm100-debian13: 1.05 MB in ")


def test_a_transfer_that_is_called_off_stops_between_two_blocks(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"ab")
    stop = threading.Event()
    reported: list[int] = []
    part = Part(path, 10, reported.append, stop)
    part.write(b"cd")
    stop.set()
    with pytest.raises(Stopped):
        part.write(b"ef")
    with pytest.raises(Stopped):
        part.pause(60)
    assert path.read_bytes() == b"abcd"
    assert reported == [2, 2]


def test_an_interrupted_fetch_leaves_no_object_and_can_be_resumed(server: Served, store: Store, tmp_path: Path) -> None:
    entry = wheel(CONTENT * 3)
    arrived, go_on = threading.Event(), threading.Event()
    server.project("thing", {entry.file: CONTENT * 3})
    server.answers[f"/files/{entry.file}"] = [waits(CONTENT * 2, arrived, go_on)]
    process = subprocess.Popen([*PROGRAM, str(store.root), write_lock_file(tmp_path, entry)], stderr=subprocess.PIPE)
    assert arrived.wait(20)
    process.send_signal(signal.SIGINT)
    go_on.set()
    assert process.wait(20) == 130
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert not store.has(entry)
    run(store, entry)
    store.check(entry)


CODE = f"""
import sys
sys.path.insert(0, {str(REPOSITORY / "scripts")!r})
from pathlib import Path
from cleanroom.console import Console
from cleanroom.fetch import fetch
from cleanroom.lock import read_lock
from cleanroom.project import Project
from cleanroom.store import Store
try:
    fetch(read_lock(Path(sys.argv[2])), Store(Path(sys.argv[1])), Console(), project=Project())
except KeyboardInterrupt:
    sys.exit(130)
"""
PROGRAM = [sys.executable, "-c", CODE]


def write_lock_file(folder: Path, *entries: Entry) -> str:
    path = folder / "sm100-debian13.lock"
    path.write_text(dump_lock(lock_of(*entries)))
    return str(path)


def test_two_processes_that_fetch_the_same_at_once_both_succeed(server: Served, store: Store, tmp_path: Path) -> None:
    entries = [wheel(CONTENT + bytes([n]), f"thing{n}") for n in range(20)]
    for n, entry in enumerate(entries):
        server.project(entry.name, {entry.file: CONTENT + bytes([n])})
    path = write_lock_file(tmp_path, *entries)
    both = [subprocess.Popen([*PROGRAM, str(store.root), path], stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(30) for process in both] == [0, 0]
    for entry in entries:
        store.check(entry)
        assert server.count(f"/files/{entry.file}") == 1
    assert not os.listdir(store.root / "incoming")


def test_entries_that_name_the_same_bytes_are_fetched_once() -> None:
    one = wheel()
    assert len(fetching.distinct([one, wheel(CONTENT), wheel(b"other")])) == 2
