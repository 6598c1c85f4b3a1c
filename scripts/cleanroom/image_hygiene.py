"""Hygiene of a whole image: every ELF file in it, of our wheels, of others and of the system.

A wheel of ours that breaks a rule was made by this build, and fails it (hygiene.py). Most of an image was made by others:
what they do at the edges is told as a note, and what keeps a library from being loaded is not.
"""

from __future__ import annotations

import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from cleanroom import image_archive
from cleanroom.arch_table import release
from cleanroom.binary.dynamic import Library, read_library
from cleanroom.binary.wheel import is_elf
from cleanroom.envs import IMAGE
from cleanroom.errors import IntegrityError
from cleanroom.evidence import Finding, Severity
from cleanroom.hygiene import Place, Rules, occurs

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_SHOWN = 3


@dataclass
class Contents:
    """What is in an image once its layers lie over each other, by path without the first "/".

    `files` has a library where a file is one and can be read, else None; `broken`: ELF files that cannot be read;
    `traced`: by text that must be in no file, the files that hold it.
    """

    files: dict[str, Library | None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    broken: dict[str, str] = field(default_factory=dict)
    traced: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def libraries(self) -> list[Library]:
        return [library for _, library in sorted(self.files.items()) if library is not None]

    @property
    def names(self) -> frozenset[str]:
        """The names under which the loader may find a library: files, what they call themselves, and links to them."""
        found = {name for library in self.libraries for name in library.names}
        links = {PurePosixPath(link).name: PurePosixPath(target).name for link, target in self.links.items()}
        while more := {name for name, target in links.items() if target in found} - found:
            found |= more
        return frozenset(found)

    def remove(self, path: str) -> None:
        """Forget a path and everything below it."""
        there = (self.files, self.links, self.folders)
        for name in {n for known in there for n in known if n.startswith(f"{path}/")} | {path}:
            self.files.pop(name, None)
            self.links.pop(name, None)
            self.broken.pop(name, None)
            self.folders.discard(name)
            for files in self.traced.values():
                files.discard(name)


def contents(image: Path, texts: Iterable[str] = ()) -> Contents:
    """Read an image (an OCI archive), layer over layer. Raises IntegrityError if it cannot be read."""
    there, sought = Contents(), tuple(texts)
    with image_archive.opened(image) as archive:
        for layer in archive.layers():
            with layer.opened() as tar:
                for item in tar:
                    _lay(there, tar, item, sought)
    return there


def _lay(there: Contents, tar: tarfile.TarFile, item: tarfile.TarInfo, texts: Iterable[str]) -> None:
    path = image_archive.name_of(item)
    folder, name = str(PurePosixPath(path).parent), PurePosixPath(path).name
    if name == _OPAQUE:
        there.remove(folder)
        there.folders.add(folder)
    elif name.startswith(_WHITEOUT):
        there.remove(str(PurePosixPath(folder) / name.removeprefix(_WHITEOUT)))
    elif item.isdir():
        there.folders.add(path)
    else:
        if path in there.files or path in there.links or path in there.folders:
            there.remove(path)
        if item.issym() or item.islnk():
            there.links[path] = item.linkname
        elif content := tar.extractfile(item):
            _read(there, path, content.read(), texts)


def _read(there: Contents, path: str, data: bytes, texts: Iterable[str]) -> None:
    there.files[path] = None
    for text in texts:
        if occurs(text, data):
            there.traced[text].add(path)
    if is_elf(data):
        try:
            there.files[path] = read_library(path, data)
        except IntegrityError as error:
            there.broken[path] = error.what


def examine_image(image: Path, place: Place, rules: Rules) -> tuple[Finding, ...]:
    """All findings about an image, each kind of thing told once with how many files it is in. Raises IntegrityError."""
    there = contents(image, place.traces)
    return tuple(
        Finding(IMAGE, kind, severity, message.replace("{}", _some(files)))
        for (kind, severity, message), files in sorted(_grouped(_objections(there, place, rules)).items())
    )


_Objection = tuple[str, Severity, str]
"""Kind, severity, and a message with {} where the files are named."""


def _grouped(found: Iterable[tuple[_Objection, str]]) -> dict[_Objection, list[str]]:
    grouped: dict[_Objection, list[str]] = defaultdict(list)
    for objection, file in found:
        if file not in grouped[objection]:
            grouped[objection].append(file)
    return grouped


def _some(files: list[str]) -> str:
    more = len(files) - _SHOWN
    return ", ".join(files[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _objections(there: Contents, place: Place, rules: Rules) -> Iterator[tuple[_Objection, str]]:
    for file in there.broken:
        yield ("unreadable", "degrades", "ELF files that cannot be read: {}"), file
    for text, files in there.traced.items():
        for file in sorted(files):
            yield ("trace of a machine", "fails", f"files that hold {text!r}, {place.traces[text]}: {{}}"), file
    names = there.names
    for library in there.libraries:
        if library.machine != "EM_CUDA":
            for objection in _of_library(library, there, names, place, rules):
                yield objection, library.file


def _of_library(library: Library, there: Contents, names: frozenset[str], place: Place, rules: Rules) -> Iterator[_Objection]:
    stub = "stubs" in PurePosixPath(library.file).parts
    wanted = rules.machines.get(place.platform, "")
    if library.machine != wanted:
        yield (
            "machine type",
            "note" if stub else "degrades",
            f"ELF files for {library.machine} in an image for {place.platform}: {{}}",
        )
        return
    if driver := next((found for name in sorted(library.names) if (found := rules.driver_of(name))), None):
        message = f"files that the {driver.by} brings, and that a copy or stub may hide: {{}}"
        yield "packaged driver library", "note" if stub else "fails", message
    for name in library.needed:
        if name not in names and not rules.driver_of(name):
            yield _missing(name, rules)
    for entry in library.search_path:
        if "stubs" in entry.split("/"):
            yield "stubs searched", "degrades", f"libraries that search {entry}, where stubs are: {{}}"
        elif not entry.startswith(("/", "$ORIGIN", "${ORIGIN}")):
            where = f"{entry}, which depends on the current folder" if entry else "the current folder"
            yield "current folder searched", "degrades", f"libraries that search {where}: {{}}"
        elif entry.startswith("/") and entry.strip("/") not in there.folders:
            yield "library search path", "note", f"libraries that search {entry}, which the image lacks: {{}}"
    for family, newest in rules.newest(place.glibc).items() if place.glibc else ():
        if release(library.newest.get(family, "0")) > release(newest):
            message = f"libraries that need {family}_{library.newest[family]} where the image has {family}_{newest} at most: {{}}"
            yield "symbol version", "fails", message


def _missing(name: str, rules: Rules) -> _Objection:
    if optional := rules.optional_of(name):
        return "optional library", "note", f"{optional.by} is not in it: {optional.without}; looked for by {{}}"
    return "missing library", "degrades", f"{name} is nowhere in it; needed by {{}}"
