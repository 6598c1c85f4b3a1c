"""Real logs in, the first root error out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from cleanroom.failure_tables import HEADERS, HINTS, RULES, Kind
from cleanroom.failures import classify, group, parse_events

LOGS = Path(__file__).parent / "data" / "logs"

# log: kind, where, the beginning of the message, a part of the hint
EXPECTED = {
    "arch-nvcc-unknown": ("architecture refused", "", "Unsupported gpu architecture 'compute_70'", "envs/architectures.yaml"),
    "arch-ptxas-future": ("architecture refused", "", "Program with .target 'sm_100a' cannot be", "family form"),
    "arch-ptxas-gpu-name": ("architecture refused", "", "Unsupported gpu architecture 'sm_99'", "envs/architectures.yaml"),
    "arch-ptxas-instruction": ("architecture refused", "wg.ptx:20", "Instruction 'wgmma.fence' not supported on", "lacks"),
    "arch-ptxas-objdir": ("architecture refused", "x.o.ptx:20", "Instruction 'wgmma.fence' not supported on", "lacks"),
    "arch-ptxas-portable": ("architecture refused", "tc.ptx:20", "Instruction 'tcgen05.wait' not supported on", "lacks"),
    "arch-ptxas-tcgen05": ("architecture refused", "tc.ptx:21", "Instruction 'tcgen05.wait' not supported on", "lacks"),
    "backend-missing": ("python error in setup", "", "ModuleNotFoundError: No module named 'hatchling'", "python.build"),
    "cmake": ("other", "CMakeLists.txt:3", 'By not providing "FindNowhere.cmake"', ""),
    "compile-gxx": ("compile error", "type.cpp:2", "invalid operands of types", ""),
    "compile-member": ("compile error", "member.cpp:2", "\u2018struct Requirements\u2019 has no member", "another release"),
    "compile-nvcc": ("compile error", "type.cu:1", 'identifier "undeclared_name" is undefined', "another release"),
    "disk-full-gxx": ("disk full", "", "big.cpp:7:62: fatal error: error writing to", "free space"),
    "disk-full-link": ("disk full", "", "/usr/bin/ld: final link failed: No space left on device", "free space"),
    "disk-full-nvcc": ("disk full", "", "<built-in>: fatal error: when writing output", "free space"),
    "disk-full-output": ("disk full", "", "/tmp/ccFVzYt5.s: Fatal error: can't write", "free space"),
    "disk-full-python": ("disk full", "<string>:1", "OSError: [Errno 28] No space left on device", "free space"),
    "header-cann": ("missing header", "ascend.cpp:1", "kernel_operator.h: No such file", "CANN"),
    "header-cccl": ("missing header", "cccl.cpp:1", "cuda/std/utility: No such file", "include/cccl"),
    "header-distutils": ("missing header", "s5.c:2", "numa.h: No such file", "libnuma-dev"),
    "header-format": ("missing header", "fmt.cpp:1", "format: No such file", "GCC 13"),
    "header-libdwfl": ("missing header", "dwfl.cpp:1", "elfutils/libdwfl.h: No such file", "libdw-dev"),
    "header-libdwfl-coloured": ("missing header", "dwfl.cpp:1", "elfutils/libdwfl.h: No such file", "libdw-dev"),
    "header-libdwfl-included": ("missing header", "jit.hpp:2", "elfutils/libdwfl.h: No such file", "libdw-dev"),
    "header-nccl-nvcc": ("missing header", "nccl.cu:1", "nccl.h: No such file", "nvidia-nccl-cu13"),
    "header-python": ("missing header", "py.cpp:1", "Python.h: No such file", "python3-dev"),
    "host-compiler": (
        "unsupported host compiler",
        "/usr/local/cuda-13.0/targets/x86_64-linux/include/crt/host_config.h:137",
        "#error -- unsupported GNU version!",
        "bounds",
    ),
    "link-cannot-find": ("link error", "", "cannot find -lcuda", "lib/stubs"),
    "link-multiple": ("link error", "d2.cpp", "multiple definition of `f()'", ""),
    "link-nvlink": ("link error", "", "Undefined reference to '_Z6helperf'", ""),
    "link-relocation": ("link error", "r.o", "relocation R_X86_64_PC32 against undefined symbol", ""),
    "link-undefined": ("link error", "ud.cpp", "undefined reference to `launch_kernel(int)'", ""),
    "link-undefined-data": ("link error", "so.cpp", "undefined reference to `other()'", ""),
    "link-undefined-debug": ("link error", "/build/so.cpp:1", "undefined reference to `other()'", ""),
    "make-parallel": ("missing header", "a.cpp:1", "elfutils/libdwfl.h: No such file", "libdw-dev"),
    "memory-killed-cc1plus": ("killed for memory", "", "g++: fatal error: Killed signal terminated program", "--jobs"),
    "memory-killed-cicc": ("killed for memory", "", "Killed", "--jobs"),
    "memory-killed-ninja": ("killed for memory", "/build/nk2/slow.cu", "Killed", "--jobs"),
    "memory-killed-nvcc": ("killed for memory", "", "Killed", "--jobs"),
    "memory-killed-nvcc-host": ("killed for memory", "", "gcc: fatal error: Killed signal terminated program", "--jobs"),
    "memory-killed-ptxas": ("killed for memory", "", "Killed", "--jobs"),
    "memory-ninja-137": ("killed for memory", "", "Killed", "--jobs"),
    "memory-ulimit-gxx": ("killed for memory", "", "virtual memory exhausted", "--jobs"),
    "memory-ulimit-nvcc": ("killed for memory", "", "out of memory", "--jobs"),
    "memory-ulimit-nvcc-cicc": ("killed for memory", "", "out of memory", "--jobs"),
    "network-no-distribution": ("network refused", "", "Could not find a version that satisfies", "python.build"),
    "network-refused": ("network refused", "setup.py:6", "urllib.error.URLError", "no network"),
    "ninja-parallel": ("missing header", "/build/nj/jit.hpp:2", "elfutils/libdwfl.h: No such file", "libdw-dev"),
    "ninja-stops": ("missing header", "/build/nj/jit.hpp:2", "elfutils/libdwfl.h: No such file", "libdw-dev"),
    "ptxas-arguments": ("compile error", "cvt.ptx:33", "Arguments mismatch for instruction 'cvt'", "other architectures"),
    "ptxas-version": ("compile error", "v.ptx:1", "Unsupported .version 9.9", "of one"),
    "python-assertion": ("python error in setup", "setup.py:4", "AssertionError: nvcc 13.1 or newer is needed, found 13.0", ""),
    "python-module-missing": ("python error in setup", "setup.py:2", "ModuleNotFoundError: No module named", "python.build"),
    "python-module-missing-plain": ("python error in setup", "/build/s1/setup.py:2", "ModuleNotFoundError", "python.build"),
    "python-syntax": ("python error in setup", "setup.py:2", "SyntaxError: invalid syntax", ""),
    "spill-verbose": ("other", "", "ptxas info    : Compile time", ""),
    "spill-werror": ("register spill", "", "Registers are spilled to local memory", "spill-free"),
    "static-assert-gxx": ("static assertion", "sa.cpp:1", "static assertion failed: tile size must be", "condition"),
    "static-assert-nvcc": ("static assertion", "sa.cu:2", 'static assertion failed with "this kernel needs SM100"', "refuses"),
    "timeout-coreutils": ("timeout", "", "timeout: sending signal TERM", "more time"),
    "timeout-python": ("timeout", "setup.py:3", "subprocess.TimeoutExpired: Command '['sleep', '5']'", "more time"),
    "tool-missing": ("missing tool", "setup.py:3", "FileNotFoundError", "nvidia-cuda-cuobjdump"),
    "tool-missing-distutils": ("missing tool", "", "[Errno 2] No such file or directory: 'g++-99'", "g++"),
    "tool-missing-shell": ("missing tool", "", "nvcc13: not found", "PATH"),
    "torch-extension": ("static assertion", "/build/s6/k.cu:2", "static assertion failed with", "refuses"),
    "torch-unknown-arch": ("architecture refused", "setup.py:5", "ValueError: Unknown CUDA arch (10.1)", "torch's own list"),
}


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def test_every_saved_log_is_expected_to_mean_something() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_gives_its_root_error(name: str) -> None:
    kind, where, message, hint = EXPECTED[name]
    failure = classify(log(name))
    assert (failure.kind, failure.where) == (kind, where)
    assert failure.message.startswith(message)
    assert hint in failure.hint
    assert bool(failure.hint) == bool(hint)
    assert failure.excerpt


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_group_holds_the_root_error(name: str) -> None:
    assert classify(log(name)) in [failure for failure, _ in group(log(name))]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_prefix_of_build_output_numbers_changes_nothing(name: str) -> None:
    prefixed = "\n".join(f"#14 12.{number % 1000:03d} {line}" for number, line in enumerate(log(name).split("\n")))
    assert classify(prefixed) == classify(log(name))


@pytest.mark.parametrize("name", EXPECTED)
def test_windows_line_ends_change_nothing(name: str) -> None:
    assert classify(log(name).replace("\n", "\r\n")) == classify(log(name))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_log_cut_anywhere_is_still_classified(name: str) -> None:
    text = log(name)
    for length in range(0, len(text), max(1, len(text) // 60)):
        assert classify(text[:length]).kind in get_args(Kind)
        assert group(text[length:])


def test_every_kind_that_a_log_can_show_has_a_real_log() -> None:
    ours = {"substitution refused", "refused by a check"}
    assert {kind for kind, *_ in EXPECTED.values()} | ours == set(get_args(Kind))
    assert {rule.kind for rule in RULES} | ours == set(get_args(Kind))


def test_one_cause_seen_by_many_parallel_steps_is_one_line() -> None:
    causes = [(failure.kind, count) for failure, count in group(log("ninja-parallel"))]
    assert causes == [
        ("missing header", 6),
        ("compile error", 1),
        ("compile error", 1),
        ("static assertion", 1),
        ("architecture refused", 1),
    ]


def test_what_ptxas_refuses_is_told_of_the_source_that_ninja_compiled() -> None:
    (refused,) = [failure for failure, _ in group(log("ninja-parallel")) if failure.kind == "architecture refused"]
    assert (refused.file, refused.line) == ("/build/nj/wg.cu", None)


def test_the_excerpt_shows_who_included_the_header() -> None:
    assert classify(log("header-libdwfl-included")).excerpt == (
        "In file included from api.cpp:1:",
        "jit.hpp:2:10: fatal error: elfutils/libdwfl.h: No such file or directory",
        "    2 | #include <elfutils/libdwfl.h>",
        "      |          ^~~~~~~~~~~~~~~~~~~~",
    )


def test_the_excerpt_carries_no_colour() -> None:
    assert classify(log("header-libdwfl-coloured")).excerpt == classify(log("header-libdwfl")).excerpt


def test_pip_and_torch_are_never_the_root() -> None:
    for name in EXPECTED:
        message = classify(log(name)).message
        assert "Error compiling objects" not in message
        assert "subprocess-exited-with-error" not in message
        assert "CalledProcessError" not in message


def test_a_warning_about_spills_is_not_a_failure() -> None:
    assert classify(log("spill-verbose")).kind == "other"


def test_compiler_errors_outside_failed_steps_do_not_hide_those_inside() -> None:
    probe = log("compile-gxx")  # such as a configure step that tries things
    assert classify(probe + log("ninja-stops")).kind == "missing header"


def test_a_caught_python_error_does_not_hide_the_compiler() -> None:
    assert classify(log("tool-missing") + log("compile-member")).kind == "compile error"


def test_an_earlier_step_that_failed_is_the_root_even_if_memory_ran_out_later() -> None:
    both = log("ninja-stops").replace("ninja: build stopped: subcommand failed.\n", "") + log("memory-killed-ninja")
    assert [failure.kind for failure, _ in group(both)] == ["missing header", "killed for memory"]
    assert classify(both).kind == "missing header"


def test_a_full_disk_explains_what_else_the_same_step_says() -> None:
    assert "undefined reference" in log("disk-full-link")
    assert [failure.kind for failure, _ in group(log("disk-full-link"))] == ["disk full"]


@pytest.mark.parametrize("status", ["exit code: 137", "exit status -9", "exit status 137", "died with <Signals.SIGKILL: 9>."])
def test_a_kill_without_a_word_is_probably_memory(status: str) -> None:
    assert classify(f"[1/2] g++ -c a.cpp\na.cpp:1:1: warning: unused\nprocess {status}\n").kind == "killed for memory"


def test_nvcc_that_gives_up_without_diagnosis_is_probably_memory_but_gcc_closing_a_fatal_error_is_not() -> None:
    assert classify("Compilation terminated.\n").kind == "killed for memory"
    assert classify("compilation terminated.\n").kind == "other"


def test_our_own_refusal_wins_over_noise() -> None:
    event = '::cleanroom:: {"event": "error", "component": "x", "message": "setup.py: \'sm_100a\' occurs 0 times, declared 1"}'
    failure = classify(log("compile-gxx") + event + "\n")
    assert (failure.kind, failure.file) == ("substitution refused", "setup.py")
    assert "occurs 0 times" in failure.message
    assert failure.hint


def test_a_check_of_ours_is_the_root_when_the_compilers_were_content() -> None:
    event = '::cleanroom:: {"event": "error", "component": "x", "message": "x.whl holds no file x/_C.*.so"}'
    assert classify("[1/1] g++ -c a.cpp\n" + event).kind == "refused by a check"


def test_our_word_that_the_build_ended_is_not_the_reason() -> None:
    event = '\n::cleanroom:: {"event": "error", "component": "x", "message": "the build of x ended with exit status 1"}\n'
    assert classify(log("torch-extension") + event) == classify(log("torch-extension"))
    assert classify(log("python-assertion") + event) == classify(log("python-assertion"))


@pytest.mark.parametrize(("status", "kind"), [("137", "killed for memory"), ("124", "timeout"), ("1", "other")])
def test_an_exit_status_alone_says_what_it_can(status: str, kind: str) -> None:
    event = f'::cleanroom:: {{"event": "error", "message": "the build of x ended with exit status {status}"}}'
    assert classify(event).kind == kind


def test_an_event_may_name_its_own_kind() -> None:
    event = '::cleanroom:: {"event": "error", "kind": "register spill", "message": "3 kernels spill"}'
    assert classify(event).kind == "register spill"


def test_nothing_in_particular_is_other_with_the_last_words() -> None:
    failure = classify("doing this\ndoing that\n\n")
    assert (failure.kind, failure.message, failure.where, failure.hint) == ("other", "doing that", "", "")
    assert failure.excerpt == ("doing this", "doing that")


def test_an_empty_log_says_that_it_is_empty() -> None:
    assert classify("").message == "the log is empty"
    assert group("") == ((classify(""), 1),)


def test_a_command_line_is_not_an_error() -> None:
    assert classify("g++ -DMESSAGE='error: x' -c error.cpp -o x.o\nall is well\n").message == "all is well"


def test_very_long_lines_end_in_time_and_are_shortened() -> None:
    assert classify("a:(b.c:1 " * 50_000).kind == "other"
    assert len(classify("a.cpp:1:1: error: " + "x" * 10_000).message) == 300


def test_events_are_read_and_torn_ones_left_out() -> None:
    text = (
        'x\n::cleanroom:: {"event": "begin", "jobs": 2}\n#9 1.25 ::cleanroom:: {"event": "unit"}\n'
        '::cleanroom:: {"event": "resu\n::cleanroom:: [1]\n'
    )
    assert parse_events(text) == ({"event": "begin", "jobs": 2}, {"event": "unit"})


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("nccl_device.h", "nvidia-nccl-cu13"),
        ("cub/cub.cuh", "include/cccl"),
        ("cuda_runtime_api.h", "nvidia-cuda-runtime"),
        ("cuda/ptx", "include/cccl"),
        ("cublasLt.h", "torch's own dependencies"),
        ("cute/tensor.hpp", "CUTLASS"),
        ("torch/extension.h", "without build isolation"),
        ("acl/acl.h", "CANN"),
        ("expected", "C++ standard library"),
        ("fmt/format", "apt-file"),
        ("fmt/format.h", "apt-file"),
        ("infiniband/verbs.h", "libibverbs-dev"),
        ("some/thing.h", "apt-file"),
    ],
)
def test_a_missing_header_names_where_it_comes_from(header: str, part: str) -> None:
    assert part in classify(f"a.cpp:1:10: fatal error: {header}: No such file or directory\n").hint


def test_tables_are_well_formed() -> None:
    for kind, pattern, hint in HINTS:
        assert kind in get_args(Kind)
        assert hint
        re.compile(pattern)
    for rule in RULES:
        assert "message" in rule.pattern.groupindex
    assert len({pattern for pattern, _ in HEADERS}) == len(HEADERS)


@pytest.mark.parametrize(
    ("library", "hint"),
    [
        ("libascend_hal.so", "devlib"),  # D42
        ("libmsprofiler.so", "set_env.sh"),  # D43
        ("libhccl.so", "set_env.sh"),  # D43
        ("libcuda.so.1", "no step of a build may need it"),
    ],
)
def test_a_library_that_only_a_driver_or_a_vendor_brings_is_told_with_what_helps(library: str, hint: str) -> None:
    message = f"ImportError: {library}: cannot open shared object file: No such file or directory"
    failure = classify(f'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n{message}\n')
    assert (failure.kind, failure.message) == ("python error in setup", message)
    assert hint in failure.hint
