"""What a library asks of the system that loads it: other libraries, where to look for them, versions of symbols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from cleanroom.arch_table import release
from cleanroom.binary.elf import reading

_SYMBOL_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9]+(?:\.[0-9]+)*)")


@dataclass(frozen=True)
class Library:
    """One ELF file. `machine` as ELF names it, `newest`: by family of symbol versions, the newest that it needs."""

    file: str
    machine: str
    soname: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    newest: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """What it is found by: its file's name, and what it calls itself."""
        return frozenset({PurePosixPath(self.file).name, self.soname}) - {""}


def read_library(file: str, data: bytes) -> Library:
    """Read an ELF file's dynamic section. Raises IntegrityError if it is damaged."""
    with reading(data) as elf:
        dynamic = next((s for s in elf.iter_sections() if isinstance(s, DynamicSection)), None)
        tags: list[Any] = list(dynamic.iter_tags()) if dynamic else []
        by_tag = {kind: [t for t in tags if t.entry.d_tag == kind] for kind in ("DT_SONAME", "DT_NEEDED", "DT_RPATH", "DT_RUNPATH")}
        paths: list[str] = [t.rpath for t in by_tag["DT_RPATH"]] + [t.runpath for t in by_tag["DT_RUNPATH"]]
        paths = [path for path in paths if path]  # the loader ignores an empty one, but not an empty entry in one
        return Library(
            file=file,
            machine=str(elf["e_machine"]),
            soname=next((t.soname for t in by_tag["DT_SONAME"]), ""),
            needed=tuple(t.needed for t in by_tag["DT_NEEDED"]),
            search_path=tuple(entry for path in paths for entry in path.split(":")),
            newest=_newest_versions(elf),
        )


def _newest_versions(elf: ELFFile) -> dict[str, str]:
    """Of each family of symbol versions, the newest that the file needs."""
    newest: dict[str, str] = {}
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for version in versions:
                    if found := _SYMBOL_VERSION.fullmatch(version.name):
                        newest[found[1]] = max(newest.get(found[1], "0"), found[2], key=release)
    return newest
