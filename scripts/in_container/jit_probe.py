"""Compile, without a GPU, kernels that the image's packages would compile at run time, and say what came of each.

What to compile is a JSON file (rendered from envs/jit/ for one target). How comes from the installed packages: source
templates, headers, flags, compiler. Cubins are kept for the machine that started the container: a kernel compiled for
an architecture that it guards against is a stub, and only its machine code tells. Lines starting with `::cleanroom::`
are for that machine too.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NICENESS = 5
CUBIN_LIMIT = 16 << 20
"""Bytes of one cubin that is kept; the largest known has about 1 MB."""
POLL_SECONDS = 0.1
ERROR_LINES, ERROR_LENGTH = 6, 400
COMPILER_ERROR = re.compile(r"(error|fatal)\s*:\s*\S")
EXCEPTION = re.compile(r"^\w*(Error|Exception):")
TEMPLATE = re.compile(r'R"\((.*?)\)"', re.DOTALL)
LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)")
KERNEL = re.compile(r"(?:__global__|CUTLASS_GLOBAL)\s+(?:static\s+)?void\s+(\w+)\s*\(")
FLAG_SOURCE = "csrc/runtime/jit.hpp"
FLAG_LITERAL = re.compile(r'nvcc_flags(?:\.|->)\s*emplace_back\("([^"]+)"\)')
NO_VERDICT = re.compile(
    r"fatal error: \S+: No such file or directory|No space left on device"
    r"|died due to signal|Killed signal terminated|^nvcc: (Terminated|Killed)",
    re.MULTILINE,
)
"""The image lacks a header, or the machine memory or disk, or somebody ended a compiler: no word about the architecture."""
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class Failed(Exception):
    """The probe could not be made as declared; that says nothing about the architecture."""


@dataclass(frozen=True)
class Compiled:
    """What one call of a compiler left behind."""

    status: int
    log: str
    command: list[str]
    cubin: bytes
    cpu_seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probes", type=Path, required=True, help="what to compile (JSON)")
    parser.add_argument("--resources", type=Path, required=True, help="how many at once (JSON)")
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    wanted = json.loads(options.probes.read_text())
    jobs = json.loads(options.resources.read_text())["jobs"] if options.resources.exists() else 1
    (options.into / "cubins").mkdir(parents=True, exist_ok=True)
    os.nice(NICENESS)
    os.environ["TILELANG_CACHE_DIR"] = tempfile.mkdtemp(prefix="tilelang-")
    started = time.monotonic()
    components = {each["component"]: each for each in wanted["components"]}
    installed = [look_at(component) for component in components.values()]
    results = run_all(wanted, components, jobs, options.into)
    report = {"jobs": jobs, "seconds": round(time.monotonic() - started, 1), "installed": installed, "results": results}
    (options.into / "jit.json").write_text(json.dumps({"schema": 1, **report}, indent=2) + "\n")
    return 0


# --- what is installed -----------------------------------------------------------------------------------------------


def look_at(component: dict[str, Any]) -> dict[str, Any]:
    """Every kernel that the installed package could compile at run time, by family, and flags that are not there any more."""
    root = package_root(component["package"])
    if root is None:
        return {"component": component["component"], "families": {}, "drift": [f"{component['package']} is not installed"]}
    names = kernels_in_python if component["kind"] == "tilelang" else kernels_in_headers
    excluded = {path for pattern in component["excluded"] for path in root.glob(pattern)}
    families = {}
    for path in sorted({path for pattern in component["files"] for path in root.glob(pattern)} - excluded):
        if found := names(path.read_text(errors="replace")):
            families[family_of(component, path, root)] = found
    return {"component": component["component"], "families": families, "drift": drift(component, root)}


@functools.cache
def package_root(package: str) -> Path | None:
    """Where the package is installed, found without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def family_of(component: dict[str, Any], path: Path, root: Path) -> str:
    """A header by its path below include/<package>, a Python module by its path below the package."""
    relative = path.relative_to(root).with_suffix("")
    return relative.as_posix().removeprefix(f"include/{component['package']}/")


def kernels_in_headers(text: str) -> list[str]:
    return KERNEL.findall(LAUNCH_BOUNDS.sub("", COMMENT.sub("", text)))


def kernels_in_python(text: str) -> list[str]:
    """Functions decorated with tilelang.jit, called or not."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(d).startswith("tilelang.jit") for d in node.decorator_list)
    ]


def drift(component: dict[str, Any], root: Path) -> list[str]:
    """Flags that the installed files no longer confirm, and literals of theirs that our list does not have."""
    gone = [
        f"{flag['in']} no longer has {flag['found']}"
        for flag in component["flags"]
        if flag["found"] and not any(flag["found"].encode() in path.read_bytes() for path in root.glob(flag["in"]))
    ]
    source = root / FLAG_SOURCE
    added = FLAG_LITERAL.findall(source.read_text()) if source.is_file() else []
    known = {flag["flag"] for flag in component["flags"]} | set(component["conditional_flags"])
    return gone + [f"{FLAG_SOURCE} adds {flag}, which is not in the list" for flag in added if flag not in known]


# --- compiling -------------------------------------------------------------------------------------------------------


def run_all(wanted: dict[str, Any], components: dict[str, Any], jobs: int, into: Path) -> list[dict[str, Any]]:
    """Compile in the order given, as many at once as this machine's memory allows."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["jit_tilelang"])
    tilelang = {name for name, component in components.items() if component["kind"] == "tilelang"}
    modules = {f"{components[p['component']]['package']}.{p['module']}" for p in wanted["probes"] if p["component"] in tilelang}
    os.environ["CLEANROOM_JIT_PRELOAD"] = " ".join(sorted(modules))  # jit_tilelang.PRELOAD

    def run(probe: dict[str, Any]) -> dict[str, Any]:
        component = components[probe["component"]]
        result, cubin = try_one(component, probe, wanted["limit_seconds"], server)
        if 0 < len(cubin) <= CUBIN_LIMIT:
            result["cubin"] = f"cubins/{probe['number']}.cubin"
            (into / result["cubin"]).write_bytes(cubin)
        print(f"::cleanroom:: {json.dumps({'event': 'kernel', **result})}", flush=True)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, wanted["probes"]))


def try_one(component: dict[str, Any], probe: dict[str, Any], limit: float, server: Any) -> tuple[dict[str, Any], bytes]:
    started = time.monotonic()
    done = Compiled(1, "", [], b"")
    with tempfile.TemporaryDirectory(prefix="jit-") as folder:
        try:
            if component["kind"] == "tilelang":
                done = compile_tilelang(component, probe, Path(folder), limit, server)
            else:
                done = compile_deepjit(component, probe, Path(folder), limit)
            outcome = "compiled" if done.status == 0 and done.cubin else "failed" if NO_VERDICT.search(done.log) else "refused"
        except (Failed, OSError) as failure:
            outcome, done = "failed", Compiled(1, str(failure), [], b"")
    return {
        "number": probe["number"],
        "outcome": outcome,
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(done.cpu_seconds, 1),
        "command": done.command,
        "errors": [] if outcome == "compiled" else first_errors(done.log),
        "sha256": hashlib.sha256(done.cubin).hexdigest() if done.cubin else "",
        "size": len(done.cubin),
        "cubin": "",
    }, done.cubin


def compile_deepjit(component: dict[str, Any], probe: dict[str, Any], folder: Path, limit: float) -> Compiled:
    """As DeepJIT does: the source in an empty folder as kernel.cu, nvcc on it, kernel.cubin beside it."""
    root = package_root(component["package"])
    if root is None:
        raise Failed(f"{component['package']} is not installed")
    (folder / "kernel.cu").write_text(filled_template(root, probe))
    places = {"package": str(root)}
    if any("{nccl}" in flag["flag"] for flag in component["flags"]):
        places["nccl"] = nccl_root(root)
    command = [nvcc(), str(folder / "kernel.cu"), "--cubin", "--output-file", str(folder / "kernel.cubin")]
    command += [f"--gpu-architecture={probe['architecture']}", *(flag["flag"].format(**places) for flag in component["flags"])]
    for include in component["include"]:
        command += ["--include-path", include.format(**places)]
    with (folder / "kernel.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    status, cpu_seconds = ended(process, limit)
    if status < 0:
        raise Failed(f"nvcc was ended by signal {-status}")
    return collected(status, folder, command, cpu_seconds)


def ended(process: subprocess.Popen[bytes], limit: float) -> tuple[int, float]:
    """Its exit status, and the CPU time of it and its children: on a busy machine wall time says little."""
    deadline = time.monotonic() + limit
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, used.ru_utime + used.ru_stime
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Failed(f"no end within {limit:.0f} s")
        time.sleep(POLL_SECONDS)


def filled_template(root: Path, probe: dict[str, Any]) -> str:
    """The source that the package would generate: its own template with our arguments.

    A template that is gone, or that takes another number of arguments now, must not pass for a refusing compiler.
    """
    path = root / probe["template"]
    if not path.is_file():
        raise Failed(f"{probe['template']} is not in the package any more")
    found = [text for text in TEMPLATE.findall(path.read_text()) if probe["find"] in text]
    if len(found) != 1:
        raise Failed(f"{probe['template']} has {len(found)} templates with {probe['find']!r}, one is needed")
    arguments = list(probe["arguments"].values())
    places = sum(name is not None for _, name, _, _ in string.Formatter().parse(found[0]))
    if places != len(arguments):
        raise Failed(f"the template takes {places} arguments, our list has {len(arguments)}: upstream changed it")
    return str(found[0].format(*arguments))


def nvcc() -> str:
    """The compiler that DeepJIT takes: of CUDA_HOME, CUDA_PATH, the one in PATH, /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return str(Path(home) / "bin" / "nvcc")
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


@functools.cache
def nccl_root(package: Path) -> str:
    """Where DeepEP itself would find NCCL: its own search, without the package around it, which wants a driver."""
    spec = importlib.util.spec_from_file_location("find_pkgs", package / "utils" / "find_pkgs.py")
    if spec is None or spec.loader is None or not Path(spec.origin or "").is_file():
        raise Failed("deep_ep/utils/find_pkgs.py, which finds NCCL, is not in the package any more")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.find_nccl_root())


def compile_tilelang(component: dict[str, Any], probe: dict[str, Any], folder: Path, limit: float, server: Any) -> Compiled:
    """In a process forked from one that has imported torch and TileLang already."""
    if package_root(component["package"]) is None:
        raise Failed(f"{component['package']} is not installed")
    process = server.Process(target=in_forked_process, args=({**component, **probe}, folder))
    process.start()
    process.join(limit)
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        raise Failed(f"no end within {limit:.0f} s")
    if process.exitcode not in (0, 1):
        raise Failed(f"the compiling process ended with {process.exitcode}: {collected(1, folder, [], 0).log[-300:]}")
    note = json.loads((folder / "note.json").read_text())
    return collected(process.exitcode, folder, note["command"], note["cpu_seconds"])


def in_forked_process(probe: dict[str, Any], folder: Path) -> None:
    """Runs where torch and TileLang are imported already; here they are not, DeepJIT's kernels do without."""
    from jit_tilelang import compile_kernel  # noqa: PLC0415 - see above

    compile_kernel(probe, folder)


def collected(status: int, folder: Path, command: list[str], cpu_seconds: float) -> Compiled:
    log, cubin = folder / "kernel.log", folder / "kernel.cubin"
    return Compiled(
        status,
        log.read_text(errors="replace") if log.exists() else "",
        command,
        cubin.read_bytes() if cubin.exists() else b"",
        cpu_seconds,
    )


def first_errors(log: str) -> list[str]:
    """The first lines in which a compiler names an error, else an exception's, else the last lines of all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern in (COMPILER_ERROR, EXCEPTION):
        if errors := [line for line in lines if pattern.search(line)]:
            return [line[:ERROR_LENGTH] for line in errors[:ERROR_LINES]]
    return [line[:ERROR_LENGTH] for line in lines[-ERROR_LINES:]]


if __name__ == "__main__":
    sys.exit(main())
