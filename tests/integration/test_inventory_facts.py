"""What envs/sensitivity.yaml says about PTX, asked of the locked assembler itself. Needs its wheel, but no container."""

from __future__ import annotations

import io
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from cleanroom.arch import Arch
from cleanroom.console import Console
from cleanroom.envs import load_envs
from cleanroom.fetch import fetch
from cleanroom.lock import lock_path, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.sensitivity import Sensitivity, accepts, current_forms, load_sensitivity
from cleanroom.store import Store

HEAD = """.version 9.3
.target {sm}
.address_size 64
.visible .entry kernel() {{
.reg .b16 h<9>; .reg .b32 r<40>; .reg .b64 d<40>; .reg .f32 f<40>; .reg .pred p<9>;
"""
FAILED = re.compile(r"line (\d+); (?:error|fatal)")


@pytest.fixture(scope="module")
def ptxas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The assembler of the sm100 lock."""
    lock = read_lock(lock_path(REPOSITORY, "sm100-debian13"))
    entries = tuple(e for e in lock.group("toolkit") if e.name == "nvidia-cuda-nvcc")
    only = type(lock)(lock.target, lock.base, lock.inputs, lock.epoch, lock.notes, entries)
    store = Store.default()
    fetch(only, store, Console(stream=io.StringIO()), project=Project())
    with zipfile.ZipFile(store.path_of(entries[0].sha256)) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith("/bin/ptxas"))
        place = tmp_path_factory.mktemp("toolkit") / "ptxas"
        place.write_bytes(wheel.read(name))
    place.chmod(0o755)
    return place


def refused(ptxas: Path, form: Arch, facts: Sensitivity, folder: Path) -> set[str]:
    """The instructions whose example the assembler does not take for one form."""
    head = HEAD.format(sm=form.sm)
    first = head.count("\n") + 1
    source = folder / f"{form.sm}.ptx"
    source.write_text(head + "\n".join(i.example for i in facts.instructions) + "\nret;\n}\n")
    command = [str(ptxas), f"-arch={form.sm}", str(source), "-o", str(folder / f"{form.sm}.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = {int(line) - first for line in FAILED.findall(done.stdout + done.stderr)}
    assert (done.returncode == 0) == (not lines), done.stderr
    return {facts.instructions[i].name for i in lines}


def test_ptxas_accepts_each_instruction_for_exactly_the_forms_that_the_facts_say(ptxas: Path, tmp_path: Path) -> None:
    envs = load_envs(REPOSITORY / "envs")
    facts = load_sensitivity(envs)
    wrong = []
    for form in current_forms(envs.table):
        said = {i.name for i in facts.instructions if not accepts(form, i.needs, envs.table)}
        found = refused(ptxas, form, facts, tmp_path)
        wrong += [f"{name}: facts and ptxas disagree about {form.sm}" for name in sorted(said ^ found)]
    assert wrong == []
