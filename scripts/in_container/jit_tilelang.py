"""Compile one TileLang kernel as the engine would on a card that is not here, and hand its device code over.

TileLang asks torch for the device's capability and compiles for what it hears. A container has no device, so torch is
made to answer for the wanted one; everything after that (target, compiler, flags, headers) is TileLang's own doing.
This module is imported once, in a server process that forks one child per kernel: importing torch, TileLang and the
packages takes longer than compiling most kernels.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# In the image only.
import tilelang  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from tilelang.contrib import nvcc  # type: ignore[import-not-found]

PRELOAD = "CLEANROOM_JIT_PRELOAD"
"""Variable that names modules to import before any fork; one that cannot be imported tells so in the child that needs it."""

for _name in os.environ.get(PRELOAD, "").split():
    with contextlib.suppress(Exception):
        importlib.import_module(_name)


def compile_kernel(probe: Mapping[str, Any], folder: Path) -> None:
    """Compile into `folder` (kernel.cubin, kernel.log, note.json with nvcc's command) and end the process: 0, or 1 if refused."""
    os.setsid()  # so that a time limit ends nvcc too
    log = os.open(folder / "kernel.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    answer_for(probe["capability"], probe["device"])
    commands: list[list[str]] = []
    keep_results(folder, commands)
    module = importlib.import_module(f"{probe['package']}.{probe['module']}")
    names = {"torch": torch, "tilelang": tilelang}
    for each in (*map(importlib.import_module, probe["names"]), module):
        names.update(vars(each))
    # Expressions of our own data, in the words of the module: data types and its configuration classes have no other form.
    arguments = {name: eval(expression, names) for name, expression in probe["arguments"].items()}
    status = 0
    try:
        getattr(module, probe["kernel"]).compile(**arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, its text is the result
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        status = 1
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    note = {"command": commands[-1] if commands else [], "cpu_seconds": sum(each.ru_utime + each.ru_stime for each in used)}
    (folder / "note.json").write_text(json.dumps(note))
    # Not through the interpreter's end: libraries that were loaded before the fork may hang there.
    os._exit(status)


def answer_for(capability: list[int], device: Mapping[str, int]) -> None:
    """Let torch answer as with one device of that capability; `device` holds attributes such as multi_processor_count."""
    properties = types.SimpleNamespace(major=capability[0], minor=capability[1], name="none", **device)
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (capability[0], capability[1])
    torch.cuda.get_device_properties = lambda *_: properties


def keep_results(folder: Path, commands: list[list[str]]) -> None:
    """Keep a copy of what nvcc was called with and what it made."""
    compile_cuda, start = nvcc.compile_cuda, subprocess.Popen.__init__

    def compile_and_keep(*arguments: Any, **options: Any) -> Any:
        binary = compile_cuda(*arguments, **options)
        (folder / "kernel.cubin").write_bytes(binary)
        return binary

    def start_and_note(self: subprocess.Popen[Any], command: Any, *arguments: Any, **options: Any) -> None:
        words = [command] if isinstance(command, str) else list(map(str, command))
        if Path(words[0]).name == "nvcc":
            commands.append(words)
        start(self, command, *arguments, **options)

    nvcc.compile_cuda = compile_and_keep
    subprocess.Popen.__init__ = start_and_note  # type: ignore[method-assign, assignment]
