"""What the container's script reads from installed packages. Compiling itself is tested with a real nvcc (integration)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jit_probe
import pytest

TEMPLATE = """
static void launch() {
    jit->compile("scale", std::format(R"(
#include <toy/impls/scale.cuh>
static void __instantiate_kernel() {{
    auto ptr = reinterpret_cast<void*>(&scale_impl<{}, {}>);
}}
)", threads, factor));
    jit->compile("other", std::format(R"(&other_impl<{}>)", threads));
}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    (root / "csrc" / "runtime").mkdir(parents=True)
    (root / "include" / "toy" / "impls").mkdir(parents=True)
    (root / "csrc" / "scale.hpp").write_text(TEMPLATE)
    return root


def probe(**changes: Any) -> dict[str, Any]:
    return {"template": "csrc/scale.hpp", "find": "scale_impl", "arguments": {"threads": "128", "factor": "2"}, **changes}


def test_a_template_of_the_installed_package_is_filled_in_order(package: Path) -> None:
    assert jit_probe.filled_template(package, probe()) == (
        "\n#include <toy/impls/scale.cuh>\nstatic void __instantiate_kernel() {\n"
        "    auto ptr = reinterpret_cast<void*>(&scale_impl<128, 2>);\n}\n"
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"arguments": {"threads": "128"}}, "takes 2 arguments, our list has 1"),
        ({"arguments": {"a": "1", "b": "2", "c": "3"}}, "takes 2 arguments, our list has 3"),
        ({"find": "gone_impl"}, "has 0 templates with 'gone_impl'"),
        ({"find": "_impl<"}, "has 2 templates with '_impl<'"),
        ({"template": "csrc/gone.hpp"}, "csrc/gone.hpp is not in the package any more"),
    ],
)
def test_a_template_that_upstream_changed_is_a_failure_and_no_refusal(
    package: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(jit_probe.Failed) as failure:
        jit_probe.filled_template(package, probe(**changes))
    assert complaint in str(failure.value)


@pytest.mark.parametrize(
    "header",
    [
        "template <int N>\n__global__ void __launch_bounds__(N * 32, 1)\nkernel(int* x) {}",
        "CUTLASS_GLOBAL __launch_bounds__(get(N) + 1, 1) void\nkernel(const int x) {}",
        "CUTLASS_GLOBAL __launch_bounds__(32, 1)\nvoid kernel(const int x) {}",
        "// __global__ void old(int x)\n/* __global__ void older(int x) */ __global__ void kernel(int x) {}",
    ],
)
def test_kernels_are_found_however_their_launch_bounds_are_written(header: str) -> None:
    assert jit_probe.kernels_in_headers(header) == ["kernel"]


def test_device_functions_are_no_kernels() -> None:
    assert jit_probe.kernels_in_headers("__device__ void helper(int x) {} inline void host() {}") == []


def test_tilelang_functions_are_found_with_and_without_options() -> None:
    text = (
        "@tilelang.jit\ndef a(x): ...\n\n@tilelang.jit(target='cuda')\ndef b(): ...\n\n@T.prim_func\ndef c(): ...\n\ndef d(): ...\n"
    )
    assert jit_probe.kernels_in_python(text) == ["a", "b"]


def component(**changes: Any) -> dict[str, Any]:
    return {
        "component": "toy",
        "kind": "deepjit",
        "package": "toy",
        "flags": [],
        "conditional_flags": [],
        "files": ["include/**/*.cuh"],
        "excluded": [],
        **changes,
    }


def test_families_are_named_by_header_and_excluded_files_are_left_out(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("impls/scale.cuh", "impls/shift.cuh", "impls/npu.cuh"):
        (package / "include" / "toy" / name).write_text(f"__global__ void {Path(name).stem}_impl(int x) {{}}")
    (package / "include" / "toy" / "impls" / "helper.cuh").write_text("__device__ void helper() {}")
    monkeypatch.syspath_prepend(str(package.parent))
    jit_probe.package_root.cache_clear()
    found = jit_probe.look_at(component(excluded=["include/toy/impls/npu.cuh"]))
    assert found["families"] == {"impls/scale": ["scale_impl"], "impls/shift": ["shift_impl"]}
    assert found["drift"] == []


def test_a_package_that_is_missing_is_said_to_be_missing() -> None:
    assert jit_probe.look_at(component(package="no_such_package_here"))["drift"] == ["no_such_package_here is not installed"]


def test_flags_that_appear_or_disappear_upstream_are_reported(package: Path) -> None:
    (package / "csrc" / "runtime" / "jit.hpp").write_text(
        'nvcc_flags.emplace_back("-DOLD=1");\nnvcc_flags->\n    emplace_back("-DNEW=1");\nnvcc_flags.emplace_back("-I" + path);\n'
        'if (debug) nvcc_flags.emplace_back("-DDEBUG=1");\n'
    )
    flags = [
        {"flag": "-DOLD=1", "found": "-DOLD=1", "in": "csrc/runtime/jit.hpp"},
        {"flag": "-DGONE=1", "found": "-DGONE=1", "in": "csrc/runtime/jit.hpp"},
        {"flag": "-O3", "found": "", "in": ""},
    ]
    assert jit_probe.drift(component(flags=flags, conditional_flags=["-DDEBUG=1"]), package) == [
        "csrc/runtime/jit.hpp no longer has -DGONE=1",
        "csrc/runtime/jit.hpp adds -DNEW=1, which is not in the list",
    ]


def test_the_first_lines_that_name_an_error_are_kept_not_the_last_ones() -> None:
    log = "int generated;\nkernel.cu(3): error: no\nmore context\nptxas fatal : Unresolved\nCommand: nvcc\n"
    assert jit_probe.first_errors(log) == ["kernel.cu(3): error: no", "ptxas fatal : Unresolved"]
    assert jit_probe.first_errors("one\n\ntwo\n") == ["one", "two"]


def test_a_compilers_words_count_more_than_those_of_the_tool_that_called_it() -> None:
    log = "RuntimeError: #include <x>\nint generated;\nCompilation error:\nkernel.cu:1:10: fatal error: x: No such file or directory\n"
    assert jit_probe.first_errors(log) == ["kernel.cu:1:10: fatal error: x: No such file or directory"]
    assert jit_probe.first_errors("a line\nInternalError: PDL is not supported\nmore\n") == ["InternalError: PDL is not supported"]


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("kernel.cu:2:10: fatal error: curand_kernel.h: No such file or directory", False),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", False),
        ("g++: fatal error: Killed signal terminated program cc1plus", False),
        ("nvcc: Terminated", False),
        ("fatal error: error writing to /tmp/x.s: No space left on device", False),
        ("ptxas kernel.ptx, line 9; error : Instruction 'wgmma.fence' not supported on .target 'sm_100f'", True),
    ],
)
def test_what_the_image_or_the_machine_lacks_is_no_verdict_on_the_architecture(line: str, verdict: bool) -> None:
    assert (jit_probe.NO_VERDICT.search(f"first\n{line}\n") is None) is verdict


def test_a_compiler_that_does_not_end_is_ended_with_all_it_started() -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    with pytest.raises(jit_probe.Failed, match="no end within 0 s"):
        jit_probe.ended(process, 0.3)
    assert process.returncode == -9


def test_exit_status_and_cpu_time_of_a_compiler_are_taken() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True)
    status, cpu_seconds = jit_probe.ended(process, 60)
    assert (status, cpu_seconds > 0) == (3, True)
