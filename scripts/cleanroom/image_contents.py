"""What is in an image once its layers lie over each other: paths, libraries, and which files belong to a package."""

from __future__ import annotations

import csv
import posixpath
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from cleanroom import image_archive
from cleanroom.binary.dynamic import Library, read_library
from cleanroom.binary.wheel import is_elf
from cleanroom.errors import IntegrityError
from cleanroom.hygiene import occurs

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_LINKS_FOLLOWED = 40
"""As Linux does."""
_DPKG_LIST = re.compile(r"var/lib/dpkg/info/[^/]+\.list")
_WHEEL_RECORD = re.compile(r"(?P<site>.+)/[^/]+\.dist-info/RECORD")


@dataclass
class Contents:
    """An image's files, by path without the first "/".

    `files` has a library where a file is one and can be read, else None; `broken`: ELF files that cannot be read;
    `traced`: by text that was looked for, the files that hold it; `owned`: what dpkg and pip list as of a package.
    """

    files: dict[str, Library | None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    traced: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    owned: set[str] = field(default_factory=set)

    @property
    def libraries(self) -> list[Library]:
        """All that can be read, by path."""
        return [library for _, library in sorted(self.files.items()) if library is not None]

    def names_of(self, libraries: Iterable[Library]) -> frozenset[str]:
        """The names under which the loader may find these: of the files, what they call themselves, and links to them."""
        found = {name for library in libraries for name in library.names}
        links = {(PurePosixPath(link).name, PurePosixPath(target).name) for link, target in self.links.items()}
        while more := {name for name, target in links if target in found} - found:
            found |= more
        return frozenset(found)

    def has_folder(self, path: str) -> bool:
        """Whether an absolute path leads to a folder, links followed."""
        return self._resolved(path) in self.folders

    def is_owned(self, path: str) -> bool:
        """Whether a package brought a file; dpkg may know /usr/lib as /lib."""
        return path in self.owned or path.removeprefix("usr/") in self.owned

    def _resolved(self, path: str) -> str:
        done, rest = "", posixpath.normpath(path).strip("/").split("/")
        for _ in range(_LINKS_FOLLOWED):
            while rest and (step := posixpath.join(done, rest[0])) not in self.links:
                done, rest = step, rest[1:]
            if not rest:
                break
            target = posixpath.join("/", done, self.links[step], *rest[1:])
            done, rest = "", posixpath.normpath(target).strip("/").split("/")
        return done

    def lay(self, tar: tarfile.TarFile, item: tarfile.TarInfo, texts: Iterable[str]) -> None:
        """Lay one entry of a layer over what is there."""
        path = image_archive.name_of(item)
        folder, name = posixpath.split(path)
        if name == _OPAQUE:
            self._remove_below(folder)
        elif name.startswith(_WHITEOUT):
            self._remove(posixpath.join(folder, name.removeprefix(_WHITEOUT)))
        elif item.isdir():
            self._forget(path)
            self._add_folder(path)
        else:
            self._remove(path)
            self._add_folder(folder)
            if item.issym() or item.islnk():
                self.links[path] = item.linkname
            elif content := tar.extractfile(item):
                self._read(path, content.read(), texts)

    def _add_folder(self, path: str) -> None:
        while path and path not in self.folders:
            self.folders.add(path)
            path = posixpath.dirname(path)

    def _remove(self, path: str) -> None:
        self._forget(path)
        if path in self.folders:  # only a folder has anything below it, and few are ever replaced
            self.folders.discard(path)
            self._remove_below(path)

    def _remove_below(self, folder: str) -> None:
        below = f"{folder}/" if folder else ""
        for path in [p for known in (self.files, self.links) for p in known if p.startswith(below)]:
            self._forget(path)
        self.folders -= {path for path in self.folders if path.startswith(below)}

    def _forget(self, path: str) -> None:
        self.files.pop(path, None)
        self.links.pop(path, None)
        self.broken.discard(path)
        for files in self.traced.values():
            files.discard(path)

    def _read(self, path: str, data: bytes, texts: Iterable[str]) -> None:
        self.files[path] = None
        for text in texts:
            if occurs(text, data):
                self.traced[text].add(path)
        if is_elf(data):
            try:
                self.files[path] = read_library(path, data)
            except IntegrityError:
                self.broken.add(path)
        elif _DPKG_LIST.fullmatch(path):
            self.owned.update(line.strip("/") for line in data.decode(errors="replace").splitlines())
        elif found := _WHEEL_RECORD.fullmatch(path):
            rows = csv.reader(data.decode(errors="replace").splitlines())
            self.owned.update(posixpath.normpath(posixpath.join(found["site"], row[0])) for row in rows if row)


def contents(image: Path, texts: Iterable[str] = ()) -> Contents:
    """Read an image (an OCI archive), layer over layer. Raises IntegrityError if it cannot be read."""
    there, sought = Contents(), tuple(texts)
    with image_archive.opened(image) as archive:
        for layer in archive.layers():
            with layer.opened() as tar:
                for item in tar:
                    there.lay(tar, item, sought)
    return there
