"""Bring every locked file into the store: in parallel, resumed where it can be, each byte checked before it counts."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from cleanroom.component import Component
from cleanroom.console import Console, human_bytes
from cleanroom.envs import load_envs
from cleanroom.errors import CleanroomError, DiskFull, FetchError, IntegrityError
from cleanroom.lock import Entry, Kind, Lock
from cleanroom.project import Project
from cleanroom.sources import Gone, Part, Source, Stopped, Unreachable
from cleanroom.sources.folder import FolderSource
from cleanroom.sources.operator import OperatorSource
from cleanroom.store import Store, WrongBytes

AT_ONCE = 8
"""Files received at the same time."""
SPARE_BYTES = 256 * 1024 * 1024
"""Room that must stay free on the disk of the store."""


@dataclass(frozen=True)
class FetchSummary:
    """What a fetch did. `files` and `total_bytes` are all of the lock's; `fetched*` what was missing before."""

    files: int
    total_bytes: int
    fetched: int
    fetched_bytes: int
    seconds: float


def fetch(lock: Lock, store: Store, console: Console, *, project: Project) -> FetchSummary:
    """Bring everything in the lock that is missing into the store.

    Images are left to the engine. Raises FetchError (no network, gone, refused), IntegrityError (wrong bytes, twice),
    DiskFull.
    """
    began = time.monotonic()
    entries = distinct(e for e in lock.entries if e.kind != "image")
    missing = missing_from(store, entries, console)
    if missing:
        sources = _sources({e.kind for e in missing}, lock, project)
        receive(missing, sources, store, console, title=f"Fetching {lock.name}", lock_again=f"nox -s lock -- {lock.target}")
    return FetchSummary(
        len(entries), sum(e.size for e in entries), len(missing), sum(e.size for e in missing), round(time.monotonic() - began, 1)
    )


def distinct(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries without those that name the same bytes again."""
    return tuple({e.sha256: e for e in sorted(entries)}.values())


def missing_from(store: Store, entries: Iterable[Entry], console: Console) -> tuple[Entry, ...]:
    """Those the store lacks. A file of the wrong size counts as missing and is set aside."""
    missing = tuple(e for e in entries if not store.has(e))
    for entry in missing:
        if store.path_of(entry.sha256).exists():
            console.warn(f"{entry} in the store has the wrong size and is fetched again; it is kept as {store.set_aside(entry)}.")
    return missing


def _sources(kinds: Iterable[Kind], lock: Lock, project: Project) -> Mapping[Kind, Source]:
    sources: dict[Kind, Source] = {}
    for kind in kinds:
        # Imported when something is missing: what talks to networks takes longer to load than to find nothing missing.
        if kind == "debian":
            from cleanroom.sources.debian import DebianSource

            sources[kind] = DebianSource(lock.epoch)
        elif kind == "pypi":
            from cleanroom.sources.pypi import PypiSource

            sources[kind] = PypiSource()
        elif kind == "folder":
            sources[kind] = folder_source(load_envs(project.envs_dir).components.values(), project)
        elif kind == "operator":
            sources[kind] = OperatorSource()
    return sources


def folder_source(components: Iterable[Component], project: Project) -> FolderSource:
    """The trees of the project that components are compiled from."""
    kept = (c.source for c in components if c.source.kind == "folder")
    return FolderSource({source.name: project.root / source.path for source in kept})


def receive(
    missing: Sequence[Entry], sources: Mapping[Kind, Source], store: Store, console: Console, *, title: str, lock_again: str
) -> None:
    """Receive these entries, several at once. `lock_again` is the command that resolves them anew.

    The first error ends it, but all files that have gone are looked for, so that they are named together.
    """
    total = sum(e.size for e in missing)
    _check_room(store, missing)
    stop = threading.Event()
    gone: list[Entry] = []
    failure: Exception | None = None
    with console.progress(title, total, unit="B") as progress, ThreadPoolExecutor(AT_ONCE, "fetch") as pool:
        largest_first = sorted(missing, key=lambda e: -e.size)
        work: dict[Future[None], Entry] = {
            pool.submit(_receive_one, e, sources[e.kind], store, progress.advance, stop): e for e in largest_first
        }
        try:
            for done in as_completed(work):
                error = done.exception()
                if isinstance(error, Gone):
                    gone.append(work[done])
                elif isinstance(error, Exception) and not isinstance(error, Stopped):
                    failure = failure if failure is not None else error
                    stop.set()
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
        except BaseException:  # Ctrl-C: let no thread go on behind the message
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failure is not None:
        raise _told(failure, missing, store, title) from None
    if gone:
        raise _gone(sorted(gone), sources, lock_again)


def _receive_one(entry: Entry, source: Source, store: Store, report: Callable[[int], None], stop: threading.Event) -> None:
    """Receive one entry. Wrong bytes are fetched once more: the same again were changed upstream, others were damaged.

    Bytes of an earlier, interrupted attempt prove nothing about the source, so a resumed file gets one attempt more.
    """

    def give_up() -> None:
        if stop.is_set():
            raise Stopped

    wrong: list[WrongBytes] = []
    for _ in range(3):
        give_up()
        part: Part | None = None
        try:
            with store.receive(entry, waiting=give_up) as path:
                if store.has(entry):  # another process brought it while this one waited
                    report(entry.size)
                    return
                part = Part(path, entry.size, report, stop)
                source.fetch(entry, part)
        except WrongBytes as error:
            assert part is not None
            report(-part.offset)
            if not part.resumed:
                wrong.append(error)
            if len(wrong) == 2 or (wrong and source.kind == "folder"):
                break
        else:
            return
    raise _wrong_bytes(entry, wrong)


def _wrong_bytes(entry: Entry, wrong: Sequence[WrongBytes]) -> IntegrityError:
    last = wrong[-1]
    found = f"expected sha256 {entry.sha256} ({entry.size} bytes), got {last.actual} ({last.size} bytes)"
    if entry.kind == "folder":
        return IntegrityError(
            f"The source folder of {entry.name} {entry.version} changed since it was locked: {found}.",
            means="A build must be of what the lock names.",
            next_step="undo the change, or lock again",
        )
    if wrong[0].actual == last.actual:
        return IntegrityError(
            f"{entry} changed upstream: {found}.",
            means="Two downloads gave the same other bytes, so the file itself was replaced. Nothing of it was stored.",
            next_step="find out why before locking again: a released file should never change",
        )
    return IntegrityError(
        f"{entry} was damaged in transfer: {found}.",
        means=f"Two downloads differ from one another (the first had {wrong[0].actual}). Nothing of it was stored.",
        next_step="try again; if it stays so, look at the network, its proxy or the mirror",
    )


def _check_room(store: Store, missing: Sequence[Entry]) -> None:
    arrived = sum(_arrived(store, e) for e in missing)
    needed, free = sum(e.size for e in missing) - arrived + SPARE_BYTES, store.free_bytes()
    if free < needed:
        raise DiskFull(
            f"The disk of the store ({store.root}) has {human_bytes(free)} free, fetching needs {human_bytes(needed)}.",
            means=f"{len(missing)} files are missing; {human_bytes(SPARE_BYTES)} of that is a margin. Nothing was fetched.",
            next_step="free some space, or set CLEANROOM_STORE to a folder on a larger disk",
        )


def _arrived(store: Store, entry: Entry) -> int:
    try:
        return min(entry.size, (store.root / "incoming" / entry.sha256).stat().st_size)
    except OSError:
        return 0


def _told(failure: Exception, missing: Sequence[Entry], store: Store, title: str) -> Exception:
    """The failure as an error with the whole picture."""
    if isinstance(failure, CleanroomError):
        return failure
    still = [e for e in missing if not store.has(e)]
    size = human_bytes(sum(e.size for e in still))
    if isinstance(failure, Unreachable):
        return FetchError(
            f"{title}: {len(still)} of {len(missing)} missing files ({size}) could not be fetched. {failure}.",
            means="The network, a proxy or the server does not answer. What has come so far is kept.",
            next_step="check the network and the proxy (nox -s doctor asks mirror and index), then type the same command again",
        )
    if isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"The disk of the store ({store.root}) is full: {human_bytes(store.free_bytes())} free, {size} still to come.",
            means="Something else filled it meanwhile. Nothing half-written counts as fetched.",
            next_step="free some space, or set CLEANROOM_STORE to a folder on a larger disk",
        )
    return failure


def _gone(gone: Sequence[Entry], sources: Mapping[Kind, Source], lock_again: str) -> FetchError:
    """One error for all files that are not there any more."""
    lines = []
    for entry in gone[:8]:
        try:
            lines.append(f"{entry.name} {entry.version}: {sources[entry.kind].explain(entry)}")
        except Unreachable as silent:
            lines.append(f"{entry.name} {entry.version}: {silent}.")
    if len(gone) > len(lines):
        lines.append(f"and {len(gone) - len(lines)} more")
    what = f"{gone[0]} is no longer there." if len(gone) == 1 else f"{len(gone)} locked files are no longer there."
    return FetchError(what, means="\n".join(lines), next_step=f"{lock_again}, and review what changed in the lock")
