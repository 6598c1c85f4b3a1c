"""Surveys: the launcher that goes on, and what is read from what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from binaries import binary

from cleanroom.arch import parse_arch
from cleanroom.binary.cubin import Kernel
from cleanroom.binary.fatbin import DeviceCode
from cleanroom.errors import RecordError
from cleanroom.failures import classify
from cleanroom.project import IN_CONTAINER
from cleanroom.survey import Survey, Unit, gate_of, holds_only_stubs, read_survey
from cleanroom.survey_view import headline

PTXAS = "ptxas /tmp/tmpxft_1_2-3_a.ptx, line 9; error   : Feature '.griddepcontrol' requires .target sm_90 or higher\n"
STATIC = 'csrc/a.cuh(12): error: static assertion failed with "needs SM100"\n'


@pytest.fixture
def launchers(tmp_path: Path) -> Path:
    folder = tmp_path / "launchers"
    folder.mkdir()
    for name in ("g++", "nvcc"):
        (folder / name).symlink_to(IN_CONTAINER / "keep_going.py")
    toolkit = tmp_path / "cuda" / "bin"
    toolkit.mkdir(parents=True)
    (toolkit / "nvcc").write_text('#!/bin/sh\nexec g++ -x c++ "$@"\n')
    (toolkit / "nvcc").chmod(0o755)
    return folder


def compile_(launchers: Path, source: str, *call: str) -> subprocess.CompletedProcess[str]:
    place = launchers.parent
    (place / "a.cu").write_text(source)
    environment = {
        "CUDA_HOME": str(place / "cuda"),
        "PATH": f"{launchers}:{os.environ['PATH']}",
        "CLEANROOM_UNITS": str(place / "units.jsonl"),
        "CLEANROOM_OBJECTS": str(place / "objects"),
    }
    name, *arguments = call or ("nvcc", "-c", "a.cu", "-o", "a.o")
    return subprocess.run([launchers / name, *arguments], cwd=place, env=environment, check=False, capture_output=True, text=True)


def events(launchers: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (launchers.parent / "units.jsonl").read_text().splitlines()]


def test_a_refused_unit_is_on_record_and_the_build_goes_on(launchers: Path) -> None:
    done = compile_(launchers, '#error "not for this machine"\n')
    assert done.returncode == 0
    assert "not for this machine" in done.stdout
    unit, refused = events(launchers)
    assert (unit["event"], unit["unit"], unit["exit_status"] != 0) == ("unit", "a.cu", True)
    assert (refused["event"], refused["unit"]) == ("refused", "a.cu")
    assert "not for this machine" in refused["text"]


def test_what_a_refused_unit_leaves_is_refused_by_the_linker(launchers: Path) -> None:
    compile_(launchers, "#error\n")
    assert compile_(launchers, "", "g++", "-shared", "a.o", "-o", "a.so").returncode != 0
    assert not (launchers.parent / "a.so").exists()


def test_a_finished_object_is_kept_under_the_name_that_its_path_gives(launchers: Path) -> None:
    assert compile_(launchers, "int a() { return 1; }\n").returncode == 0
    (event,) = events(launchers)
    kept = launchers.parent / "objects" / (hashlib.sha256(event["output"].encode()).hexdigest()[:16] + ".o")
    assert kept.read_bytes() == (launchers.parent / "a.o").read_bytes()


def test_a_compiler_that_is_only_asked_for_its_version_is_left_alone(launchers: Path) -> None:
    assert "Free Software Foundation" in compile_(launchers, "", "g++", "--version").stdout
    assert not (launchers.parent / "units.jsonl").exists()


def unit(name: str, status: int = 0) -> dict[str, Any]:
    what = {"event": "unit", "unit": name, "output": f"{name}.o", "compiler": "nvcc", "architectures": ["sm_89"]}
    return {**what, "exit_status": status, "reused": False, "seconds": 2.0, "cpu_seconds": 1.5, "peak_memory_bytes": 1}


def survey(folder: Path, *lines: dict[str, Any], log: str = "") -> Survey:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "units.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "build.log").write_text(log)
    return read_survey(folder, "flashmla")


def test_one_reason_that_many_units_met_is_one_line_and_the_most_frequent_comes_first(tmp_path: Path) -> None:
    found = survey(
        tmp_path,
        unit("a.cu"),
        *(unit(f"b{n}.cu", 1) for n in range(3)),
        unit("c.cu", 255),
        {"event": "refused", "unit": "c.cu", "output": "c.cu.o", "text": STATIC},
        *({"event": "refused", "unit": f"b{n}.cu", "output": "", "text": PTXAS} for n in range(3)),
    )
    assert found.counts == {"compiled": 1, "stub": 0, "refused": 4}
    assert [(cause.count, cause.gate) for cause in found.causes] == [(3, "missing instruction"), (1, "static assertion")]
    assert found.causes[1].failure.where == "csrc/a.cuh:12"
    assert headline(found) == "flashmla: 5 translation units, 1 compiled, 4 refused"


def test_host_code_is_left_out_and_cannot_be_linked_either(launchers: Path) -> None:
    assert compile_(launchers, "int a() { return 1; }\n", "g++", "-c", "a.cu", "-o", "a.o").returncode == 0
    assert not (launchers.parent / "units.jsonl").exists()
    assert compile_(launchers, "", "g++", "-shared", "a.o", "-o", "a.so").returncode != 0


def test_where_no_unit_was_attempted_what_ended_the_build_is_the_reason(tmp_path: Path) -> None:
    found = survey(tmp_path, log="RuntimeError: FlashMLA needs CUDA 13.1 or newer\n")
    assert found.units == ()
    assert headline(found) == "flashmla: no translation unit was attempted"
    (cause,) = found.causes
    assert (cause.gate, "needs CUDA 13.1" in cause.failure.message) == ("setup.py", True)


def test_an_object_is_a_stub_where_its_machine_code_only_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cleanroom.survey.holds_only_stubs", lambda data: data == b"only stops")
    (tmp_path / "objects").mkdir()
    for name, data in (("a.cu", b"only stops"), ("b.cu", b"works")):
        (tmp_path / "objects" / (hashlib.sha256(f"{name}.o".encode()).hexdigest()[:16] + ".o")).write_bytes(data)
    assert survey(tmp_path, unit("a.cu"), unit("b.cu"), unit("c.cu")).counts == {"compiled": 2, "stub": 1, "refused": 0}


def test_an_object_with_a_kernel_that_works_is_no_stub_and_host_code_is_none() -> None:
    assert not holds_only_stubs(binary("speed.o"))
    assert not holds_only_stubs(binary("needy.so"))


def test_a_stub_is_a_reason_of_its_own_for_nobody_else_says_no() -> None:
    units = [
        Unit(f"{name}.cu", ("sm_120a",), outcome, 1.0, None) for name, outcome in (("a", "stub"), ("b", "stub"), ("c", "compiled"))
    ]
    (cause,) = Survey("flashmla", tuple(units), None).causes  # type: ignore[arg-type]
    assert (cause.gate, cause.count, cause.first) == ("missing implementation", 2, "a.cu")


def test_damaged_units_are_told(tmp_path: Path) -> None:
    (tmp_path / "units.jsonl").write_text('{"event": "unit"}\n')
    with pytest.raises(RecordError, match="cannot be read"):
        read_survey(tmp_path, "flashmla")


@pytest.mark.parametrize(
    ("log", "gate"),
    [
        (PTXAS, "missing instruction"),
        (STATIC, "static assertion"),
        ("nvcc fatal   : Unsupported gpu architecture 'sm_999a'\n", "nvcc"),
        ('a.cu(3): error: identifier "__tcgen05" is undefined\n', "nvcc"),
        ("a.cpp:3:1: error: expected declaration\n", "host compiler"),
        ("a.cu:1:10: fatal error: cutlass/x.h: No such file or directory\n", "missing header"),
    ],
)
def test_the_gate_is_what_said_no(log: str, gate: str) -> None:
    assert gate_of(classify(log)) == gate


@pytest.mark.parametrize(
    ("bodies", "only"),
    [("s", True), ("ss", True), ("se", True), ("e", False), ("", False), ("sr", False), ("ser", False), ("r", False)],
)
def test_beside_stubs_an_empty_kernel_is_no_work(monkeypatch: pytest.MonkeyPatch, bodies: str, only: bool) -> None:
    """CUB puts an empty kernel into what includes it: FlashMLA's dense kernels for SM120 are stubs and that one."""
    made = tuple(Kernel(f"k{i}", b"", 1, stub=body == "s", empty=body == "e") for i, body in enumerate(bodies))
    monkeypatch.setattr("cleanroom.survey.images", lambda _: [DeviceCode("cubin", parse_arch("sm_120a", where=""), b"")])
    monkeypatch.setattr("cleanroom.survey.cubin.kernels", lambda _: made)
    assert holds_only_stubs(b"") is only
