"""The files of a source archive as text. It loads little, because the largest archive is read by a process of its own."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MEMBER_LIMIT = 8_000_000
"""Bytes of a source file that is still read; nothing that people write is larger."""


@dataclass(frozen=True)
class Wanted:
    """Which files are read: those that end so, outside of `vendored` folders, except those that no wheel has."""

    ends: tuple[str, ...]
    vendored: tuple[str, ...]
    left_out: re.Pattern[str]


@dataclass(frozen=True)
class Texts:
    """Files as text by their path below the archive's top folder, and how many were left out as vendored."""

    files: Mapping[str, str]
    vendored: int


def read_texts(path: Path, wanted: Wanted) -> Texts:
    """Read the wanted regular files; nothing is extracted. Raises tarfile.TarError, zlib.error, EOFError, OSError."""
    files: dict[str, str] = {}
    vendored = 0
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            name = member.name.removeprefix("./").partition("/")[2]
            if not member.isreg() or member.size > MEMBER_LIMIT or not name.endswith(wanted.ends):
                continue
            if name.startswith(wanted.vendored):
                vendored += 1
            elif not wanted.left_out.search(name) and (stream := archive.extractfile(member)) is not None:
                files[name] = stream.read().decode(errors="replace").replace("\r\n", "\n")
    return Texts(files, vendored)
