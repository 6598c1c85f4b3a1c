"""Files that only a person can bring, because their licence forbids that a program fetches them: CANN's installers."""

from __future__ import annotations

import os
from pathlib import Path

from cleanroom.errors import CannotBuildHere, IntegrityError
from cleanroom.files import sha256_of
from cleanroom.lock import Entry, Kind
from cleanroom.sources import BLOCK, Gone, Part

FOLDER = "CLEANROOM_OPERATOR_FILES"
"""Environment variable: the folder that holds the files."""


def operator_folder() -> Path | None:
    """The folder that the environment names, None where it names none."""
    chosen = os.environ.get(FOLDER, "")
    return Path(chosen).expanduser().absolute() if chosen else None


class OperatorSource:
    """Files of one folder, by their names. Without a folder every file is one that somebody has to bring."""

    kind: Kind = "operator"

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or operator_folder()

    def fetch(self, entry: Entry, part: Part) -> None:
        """Copy the file after comparing it with the lock: bytes that differ are never copied.

        Raises CannotBuildHere (nobody brought it), IntegrityError (it is another file than the one that was locked).
        """
        if self.folder is None:
            raise CannotBuildHere(
                f"{entry.file_name} has to be brought by a person, and no folder was named.",
                means=f"The lock names it: {entry.size} bytes, sha256 {entry.sha256}. Its licence forbids to fetch it.",
                next_step=f"set {FOLDER} to the folder that holds it, then type the same command again",
            )
        path = self.folder / entry.file_name
        if not path.is_file():
            raise Gone(str(path))
        found, size = sha256_of(path), path.stat().st_size
        if (found, size) != (entry.sha256, entry.size):
            raise IntegrityError(
                f"{entry.file_name} is not the file that was locked: expected sha256 {entry.sha256} ({entry.size} bytes), "
                f"got {found} ({size} bytes).",
                means="It was altered or replaced since. Nothing of it was stored.",
                next_step="bring the locked file, or lock again with the new one and review what changed",
            )
        part.restart()
        with path.open("rb") as stream:
            while block := stream.read(BLOCK):
                part.write(block)

    def explain(self, entry: Entry) -> str:
        """Which files the folder has instead."""
        assert self.folder is not None
        names = sorted(p.name for p in self.folder.iterdir()) if self.folder.is_dir() else []
        return f"the folder {self.folder} has {', '.join(names[:8]) or 'no file'}; bring {entry.file_name} ({entry.size} bytes)."
