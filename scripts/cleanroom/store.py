"""The store: fetched inputs by sha256, shared by all targets, worktrees and processes of a user.

A file is in the store only under the hash of its own bytes, whole: it is received beside the objects, checked, synced
and renamed. Several processes may use one store at once; every lock here is an flock, which the kernel releases when its
process dies.

    objects/ab/abcd…     fetched files, read-only
    incoming/abcd…       a file being received; kept after an interruption, so that it can be resumed
    damaged/abcd…        objects whose bytes were found to have changed
    derived/KEY          results computed from entries (root file systems)
    scratch/NAME         temporary folders; those of dead processes are swept
    locks/NAME           named locks
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cleanroom.errors import CleanroomError, IntegrityError
from cleanroom.files import sha256_of
from cleanroom.lock import Entry

CHECKERS = 4
"""Files hashed at once; hashing releases Python's lock, disks rarely gain from more."""
STALE_SECONDS = 30 * 24 * 3600
"""Interrupted downloads that nobody took up for so long are removed."""

_ALIVE = ".alive"
"""Ends the name of the file that a scratch folder's process keeps locked; it is made before the folder."""

_SAFE = re.compile(r"[^A-Za-z0-9._-]")


class WrongBytes(IntegrityError):
    """A received file is not what the lock says. `actual` is the sha256 of what came, `size` its length in bytes."""

    def __init__(self, entry: Entry, actual: str, size: int) -> None:
        super().__init__(
            f"{entry}: expected sha256 {entry.sha256} ({entry.size} bytes), got {actual} ({size} bytes).",
            means="It was not stored.",
        )
        self.actual = actual
        self.size = size


@dataclass(frozen=True)
class Store:
    """A content-addressed folder. Nothing is created before it is needed."""

    root: Path

    @classmethod
    def default(cls) -> Store:
        """$CLEANROOM_STORE, else `cleanroom` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
        if chosen := os.environ.get("CLEANROOM_STORE"):
            return cls(Path(chosen).expanduser().absolute())
        cache = os.environ.get("XDG_CACHE_HOME")
        folder = Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache"
        return cls(folder / "cleanroom")

    def path_of(self, sha256: str) -> Path:
        """Where the object with this hash is, or would be."""
        return self.root / "objects" / sha256[:2] / sha256

    def has(self, entry: Entry) -> bool:
        """Whether the entry is there with the right size. Cheap: bytes are checked by `check` and `stage`."""
        try:
            found = self.path_of(entry.sha256).stat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == entry.size

    def check(self, entry: Entry) -> None:
        """Hash the stored file. A damaged one is set aside, so that the next fetch brings it again.

        Raises IntegrityError if it is missing, truncated or altered.
        """
        path = self.path_of(entry.sha256)
        try:
            size = path.stat().st_size
            actual = entry.sha256 if size != entry.size else sha256_of(path)
        except OSError as error:
            raise IntegrityError(
                f"{entry} is not in the store: {error.strerror or error}.",
                means=f"It belongs at {path}.",
                next_step="fetch it: nox -s fetch-<target>",
            ) from None
        if size == entry.size and actual == entry.sha256:
            return
        place = self.set_aside(entry)
        how = (
            f"was truncated or grew: it has {size} bytes, the lock says {entry.size}"
            if size != entry.size
            else f"was altered: its sha256 is {actual}, the lock says {entry.sha256}"
        )
        raise IntegrityError(
            f"{entry} in the store {how}.",
            means=f"It changed after it was stored, so it is not used; it was set aside as {place}.",
            next_step="type the same command again, or nox -s fetch-<target>: the file is fetched again and checked",
        )

    def set_aside(self, entry: Entry) -> Path:
        """Move a damaged object out of the way and say where to."""
        place = self._folder("damaged") / entry.sha256
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.replace(self.path_of(entry.sha256), place)
        return place

    @contextmanager
    def receive(self, entry: Entry, *, waiting: Callable[[], None] | None = None) -> Iterator[Path]:
        """A file to write the entry's bytes to. It may hold the first bytes already, from an interrupted attempt.

        Waits while another thread or process receives the same entry, calling `waiting` now and then, which may raise;
        ask `has` afterwards. At the end the bytes are
        checked, synced and renamed into place, or removed and WrongBytes raised. If the block raises, what came so far
        is kept for resuming and never counts as the entry.
        """
        part = self._folder("incoming") / entry.sha256
        with self._locked_file(part, waiting=waiting):
            try:
                yield part
                if self.has(entry):
                    part.unlink()
                    return
                self._commit(entry, part)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    part.unlink(missing_ok=True)
                raise

    def _commit(self, entry: Entry, part: Path) -> None:
        size, actual = part.stat().st_size, sha256_of(part)
        if (size, actual) != (entry.size, entry.sha256):
            part.unlink()
            raise WrongBytes(entry, actual, size)
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.chmod(0o444)
        place = self.path_of(entry.sha256)
        self._folder(f"objects/{entry.sha256[:2]}")
        os.replace(part, place)
        _sync_folder(place.parent)

    def stage(self, entries: Iterable[Entry], folder: Path, *, check: bool = True) -> None:
        """Make `folder` hold exactly these files, under their own names, as hard links (copies on another disk).

        Every file is hashed first unless `check` is off. Raises IntegrityError naming the first that is missing or damaged.
        """
        wanted = {entry.file_name: entry for entry in entries}
        if check:
            with ThreadPoolExecutor(CHECKERS, "check") as pool:
                list(pool.map(self.check, wanted.values()))
        folder.mkdir(parents=True, exist_ok=True)
        for present in folder.iterdir():
            if present.name not in wanted:
                shutil.rmtree(present) if present.is_dir() and not present.is_symlink() else present.unlink()
        for name, entry in sorted(wanted.items()):
            _place(self.path_of(entry.sha256), folder / name)

    @contextmanager
    def lock(self, name: str, *, wait_message: str = "") -> Iterator[None]:
        """Hold the lock called `name`. If somebody else has it, say `wait_message` on standard error once and wait."""
        said: list[str] = []

        def say_once() -> None:
            if wait_message and not said:
                said.append(wait_message)
                print(wait_message, file=sys.stderr, flush=True)

        with self._locked_file(self._folder("locks") / _SAFE.sub("_", name), waiting=say_once):
            yield

    def free_bytes(self) -> int:
        """Room on the disk of the store, in bytes, for this user."""
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    @contextmanager
    def scratch(self, prefix: str) -> Iterator[Path]:
        """An empty folder inside the store, removed afterwards. Those that dead processes left are removed first."""
        self.sweep()
        folder = self._folder("scratch") / f"{_SAFE.sub('_', prefix)}-{os.getpid()}-{secrets.token_hex(4)}"
        alive = folder.with_name(folder.name + _ALIVE)
        with self._locked_file(alive):
            folder.mkdir()
            try:
                yield folder
            finally:
                _remove_tree(folder)
                alive.unlink(missing_ok=True)

    @property
    def scratch_in_use(self) -> bool:
        """Whether, after a sweep, a living process still has a scratch folder."""
        return any(path.suffix == _ALIVE for path in _listing(self.root / "scratch"))

    def sweep(self) -> None:
        """Remove what dead processes left: their scratch folders, and downloads that were interrupted long ago."""
        for alive in _listing(self.root / "scratch"):
            folder = alive.with_name(alive.name.removesuffix(_ALIVE))
            if alive.suffix == _ALIVE and not _holds_mounts(folder):
                with contextlib.suppress(OSError), _opened(alive) as stream:
                    if _try_lock(stream):
                        _remove_tree(folder)
                        alive.unlink(missing_ok=True)
        for part in _listing(self.root / "incoming"):
            with contextlib.suppress(OSError), _opened(part) as stream:
                if time.time() - part.stat().st_mtime > STALE_SECONDS and _try_lock(stream):
                    part.unlink(missing_ok=True)

    def derived_dir(self, key: str) -> Path:
        """Where the result called `key`, computed from entries, is kept. The caller makes it, under a lock."""
        return self.root / "derived" / _SAFE.sub("_", key)

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CleanroomError(
                f"The store {self.root} cannot be written: {error.strerror}.",
                means="Fetched inputs are kept there.",
                next_step="set CLEANROOM_STORE to a folder that you may write, on a disk with room",
            ) from None
        return folder

    @contextmanager
    def _locked_file(self, path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold an flock on `path`, which is made if need be. Removing or renaming the file under the lock is allowed."""
        while True:
            with _opened(path) as stream:
                while not _try_lock(stream):
                    if waiting is not None:
                        waiting()
                    time.sleep(0.1)  # polled, so that an interruption is noticed at once in every thread
                if not _is_still(stream, path):
                    continue  # the one who held it renamed or removed it: what we locked is another file
                yield
                return


def _opened(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")


def _try_lock(stream: IO[bytes]) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(stream: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _place(source: Path, place: Path) -> None:
    """Link or copy one object, replacing what was there."""
    with contextlib.suppress(FileNotFoundError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        elif place.samefile(source) and not place.is_symlink():
            return
    place.unlink(missing_ok=True)
    try:
        os.link(source, place)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        shutil.copyfile(source, place)
        place.chmod(0o444)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_tree(folder: Path) -> None:
    """Remove a folder whatever modes a build left in it. Never reaches through a mount."""
    if not folder.exists() or _holds_mounts(folder):
        return

    def make_writable(_remove: object, path: str, _error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

    shutil.rmtree(folder, onerror=make_writable)


def _holds_mounts(folder: Path) -> bool:
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    inside = os.path.realpath(folder)
    points = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4]) for line in lines)
    return any(point == inside or point.startswith(inside + "/") for point in points)
