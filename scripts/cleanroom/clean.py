"""Remove what can be made again: engine state, derived results and scratch; on request the fetched inputs too."""

from __future__ import annotations

import shutil
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from cleanroom.console import Console, human_bytes
from cleanroom.embedded import locked_state
from cleanroom.store import Store


def clean(store: Store, console: Console, *, inputs_too: bool) -> None:
    """Delete the store's derived parts, waiting for a build that uses the engine. Fetched inputs stay unless `inputs_too`."""
    engine = store.root / "engine"
    with ExitStack() as stack:
        if engine.is_dir():
            stack.enter_context(locked_state(engine, console.info))
        store.sweep()
        for place in sorted(p for p in store.root.iterdir() if p.is_dir()) if store.root.is_dir() else ():
            if place.name in KEPT and not inputs_too:
                continue
            if place.name == "scratch" and store.scratch_in_use:
                console.info("kept scratch: another process works in it")
                continue
            size = disk_use(place)
            shutil.rmtree(place)
            console.info(f"removed {place.name}: {human_bytes(size)}")


KEPT = ("objects", "incoming", "locks")
"""Fetched inputs, and the locks that other processes may hold."""


def disk_use(folder: Path) -> int:
    """Bytes of all regular files under `folder`, as far as they stay while it looks."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
