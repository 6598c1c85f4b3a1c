"""The register-spill check that FlashMLA's setup.py runs on what it compiled, and whose module its archive lacks.

It reads the machine code's own resource table with cuobjdump. A kernel spills when ptxas gave it local memory or a
stack frame.
"""

from __future__ import annotations

import json
import os
import re
import subprocess

_FUNCTION = re.compile(r"^\s*Function (\S+):\s*$")
_USAGE = re.compile(r"\b(STACK|LOCAL):(\d+)")


def check_kernel_reg_spill_in_artifact(path: str, *, quiet: bool = False, suppress_checking_env_var: str = "") -> list[str]:
    """The mangled names of kernels in `path` that use local memory or a stack frame, sorted, each once."""
    if suppress_checking_env_var and os.environ.get(suppress_checking_env_var) == "1":
        skipped = {"event": "feature", "name": "register-spill check", "state": f"skipped by {suppress_checking_env_var}"}
        print(f"::cleanroom:: {json.dumps(skipped)}")
        return []
    tool = os.path.join(os.environ["CUDA_HOME"], "bin", "cuobjdump")
    text = subprocess.run([tool, "-res-usage", str(path)], check=True, capture_output=True, text=True).stdout
    kernels, spilled = parse(text)
    if not quiet:
        print(f"{path}: {len(kernels)} kernels, {len(spilled)} with local memory or a stack frame")
    if not kernels:
        raise RuntimeError(f"{path}: cuobjdump lists no kernel, so nothing was checked")
    return sorted(spilled)


def parse(text: str) -> tuple[set[str], set[str]]:
    """All kernels named in a resource table, and those of them that spill."""
    kernels: set[str] = set()
    spilled: set[str] = set()
    name = ""
    for line in text.splitlines():
        found = _FUNCTION.match(line)
        if found:
            name = found[1]
            kernels.add(name)
        elif name and any(int(value) for _, value in _USAGE.findall(line)):
            spilled.add(name)
    return kernels, spilled
