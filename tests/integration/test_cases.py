"""Public failures of people who do this job, each on a small real input, compiled in a clean container.

The numbers are those of the cases. Each input is tried once, all in one container of the fixture's build environment; what
came of it is then read as a build's log or as a built wheel would be.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cleanroom import hygiene
from cleanroom.console import Console
from cleanroom.contexts import contexts
from cleanroom.engine import BuildRequest, LocalOutput, open_engine
from cleanroom.envs import load_envs
from cleanroom.evidence import gather, of_wheel
from cleanroom.examine import warned
from cleanroom.failures import Failure, classify
from cleanroom.lock import lock_path, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.store import Store

pytestmark = pytest.mark.integration

RUNNER = """
import json, pathlib, shutil, subprocess, sys
for name, case in json.load(open("/in/cases.json")).items():
    place, out = pathlib.Path("/work", name), pathlib.Path("/out", name)
    place.mkdir(parents=True), out.mkdir(parents=True)
    for file, text in case["files"].items():
        (place / file).write_text(text)
        (place / file).chmod(0o755)
    log, status = "", 0
    for command in case["commands"]:
        done = subprocess.run(command, cwd=place, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        log, status = log + done.stdout, done.returncode
        if status:
            break
    (out / "outcome.json").write_text(json.dumps({"status": status, "log": log}))
    for made in place.glob("*.so"):
        shutil.copy(made, out)
"""
STAGES = """
FROM build-environment AS try-cases
RUN --network=none --mount=type=bind,source=cases,target=/in ["python3", "/in/run.py"]
FROM scratch AS cases
COPY --from=try-cases /out/ /
"""
KERNEL = "__global__ void scale(float* x) { x[threadIdx.x] *= 2; }\n"
GUARDED = 'template <int N> __global__ void need() {\n#ifdef __CUDA_ARCH__\nstatic_assert(__CUDA_ARCH__ >= 1000, "needs SM100");\n#endif\n}\n'
LIBRARY = "nvcc -shared -Xcompiler -fPIC -objtemp"
OF_SM100 = """
extern "C" __global__ void scale(float* x) {
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1100
    x[threadIdx.x] *= 2;
#else
    asm volatile("trap;");
#endif
}
"""
DROPS_SUFFIXES = """
import subprocess
codes = []
for text in "8.9 9.0a".split():
    try:
        codes.append(f"{float(text) * 10:.0f}")
    except ValueError:
        pass
flags = [part for c in codes for part in ("-gencode", f"arch=compute_{c},code=sm_{c}")]
subprocess.run(["nvcc", "-shared", "-Xcompiler", "-fPIC", *flags, "a.cu", "-o", "a.so"], check=True)
"""


@dataclass(frozen=True)
class Case:
    """Files to write and shell commands to run, the first that fails being the last."""

    commands: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=lambda: {"a.cu": KERNEL})


CASES: Mapping[str, Case] = {
    "native": Case((f"{LIBRARY} -arch=native a.cu -o a.so",)),
    "unknown architecture": Case(("nvcc -gencode arch=compute_130,code=sm_130 -c a.cu",)),
    "dropped architecture": Case(("nvcc -gencode arch=compute_70,code=sm_70 -c a.cu",)),
    "later architecture": Case(("nvcc -gencode arch=compute_100a,code=sm_103a -c a.cu",)),
    "for this one only": Case((f"{LIBRARY} -gencode arch=compute_100a,code=sm_100a a.cu -o a.so",)),
    "for the family": Case((f"{LIBRARY} -gencode arch=compute_100f,code=sm_100f a.cu -o a.so",)),
    "with PTX": Case((f"{LIBRARY} -gencode arch=compute_100,code=[sm_100,compute_100] a.cu -o a.so",)),
    "wrong pass": Case(
        ("nvcc -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100a,code=sm_100a -c a.cu",),
        {"a.cu": GUARDED + "template __global__ void need<1>();\n"},
    ),
    "right pass": Case(
        ("nvcc -gencode arch=compute_100a,code=sm_100a -c a.cu",), {"a.cu": GUARDED + "template __global__ void need<1>();\n"}
    ),
    "lost architecture": Case(
        (
            "nvcc -rdc=true -Xcompiler -fPIC -gencode arch=compute_100a,code=sm_100a -c a.cu b.cu",
            "nvcc -dlink -Xcompiler -fPIC a.o b.o -o device.o",
            "g++ -shared a.o b.o device.o -o a.so",
        ),
        {
            "a.cu": "__device__ float half(float);\n__global__ void scale(float* x) { *x = half(*x); }\n",
            "b.cu": "__device__ float half(float x) { return x / 2; }\n",
        },
    ),
    "dropped suffix": Case(("python3 setup.py",), {"a.cu": KERNEL, "setup.py": DROPS_SUFFIXES}),
    "more than asked": Case(
        (f"{LIBRARY} -gencode arch=compute_100a,code=sm_100a -gencode arch=compute_103a,code=sm_103a a.cu -o a.so",)
    ),
    "only stubs": Case((f"{LIBRARY} -gencode arch=compute_120f,code=sm_120f a.cu -o a.so",), {"a.cu": OF_SM100}),
    "system header": Case(("g++ -c a.cpp",), {"a.cpp": "#include <elfutils/libdwfl.h>\n"}),
    "host compiler": Case(
        ("nvcc -ccbin ./too-new -arch sm_100a -c a.cu",),
        {"a.cu": KERNEL, "too-new": '#!/bin/sh\nexec g++ -U__GNUC__ -D__GNUC__=99 "$@"\n'},
    ),
    "CCCL": Case(('g++ -I"$CUDA_HOME/include" -c a.cpp',), {"a.cpp": "#include <cuda/std/utility>\n"}),
    "driver": Case(("g++ -shared -fPIC a.cpp -lcuda -o a.so",), {"a.cpp": "int a() { return 1; }\n"}),
    "driver stub": Case(
        ('g++ -shared -fPIC a.cpp -L"$CUDA_HOME/lib/stubs" -lcuda -o a.so',),
        {"a.cpp": 'extern "C" int cuInit(unsigned);\nint a() { return cuInit(0); }\n'},
    ),
    "memory": Case(
        ("ulimit -v 150000; g++ -O2 -c a.cpp",), {"a.cpp": '#include <bits/stdc++.h>\n#include <regex>\nstd::regex r("a");\n'}
    ),
    "killed": Case(("sh ./killed; exit $?",), {"killed": "sleep 5 & kill -9 $!; wait $!; echo Killed; exit 137\n"}),
    "disk": Case(("g++ -S a.cpp -o /dev/full",), {"a.cpp": "int a() { return 1; }\n"}),
    "other torch": Case(
        ("g++ -shared -fPIC a.cpp -o a.so",),
        {"a.cpp": '#include <string>\nnamespace c10 { void raise(const std::string&); }\nvoid a() { c10::raise(""); }\n'},
    ),
    "absent library": Case(
        (
            "g++ -shared -fPIC -Wl,-soname,libnvrtc.so.12 b.cpp -o libnvrtc.so.12",
            "g++ -shared -fPIC a.cpp ./libnvrtc.so.12 -o a.so",
        ),
        {"a.cpp": "int b();\nint a() { return b(); }\n", "b.cpp": "int b() { return 1; }\n"},
    ),
    "newer glibc": Case(
        ("g++ -shared -fPIC a.cpp -o a.so",), {"a.cpp": "#include <cstdlib>\nunsigned a() { return arc4random(); }\n"}
    ),
}


@dataclass(frozen=True)
class Tried:
    """What became of one case."""

    status: int
    log: str
    folder: Path

    @property
    def failure(self) -> Failure:
        assert self.status != 0, self.log
        return classify(self.log)

    def wheel(self, place: Path, tag: str = "manylinux_2_41_x86_64") -> Path:
        """A wheel that holds what was made."""
        assert self.status == 0, self.log
        place.mkdir(exist_ok=True)
        path = place / f"things-1.0-cp313-cp313-{tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(self.folder / "a.so", "things/a.so")
        return path


@pytest.fixture(scope="module")
def tried(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tried]:
    place = tmp_path_factory.mktemp("cases")
    project, store, console = Project(built), Store.default(), Console(stream=io.StringIO())
    target = load_envs(project.envs_dir).target("fixture")
    folder = place / "context"
    shutil.copytree(project.dockerfiles_dir / "fixture-debian13", folder)
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + STAGES)
    (folder / "cases").mkdir()
    (folder / "cases" / "run.py").write_text(RUNNER)
    cases = {name: {"files": dict(case.files), "commands": case.commands} for name, case in CASES.items()}
    (folder / "cases" / "cases.json").write_text(json.dumps(cases))
    lock = read_lock(lock_path(project.root, "fixture-debian13"))
    with open_engine(store, project, console) as engine:
        places = contexts(lock, target.platform, store, console, bootstrapped=True)
        out = LocalOutput(place / "out")
        engine.build(BuildRequest(folder / "Dockerfile", folder, "cases", lock.epoch, places, output=out), lambda _: None)
    outcomes = {name: json.loads((place / "out" / name / "outcome.json").read_text()) for name in CASES}
    return {name: Tried(each["status"], each["log"], place / "out" / name) for name, each in outcomes.items()}


@pytest.mark.parametrize(
    ("name", "kind", "says", "hint"),
    [
        ("unknown architecture", "architecture refused", "compute_130", "architectures.yaml"),  # D01
        ("dropped architecture", "architecture refused", "compute_70", "architectures.yaml"),  # D10
        ("later architecture", "architecture refused", "future architecture", "family form"),  # D02
        ("wrong pass", "static assertion", "needs SM100", ""),  # D05
        ("system header", "missing header", "elfutils/libdwfl.h", "libdw-dev"),  # D12
        ("host compiler", "unsupported host compiler", "GNU", "never set"),  # D13
        ("CCCL", "missing header", "cuda/std/utility", "include/cccl"),  # D14
        ("driver", "link error", "-lcuda", "lib/stubs"),  # D15
        ("memory", "killed for memory", "memory", "--jobs 1"),  # D16
        ("killed", "killed for memory", "Killed", "--jobs 1"),  # D16
        ("disk", "disk full", "No space left", "free space"),  # D36
    ],
)
def test_a_failure_is_told_by_kind_with_what_helps(tried: Mapping[str, Tried], name: str, kind: str, says: str, hint: str) -> None:
    failure = tried[name].failure
    assert failure.kind == kind, tried[name].log
    assert says in failure.message
    assert hint in failure.hint


def test_the_pass_that_fails_is_named_with_file_and_line_and_the_other_builds(tried: Mapping[str, Tried]) -> None:  # D05
    assert tried["wrong pass"].failure.where == "a.cu:3"
    assert tried["right pass"].status == 0


@pytest.mark.parametrize(
    ("name", "runs_on"),
    [
        ("for this one only", {"10.0": "runs", "10.3": "does not run", "12.0": "does not run"}),  # D02
        ("for the family", {"10.0": "runs", "10.3": "runs", "12.0": "does not run"}),
        ("with PTX", {"10.0": "runs", "10.3": "runs", "12.0": "runs by PTX"}),
        ("native", {"9.0": "runs by PTX", "10.0": "runs by PTX"}),  # D08: without a GPU, nvcc takes sm_75 and succeeds
    ],
)
def test_where_machine_code_runs_is_read_from_it(
    tried: Mapping[str, Tried], name: str, runs_on: Mapping[str, str], tmp_path: Path
) -> None:
    found = of_wheel(tried[name].wheel(tmp_path), load_envs(REPOSITORY / "envs").table).runs_on
    assert {capability: found[capability] for capability in runs_on} == dict(runs_on)


@pytest.mark.parametrize(
    ("name", "asked", "found", "kind", "says"),
    [
        ("lost architecture", "sm_100a", (), "missing architecture", "holds sm_75"),  # D03
        ("dropped suffix", "sm_89 sm_90a", ("sm_89",), "missing architecture", "asked for sm_90a"),  # D07
        ("more than asked", "sm_100a", ("sm_100a", "sm_103a"), "surplus architecture", "sm_103a, which was not asked for"),  # D09
        ("only stubs", "sm_120f", (), "missing architecture", "all 1 kernels compiled for it are stubs"),  # D11
    ],
)
def test_a_green_build_that_is_not_what_was_asked_for_is_told(
    tried: Mapping[str, Tried], name: str, asked: str, found: tuple[str, ...], kind: str, says: str, tmp_path: Path
) -> None:
    tried[name].wheel(tmp_path / "flashmla")
    envs = load_envs(REPOSITORY / "envs")
    evidence = gather({"flashmla": tuple(asked.split())}, tmp_path, envs.components, envs.table)
    assert evidence.components[0].found == found
    assert any(f.kind == kind and says in f.message for f in evidence.findings), evidence.findings


def test_a_device_link_that_loses_the_architecture_is_told_from_the_log_too(
    tried: Mapping[str, Tried], tmp_path: Path
) -> None:  # D03
    (tmp_path / "flashmla").mkdir()
    (tmp_path / "flashmla" / "build.log").write_text(tried["lost architecture"].log)
    (finding,) = warned(tmp_path, ["flashmla"])
    assert (finding.kind, finding.severity) == ("device link", "degrades")
    assert "SM Arch" in finding.message


def examined(path: Path) -> list[tuple[str, str]]:
    """Kind and message of what hygiene finds in a wheel, for an image of Debian 13 with nothing else in it."""
    rules = hygiene.read_rules(REPOSITORY / "envs")
    packages = frozenset({"libc6", "libstdc++6", "libgcc-s1"})
    place = hygiene.Place("linux/amd64", "2.41", packages, frozenset())
    found = (*hygiene.examine({"things": path}, {}, place, rules), *hygiene.unresolved({"things": path}, [], rules, "cuda-wheels"))
    return [(f.kind, f.message) for f in found if f.severity != "note"]


def test_a_library_that_needs_the_driver_needs_nothing_else(tried: Mapping[str, Tried], tmp_path: Path) -> None:  # D15
    assert examined(tried["driver stub"].wheel(tmp_path)) == []


def test_an_extension_of_another_torch_is_told_by_the_symbol_that_is_missing(
    tried: Mapping[str, Tried], tmp_path: Path
) -> None:  # D18
    ((kind, message),) = examined(tried["other torch"].wheel(tmp_path))
    assert kind == "unresolved symbols"
    assert "c10" in message


def test_a_library_of_another_major_release_is_absent(tried: Mapping[str, Tried], tmp_path: Path) -> None:  # D19
    assert any("libnvrtc.so.12" in message for _, message in examined(tried["absent library"].wheel(tmp_path)))


def test_a_tag_that_promises_an_older_glibc_is_found_out(tried: Mapping[str, Tried], tmp_path: Path) -> None:  # D20
    assert examined(tried["newer glibc"].wheel(tmp_path / "honest")) == []
    ((_, message),) = examined(tried["newer glibc"].wheel(tmp_path / "boasting", "manylinux_2_17_x86_64"))
    assert "2.36" in message
    assert "2.17" in message
