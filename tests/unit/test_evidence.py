"""Evidence: asked, compiled and found are three things, and each difference between them is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from binaries import binary, library, wheel

from cleanroom.binary.fatbin import device_code
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import IntegrityError, RecordError
from cleanroom.evidence import (
    Evidence,
    Finding,
    dump_evidence,
    gather,
    of_wheel,
    read_evidence,
    readable,
    write_evidence,
)
from cleanroom.project import REPOSITORY


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


def built(folder: Path, files: Mapping[str, bytes], *, name: str = "flashmla", compiled: tuple[str, ...] = ()) -> Path:
    """What a build of one component leaves: its wheel and the log of its compiler calls."""
    wheel(folder / name, files)
    unit = {"event": "unit", "compiler": "nvcc", "exit_status": 0, "architectures": list(compiled)}
    host = {**unit, "compiler": "c++", "architectures": []}
    failed = {**unit, "exit_status": 1, "architectures": ["sm_75"]}
    (folder / name / "units.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (unit, host, failed)))
    return folder


def built_for_npu(folder: Path, files: Mapping[str, bytes], *calls: str) -> Path:
    """What a build for Ascend leaves: its wheel, and a log with the calls of bisheng, which no launcher writes down."""
    host = "[0/9] bisheng -MMD -c /build/csrc/api.cpp -o api.o -std=c++20"
    lines = [host, *(f"[{n}/9] /opt/cann/bin/bisheng -O2 {arch} -c /build/k{n}.asc -o k{n}.o" for n, arch in enumerate(calls, 1))]
    (built(folder, files) / "flashmla" / "build.log").write_text("\n".join(lines))
    return folder


def evidence_of(envs: Envs, folder: Path, *asked: str, name: str = "flashmla") -> Evidence:
    return gather({name: asked}, folder, envs.components, envs.table)


def told(evidence: Evidence, severity: str | None = None) -> list[str]:
    return [f.kind for f in evidence.findings if severity in (None, f.severity)]


def message(evidence: Evidence, kind: str) -> str:
    (found,) = [f.message for f in evidence.findings if f.kind == kind]
    return found


def test_what_was_asked_compiled_and_found_agrees(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("linked.so")}, compiled=("sm_100a",)), "sm_100a")
    (component,) = evidence.components
    assert (component.asked, component.compiled, component.found) == (("sm_100a",), ("sm_100a",), ("sm_100a",))
    assert evidence.findings == ()


def test_a_missing_architecture_fails_and_the_message_says_that_nvcc_was_never_asked(envs: Envs, tmp_path: Path) -> None:
    folder = built(tmp_path, {"a.so": binary("linked.so")}, compiled=("sm_100a",))
    evidence = evidence_of(envs, folder, "sm_100a", "sm_103a")
    assert told(evidence, "fails") == ["missing architecture"]
    assert "never told" in message(evidence, "missing architecture")
    assert "sm_103a" in message(evidence, "missing architecture")


def test_an_architecture_that_the_device_link_lost_fails(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("lost.so")}, compiled=("sm_100a",)), "sm_100a")
    assert evidence.components[0].found == ()
    assert set(evidence.components[0].runs_on.values()) == {"does not run"}
    text = message(evidence, "missing architecture")
    assert "holds sm_75" in text
    assert "lost when the device code was linked" in text


def test_a_green_build_without_device_code_fails(envs: Envs, tmp_path: Path) -> None:
    folder = built(tmp_path, {"a.so": binary("needy.so"), "a.py": b""})
    evidence = evidence_of(envs, folder, "sm_89", "sm_90a")
    assert told(evidence, "fails") == ["missing architecture"]
    assert "no device code in the wheel at all" in message(evidence, "missing architecture")


def test_a_surplus_architecture_and_ptx_are_noted(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("guards.so")}), "sm_100a")
    surplus = [f.message for f in evidence.findings if f.kind == "surplus architecture"]
    assert [text.split()[2].rstrip(",") for text in surplus] == ["compute_100", "sm_100f", "sm_120a"]
    assert told(evidence, "fails") == []


def test_ptx_is_told_apart_with_what_it_can_still_run_on(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("guards.so")}), "sm_100a")
    assert evidence.components[0].libraries[0].ptx == ("compute_100",)
    assert message(evidence, "PTX").endswith("can compile for 10.0, 10.3, 11.0, 12.0, 12.1")


def test_ptx_that_was_asked_for_and_is_not_there_fails(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("linked.so")}), "sm_100a+PTX")
    assert told(evidence, "fails") == ["missing PTX"]


def test_the_family_form_is_not_the_architecture_specific_one(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("linked.so")}), "sm_100f")
    assert told(evidence) == ["missing architecture", "surplus architecture"]


def test_stubs_of_an_asked_architecture_are_named_and_degrade_it(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("guards.so")}), "sm_100a", "sm_120a")
    stubs = evidence.components[0].libraries[0].stubs
    assert stubs == {"sm_120a": ("guard_in_function", "guard_message", "guard_silent", "guard_trap")}
    assert told(evidence, "degrades") == ["stub kernels"]
    assert "4 of 9 sm_120a kernels are stubs: guard_in_function, " in message(evidence, "stub kernels")


def test_an_empty_body_is_a_stub_only_where_another_architecture_has_a_real_one(envs: Envs, tmp_path: Path) -> None:
    library = of_wheel(wheel(tmp_path, {"a.so": binary("guards.so")}), envs.table).libraries[0]
    assert "guard_silent" in library.stubs["sm_120a"]
    assert "empty" not in library.stubs["sm_120a"]


def test_an_architecture_of_nothing_but_stubs_is_missing(envs: Envs, tmp_path: Path) -> None:
    """FlashMLA compiled for sm_90a: nvcc is content and every kernel traps."""
    only = stubs_only()
    evidence = evidence_of(envs, built(tmp_path, {"a.cubin": only}, compiled=("sm_120a",)), "sm_120a")
    assert evidence.components[0].found == ()
    assert evidence.components[0].libraries[0].stubs == {"sm_120a": ("guard_in_function", "guard_message", "guard_trap")}
    assert "all 3 kernels compiled for it are stubs" in message(evidence, "missing architecture")
    assert set(evidence.components[0].runs_on.values()) == {"does not run"}


def stubs_only() -> bytes:
    """The sm_120a cubin of guards.so without its honest kernels: their names no longer lead to their code."""
    data = cubin("sm_120a")
    for name in (b"adds", b"empty", b"stores_one", b"checks_then_stores", b"calls_a_pointer", b"guard_silent"):
        data = data.replace(b".text." + name + b"\0", b".gone." + name + b"\0")
    return data


def cubin(architecture: str) -> bytes:
    return next(i.data for i in device_code(binary("guards.so")) if str(i.arch) == architecture)


def test_a_kernel_that_one_asked_architecture_lacks_degrades_it(envs: Envs, tmp_path: Path) -> None:
    specific, family = (
        cubin(a).replace(b".text.adds\0", b".gone.adds\0") if a == "sm_100f" else cubin(a) for a in ("sm_100a", "sm_100f")
    )
    evidence = evidence_of(envs, built(tmp_path, {"a.so": library(specific, family)}), "sm_100a", "sm_100f")
    assert evidence.components[0].found == ("sm_100a", "sm_100f")
    assert [(f.kind, f.severity) for f in evidence.findings] == [("missing kernels", "degrades")]
    assert message(evidence, "missing kernels") == "a.so: 1 kernels of sm_100a are not there for sm_100f: adds"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("guards.so", {"8.9": "does not run", "10.0": "runs", "10.3": "runs", "12.0": "runs in part", "12.1": "runs by PTX"}),
        ("linked.so", {"9.0": "does not run", "10.0": "runs", "10.3": "does not run", "12.0": "does not run"}),
        ("needy.so", {"10.0": "no device code"}),
    ],
)
def test_a_wheel_runs_on_what_its_code_is_for(envs: Envs, tmp_path: Path, name: str, expected: Mapping[str, str]) -> None:
    found = of_wheel(wheel(tmp_path, {"lib/a.so": binary(name)}), envs.table)
    assert found.name == "things"
    assert list(found.runs_on) == ["8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]
    assert {capability: found.runs_on[capability] for capability in expected} == expected


def test_a_wheel_runs_where_all_of_its_libraries_run(envs: Envs, tmp_path: Path) -> None:
    found = of_wheel(wheel(tmp_path, {"a.so": binary("guards.so"), "b.so": binary("linked.so")}), envs.table)
    assert (found.runs_on["10.0"], found.runs_on["12.1"]) == ("runs", "does not run")


def test_a_component_that_compiles_at_run_time_says_so(envs: Envs, tmp_path: Path) -> None:
    folder = built(tmp_path, {"a.so": binary("needy.so")}, name="deepgemm")
    evidence = evidence_of(envs, folder, "sm_100a", name="deepgemm")
    assert evidence.findings == ()
    assert set(evidence.components[0].runs_on.values()) == {"compiled at run time"}


def test_host_code_only_is_no_finding_where_it_is_declared(envs: Envs, tmp_path: Path) -> None:
    folder = built(tmp_path, {"a.so": binary("needy.so")}, name="deepinfer")
    evidence = evidence_of(envs, folder, name="deepinfer")
    assert evidence.findings == ()
    assert set(evidence.components[0].runs_on.values()) == {"no device code"}


def test_device_code_in_a_component_said_to_have_none_is_told(envs: Envs, tmp_path: Path) -> None:
    folder = built(tmp_path, {"a.so": binary("linked.so")}, name="deepgemm")
    assert told(evidence_of(envs, folder, "sm_100a", name="deepgemm")) == ["unexpected device code"]


def test_a_wheel_that_is_missing_or_damaged_is_a_finding_and_hides_no_other(envs: Envs, tmp_path: Path) -> None:
    built(tmp_path, {"lib/a.so": binary("linked.so")[:5000]})
    built(tmp_path, {"a.so": binary("needy.so")}, name="deepgemm")
    asked = {"flashmla": ("sm_100a",), "deepgemm": ("sm_100a",), "deepep": ("sm_100a",)}
    evidence = gather(asked, tmp_path, envs.components, envs.table)
    assert [(f.component, f.kind, f.severity) for f in evidence.findings] == [
        ("flashmla", "unreadable", "fails"),
        ("deepep", "unreadable", "fails"),
    ]
    assert "lib/a.so" in evidence.findings[0].message
    assert [c.name for c in evidence.components] == list(asked)


def test_a_damaged_log_of_compiler_calls_is_an_error(envs: Envs, tmp_path: Path) -> None:
    folder = built(tmp_path, {"a.so": binary("linked.so")})
    (folder / "flashmla" / "units.jsonl").write_text("{}\n")
    with pytest.raises(RecordError, match=r"flashmla/units\.jsonl"):
        evidence_of(envs, folder, "sm_100a")


def test_a_wheel_by_path_that_cannot_be_read_is_an_error(envs: Envs, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"nothing\.whl"):
        of_wheel(tmp_path / "nothing.whl", envs.table)


def test_evidence_is_read_back_as_it_was_written(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.so": binary("guards.so")}), "sm_100a", "sm_120a")
    write_evidence(tmp_path / "evidence.json", evidence)
    assert read_evidence(tmp_path / "evidence.json") == evidence
    assert list(json.loads(dump_evidence(evidence))) == ["schema", "components", "findings", "jit", "surveys"]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": 1}', '{"schema": 2, "components": [], "findings": [{}], "jit": null, "surveys": []}']
)
def test_evidence_that_is_damaged_or_of_another_schema_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "evidence.json").write_text(text)
    with pytest.raises(RecordError, match=r"evidence\.json"):
        read_evidence(tmp_path / "evidence.json")


def test_missing_evidence_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nox -s build-sm100"):
        read_evidence(tmp_path / "sm100" / "evidence.json")


def test_a_severity_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    evidence = Evidence((), (Finding("a", "b", "note", "c"),))
    (tmp_path / "evidence.json").write_text(dump_evidence(evidence).replace('"note"', '"fine"'))
    with pytest.raises(RecordError, match="severity"):
        read_evidence(tmp_path / "evidence.json")


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        ("_ZN5sm1006decode6kernelINS_6ConfigELb0EEEvT_", "sm100::decode::kernel"),
        ("_Z5plainPi", "plain"),
        ("plain", "plain"),
        ("_Z", "_Z"),
        ("", ""),
    ],
)
def test_kernels_are_named_as_in_the_source(mangled: str, expected: str) -> None:
    assert readable(mangled) == expected


NPU = {"flash_mla/npu.so": binary("npu.so")}
FOR_3510 = "--npu-arch=dav-3510"


def test_code_for_an_npu_is_found_and_the_compilers_calls_say_for_which(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built_for_npu(tmp_path, NPU, FOR_3510, FOR_3510), "dav-3510")
    (component,) = evidence.components
    assert (component.asked, component.compiled, component.found) == (("dav-3510",), ("dav-3510",), ("AI Core",))
    assert component.runs_on == {"dav-3510": "compiled for it, by the log"}
    assert [library.kernels for library in component.libraries] == [2]
    assert told(evidence) == ["NPU architecture by the log"]
    assert "all 2 calls of bisheng for AscendC source name dav-3510" in message(evidence, "NPU architecture by the log")


@pytest.mark.parametrize(
    ("calls", "severity", "text"),
    [
        (["--npu-arch=dav-2201"], "fails", "asked for dav-3510, and bisheng was called for dav-2201"),
        ([FOR_3510, "--npu-arch dav-2201"], "fails", "bisheng was called for dav-2201, dav-3510"),
        ([FOR_3510, "--npu-arch=Ascend910B"], "fails", "bisheng was called for Ascend910B, dav-3510"),
        ([FOR_3510, ""], "degrades", "1 of 2 calls of bisheng for AscendC source name no architecture"),
        ([], "degrades", "0 of 0 calls of bisheng"),
    ],
)
def test_code_for_an_npu_that_was_compiled_for_another_or_nobody_knows_for_which_is_told(
    envs: Envs, tmp_path: Path, calls: list[str], severity: str, text: str
) -> None:
    evidence = evidence_of(envs, built_for_npu(tmp_path, NPU, *calls), "dav-3510")
    (finding,) = evidence.findings
    assert finding.severity == severity
    assert text in finding.message
    assert evidence.components[0].runs_on == {"dav-3510": "not known"}


def test_a_wheel_for_an_npu_without_code_for_it_fails(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built_for_npu(tmp_path, {"a.so": binary("needy.so")}, FOR_3510), "dav-3510")
    assert message(evidence, "missing architecture") == "asked for dav-3510, and there is no device code in the wheel at all"
    assert evidence.components[0].runs_on == {"dav-3510": "no device code"}


def test_cuda_code_in_a_wheel_for_an_npu_does_not_count(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built_for_npu(tmp_path, {"a.so": binary("linked.so")}, FOR_3510), "dav-3510")
    assert "asked for AI Core, but the library holds sm_100a" in message(evidence, "missing architecture")
    assert evidence.components[0].runs_on == {"dav-3510": "does not run"}


def test_kernels_that_an_npu_compiles_at_run_time_are_told_so(envs: Envs, tmp_path: Path) -> None:
    evidence = evidence_of(envs, built(tmp_path, {"a.py": b""}, name="tilekernels"), "dav-3510", name="tilekernels")
    assert evidence.components[0].runs_on == {"dav-3510": "compiled at run time"}
    assert evidence.findings == ()


def test_any_wheel_tells_its_code_for_an_npu_and_no_card_runs_it(envs: Envs, tmp_path: Path) -> None:
    found = of_wheel(wheel(tmp_path, NPU), envs.table)
    assert found.found == ("AI Core",)
    assert set(found.runs_on.values()) == {"does not run"}
