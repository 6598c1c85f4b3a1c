#!/usr/bin/env -S python3 -IS
"""Stand in front of every compiler call of a build: keep it deterministic, bounded, resumable and on record.

build_component.py puts links to this file, named after the compilers, first in PATH. Each call then
- waits for one of the machine's compile slots, shared by all components that build at the same time;
- gives nvcc the two options that make its output repeatable (`--objdir-as-tempdir`, and a `--frandom-seed` of its own
  for each translation unit, since the seed enters symbol names);
- takes the object from the resume cache where an interrupted build of the very same inputs left it;
- appends one line to a log: unit, architectures, seconds, memory, exit status.

Only the standard library, and little of it: this starts once for each translation unit.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time

SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")
THREADS = re.compile(r"(-t|--threads)(=?\d+)?")
DEPENDENCY_OPTIONS = ("-MF", "--dependency-output")


def main() -> int:
    name = os.path.basename(sys.argv[0])
    arguments = sys.argv[1:]
    leave_path()
    compiler = real_compiler(name)
    sources = [a for a in arguments if a.endswith(SOURCES) and not a.startswith("-")]
    output = value_of(arguments, "-o", "--output-file")
    compiles = any(a in ("-c", "--compile", "-dc", "--device-c", "--cubin", "-cubin") for a in arguments)
    if name == "nvcc":
        os.environ["NVCC_APPEND_FLAGS"] = f"--objdir-as-tempdir --frandom-seed={seed(sources, output)}"
    if not (compiles and len(sources) == 1 and output):
        return exit_status(subprocess.run([compiler, *arguments], check=False).returncode)
    return compile_unit(name, compiler, arguments, sources[0], output)


def leave_path() -> None:
    """Leave PATH: nvcc calls gcc through it, and were that us again, it would wait for a slot while its parent holds one."""
    own = os.path.dirname(os.path.abspath(sys.argv[0]))
    os.environ["PATH"] = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if os.path.abspath(p) != own)


def real_compiler(name: str) -> str:
    """The compiler of that name in PATH without our own folder; for nvcc, the toolkit's."""
    if name == "nvcc":
        return os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
    found = shutil.which(name)
    if found is None:
        sys.exit(f"{name}: no such compiler in {os.environ['PATH']}")
    return found


def value_of(arguments: list[str], *options: str) -> str | None:
    for option, value in itertools.pairwise(arguments):
        if option in options:
            return value
    return None


def seed(sources: list[str], output: str | None) -> str:
    return hashlib.sha256("\0".join([*sources, output or ""]).encode()).hexdigest()[:16]


def compile_unit(name: str, compiler: str, arguments: list[str], source: str, output: str) -> int:
    outputs = [output, *(v for v in [value_of(arguments, *DEPENDENCY_OPTIONS)] if v)]
    cache = os.environ.get("CLEANROOM_RESUME")
    entry = os.path.join(cache, cache_key(name, arguments, source)) if cache else None
    started = time.monotonic()
    if entry and os.path.isdir(entry):
        status, text, seconds, memory = restore(entry, outputs)
        reused = True
    else:
        with slot():
            started = time.monotonic()
            done = subprocess.run([compiler, *arguments], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        status, text, reused = done.returncode, done.stdout, False
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        if entry and status == 0:
            keep(entry, outputs, text, seconds, memory)
    sys.stdout.buffer.write(text)
    sys.stdout.flush()
    record(
        unit=source,
        output=output,
        compiler=name,
        architectures=architectures(arguments),
        exit_status=status,
        reused=reused,
        seconds=round(time.monotonic() - started, 2),
        cpu_seconds=round(seconds, 2),
        peak_memory_bytes=memory,
    )
    return exit_status(status)


def exit_status(returned: int) -> int:
    """As a shell reports it: 128 and the signal's number for a process that a signal ended."""
    return returned if returned >= 0 else 128 - returned


def cache_key(name: str, arguments: list[str], source: str) -> str:
    """The cache itself is one folder for one exact set of inputs; within it the call and the source decide.

    How many threads nvcc may use is this machine's matter, however it is spelled, and is left out.
    """
    call = []
    value_follows = False
    for argument in arguments:
        threads = THREADS.fullmatch(argument)
        if not value_follows and not threads:
            call.append(argument)
        value_follows = threads is not None and threads[2] is None
    digest = hashlib.sha256(json.dumps([name, call, os.getcwd()]).encode())
    with open(source, "rb") as stream:
        digest.update(stream.read())
    return digest.hexdigest()


def restore(entry: str, outputs: list[str]) -> tuple[int, bytes, float, int]:
    """Put the kept outputs in place; the cost reported is what they took when they were compiled."""
    for number, path in enumerate(outputs):
        shutil.copyfile(os.path.join(entry, str(number)), path)
    with open(os.path.join(entry, "text"), "rb") as stream:
        text = stream.read()
    with open(os.path.join(entry, "cost"), encoding="utf-8") as stream:
        seconds, memory = json.load(stream)
    return 0, text, seconds, memory


def keep(entry: str, outputs: list[str], text: bytes, seconds: float, memory: int) -> None:
    """Write aside, fsync, rename: a build killed here leaves nothing that a later one would take for an object."""
    aside = f"{entry}.{os.getpid()}"
    try:
        os.makedirs(aside, exist_ok=True)
        for number, path in enumerate(outputs):
            shutil.copyfile(path, os.path.join(aside, str(number)))
        with open(os.path.join(aside, "text"), "wb") as stream:
            stream.write(text)
        with open(os.path.join(aside, "cost"), "w", encoding="utf-8") as stream:
            json.dump([seconds, memory], stream)
        for kept in os.scandir(aside):
            with open(kept.path, "rb") as stream:
                os.fsync(stream.fileno())
        os.rename(aside, entry)
    except OSError:  # another job of the same unit was first, or the disk is full: the compile itself has succeeded
        shutil.rmtree(aside, ignore_errors=True)


class slot:  # noqa: N801 - reads as the word it is in `with slot():`
    """One of the machine's compile slots: a locked file in a folder that all building containers share."""

    def __enter__(self) -> None:
        folder, count = os.environ.get("CLEANROOM_SLOTS"), int(os.environ.get("CLEANROOM_SLOT_COUNT", "1"))
        self.handle = -1
        while folder:
            for number in range(count):
                handle = os.open(os.path.join(folder, f"slot-{number}"), os.O_CREAT | os.O_RDWR, 0o666)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(handle)
                else:
                    self.handle = handle
                    return
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        if self.handle >= 0:
            os.close(self.handle)


def architectures(arguments: list[str]) -> list[str]:
    """What nvcc was asked for, as written: `sm_100a`, `compute_100`."""
    found = []
    for option, value in zip(arguments, [*arguments[1:], ""], strict=False):
        text = value if option in ("-gencode", "--generate-code", "-arch", "--gpu-architecture") else ""
        for prefix in ("-gencode=", "--generate-code=", "-arch=", "--gpu-architecture="):
            text = option[len(prefix) :] if option.startswith(prefix) else text
        if "code=" in text:
            found += text.split("code=")[1].strip("[]'\"").split(",")
        elif text:
            found.append(text)
    return found


def record(**fields: object) -> None:
    log = os.environ.get("CLEANROOM_UNITS")
    if log:
        with open(log, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"event": "unit", **fields}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
