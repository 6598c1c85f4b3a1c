"""Look at the finished image from inside: what is installed, what imports without a GPU, and which tools answer."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

IMPORT_SECONDS = 300
TORCH_FIRST = "torch, " if importlib.util.find_spec("torch") else ""
DRIVER = "libcuda.so.1"
STAND_IN = Path("/usr/local/cuda/lib/stubs/libcuda.so")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", action="append", default=[], help="COMPONENT=MODULE to import; may be repeated")
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "os": "Linux" if sys.platform == "linux" else sys.platform,
        "release": os_release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "gcc": first(r"(\d+\.\d+\.\d+)", ["gcc", "-dumpfullversion"]),
        "glibc": platform.libc_ver()[1],
        "toolkit": first(r"V(\d+\.\d+\.\d+)", ["nvcc", "--version"]),
        "distributions": dict(sorted((d.metadata["Name"], d.version) for d in metadata.distributions())),
        "torch": torch_versions(),
        "pip_check": pip_check(),
        "imports": [try_import(*item.split("=")) for item in options.module],
    }
    options.into.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    for result in report["imports"]:
        print(f"{result['module']}: {'imports' if result['ok'] else result['error']}")
    return 0


def os_release() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", "")


def first(pattern: str, command: list[str]) -> str:
    """The first match in what a tool prints, or an empty string where the tool is absent."""
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    found = re.search(pattern, text)
    return found[1] if found else ""


def torch_versions() -> dict[str, str]:
    """The version of torch itself with its local part, which the distribution's metadata does not carry."""
    code = "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda': str(torch.version.cuda)}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def pip_check() -> list[str]:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else sorted(done.stdout.splitlines())


def try_import(component: str, module: str) -> dict[str, object]:
    """Import a module; where only the GPU driver's library is missing, again with the toolkit's stand-in for it.

    The image holds no driver, and must not: it comes with the machine. `error` then says that a stand-in was used.
    """
    error = import_error(module, {})
    if DRIVER in error:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / DRIVER).symlink_to(STAND_IN)
            again = import_error(module, {"LD_LIBRARY_PATH": folder})
        if not again:
            return {"component": component, "module": module, "ok": True, "error": f"with a stand-in for the driver's {DRIVER}"}
        error = again
    return {"component": component, "module": module, "ok": not error, "error": error}


def import_error(module: str, variables: dict[str, str]) -> str:
    """The last line of what an import says when it fails, in a process of its own: a crash must not hide the others.

    torch goes first where there is one: extensions find its libraries only because it has loaded them.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp", **variables}
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {TORCH_FIRST}{module}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=IMPORT_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {IMPORT_SECONDS} s"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit status {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
