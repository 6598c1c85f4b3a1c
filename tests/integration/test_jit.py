"""Kernels compiled at run time, compiled ahead of it: a real nvcc in the fixture's image, without a GPU or a network.

The package that compiles at run time is a toy of DeepJIT's shape; one kernel for each outcome.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from cleanroom.console import Console
from cleanroom.contexts import contexts
from cleanroom.engine import BuildRequest, LocalOutput, open_engine
from cleanroom.envs import Envs, load_envs
from cleanroom.jit import JitComponent, JitReport, read_jit, read_report, request
from cleanroom.lock import lock_path, read_lock
from cleanroom.project import Project
from cleanroom.store import Store
from cleanroom.strict_yaml import Mistakes

pytestmark = pytest.mark.integration

PACKAGE = "/opt/venv/lib/python3.13/site-packages/toy"
STAGES = f"""
FROM runtime AS jit-runtime
RUN --network=none \\
    --mount=type=bind,source=jit-request.json,target=/in/jit.json \\
    --mount=type=bind,source=toy,target={PACKAGE} \\
    --mount=type=bind,from=scripts,source=jit_probe.py,target=/opt/cleanroom/jit_probe.py \\
    --mount=type=secret,id=resources,target=/run/secrets/resources.json \\
    ["python", "/opt/cleanroom/jit_probe.py", "--probes", "/in/jit.json", "--resources", "/run/secrets/resources.json", "--into", "/out"]
FROM scratch AS jit
COPY --from=jit-runtime /out/ /
"""
JIT = """
component: vectors
kind: deepjit
package: toy
source: this test
compiles_for: {sm_100a: sm_100f}
flags:
  - {flag: -std=c++20, found: "-std=c++20", in: csrc/runtime/jit.hpp}
include: ["{package}/include"]
files: ["include/**/*.cuh"]
excluded: []
expectations:
  works: {reason: has work to do, outcomes: {sm_100a: compiled}}
  guarded: {reason: for 12.x only, outcomes: {sm_100a: stub}}
  hopper: {reason: wgmma is 9.0a only, outcomes: {sm_100a: refused}}
unused: []
families:
  - family: scale
    expect: works
    kernels:
      - {kernel: scale, template: csrc/launch.hpp, find: "toy/{}.cuh", arguments: {header: scale, kernel: "scale<4>"}}
      - kernel: scale
        variant: for the exact architecture
        architecture: exact
        template: csrc/launch.hpp
        find: "toy/{}.cuh"
        arguments: {header: scale, kernel: "scale<8>"}
      - {kernel: scale, variant: one argument too few, template: csrc/launch.hpp, find: "toy/{}.cuh", arguments: {header: scale}}
  - family: guarded
    expect: guarded
    kernels:
      - {kernel: guarded, template: csrc/launch.hpp, find: "toy/{}.cuh", arguments: {header: guarded, kernel: "guarded<4>"}}
  - family: hopper
    expect: hopper
    kernels:
      - {kernel: hopper, template: csrc/launch.hpp, find: "toy/{}.cuh", arguments: {header: hopper, kernel: "hopper<4>"}}
"""
SOURCES = {
    "__init__.py": "",
    "csrc/runtime/jit.hpp": 'nvcc_flags.emplace_back("-std=c++20");',
    "csrc/launch.hpp": """
jit->compile("any", std::format(R"(
#include <toy/{}.cuh>
static void __instantiate_kernel() {{
    auto ptr = reinterpret_cast<void*>(&{});
}}
)", header, kernel));
""",
    "include/toy/scale.cuh": "template <int N> __global__ void scale(float* x) { x[threadIdx.x] *= N; }",
    "include/toy/guarded.cuh": """
#include <cstdio>
template <int N> __global__ void guarded(float* x) {
#if __CUDA_ARCH__ >= 1200
    x[threadIdx.x] *= N;
#else
    printf("only for sm_120"); asm volatile("trap;");
#endif
}
""",
    "include/toy/hopper.cuh": 'template <int N> __global__ void hopper() { asm volatile("wgmma.fence.sync.aligned;"); }',
    "include/toy/added.cuh": "template <int N> __global__ void added(float* x) { x[threadIdx.x] += N; }",
}


def write_toy(place: Path) -> None:
    for name, text in SOURCES.items():
        path = place / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read_toy(place: Path, envs: Envs) -> tuple[JitComponent, ...]:
    (place / "jit").mkdir(parents=True)
    (place / "jit" / "vectors.yaml").write_text(JIT)
    return read_jit(place, "envs", envs.components, Mistakes())


@pytest.fixture(scope="module")
def report(built: Path, tmp_path_factory: pytest.TempPathFactory) -> JitReport:
    place = tmp_path_factory.mktemp("jit")
    project, store, console = Project(built), Store.default(), Console(stream=io.StringIO())
    envs = load_envs(project.envs_dir)
    target = envs.target("fixture")
    components = read_toy(place / "envs", envs)
    folder = place / "context"
    shutil.copytree(project.dockerfiles_dir / "fixture-debian13", folder)
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + STAGES)
    (folder / "jit-request.json").write_text(request(components, target))
    write_toy(folder)
    (place / "resources.json").write_text(json.dumps({"jobs": 2, "nvcc_threads": 1}))
    lock = read_lock(lock_path(project.root, "fixture-debian13"))
    with open_engine(store, project, console) as engine:
        engine.build(
            BuildRequest(
                dockerfile=folder / "Dockerfile",
                context=folder,
                target="jit",
                epoch=lock.epoch,
                contexts=contexts(lock, target.platform, store, console, bootstrapped=True),
                secrets={"resources": place / "resources.json"},
                output=LocalOutput(place / "out"),
            ),
            lambda _: None,
        )
    return read_report(place / "out", components, target)


def test_each_kernel_comes_to_what_its_code_makes_of_the_architecture(report: JitReport) -> None:
    assert [(r.kernel, r.architecture, r.outcome) for r in report.results] == [
        ("scale", "sm_100f", "compiled"),
        ("scale", "sm_100a", "compiled"),
        ("scale", "sm_100f", "failed"),
        ("guarded", "sm_100f", "stub"),
        ("hopper", "sm_100f", "refused"),
    ]
    assert [r.variant for r in report.surprises] == ["one argument too few"]


def test_a_refusal_carries_the_tools_own_words_and_the_command(report: JitReport) -> None:
    refused = report.results[-1]
    assert "wgmma" in " ".join(refused.errors)
    assert "--gpu-architecture=sm_100f" in refused.command
    assert refused.command[-1] == f"{PACKAGE}/include"


def test_what_compiled_has_machine_code_a_checksum_and_a_cost(report: JitReport) -> None:
    compiled = report.results[0]
    assert compiled.instructions > 0
    assert compiled.size > 0
    assert len(compiled.sha256) == 64
    assert compiled.cpu_seconds > 0
    assert report.kernels_per_minute > 0


def test_a_kernel_that_upstream_added_is_reported(report: JitReport) -> None:
    assert report.uncovered == ("vectors: added (added)",)
    assert report.drift == ()
