"""OCI images compared: configuration field by field, layers file by file.

Format: the OCI image layout and image manifest specifications, version 1.0, as one tar file. Layers are read as streams;
only files that differ are unpacked, into a temporary folder, under numbers for names.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import zstandard

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
from cleanroom.errors import DiskFull, IntegrityError
from cleanroom.record import Level
from cleanroom.verification import Difference

_ATTESTATION = "vnd.docker.reference.type"
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
    with _image(first) as ours, _image(second) as theirs:
        if ours.digest == theirs.digest:
            return "identical image", ()
        found = [*_compare_settings(ours, theirs), *_compare_layers(ours, theirs)]
        if not found:
            detail = (f"{ours.digest} | {theirs.digest}",)
            found = [("", Found("manifest", HOST_DIFFERS, UNKNOWN, detail))]
    return graded("image", found, "identical image")


# reading


@dataclass(frozen=True)
class _Image:
    """An open image: its manifest by digest, its configuration, and the archive that its blobs are in."""

    archive: tarfile.TarFile
    digest: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]

    def layers(self) -> list[_Layer]:
        contents = self.config.get("rootfs", {}).get("diff_ids", [])
        return [_Layer(self.archive, str(d["digest"]), str(c)) for d, c in zip(self.manifest["layers"], contents, strict=True)]


@dataclass(frozen=True)
class _Layer:
    """A layer: `digest` is of the blob, `content` of the tar in it."""

    archive: tarfile.TarFile
    digest: str
    content: str

    @contextmanager
    def opened(self) -> Iterator[tarfile.TarFile]:
        """The tar as a stream: to be read once, from its beginning to its end."""
        with (
            _reading(f"{self.digest} in {self.archive.name!r}"),
            _decompressed(_blob(self.archive, self.digest)) as stream,
            tarfile.open(fileobj=stream, mode="r|") as layer,
        ):
            yield layer


def _blob(archive: tarfile.TarFile, digest: str) -> IO[bytes]:
    return _member(archive, f"blobs/{digest.replace(':', '/')}")


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        content = archive.extractfile(name)
    except KeyError:
        content = None
    if content is None:
        raise tarfile.ReadError(f"{name} is not in it")
    return content


def _document(archive: tarfile.TarFile, digest: str) -> dict[str, Any]:
    data = _blob(archive, digest).read()
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise tarfile.ReadError(f"{digest} was altered")
    return dict(json.loads(data))


@contextmanager
def _decompressed(blob: IO[bytes]) -> Iterator[IO[bytes]]:
    magic = blob.read(4)
    blob.seek(0)
    if magic == b"\x28\xb5\x2f\xfd":
        with zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True) as stream:
            yield stream
    elif magic[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=blob) as unzipped:
            yield unzipped  # type: ignore[misc]  # a GzipFile reads like any binary file
    else:
        yield blob


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, tarfile.TarError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise _unreadable(what, error) from None


def _unreadable(what: object, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"{what} cannot be read as an image: {str(error) or type(error).__name__}.",
        means="It is missing, cut off or damaged, or is not an OCI archive.",
        next_step="build the image again, or give the path of an OCI archive",
    )


@contextmanager
def _image(path: Path) -> Iterator[_Image]:
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(tarfile.open(path, "r:"))
            digest = _manifest_of(archive, json.load(_member(archive, "index.json")))
            manifest = _document(archive, digest)
            image = _Image(archive, digest, manifest, _document(archive, str(manifest["config"]["digest"])))
            image.layers()
        # What documents of another form lead to.
        except (OSError, EOFError, tarfile.TarError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise _unreadable(path, error) from None
        yield image


def _manifest_of(archive: tarfile.TarFile, index: Mapping[str, Any]) -> str:
    """The digest of the one image in an index, at whatever depth; attestations beside it do not count."""
    images = [m for m in index["manifests"] if _ATTESTATION not in m.get("annotations", {})]
    if len(images) != 1:
        raise tarfile.ReadError(f"it holds {len(images)} images, one is needed")
    digest = str(images[0]["digest"])
    inner = _document(archive, digest)
    return _manifest_of(archive, inner) if "manifests" in inner else digest


# manifest and configuration


def _compare_settings(ours: _Image, theirs: _Image) -> Iterator[Located]:
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


def _compare_layers(ours: _Image, theirs: _Image) -> Iterator[Located]:
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


def _entries(layer: _Layer) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    with layer.opened() as tar:
        for item in tar:
            name, again = _name(item), 2
            while name in found:
                name, again = f"{_name(item)} (number {again})", again + 1
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


def _name(item: tarfile.TarInfo) -> str:
    return item.name.removeprefix("./").strip("/")


def _hashed(tar: tarfile.TarFile, item: tarfile.TarInfo) -> str:
    content = tar.extractfile(item)
    return hashlib.file_digest(content, "sha256").hexdigest() if content else ""  # type: ignore[arg-type]  # reads like a file


def _compare_layer(part: str, first: _Layer, second: _Layer) -> Iterator[Located]:
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


def _unpacked(layer: _Layer, wanted: set[str], folder: Path) -> dict[str, Path]:
    """The wanted regular files of a layer, each written to a file whose name is a number."""
    places: dict[str, Path] = {}
    if not wanted:
        return places
    folder.mkdir()
    with layer.opened() as tar:
        seen: dict[str, int] = {}
        for item in tar:
            plain = _name(item)
            seen[plain] = seen.get(plain, 0) + 1
            name = plain if seen[plain] == 1 else f"{plain} (number {seen[plain]})"
            content = tar.extractfile(item) if name in wanted and item.isreg() else None
            if content is not None:
                places[name] = folder / str(len(places))
                with _room_for(folder), places[name].open("wb") as copy:
                    shutil.copyfileobj(content, copy, _CHUNK)
    return places
