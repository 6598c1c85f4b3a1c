"""Images as OCI archives, made of layers as tar files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

EPOCH = 1_764_000_000


def layer(
    files: Mapping[str, bytes],
    *,
    order: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    folders: Sequence[str] = (),
    **fields: Any,
) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in folders:
            item = tarfile.TarInfo(name)
            item.type, item.mode, item.mtime = tarfile.DIRTYPE, 0o755, EPOCH
            tar.addfile(item)
        for name in order or files:
            item = tarfile.TarInfo(name)
            item.size, item.mtime, item.mode = len(files[name]), EPOCH, 0o644
            for field, value in fields.items():
                setattr(item, field, value)
            tar.addfile(item, io.BytesIO(files[name]))
        for name, target in (links or {}).items():
            item = tarfile.TarInfo(name)
            item.type, item.linkname, item.mtime = tarfile.SYMTYPE, target, EPOCH
            tar.addfile(item)
    return stream.getvalue()


def image(
    path: Path,
    *layers: bytes,
    pack: str = "",
    created: str = "2026-11-30T00:00:00Z",
    env: Sequence[str] = ("PATH=/usr/bin",),
    attested: bool = False,
    outer_time: int = 0,
) -> Path:
    packer = {"": lambda d: d, "gzip": lambda d: gzip.compress(d, mtime=0), "zstd": zstandard.ZstdCompressor().compress}[pack]
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "created": created,
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]},
    }
    manifest = put(
        json.dumps({"config": put(json.dumps(config).encode()), "layers": [put(packer(data)) for data in layers]}).encode()
    )
    manifests = [{**manifest, "mediaType": "application/vnd.oci.image.manifest.v1+json"}]
    if attested:
        note = {"vnd.docker.reference.type": "attestation-manifest"}
        inner = put(
            json.dumps({"manifests": [*manifests, {**put(f"attested {outer_time}".encode()), "annotations": note}]}).encode()
        )
        manifests = [{**inner, "mediaType": "application/vnd.oci.image.index.v1+json"}]
    with tarfile.open(path, "w") as archive:
        for name, data in {**blobs, "index.json": json.dumps({"manifests": manifests}).encode()}.items():
            item = tarfile.TarInfo(name)
            item.size, item.mtime = len(data), outer_time
            archive.addfile(item, io.BytesIO(data))
    return path
