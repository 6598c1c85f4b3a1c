"""Room on the store's disk: old layers of the embedded engine make way for a build that would not fit beside them."""

from __future__ import annotations

from cleanroom.clean import disk_use
from cleanroom.console import Console, human_bytes
from cleanroom.engine import open_engine
from cleanroom.errors import DiskFull
from cleanroom.lock import Lock
from cleanroom.project import Project
from cleanroom.store import Store

UNPACKED_BESIDE = 8
"""A first build holds inputs, what they unpack to, layers and the image: this many times the size of the inputs (measured)."""
UNPACKED_ALREADY = 2
"""What a build adds where an engine's state holds the layers of earlier ones, in the same measure; of most it holds some."""
UNPACKED_AGAIN = 7
"""What it adds where these layers were removed: base, toolkit and environment once more (3.8 times, measured), and the image."""


def make_room(lock: Lock, factor: int, store: Store, project: Project, console: Console) -> None:
    """See to it that `factor` times the size of the locked inputs is free, removing the embedded engine's old layers if not.

    Compiled objects, from which a build resumes, stay. Raises DiskFull if that is not enough, EngineError.
    """
    inputs = sum(entry.size for entry in lock.entries)
    need = inputs * factor
    short = store.free_bytes()
    if short < need and (store.root / "engine").is_dir():
        with open_engine(store, project, console) as engine:
            if engine.info.kind == "embedded":
                console.info(f"{human_bytes(short)} are free and {human_bytes(need)} are needed: removing layers of earlier builds")
                engine.drop_layers()
                need = max(need, inputs * UNPACKED_AGAIN)
                console.info(f"{human_bytes(max(store.free_bytes() - short, 0))} freed; compiled objects were kept")
    if (free := store.free_bytes()) < need:
        engine_state = disk_use(store.root / "engine")
        raise DiskFull(
            f"{human_bytes(free)} are free for {store.root}, this build needs about {human_bytes(need)}.",
            means="Nothing was started.",
            next_step="free space"
            + (f", with nox -s clean ({human_bytes(engine_state)} of engine state)" if engine_state else "")
            + ", or set CLEANROOM_STORE to a folder on a larger disk",
        )
