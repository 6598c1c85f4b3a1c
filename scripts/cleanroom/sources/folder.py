"""A tree of this repository as a source archive: packed so that the same files give the same bytes on any machine."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

from packaging.utils import canonicalize_name

from cleanroom.errors import FetchError, ResolveError
from cleanroom.lock import Entry, Kind
from cleanroom.sources import Gone, Part

LEFT_OUT = ("__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist")
LEFT_OUT_ENDS = (".pyc", ".egg-info", "~", ".swp")
"""What tools and editors leave in a tree; never part of an archive."""

_BLOCK = 65535
"""Bytes in a stored deflate block (RFC 1951, 3.2.4)."""


def archive_name(name: str, version: str) -> str:
    """The file name that a source archive of this distribution has."""
    return f"{canonicalize_name(name).replace('-', '_')}-{version}.tar.gz"


def pack(folder: Path, name: str, version: str) -> bytes:
    """A .tar.gz of the folder: sorted, without owners and times, stored uncompressed.

    Raises ResolveError if the folder is missing or empty, or a link in it leads outside.
    """
    top = archive_name(name, version).removesuffix(".tar.gz")
    files = _files(folder)
    if not files:
        raise ResolveError(
            f"The source folder {folder} is missing or empty.",
            means=f"{name} {version} is compiled from it.",
            next_step="correct source.path of the component",
        )
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            member = tarfile.TarInfo(f"{top}/{path.relative_to(folder).as_posix()}")
            member.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            if path.is_symlink():
                target = os.readlink(path)
                if os.path.isabs(target) or not path.resolve().is_relative_to(folder.resolve()):
                    raise ResolveError(f"{path} links to {target}, outside of the source folder.", means="It would not be packed.")
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
                tar.addfile(member)
                continue
            data = path.read_bytes()
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return _gzip(archive.getvalue())


def _files(folder: Path) -> list[Path]:
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in LEFT_OUT and not f.endswith(LEFT_OUT_ENDS))
        links = [f for f in folders if (Path(place) / f).is_symlink()]
        found += [Path(place) / f for f in (*files, *links) if not f.endswith(LEFT_OUT_ENDS)]
    return sorted(found)


def _gzip(data: bytes) -> bytes:
    """A gzip file of stored blocks: what a compressor makes of the same bytes differs between zlib's versions."""
    blocks = [data[i : i + _BLOCK] for i in range(0, len(data), _BLOCK)]
    stored = [
        struct.pack("<BHH", position == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for position, block in enumerate(blocks)
    ]
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return header + b"".join(stored) + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


class FolderSource:
    """Trees of the project. `folders` gives each by the name of its distribution."""

    kind: Kind = "folder"

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders

    def fetch(self, entry: Entry, part: Part) -> None:
        """Pack the tree again."""
        folder = self.folders.get(entry.name)
        if folder is None:
            raise Gone(entry.name)
        try:
            data = pack(folder, entry.name, entry.version)
        except ResolveError as error:
            raise FetchError(error.what, means=error.means, next_step=error.next_step) from None
        part.restart()
        part.write(data)

    def explain(self, entry: Entry) -> str:
        """Which folders there are."""
        return f"No component has a source folder called {entry.name}; there are: {', '.join(sorted(self.folders)) or 'none'}."
