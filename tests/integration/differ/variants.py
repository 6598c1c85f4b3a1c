"""Runs in the container: compiles one small CUDA library in many ways, each with one planted difference.

Writes /out/<variant>/library.so; what is planted is in VARIANTS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path("/in")
EPOCH = 1_764_000_000
BOTH = ("-gencode", "arch=compute_100a,code=sm_100a", "-gencode", "arch=compute_103a,code=[sm_103a,compute_103a]")
DETERMINISTIC = ("--objdir-as-tempdir", "--frandom-seed=cleanroom")
LINES = ("-lineinfo", "--source-in-ptx")


@dataclass(frozen=True)
class Variant:
    """One way to build the library. `time` is that of the sources and of the build, in seconds since 1970."""

    name: str
    options: tuple[str, ...] = ()
    folder: str = "/build/a"
    architectures: tuple[str, ...] = BOTH
    deterministic: bool = True
    time: int = EPOCH
    units: tuple[str, ...] = ("kernels",)
    link: tuple[str, ...] = ("-Wl,--build-id=sha1",)


VARIANTS = (
    Variant("plain"),
    Variant("again"),
    Variant("folder", folder="/build/b"),
    Variant("kernel", ("-DCHANGED_FOR_103",)),
    Variant("lost-architecture", architectures=BOTH[:2]),
    Variant("lost-kernel", ("-DWITHOUT_SUM",)),
    Variant("compression", ("--compress-mode=none",)),
    Variant("temporary-1", deterministic=False),
    Variant("temporary-2", deterministic=False),
    Variant("lines", LINES),
    Variant("lines-touched", LINES, time=EPOCH + 12_345),
    Variant("lines-longer-folder", LINES, folder="/build/in/another/folder"),
    Variant("stamped-1", ("-DSTAMPED",)),
    Variant("stamped-2", ("-DSTAMPED",), time=EPOCH + 12_345),
    Variant("user-1", ('-DBUILDER="alice@one"',)),
    Variant("user-2", ('-DBUILDER="robot@two"',)),
    Variant("build-id", link=("-Wl,--build-id=0x1234",)),
    Variant("order-1", units=("kernels", "other")),
    Variant("order-2", units=("other", "kernels")),
)


def main() -> None:
    groups: dict[str, list[Variant]] = {}
    for variant in VARIANTS:
        groups.setdefault(variant.folder, []).append(variant)
    with ThreadPoolExecutor(2) as workers:  # variants of one folder take turns in it
        for done in [workers.submit(lambda group=group: [build(variant) for variant in group]) for group in groups.values()]:
            done.result()


def build(variant: Variant) -> None:
    folder = Path(variant.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "SOURCE_DATE_EPOCH": str(variant.time), "LC_ALL": "C.UTF-8"}
    for unit in variant.units:
        source = folder / f"{unit}.cu"
        shutil.copyfile(SOURCES / source.name, source)
        os.utime(source, (variant.time, variant.time))
        options = [*variant.architectures, *(DETERMINISTIC if variant.deterministic else ()), *variant.options]
        command = ["nvcc", "-c", "-Xcompiler", "-fPIC", *options, str(source), "-o", f"{unit}.o"]
        subprocess.run(command, check=True, cwd=folder, env=environment)
    objects = [f"{unit}.o" for unit in variant.units]
    subprocess.run(["g++", "-shared", *variant.link, *objects, "-o", "library.so"], check=True, cwd=folder, env=environment)
    out = Path("/out") / variant.name
    out.mkdir(parents=True)
    shutil.copyfile(folder / "library.so", out / "library.so")


if __name__ == "__main__":
    main()
