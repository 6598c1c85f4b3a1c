"""OCI images as one archive: the manifest by its digest, the configuration, and the layers as streams.

Format: the OCI image layout and image manifest specifications, version 1.0.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from cleanroom.errors import IntegrityError

_ATTESTATION = "vnd.docker.reference.type"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class ImageArchive:
    """An open image: its manifest by digest, its configuration, and the archive that its blobs are in."""

    archive: tarfile.TarFile
    digest: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]

    def layers(self) -> list[Layer]:
        contents = self.config.get("rootfs", {}).get("diff_ids", [])
        return [Layer(self.archive, str(d["digest"]), str(c)) for d, c in zip(self.manifest["layers"], contents, strict=True)]


@dataclass(frozen=True)
class Layer:
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
            tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as layer,
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
def opened(path: Path) -> Iterator[ImageArchive]:
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(tarfile.open(path, "r:"))
            digest = _manifest_of(archive, json.load(_member(archive, "index.json")))
            manifest = _document(archive, digest)
            image = ImageArchive(archive, digest, manifest, _document(archive, str(manifest["config"]["digest"])))
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


def name_of(item: tarfile.TarInfo) -> str:
    """The path of an entry of a layer, without anything before its first folder."""
    return item.name.removeprefix("./").strip("/")
