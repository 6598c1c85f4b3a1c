"""What a target accepts of the findings about it, and what containers leave behind as findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cleanroom.envs import load_envs
from cleanroom.evidence import Finding
from cleanroom.examine import at_run_time, noted, settled, warned
from cleanroom.failure_tables import SILENT
from cleanroom.jit import JitReport, JitResult, Outcome, Result
from cleanroom.project import REPOSITORY
from cleanroom.target import Accepted, Target

SPILL = Finding("flashmla", "register spill", "degrades", "f spills")


@pytest.fixture(scope="module")
def sm100() -> Target:
    return replace(load_envs(REPOSITORY / "envs").target("sm100"), accepts=())


def test_a_degradation_that_a_supported_target_does_not_accept_fails_it(sm100: Target) -> None:
    (finding,) = settled([SPILL], sm100, ["flashmla"])
    assert finding.severity == "fails"
    assert finding.message == "f spills - not accepted in the target's YAML"


def test_an_accepted_degradation_is_a_note_that_carries_the_reason(sm100: Target) -> None:
    accepting = replace(sm100, accepts=(Accepted("flashmla", "register spill", "measured"),))
    (finding,) = settled([SPILL], accepting, ["flashmla"])
    assert (finding.severity, finding.message) == ("note", "f spills - accepted: measured")


def test_an_acceptance_is_for_one_component_and_one_kind(sm100: Target) -> None:
    accepting = replace(sm100, accepts=(Accepted("deepgemm", "register spill", "measured"),))
    severities = [f.severity for f in settled([SPILL], accepting, ["flashmla"])]
    assert severities == ["fails"]


def test_a_failure_is_accepted_too_where_the_yaml_says_so(sm100: Target) -> None:
    accepting = replace(sm100, accepts=(Accepted("flashmla", "missing module", "known"),))
    (finding,) = settled([Finding("flashmla", "missing module", "fails", "no x")], accepting, ["flashmla"])
    assert finding.severity == "note"


def test_a_degradation_of_an_experiment_stays_what_it_is(sm100: Target) -> None:
    assert settled([SPILL], replace(sm100, status="experimental"), ["flashmla"]) == (SPILL,)


def test_an_acceptance_that_nothing_needs_any_more_is_told_of_what_was_built(sm100: Target) -> None:
    accepting = replace(sm100, accepts=(Accepted("flashmla", "register spill", "measured"),))
    (finding,) = settled([], accepting, ["flashmla"])
    assert (finding.kind, finding.severity) == ("unused acceptance", "note")
    assert settled([], accepting, ["deepgemm"]) == ()


def test_notes_of_a_container_become_one_finding_for_each_kind(tmp_path: Path) -> None:
    (tmp_path / "flashmla").mkdir()
    notes = [
        {"kind": "register spill", "architecture": "sm_100a", "kernel": "_ZN5sm1003runEv", "message": "16 bytes"},
        {"kind": "register spill", "architecture": "sm_103a", "kernel": "_ZN5sm1003runEv", "message": "16 bytes"},
        {"kind": "something else", "message": "was dropped"},
    ]
    (tmp_path / "flashmla" / "findings.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    assert list(noted(tmp_path, ["flashmla", "deepgemm"])) == [
        Finding("flashmla", "register spill", "degrades", "sm_100a sm100::run: 16 bytes (and 1 more)"),
        Finding("flashmla", "something else", "degrades", "something else: was dropped"),
    ]


def compiled_in_image(outcome: Result, expected: Outcome, error: str = "") -> JitResult:
    names = ("deepgemm", "impls/gate", "gate_impl", "", "sm_100a", "sm_100f")
    return JitResult(*names, outcome, expected, "it has work to do", 1.0, 1.0, 9, 100, "", (), (error,) if error else ())


def jit_report(
    *results: JitResult, uncovered: tuple[str, ...] = (), gone: tuple[str, ...] = (), drift: tuple[str, ...] = ()
) -> JitReport:
    return JitReport(2, 60.0, results, uncovered, gone, drift, ())


@pytest.mark.parametrize(
    ("outcome", "expected", "severity"),
    [
        ("refused", "compiled", "degrades"),
        ("failed", "compiled", "degrades"),
        ("stub", "compiled", "degrades"),
        ("compiled", "refused", "note"),
    ],
)
def test_a_run_time_kernel_that_is_not_as_expected_is_a_finding_and_a_better_one_a_note(
    outcome: Result, expected: Outcome, severity: str
) -> None:
    (finding,) = at_run_time(jit_report(compiled_in_image(outcome, expected, "no curand_kernel.h")))
    assert (finding.component, finding.kind, finding.severity) == ("deepgemm", "run-time kernel", severity)
    assert (
        f"impls/gate gate_impl for sm_100f: {outcome}, expected {expected} (it has work to do); no curand_kernel.h"
        in finding.message
    )


def test_run_time_kernels_that_are_as_expected_are_no_findings() -> None:
    assert not list(at_run_time(jit_report(compiled_in_image("compiled", "compiled"), compiled_in_image("refused", "refused"))))


def test_a_family_that_our_list_lacks_costs_a_supported_target_its_verdict_and_one_that_is_gone_does_not(sm100: Target) -> None:
    found = settled(
        at_run_time(jit_report(uncovered=("deepep: impls/new (new_impl)",), gone=("deepep: impls/old",))), sm100, ["deepep"]
    )
    assert [(f.kind, f.severity) for f in found] == [("run-time kernels not tried", "fails"), ("run-time kernels gone", "note")]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("device link", "nvlink warning : SM Arch ('sm_52') not found in '/tmp/a.o'"),  # D03
        (
            "architecture of the machine",
            "W1130 torch/utils/cpp_extension.py: TORCH_CUDA_ARCH_LIST is not set, all archs for visible cards are included.",
        ),
        ("architecture of the machine", "nvcc warning : Cannot find valid GPU for '-arch=native', default arch is used"),  # D08
        (
            "library not found",
            "/usr/bin/ld: warning: libnvrtc.so.13, needed by libx.so, not found (try using -rpath or -rpath-link)",
        ),
    ],
)
def test_what_a_green_build_only_warned_of_costs(tmp_path: Path, kind: str, line: str) -> None:
    (tmp_path / "flashmla").mkdir()
    (tmp_path / "flashmla" / "build.log").write_text(f"compiling\n{line}\n{line}\nwarning: unused variable\n")
    (finding,) = warned(tmp_path, ["flashmla", "not-built"])
    assert (finding.component, finding.kind, finding.severity) == ("flashmla", kind, "degrades")
    assert finding.message.startswith("only a warning in the log: ")
    assert "more" not in finding.message


def test_different_warnings_of_one_kind_are_told_once_with_their_number(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    lines = [f"nvlink warning : SM Arch ('sm_100a') not found in '/tmp/{n}.o'" for n in range(3)]
    (tmp_path / "a" / "build.log").write_text("\n".join(lines))
    (finding,) = warned(tmp_path, ["a"])
    assert finding.message.endswith("'/tmp/0.o' (and 2 more)")


def test_every_pattern_of_a_warning_is_tried_above() -> None:
    (lines,) = [m.args[1] for m in test_what_a_green_build_only_warned_of_costs.pytestmark]  # type: ignore[attr-defined]
    assert all(any(pattern.match(line) for _, line in lines) for _, pattern in SILENT)
