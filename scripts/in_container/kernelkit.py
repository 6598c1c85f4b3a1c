"""Measures register spills in what FlashMLA's setup.py compiled, at the place of a module that its archive lacks.

It reads the machine code's own resource table with cuobjdump. A kernel spills when ptxas gave it local memory or a stack
frame. Upstream's own rule is not known, so this one never decides: it writes every spilling kernel down as a finding, and
the target's YAML says what is accepted and why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

FINDINGS = Path("/out/findings.jsonl")
KIND = "register spill"

_FUNCTION = re.compile(r"^\s*Function (\S+):\s*$")
_USAGE = re.compile(r"\b(STACK|LOCAL):(\d+)")
_ARCHITECTURE = re.compile(r"^arch = (\S+)$")


def check_kernel_reg_spill_in_artifact(path: str, *, quiet: bool = False, suppress_checking_env_var: str = "") -> list[str]:
    """No kernel is reported to the caller, who would stop; all that spill are in the findings, by architecture."""
    if suppress_checking_env_var and os.environ.get(suppress_checking_env_var) == "1":
        note(kind=KIND, message=f"not measured: skipped by {suppress_checking_env_var}")
        return []
    tool = os.path.join(os.environ["CUDA_HOME"], "bin", "cuobjdump")
    text = subprocess.run([tool, "-res-usage", str(path)], check=True, capture_output=True, text=True).stdout
    kernels, spilled = parse(text)
    if not kernels:
        raise RuntimeError(f"{path}: cuobjdump lists no kernel, so nothing was checked")
    for architecture, name, size in sorted(spilled):
        note(kind=KIND, architecture=architecture, kernel=name, message=f"{size} bytes of stack frame or local memory")
    if not quiet:
        print(f"{path}: {len(kernels)} kernels measured, {len(spilled)} with local memory or a stack frame")
    return []


def note(**finding: str) -> None:
    """Leave a finding for the machine that started the container."""
    with FINDINGS.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(finding) + "\n")


def parse(text: str) -> tuple[set[tuple[str, str]], set[tuple[str, str, int]]]:
    """Architecture and name of all kernels in a resource table, and those of them that spill, with their bytes."""
    kernels: set[tuple[str, str]] = set()
    spilled: set[tuple[str, str, int]] = set()
    architecture = name = ""
    for line in text.splitlines():
        if found := _ARCHITECTURE.match(line):
            architecture, name = found[1], ""
        elif found := _FUNCTION.match(line):
            name = found[1]
            kernels.add((architecture, name))
        elif name and (size := sum(int(value) for _, value in _USAGE.findall(line))):
            spilled.add((architecture, name, size))
    return kernels, spilled
