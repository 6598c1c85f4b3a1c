"""OCI image layouts: written so that the same root file system gives the same bytes, and checked before use.

Format: the OCI image layout and image manifest specifications, version 1.0. The layer is stored uncompressed: the
engine reads it from the same disk, so compressing it would only cost time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cleanroom.errors import IntegrityError
from cleanroom.files import sha256_of, write_atomically

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_XATTR = "SCHILY.xattr."
_VIRTUAL = ("dev", "proc", "sys", "run", "tmp")
"""Folders a container runtime fills by itself; they are kept, empty."""


def write_rootfs_tar(root: Path, tar: Path, *, epoch: int, touched_since: float) -> None:
    """Write a folder as a tar whose bytes depend on nothing but the files.

    Sorted by name; numeric owners; times later than `epoch`, or from after `touched_since` (when this machine began
    to make the folder; seconds since 1970), become `epoch`. Extended attributes are kept: file capabilities live there.
    """
    links: dict[tuple[int, int], str] = {}
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as archive:
        for path in _sorted_tree(root):
            info = os.lstat(path)
            name = os.path.relpath(path, root)
            member = tarfile.TarInfo("./" + name if name != "." else "./")
            member.mode = stat.S_IMODE(info.st_mode)
            member.uid, member.gid = info.st_uid, info.st_gid
            late = info.st_mtime > epoch or info.st_mtime >= touched_since
            member.mtime = epoch if late else int(info.st_mtime)
            if stat.S_ISLNK(info.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            elif stat.S_ISDIR(info.st_mode):
                member.type = tarfile.DIRTYPE
            elif stat.S_ISREG(info.st_mode):
                first = links.setdefault((info.st_dev, info.st_ino), member.name)
                if first != member.name:
                    member.type, member.linkname = tarfile.LNKTYPE, first
                else:
                    member.size = info.st_size
            else:
                raise IntegrityError(
                    f"/{name} in the root file system is neither a file, a folder nor a link.",
                    means="A package or its scripts made a device, pipe or socket, which an image layer should not hold.",
                )
            member.pax_headers = _extended_attributes(path)
            if member.type == tarfile.REGTYPE and member.size:
                with open(path, "rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)


def _sorted_tree(root: Path) -> list[str]:
    found = [str(root)]
    for folder, folders, files in os.walk(root):
        if os.path.relpath(folder, root) in _VIRTUAL:
            folders.clear()
            continue
        found.extend(os.path.join(folder, name) for name in folders + files)
    return sorted(found, key=lambda path: os.path.relpath(path, root).split("/"))


def _extended_attributes(path: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        if name.startswith(("security.capability", "user.")):
            headers[_XATTR + name] = os.getxattr(path, name, follow_symlinks=False).decode("utf-8", "surrogateescape")
    return headers


def write_layout(folder: Path, rootfs_tar: Path, *, env: Mapping[str, str], platform: str, epoch: int) -> str:
    """Make `folder` an image layout of one layer, and give the manifest's digest ("sha256:<hex>").

    The tar is hard-linked into it where the file system allows, so leave it unchanged afterwards. `platform` is
    "linux/amd64"; `epoch` (seconds since 1970) is the creation time the image states.
    """
    system, machine = platform.split("/")[:2]
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    layer = sha256_of(rootfs_tar)
    _link_or_copy(rootfs_tar, blobs / layer)
    config = _put(
        blobs,
        {
            "architecture": machine,
            "os": system,
            "created": created,
            "config": {"Env": [f"{name}={value}" for name, value in sorted(env.items())]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
            "history": [{"created": created, "created_by": "cleanroom base"}],
        },
    )
    manifest = _put(
        blobs,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, **config},
            "layers": [{"mediaType": LAYER, "digest": f"sha256:{layer}", "size": rootfs_tar.stat().st_size}],
        },
    )
    write_atomically(folder / "oci-layout", _bytes({"imageLayoutVersion": "1.0.0"}))
    write_atomically(folder / "index.json", _bytes({"schemaVersion": 2, "manifests": [{"mediaType": MANIFEST, **manifest}]}))
    return str(manifest["digest"])


def check_layout(folder: Path) -> str:
    """Read every blob of the layout again and give the manifest's digest.

    Raises IntegrityError where anything is missing or differs from its digest.
    """
    index = _json(folder / "index.json", (folder / "index.json"))
    manifests = index.get("manifests")
    if not isinstance(manifests, list) or len(manifests) != 1:
        raise IntegrityError(f"{folder / 'index.json'} does not name exactly one image.", means="The layout is damaged.")
    digest = str(manifests[0].get("digest"))
    manifest = _json(_checked(folder, digest), folder)
    for part in (manifest.get("config", {}), *manifest.get("layers", ())):
        _checked(folder, str(part.get("digest")))
    return digest


def _checked(folder: Path, digest: str) -> Path:
    algorithm, _, expected = digest.partition(":")
    path = folder / "blobs" / algorithm / expected
    if algorithm != "sha256" or "/" in expected or not path.is_file():
        raise IntegrityError(f"The image layout {folder} lacks {digest}.", means="It was only partly written, or damaged.")
    found = sha256_of(path)
    if found != expected:
        raise IntegrityError(
            f"{path} has sha256 {found}, not {expected}.", means="The image layout was changed after it was written."
        )
    return path


def _json(path: Path, shown: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{shown} cannot be read: {error}", means="The image layout is damaged.") from None
    if not isinstance(data, dict):
        raise IntegrityError(f"{shown} is not a JSON object.", means="The image layout is damaged.")
    return data


def _put(blobs: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    data = _bytes(document)
    digest = hashlib.sha256(data).hexdigest()
    write_atomically(blobs / digest, data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _link_or_copy(source: Path, destination: Path) -> None:
    if destination.exists():
        return
    try:
        os.link(source, destination)
    except OSError:
        temporary = destination.with_name(f".{destination.name}")
        shutil.copyfile(source, temporary)
        os.replace(temporary, destination)
