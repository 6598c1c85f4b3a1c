"""The whole way from lock to record, on real packages, in real containers, as a user types it."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import pytest

from cleanroom.evidence import read_evidence
from cleanroom.project import REPOSITORY
from cleanroom.record import read_record
from projects import FIXTURE, cleanroom, lock_and_render, project_copy

pytestmark = pytest.mark.integration


def test_committed_locks_and_dockerfiles_are_current() -> None:
    for project in (REPOSITORY, FIXTURE):
        for verb in ("lock", "render"):
            done = cleanroom(project, verb, "--check")
            assert done.returncode == 0, done.stderr


def test_the_fixture_goes_from_lock_to_wheel_image_and_record(built: Path) -> None:
    out = built / "out" / "fixture"
    record = read_record(out / "record.json")
    assert record.verdict == "builds"
    assert record.target.status == "fixture"
    assert record.toolchain["toolkit"] == "13.3.73"
    assert [i.module for i in record.imports if i.ok] == ["vectors"]
    assert [d for d in record.deviations if "setuptools" in d]
    vectors = record.component("vectors")
    assert vectors.translation_units.total == 4
    assert vectors.architectures_asked == ("sm_100a",)
    assert vectors.wheel is not None
    assert vectors.wheel.file == "cleanroom_vectors-1.0.0-cp313-cp313-linux_x86_64.whl"
    assert record.image is not None
    assert (out / record.image.file).stat().st_size == record.image.size


def test_the_wheel_holds_machine_code_for_the_architecture_asked_and_the_declared_substitution(built: Path) -> None:
    (wheel,) = (built / "out" / "fixture").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (extension,) = [name for name in archive.namelist() if name.endswith(".so")]
        assert b"-arch sm_100a" in archive.read(extension)  # the cubin's own note; names of cubins lose suffixes
        assert b'BUILT_BY = "cleanroom"' in archive.read("vectors/__init__.py")


def test_every_compiler_call_is_on_record_with_its_architecture(built: Path) -> None:
    lines = (built / "out" / "fixture" / "components" / "vectors" / "units.jsonl").read_text().splitlines()
    units = [json.loads(line) for line in lines]
    assert {u["unit"].rsplit(".", 1)[-1] for u in units} == {"cu", "cpp"}
    assert all(u["architectures"] == ["sm_100a"] for u in units if u["unit"].endswith(".cu"))
    assert all(u["exit_status"] == 0 and u["peak_memory_bytes"] > 0 for u in units)


def test_a_second_build_of_the_same_inputs_is_done_in_seconds(built: Path) -> None:
    started = time.monotonic()
    done = cleanroom(built, "build", "fixture", "--json")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 60  # a build takes minutes, also on a machine that is busy
    assert json.loads(done.stdout.splitlines()[-1])["result"]["verdict"] == "builds"


def test_a_compile_error_is_told_with_file_and_line_and_its_own_exit_code(tmp_path: Path) -> None:
    project = project_copy(FIXTURE, tmp_path)
    unit = project / "sources" / "vectors" / "csrc" / "reduce.cu"
    unit.write_text('#include "no_such_header.h"\n' + unit.read_text())
    lock_and_render(project)
    failed = cleanroom(project, "build", "fixture")
    assert failed.returncode == 21, failed.stderr
    failure = read_record(project / "out" / "fixture" / "record.json").component("vectors").failure
    assert failure is not None
    assert (failure.kind, failure.line) == ("missing header", 1)
    assert failure.file is not None
    assert failure.file.endswith("reduce.cu")
    assert "no_such_header.h" in failed.stderr
    (survey,) = read_evidence(project / "out" / "fixture" / "evidence.json").surveys
    assert survey.counts == {"compiled": 2, "stub": 0, "refused": 1}
    assert [(cause.gate, cause.count) for cause in survey.causes] == [("missing header", 1)]


def test_deepep_is_compiled_from_its_source_archive(tmp_path: Path) -> None:
    project = project_copy(REPOSITORY, tmp_path)
    done = cleanroom(project, "build", "sm100", "--component", "deepep", "--no-image")
    assert done.returncode == 0, done.stderr
    record = read_record(project / "out" / "sm100" / "record.json")
    assert record.verdict == "incomplete"
    deepep = record.component("deepep")
    assert deepep.status in ("built", "reused")
    assert deepep.wheel is not None
    assert deepep.wheel.file == "deepinfer_ep-2.5.0-cp313-cp313-linux_x86_64.whl"
    assert {c.status for c in record.components if c.name != "deepep"} == {"not attempted"}
