"""envs/jit/: reading it, what is asked of a container for a target, and judging what comes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from binaries import binary

from cleanroom.binary.fatbin import device_code
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import EnvsError, RecordError
from cleanroom.jit import JitComponent, JitReport, probes, read_jit, read_report, request
from cleanroom.project import REPOSITORY
from cleanroom.strict_yaml import Mistakes

ENVS = REPOSITORY / "envs"
SMALL = """
component: deepgemm
kind: deepjit
package: deep_gemm
source: this test
compiles_for: {sm_100a: sm_100f, sm_120a: sm_120a}
flags:
  - {flag: -O3}
include: ["{package}/include"]
files: ["include/**/*.cuh"]
excluded: []
expectations:
  both: {reason: has work to do everywhere, outcomes: {sm_100a: compiled, sm_120a: compiled}}
  guarded: {reason: guarded from 10.0 up, outcomes: {sm_100a: compiled, sm_120a: stub}}
  other: {reason: for 12.x only, outcomes: {sm_120a: compiled}}
unused:
  - {reason: training, families: [impls/backward]}
families:
  - {family: impls/one, expect: guarded, kernels: [{kernel: one_impl, template: csrc/one.hpp, arguments: {n: 0x10, fast: true}}]}
  - {family: impls/two, expect: both, kernels: [{kernel: two_impl, template: csrc/two.hpp, arguments: {n: 1}, architecture: exact}]}
  - {family: impls/three, expect: other, kernels: [{kernel: three_impl, template: csrc/three.hpp, arguments: {n: 1}}]}
"""


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(ENVS)


def read(tmp_path: Path, envs: Envs, text: str = SMALL) -> tuple[JitComponent, ...]:
    (tmp_path / "envs" / "jit").mkdir(parents=True, exist_ok=True)
    (tmp_path / "envs" / "jit" / "deepgemm.yaml").write_text(text)
    mistakes = Mistakes()
    found = read_jit(tmp_path / "envs", "envs", envs.components, mistakes)
    mistakes.raise_if_any("envs")
    return found


@pytest.mark.parametrize("target", ["sm100", "sm103", "sm90", "sm120", "sm89"])
def test_every_target_of_the_repository_has_probes_of_every_component_that_compiles_at_run_time(target: str, envs: Envs) -> None:
    found = probes(envs.jit, envs.target(target))
    assert {probe.component for probe in found} == {"deepgemm", "deepep", "tilekernels", "deepinfer"}
    assert [probe.number for probe in found] == list(range(1, len(found) + 1))


def test_on_supported_targets_nothing_but_success_is_expected(envs: Envs) -> None:
    assert {probe.expected for probe in probes(envs.jit, envs.target("sm100"))} == {"compiled"}


def test_no_family_is_both_probed_and_left_out(envs: Envs) -> None:
    for component in envs.jit:
        names = [family.name for family in component.families]
        assert len(names) == len(set(names))
        assert not set(names) & set(component.unused)


def test_a_kernel_is_compiled_for_the_family_unless_it_wants_the_exact_architecture(tmp_path: Path, envs: Envs) -> None:
    found = probes(read(tmp_path, envs), envs.target("sm100"))
    assert [(p.kernel.name, str(p.architecture), p.expected) for p in found] == [
        ("one_impl", "sm_100f", "compiled"),
        ("two_impl", "sm_100a", "compiled"),
    ]


def test_an_architecture_that_a_file_does_not_know_is_an_error_not_an_empty_list(tmp_path: Path, envs: Envs) -> None:
    with pytest.raises(EnvsError, match="does not say what is compiled at run time for sm_90a"):
        probes(read(tmp_path, envs), envs.target("sm90"))


def test_arguments_reach_the_container_as_they_are_written(tmp_path: Path, envs: Envs) -> None:
    asked = json.loads(request(read(tmp_path, envs), envs.target("sm100")))
    assert asked["probes"][0]["arguments"] == {"n": "0x10", "fast": "true"}
    assert asked["probes"][0]["capability"] == [10, 0]
    assert asked["components"][0]["flags"] == [{"flag": "-O3", "found": "", "in": ""}]


@pytest.mark.parametrize(
    ("wrong", "right", "complaint"),
    [
        ("expect: both", "expect: boht", "did you mean 'both'?"),
        ("sm_120a: stub", "sm_120a: stubbed", "'stubbed' is not known"),
        ("{sm_120a: compiled}", "{sm_90a: compiled}", "'sm_90a' is not among compiles_for"),
        ("compiles_for: {sm_100a: sm_100f,", "compiles_for: {sm_100a: native,", "native"),
        ("kind: deepjit", "kind: triton", "'triton' is not known"),
        ("template: csrc/one.hpp, ", "", "the key 'template' is missing"),
        ("arguments: {n: 1}, architecture", "arguments: {n: []}, architecture", "source text is needed"),
        ("{flag: -O3}", "{flag: -O3, found: -O3}", "found and in belong together"),
        ("component: deepgemm", "component: flashmla", "they must be equal"),
        ("package: deep_gemm", "pakage: deep_gemm", "unknown key; did you mean 'package'?"),
    ],
)
def test_mistakes_are_named_with_their_place(wrong: str, right: str, complaint: str, tmp_path: Path, envs: Envs) -> None:
    with pytest.raises(EnvsError) as error:
        read(tmp_path, envs, SMALL.replace(wrong, right, 1))
    assert complaint in error.value.what
    assert "envs/jit/deepgemm.yaml:" in error.value.what


def test_a_project_without_such_files_has_no_such_components(tmp_path: Path, envs: Envs) -> None:
    assert read_jit(tmp_path, "envs", envs.components, Mistakes()) == ()


# --- judging ---------------------------------------------------------------------------------------------------------


def answer(number: int, **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "number": number,
        "outcome": "compiled",
        "seconds": 2.0,
        "cpu_seconds": 1.5,
        "command": ["nvcc"],
        "errors": [],
        "sha256": "0" * 64,
        "size": 100,
        "cubin": f"cubins/{number}.cubin",
    }
    return {**plain, **changes}


def judge(tmp_path: Path, envs: Envs, target: str, cubins: dict[int, bytes], **changes: Any) -> JitReport:
    components = read(tmp_path, envs)
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    (out / "cubins").mkdir(parents=True)
    for number, data in cubins.items():
        (out / "cubins" / f"{number}.cubin").write_bytes(data)
    families = {"impls/one": ["one_impl"], "impls/two": ["two_impl"], "impls/three": ["three_impl"], "impls/backward": ["grad"]}
    document: dict[str, Any] = {
        "schema": 1,
        "jobs": 2,
        "seconds": 60.0,
        "installed": [{"component": "deepgemm", "families": families, "drift": []}],
        "results": [answer(probe.number) for probe in probes(components, envs.target(target))],
        **changes,
    }
    (out / "jit.json").write_text(json.dumps(document))
    return read_report(out, components, envs.target(target))


def cubin(arch: str, name: str = "guards.so") -> bytes:
    return next(image.data for image in device_code(binary(name)) if str(image.arch) == arch)


def test_what_the_compiler_accepted_and_only_traps_is_a_stub(tmp_path: Path, envs: Envs) -> None:
    report = judge(tmp_path, envs, "sm120", {n: cubin("sm_120a") for n in (1, 2, 3)})
    assert [(r.kernel, r.outcome, r.expected) for r in report.results] == [
        ("one_impl", "stub", "stub"),
        ("two_impl", "stub", "compiled"),
        ("three_impl", "stub", "compiled"),
    ]
    assert [r.kernel for r in report.surprises] == ["two_impl", "three_impl"]


def test_a_cubin_for_another_architecture_than_asked_for_is_no_evidence(tmp_path: Path, envs: Envs) -> None:
    report = judge(tmp_path, envs, "sm100", {1: cubin("sm_120a"), 2: cubin("sm_120a")})
    assert [r.outcome for r in report.results] == ["failed", "failed"]
    assert report.results[0].errors == ("the cubin is for sm_120a, not for sm_100f",)


def test_a_cubin_that_is_lost_or_damaged_is_no_evidence(tmp_path: Path, envs: Envs) -> None:
    report = judge(tmp_path, envs, "sm100", {1: b"\x7fELF nothing else"})
    assert [r.outcome for r in report.results] == ["failed", "failed"]
    assert all("cannot be read" in r.errors[0] for r in report.results)


def test_refusals_are_reported_with_the_compilers_words(tmp_path: Path, envs: Envs) -> None:
    refused = answer(1, outcome="refused", errors=["kernel.cu(1): error: no"], sha256="", size=0, cubin="")
    report = judge(tmp_path, envs, "sm100", {}, results=[refused, answer(2)])
    assert report.results[0].outcome == "refused"
    assert report.results[0].errors == ("kernel.cu(1): error: no",)
    assert not report.results[0].as_expected


def test_families_that_are_new_or_gone_are_reported(tmp_path: Path, envs: Envs) -> None:
    families = {"impls/one": ["one_impl"], "impls/two": ["two_impl"], "impls/backward": ["grad"], "impls/new": ["a", "b"]}
    installed = [{"component": "deepgemm", "families": families, "drift": ["a flag"]}]
    report = judge(tmp_path, envs, "sm100", {}, installed=installed)
    assert report.uncovered == ("deepgemm: impls/new (a, b)",)
    assert report.gone == ("deepgemm: impls/three",)
    assert report.drift == ("deepgemm: a flag",)
    assert report.not_used == ("deepgemm: impls/three (for 12.x only)",)


def test_counts_and_speed_are_of_all_probes(tmp_path: Path, envs: Envs) -> None:
    report = judge(tmp_path, envs, "sm100", {})
    assert (report.kernels_per_minute, report.counts) == (2.0, {"compiled": 0, "refused": 0, "stub": 0, "failed": 2})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"results": []}, "answers other probes"),
        ({"schema": "1"}, "schema is '1', not a whole number"),
        ({"results": [{"number": 1}]}, "is missing"),
    ],
)
def test_an_answer_to_another_question_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path, envs: Envs) -> None:
    with pytest.raises(RecordError) as error:
        judge(tmp_path, envs, "sm100", {}, **changes)
    assert complaint in error.value.what


def test_an_answer_that_is_not_there_is_refused(tmp_path: Path, envs: Envs) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_report(tmp_path, read(tmp_path, envs), envs.target("sm100"))
