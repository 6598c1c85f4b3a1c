"""Build one component's wheel inside a clean container, from its specification, and say what was done.

Everything about the component comes from its rendered specification (JSON); everything about this machine (how many
jobs) comes from a secret, which by construction is no part of what the result depends on. Lines starting with
`::cleanroom::` are for the machine that started the container.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from file_times import settle

COMPILERS = ("nvcc", "gcc", "g++", "cc", "c++", "x86_64-linux-gnu-gcc", "x86_64-linux-gnu-g++")
LAUNCHER = Path("/opt/cleanroom/compile_launcher.py")
ENVIRONMENT = Path("/opt/venv")
TOOLKIT = Path("/usr/local/cuda")
BUILD = Path("/build")
OUT = Path("/out")
SAMPLE_SECONDS = 0.5


class Refused(Exception):
    """The build cannot be right, whatever the compiler says."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--component", type=Path, required=True, help="the rendered specification")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--resources", type=Path, required=True)
    parser.add_argument("--resume", type=Path, required=True)
    parser.add_argument("--slots", type=Path, required=True)
    options = parser.parse_args()
    component = json.loads(options.component.read_text())
    resources = json.loads(options.resources.read_text()) if options.resources.exists() else {"jobs": 1, "nvcc_threads": 1}
    OUT.mkdir(exist_ok=True)
    try:
        result = build(component, resources, options)
    except Refused as refusal:
        emit(event="error", component=component["name"], message=str(refusal))
        return 1
    (OUT / "result.json").write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    emit(event="result", **result)
    return 0


def build(component: dict[str, Any], resources: dict[str, int], options: argparse.Namespace) -> dict[str, Any]:
    emit(event="begin", component=component["name"], jobs=resources["jobs"], nvcc_threads=resources["nvcc_threads"])
    started = time.monotonic()
    source = unpack(component, options.source)
    changes = [*substitute(component, source), *provide(component, source)]
    settle(source)
    units = BUILD / "units.jsonl"
    units.write_text("")
    environment = build_environment(component, resources, options, units)
    with memory_watch() as memory, unit_reports(units):
        status = run_build(source, environment)
    if status:
        raise Refused(f"the build of {component['name']} ended with exit status {status}")
    wheel = check_wheel(component)
    compiled = [json.loads(line) for line in units.read_text().splitlines()]
    shutil.copyfile(units, OUT / "units.jsonl")
    return {
        "component": component["name"],
        "wheel": wheel.name,
        "wheel_sha256": sha256(wheel),
        "wheel_size": wheel.stat().st_size,
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(sum(unit["cpu_seconds"] for unit in compiled), 1),
        "peak_memory_bytes": memory["peak"],
        "units": len(compiled),
        "units_reused": sum(unit["reused"] for unit in compiled),
        "changes": changes,
    }


def unpack(component: dict[str, Any], archive: Path) -> Path:
    """Check, then unpack to a fixed path: paths end in debug information and symbol names."""
    found = sha256(archive)
    if found != component["source"]["sha256"]:
        raise Refused(f"{archive.name} has sha256 {found}, the lock says {component['source']['sha256']}")
    BUILD.mkdir(exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(BUILD, filter="data")
    except tarfile.TarError as error:
        raise Refused(f"{archive.name} cannot be unpacked safely: {error}") from None
    folders = [path for path in BUILD.iterdir() if path.is_dir()]
    if len(folders) != 1:
        raise Refused(f"{archive.name} holds {len(folders)} folders at its top, a source archive holds one")
    (top,) = folders
    source: Path = BUILD / component["name"]
    if top != source:
        top.rename(source)
    return source


def substitute(component: dict[str, Any], source: Path) -> list[str]:
    """Apply declared substitutions; one that does not occur exactly as often as declared fails the build."""
    done = []
    for change in component["substitute"]:
        path = inside(source, change["file"])
        if not path.is_file():
            raise Refused(f"{change['file']}: no such file in the source, so nothing could be substituted")
        text = path.read_text()
        found = text.count(change["match"])
        if found != change["count"]:
            raise Refused(f"{change['file']}: {change['match']!r} occurs {found} times, declared {change['count']}")
        path.write_text(text.replace(change["match"], change["replace"]))
        done.append(f"substituted in {change['file']}: {change['reason']}")
    return done


def provide(component: dict[str, Any], source: Path) -> list[str]:
    """Place files of our own that the archive lacks; never over one that it has."""
    done = []
    for provided in component["provides"]:
        path = inside(source, provided["file"])
        if path.exists():
            raise Refused(f"{provided['file']} exists in the source, so providing it would replace upstream's own")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(LAUNCHER.with_name(provided["origin"]), path)
        done.append(f"provided {provided['file']}: {provided['reason']}")
    return done


def inside(source: Path, name: str) -> Path:
    path = (source / name).resolve()
    if not path.is_relative_to(source.resolve()):
        raise Refused(f"{name} leaves the source tree")
    return path


def build_environment(
    component: dict[str, Any], resources: dict[str, int], options: argparse.Namespace, units: Path
) -> dict[str, str]:
    """A whole environment, nothing inherited: upstream's setup.py files write some variables into their packages."""
    launchers = BUILD / "launchers"
    launchers.mkdir()
    for name in COMPILERS:
        (launchers / name).symlink_to(LAUNCHER)
    path = [launchers, ENVIRONMENT / "bin", TOOLKIT / "bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"]
    environment = {
        "PATH": os.pathsep.join(map(str, [*path, "/sbin", "/bin"])),
        "HOME": str(BUILD / "home"),
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": os.environ["SOURCE_DATE_EPOCH"],
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "VIRTUAL_ENV": str(ENVIRONMENT),
        "CUDA_HOME": str(TOOLKIT),
        "PYTORCH_NVCC": str(launchers / "nvcc"),
        # For an nvcc called past the launcher; inside it, every unit gets a seed of its own.
        "NVCC_APPEND_FLAGS": "--objdir-as-tempdir --frandom-seed=cleanroom",
        # Headers of cuBLAS, cuSOLVER and cuSPARSE, which torch's headers include, come with torch's own dependencies.
        "CPATH": os.pathsep.join(map(str, sorted(ENVIRONMENT.glob("lib/python3*/site-packages/nvidia/cu*/include")))),
        "MAX_JOBS": str(resources["jobs"]),
        "CLEANROOM_UNITS": str(units),
        "CLEANROOM_RESUME": str(options.resume),
        "CLEANROOM_SLOTS": str(options.slots),
        "CLEANROOM_SLOT_COUNT": str(resources["jobs"]),
    }
    if not environment["CPATH"]:
        del environment["CPATH"]
    (BUILD / "home").mkdir()
    for variable in component["environment"]:
        environment[variable["name"]] = variable["value"].replace("{nvcc_threads}", str(resources["nvcc_threads"]))
    return environment


def run_build(source: Path, environment: dict[str, str]) -> int:
    """Build without isolation, against the locked environment, and without any index."""
    command: list[str | Path] = [ENVIRONMENT / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "wheel"]
    command += ["--verbose", "--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--wheel-dir", OUT, source]
    process = subprocess.Popen(command, env=environment, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    with (OUT / "build.log").open("wb") as log:
        for line in process.stdout:
            log.write(line)
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
    status = process.wait()
    return status if status >= 0 else 128 - status


def check_wheel(component: dict[str, Any]) -> Path:
    """The wheel is there, named as declared, and holds what it must."""
    wheels = sorted(OUT.glob("*.whl"))
    if len(wheels) != 1:
        raise Refused(f"expected one wheel, found {[wheel.name for wheel in wheels]}")
    (wheel,) = wheels
    name, version = wheel.name.split("-")[:2]
    wanted = (component["distribution"], component["version"])
    if (canonical(name), version) != (canonical(wanted[0]), wanted[1]):
        raise Refused(f"the wheel is named {wheel.name}, expected {wanted[0]} {wanted[1]}")
    names = zipfile.ZipFile(wheel).namelist()
    for pattern in [*component["extensions"], *component["contains"]]:
        if not fnmatch.filter(names, pattern):
            raise Refused(f"{wheel.name} holds no file {pattern}: it was built without a part of itself")
    pure = wheel.name.endswith("-none-any.whl")
    if pure and component["extensions"]:
        raise Refused(f"{wheel.name} is tagged as pure Python but must hold {component['extensions']}")
    return wheel


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@contextlib.contextmanager
def memory_watch() -> Iterator[dict[str, int]]:
    """The highest sum of resident memory of all processes in this container, in bytes, sampled twice a second."""
    seen = {"peak": 0}
    stop = threading.Event()

    def watch() -> None:
        while True:
            seen["peak"] = max(seen["peak"], resident_memory())
            if stop.wait(SAMPLE_SECONDS):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()


def resident_memory() -> int:
    total = 0
    for statm in Path("/proc").glob("[0-9]*/statm"):
        with contextlib.suppress(OSError, IndexError):
            total += int(statm.read_text().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def unit_reports(units: Path) -> Iterator[None]:
    """Repeat each finished translation unit on standard output as it happens: pip and ninja hold output back."""
    stop = threading.Event()

    def follow() -> None:
        with units.open() as stream:
            while True:
                last = stop.is_set()
                for line in stream.readlines():
                    print(f"::cleanroom:: {line.strip()}", flush=True)
                if last:
                    return
                stop.wait(SAMPLE_SECONDS)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        stop.set()
        follower.join()


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def emit(**event: object) -> None:
    print(f"::cleanroom:: {json.dumps(event)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
