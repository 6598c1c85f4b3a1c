"""Verify, as a user types it: two clean builds of the fixture, equal and with planted differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from cleanroom.verification import Verification, read_verification
from projects import FIXTURE, cleanroom, lock_and_render, project_copy

pytestmark = pytest.mark.integration


def verification_in(project: Path) -> Verification:
    return read_verification(project / "out" / "fixture" / "verify" / "verification.json")


def test_two_clean_builds_give_the_identical_image_and_their_digests_are_published(built: Path) -> None:
    verified = cleanroom(built, "verify", "fixture")
    assert verified.returncode == 0, verified.stderr
    verification = verification_in(built)
    assert verification.level == "identical image"
    assert [c.level for c in verification.components] == ["identical artifacts"]
    assert verification.image_first is not None
    assert verification.image_second is not None
    assert verification.image_first.manifest == verification.image_second.manifest
    assert {"compile jobs", "host name", "time zone", "umask", "locale"} <= {c.name for c in verification.conditions}
    assert (built / "lockfiles" / "fixture-debian13.expected.yaml").is_file()
    again = cleanroom(built, "build", "fixture")
    assert "Matches what is published in this repository" in again.stdout + again.stderr


def test_planted_differences_are_found_and_each_named_where_it_is(tmp_path: Path) -> None:
    project = project_copy(FIXTURE, tmp_path)
    setup = project / "sources" / "vectors" / "setup.py"
    planted = setup.read_text().replace("define = [", "import time\n        stamp = time.time_ns() % 10**9\n        define = [", 1)
    planted = planted.replace("SEPARATE_FLAGS.get(source, [])]", 'SEPARATE_FLAGS.get(source, []), f"-DSTAMP={stamp}"]', 1)
    setup.write_text(planted)
    scale = project / "sources" / "vectors" / "csrc" / "scale.cu"
    scale.write_text(
        scale.read_text() + "\n__device__ unsigned planted_word;\n__global__ void planted() { planted_word = STAMP; }\n"
    )
    lock_and_render(project)
    done = cleanroom(project, "build", "fixture", "--no-image")
    assert done.returncode == 0, done.stderr
    verified = cleanroom(project, "verify", "fixture", "--no-image")
    assert verified.returncode == 24, verified.stderr
    (vectors,) = verification_in(project).components
    assert vectors.level == "same architectures"
    assert {d.part.split()[-1] for d in vectors.differences if " kernel " in f" {d.part} "} == {"_Z7plantedv"}
    assert not (project / "lockfiles" / "fixture-debian13.expected.yaml").exists()


def test_a_record_of_another_lock_is_refused_before_anything_is_built(built: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    text = (built / "out" / "fixture" / "record.json").read_text()
    content = text.split('"content": "')[1].split('"')[0]
    record.write_text(text.replace(content, "sha256:" + "0" * 64))
    refused = cleanroom(built, "verify", "fixture", "--record", str(record))
    assert refused.returncode == 25
    assert "another lock" in refused.stderr
