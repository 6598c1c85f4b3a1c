"""Assemble a CUDA toolkit tree from its wheels, in a place of its own.

The wheels unpack to nvidia/cu<major>/{bin,include,lib,nvvm}, the same folder that torch's CUDA libraries of another
release use; kept apart they cannot overwrite one another. Compilers and build scripts also expect links and a driver
stub that no wheel carries. Run again on a tree that is there, with --headers, it adds the headers of further wheels.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from file_times import settle

EXECUTABLE_FOLDERS = ("bin", "nvvm/bin")
STUB_SONAME = "libcuda.so.1"
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE of cuda.h."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--wheels", type=Path)
    what.add_argument("--headers", type=Path, help="wheels of which to add the headers to a tree that is there")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--triple", default="", help="x86_64-linux or sbsa-linux; needed for a new tree")
    options = parser.parse_args()
    folder = options.headers or options.wheels
    owners: dict[PurePosixPath, str] = {}
    for wheel in sorted(folder.glob("*.whl")):
        unpack(wheel, options.into, owners, within="include" if options.headers else "")
    if not owners:
        print(f"No toolkit files in {folder}", file=sys.stderr)
        return 1
    if options.wheels:
        add_links(options.into, options.triple)
        add_driver_stub(options.into)
        settle(options.into)
    else:
        settle_added(options.into, owners)
    print(f"{len(owners)} files of {len(set(owners.values()))} wheels in {options.into}")
    return 0


def unpack(wheel: Path, into: Path, owners: dict[PurePosixPath, str], within: str = "") -> None:
    """Unpack what lies under nvidia/cu<major>/, or only in the folder `within` of it.

    Two wheels that bring one path are an error, never a race.
    """
    with zipfile.ZipFile(wheel) as archive:
        for item in sorted(archive.infolist(), key=lambda item: item.filename):
            parts = PurePosixPath(item.filename).parts
            if item.is_dir() or len(parts) < 3 or parts[0] != "nvidia" or not parts[1].startswith("cu"):
                continue
            if ".." in parts:
                raise SystemExit(f"{wheel.name}: {item.filename} leaves its folder")
            path = PurePosixPath(*parts[2:])
            if within and path.parts[0] != within:
                continue
            if path not in owners and (into / path).exists():
                raise SystemExit(f"{path} of {wheel.name} is in {into} already")
            if path in owners and owners[path] != wheel.name:
                raise SystemExit(f"{path} is brought by {owners[path]} and by {wheel.name}")
            owners[path] = wheel.name
            destination = into / path
            destination.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(item) as source, destination.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            executable = str(path.parent) in EXECUTABLE_FOLDERS and path.suffix != ".profile"
            destination.chmod(0o755 if executable else 0o644)


def settle_added(root: Path, added: Iterable[PurePosixPath]) -> None:
    """Set the times of these files and the folders above them. Touching others would copy the tree into one more layer."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in sorted({each for file in added for each in (file, *file.parents)}, reverse=True):
        os.utime(root / path, (epoch, epoch))


def add_links(root: Path, triple: str) -> None:
    """What build scripts look for: lib64, unversioned library names, targets/<triple>."""
    (root / "lib64").symlink_to("lib")
    for library in sorted((root / "lib").glob("*.so.*")):
        plain = library.with_name(library.name.split(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    target = root / "targets" / triple
    target.mkdir(parents=True)
    (target / "include").symlink_to("../../include")
    (target / "lib").symlink_to("../../lib")


def add_driver_stub(root: Path) -> None:
    """A libcuda.so to link against: the real one comes with the driver, on the machine that has the GPU.

    It has to define the driver's functions. Debian's gcc links with --as-needed, which drops a library that defines nothing
    anybody asked for, and then no loader would ever look for the driver. Every function says that there is no device.
    """
    names = driver_functions((root / "include" / "cuda.h").read_text())
    source = "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names)
    stubs = root / "lib" / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    options: list[str | Path] = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{STUB_SONAME}", "-Wl,--build-id=none"]
    options += ["-o", stubs / "libcuda.so"]
    subprocess.run(["gcc", *options, "-xc", "-"], input=source, text=True, check=True)


def driver_functions(header: str) -> list[str]:
    """The functions that cuda.h declares, and those that its macros put in their place (cuMemAlloc is cuMemAlloc_v2)."""
    declared = re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", header)
    replaced = re.findall(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_PT\w+\()?(cu[A-Z]\w*)", header, re.MULTILINE)
    return sorted({*declared, *replaced})


if __name__ == "__main__":
    sys.exit(main())
