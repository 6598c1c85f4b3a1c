"""OCI images compared: configuration field by field, layers file by file.

Layers are read as streams; only files that differ are unpacked, into a temporary folder, under numbers for names.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cleanroom.differ.causes import (
    COMPRESSION,
    CREATED,
    FILE_TIME,
    FOLLOWS,
    HOST_DIFFERS,
    LAYER_ORDER,
    NORMALISED,
    OWNER,
    PERMISSIONS,
    UNKNOWN,
    Cause,
    Found,
    few,
    graded,
)
from cleanroom.differ.content import compare_content, only_in_one
from cleanroom.errors import DiskFull
from cleanroom.image_archive import ImageArchive, Layer, name_of, opened
from cleanroom.record import Level
from cleanroom.verification import Difference

_ANYONE_WRITES = 0o022
_CHUNK = 1 << 20
_LARGEST_EXPLAINED = 1 << 29
"""Bytes: larger files that differ are named, but not looked into."""

Located = tuple[str, Found]
"""The path of a file in the layers, "" for the image itself, and a difference in it."""


def compare_images(first: Path, second: Path) -> tuple[Level, tuple[Difference, ...]]:
    """The level that two images (OCI archives) reach, and each difference between them, the weakest first.

    "identical image": the same manifest, whatever the archives around it look like. Raises IntegrityError if one of them
    cannot be read.
    """
    with opened(first) as ours, opened(second) as theirs:
        if ours.digest == theirs.digest:
            return "identical image", ()
        found = [*_compare_settings(ours, theirs), *_compare_layers(ours, theirs)]
        if not found:
            detail = (f"{ours.digest} | {theirs.digest}",)
            found = [("", Found("manifest", HOST_DIFFERS, UNKNOWN, detail))]
    return graded("image", found, "identical image")


# manifest and configuration


def _compare_settings(ours: ImageArchive, theirs: ImageArchive) -> Iterator[Located]:
    a, b = dict(_flat("", ours.config)), dict(_flat("", theirs.config))
    a |= {f"manifest{k}": v for k, v in _flat("", _without_blobs(ours.manifest))}
    b |= {f"manifest{k}": v for k, v in _flat("", _without_blobs(theirs.manifest))}
    changed = [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]
    for cause in (CREATED, FOLLOWS):
        keys = [key for key in changed if _cause_of(key) is cause]
        if keys:
            lines = few(f"{key.removeprefix('.')}: {a.get(key)} | {b.get(key)}" for key in keys)
            yield "", Found("configuration", NORMALISED, cause, lines)
    for key in changed:
        if _cause_of(key) is UNKNOWN:
            detail = (f"{a.get(key)} | {b.get(key)}",)
            yield "", Found(f"configuration {key.removeprefix('.')}", HOST_DIFFERS, UNKNOWN, detail)


def _cause_of(key: str) -> Cause:
    return FOLLOWS if key.startswith(".rootfs.diff_ids") else CREATED if key.endswith(".created") else UNKNOWN


def _without_blobs(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without digests and sizes: what they stand for is compared itself."""
    return {key: value for key, value in manifest.items() if key not in ("config", "layers")}


def _flat(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _flat(f"{path}.{key}", value[key])
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _flat(f"{path}[{number}]", item)
    else:
        yield path, value


# layers


def _compare_layers(ours: ImageArchive, theirs: ImageArchive) -> Iterator[Located]:
    sides = ours.layers(), theirs.layers()
    contents = [[layer.content for layer in side] for side in sides]
    common = set(contents[0]) & set(contents[1])
    if [c for c in contents[0] if c in common] != [c for c in contents[1] if c in common]:
        yield "", Found("order of layers", HOST_DIFFERS, UNKNOWN, (f"{len(contents[0])} | {len(contents[1])} layers",))
    packed = [(a.digest, b.digest) for a in sides[0] for b in sides[1] if a.content == b.content and a.digest != b.digest]
    if packed:
        yield "", Found("compression of layers", NORMALISED, COMPRESSION, few(f"{a} | {b}" for a, b in packed))
    rest = [[(number, layer) for number, layer in enumerate(side, 1) if layer.content not in common] for side in sides]
    for first, second in zip_longest(*rest):
        if first is None or second is None:
            number, where = (first or second)[0], "first" if second is None else "second"
            yield "", Found(f"layer {number}", HOST_DIFFERS, UNKNOWN, (f"only the {where} has this layer",))
        else:
            yield from _compare_layer(f"layer {first[0]}", first[1], second[1])


@dataclass(frozen=True)
class _Entry:
    """A path in a layer. `link` is where a link leads; `rest` whatever else the tar says about it."""

    mode: int
    owner: tuple[object, ...]
    time: float
    kind: tuple[object, ...]
    link: str
    size: int
    sha256: str
    rest: tuple[object, ...]
    times: tuple[object, ...]


_TIMES = ("mtime", "atime", "ctime", "LIBARCHIVE.creationtime")


def _entries(layer: Layer) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    with layer.opened() as tar:
        for item in tar:
            name, again = name_of(item), 2
            while name in found:
                name, again = f"{name_of(item)} (number {again})", again + 1
            found[name] = _Entry(
                mode=item.mode,
                owner=(item.uid, item.gid, item.uname, item.gname),
                time=item.mtime,
                kind=(item.type, item.devmajor, item.devminor),
                link=item.linkname,
                size=item.size,
                sha256=_hashed(tar, item) if item.isreg() else "",
                rest=tuple(sorted((k, v) for k, v in item.pax_headers.items() if k not in (*_TIMES, "path", "linkpath", "size"))),
                times=tuple(sorted((k, v) for k, v in item.pax_headers.items() if k in _TIMES)),
            )
    return found


def _hashed(tar: tarfile.TarFile, item: tarfile.TarInfo) -> str:
    content = tar.extractfile(item)
    return hashlib.file_digest(content, "sha256").hexdigest() if content else ""  # type: ignore[arg-type]  # reads like a file


def _compare_layer(part: str, first: Layer, second: Layer) -> Iterator[Located]:
    ours, theirs = _entries(first), _entries(second)
    common = [name for name in ours if name in theirs]
    before = 0
    for located in _compare_metadata(part, ours, theirs, common):
        before += 1
        yield located
    changed = [n for n in common if (ours[n].sha256, ours[n].size) != (theirs[n].sha256, theirs[n].size)]
    same = {name for name in common if name not in set(changed)}
    small = [n for n in changed if max(ours[n].size, theirs[n].size) <= _LARGEST_EXPLAINED]
    lonely = [[n for n in side if n not in other and side[n].sha256] for side, other in ((ours, theirs), (theirs, ours))]
    with tempfile.TemporaryDirectory(prefix="cleanroom-") as folder:
        places = [
            _unpacked(layer, {*small, *only}, Path(folder) / side)
            for layer, only, side in zip((first, second), lonely, ("1", "2"), strict=True)
        ]
        for name in small:
            yield from ((name, f) for f in compare_content(name, places[0][name].read_bytes(), places[1][name].read_bytes(), same))
        for only, place, where in zip(lonely, places, ("first", "second"), strict=True):
            yield from ((name, only_in_one(name, place[name].read_bytes(), where)) for name in only)
    for name in changed:
        if name not in small:
            yield (
                name,
                Found("", HOST_DIFFERS, UNKNOWN, (f"{ours[name].size} | {theirs[name].size} bytes: too large to look into",)),
            )
    if not before and not changed and not any(lonely):
        yield "", Found(f"{part} tar format", HOST_DIFFERS, UNKNOWN, ("the entries are the same, the tar's own bytes are not",))


def _compare_metadata(
    part: str, ours: Mapping[str, _Entry], theirs: Mapping[str, _Entry], common: Sequence[str]
) -> Iterator[Located]:
    def differ(what: str, cause: Cause, field: str) -> Iterator[Located]:
        changed = [n for n in common if getattr(ours[n], field) != getattr(theirs[n], field)]
        if changed:
            shown = oct if field == "mode" else str
            lines = few(f"{n}: {shown(getattr(ours[n], field))} | {shown(getattr(theirs[n], field))}" for n in changed)
            where = changed[0] if len(changed) == 1 else ""
            yield where, Found(f"{part} {what}", NORMALISED if cause.harmless else HOST_DIFFERS, cause, lines)

    only_umask = all(ours[n].mode & ~_ANYONE_WRITES == theirs[n].mode & ~_ANYONE_WRITES for n in common)
    yield from differ("modification times", FILE_TIME, "time")
    yield from differ("other times", FILE_TIME, "times")
    yield from differ("permissions", PERMISSIONS if only_umask else UNKNOWN, "mode")
    yield from differ("owners", OWNER, "owner")
    yield from differ("kinds of files", UNKNOWN, "kind")
    yield from differ("links", UNKNOWN, "link")
    yield from differ("extended attributes", UNKNOWN, "rest")
    order = [n for n in theirs if n in ours]
    if order != list(common):
        moved = few(f"{a} | {b}" for a, b in zip(common, order, strict=True) if a != b)
        yield "", Found(f"{part} order of files", NORMALISED, LAYER_ORDER, moved)
    for side, other, where in ((ours, theirs, "first"), (theirs, ours, "second")):
        for name in side:
            if name not in other and not side[name].sha256:
                yield name, Found("", HOST_DIFFERS, UNKNOWN, (f"only the {where} has this folder or link",))


@contextmanager
def _room_for(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"{folder.parent} has no room for the files that differ between two images.",
            means="They are unpacked there to be compared.",
            next_step="free some space, or set TMPDIR to a folder that has more",
        ) from None


def _unpacked(layer: Layer, wanted: set[str], folder: Path) -> dict[str, Path]:
    """The wanted regular files of a layer, each written to a file whose name is a number."""
    places: dict[str, Path] = {}
    if not wanted:
        return places
    folder.mkdir()
    with layer.opened() as tar:
        seen: dict[str, int] = {}
        for item in tar:
            plain = name_of(item)
            seen[plain] = seen.get(plain, 0) + 1
            name = plain if seen[plain] == 1 else f"{plain} (number {seen[plain]})"
            content = tar.extractfile(item) if name in wanted and item.isreg() else None
            if content is not None:
                places[name] = folder / str(len(places))
                with _room_for(folder), places[name].open("wb") as copy:
                    shutil.copyfileobj(content, copy, _CHUNK)
    return places
