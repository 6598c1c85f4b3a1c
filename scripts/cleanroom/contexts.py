"""The named build contexts: the base, and each group of locked inputs, as image layouts that the engine knows by digest.

A folder given as a context is sent anew to every build, and a builder that runs five builds at once keeps five copies
of it (measured: 3.1 GB each for the Python environment of sm100). A layout is taken in once, whoever asks for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from cleanroom.bootstrap import RECIPE, Layout, base_layout, disk_full_is_told, kept_layout
from cleanroom.console import Console
from cleanroom.lock import Entry, Group, Lock
from cleanroom.oci import write_layout, write_rootfs_tar
from cleanroom.project import IN_CONTAINER
from cleanroom.store import Store

INPUTS: Mapping[str, Group] = {
    "locked-packages": "build",
    "locked-toolkit": "toolkit",
    "locked-python": "python",
    "locked-headers": "headers",
    "locked-sources": "source",
}
"""Name of the context in the Dockerfile, and the group of the lock that it holds."""


def contexts(
    lock: Lock, platform: str, store: Store, console: Console, *, bootstrapped: bool, fresh_in: Path | None = None
) -> dict[str, str]:
    """Name and place of every context of a target's Dockerfile, all bytes checked.

    `bootstrapped` says that the base is made from locked packages. With `fresh_in` (an existing folder) all are made anew
    there, and what the store derived earlier is neither read nor written. Raises IntegrityError, EngineError, DiskFull.
    """
    places = {"scripts": str(IN_CONTAINER)}
    if bootstrapped:
        places["base"] = base_layout(lock, platform, store, console, fresh_in=fresh_in).context
    for name, group in INPUTS.items():
        entries = lock.group(group)
        if fresh_in is not None:
            places[name] = _make(entries, lock.epoch, platform, store, fresh_in / name).context
        else:
            places[name] = inputs_layout(name, entries, lock.epoch, platform, store, console).context
    return places


def inputs_layout(name: str, entries: Sequence[Entry], epoch: int, platform: str, store: Store, console: Console) -> Layout:
    """A layout whose one layer holds exactly these files, made once and then kept in the store, checked at each use."""
    inputs = [RECIPE, platform, epoch, sorted((entry.file_name, entry.sha256) for entry in entries)]
    place = store.derived_dir(f"{name}-" + hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32])
    return kept_layout(name, place, store, console, partial(_make, entries, epoch, platform, store))


def _make(entries: Sequence[Entry], epoch: int, platform: str, store: Store, layout: Path) -> Layout:
    """Every file is checked against the lock on its way in."""
    with store.scratch("inputs") as scratch, disk_full_is_told(store):
        store.stage(entries, scratch / "files")
        write_rootfs_tar(scratch / "files", scratch / "layer.tar", epoch=epoch, touched_since=0)
        layout.mkdir()
        return Layout(layout, write_layout(layout, scratch / "layer.tar", env={}, platform=platform, epoch=epoch))
