"""The files of a wheel, read where they are: nothing is unpacked to disk."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from cleanroom.errors import IntegrityError


def members(wheel: Path, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of every file in a wheel whose path is wanted, sorted by path, one in memory at a time.

    Raises IntegrityError for what is no wheel, is damaged, names one path twice, or names a path outside itself.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = sorted((i for i in archive.infolist() if not i.is_dir()), key=lambda i: i.filename)
            _check_names(wheel, [i.filename for i in files])
            for item in filter(lambda i: wanted(i.filename), files):
                yield item.filename, archive.read(item)
    # RuntimeError: encrypted; NotImplementedError: a compression that Python does not know
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise IntegrityError(
            f"{wheel.name} cannot be read as a wheel: {error}.",
            means="It is missing, cut off or damaged, or is not a wheel.",
            next_step="build it again, or give the path of a .whl file",
        ) from None


def _check_names(wheel: Path, names: list[str]) -> None:
    for name, following in zip(names, [*names[1:], ""], strict=True):
        if name == following:
            raise IntegrityError(
                f"{wheel.name} holds {name} twice.",
                means="Which of the two is installed depends on the installer.",
            )
        if name.startswith("/") or "\\" in name or ".." in name.split("/"):
            raise IntegrityError(f"{wheel.name} holds {name!r}, a path outside the wheel.", means="No build makes such a wheel.")


def is_elf(data: bytes) -> bool:
    """Whether the bytes are an ELF file: a library, an object, or a cubin."""
    return data[:4] == b"\x7fELF"
