"""The real binaries of tests/unit/data/binaries, and wheels made of them."""

from __future__ import annotations

import lzma
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

BINARIES = Path(__file__).parent / "data" / "binaries"
WHEEL = "things-1.0-cp313-cp313-linux_x86_64.whl"


def binary(name: str) -> bytes:
    """A file that data/binaries/make.sh made."""
    return lzma.decompress((BINARIES / f"{name}.xz").read_bytes())


def library(*cubins: bytes) -> bytes:
    """A library that carries cubins in a fat binary without compression, as nvcc writes it: a header, then entries."""
    entries = b"".join(struct.pack("<HHIQ48x", 2, 0x101, 64, len(cubin)) + cubin for cubin in cubins)
    return binary("needy.so") + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def wheel(folder: Path, files: Mapping[str, bytes], name: str = WHEEL) -> Path:
    """A wheel with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return folder / name
