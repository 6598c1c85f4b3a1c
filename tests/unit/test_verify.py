"""Verify's rules: which inputs may be compared, what levels come to, what is published, what fails."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import verifications
from records import component, failed_record, not_attempted, record

from cleanroom.build import Job
from cleanroom.embedded import USUAL
from cleanroom.errors import RecordError, UnknownName, VerifyFailed
from cleanroom.record import EngineUsed, File, Level, Record
from cleanroom.verification import (
    LEVELS,
    ComponentVerification,
    Difference,
    Verification,
    reaches,
    read_verification,
    weakest,
    write_verification,
)
from cleanroom.verify import (
    ELSEWHERE,
    compare_component,
    compare_image,
    components_to_build,
    conditions,
    level_of,
    raise_for,
    refuse_other_inputs,
)


def job_of(first: Record) -> Job:
    """Only what `refuse_other_inputs` reads of a job."""
    return cast(
        "Job",
        SimpleNamespace(
            target=SimpleNamespace(name=first.target.name),
            base=SimpleNamespace(name=first.base),
            lock=SimpleNamespace(content=first.lock.content),
            rendered=SimpleNamespace(digest=f"sha256:{first.dockerfile_sha256}"),
        ),
    )


def verification(**changes: Any) -> Verification:
    first = record()
    part = ComponentVerification("deepep", "identical artifacts", first.components[0].wheel, first.components[0].wheel, ())
    whole = Verification(
        tool_version="0.1.0",
        target=first.target,
        base=first.base,
        lock=first.lock,
        engine=EngineUsed("embedded", "26.1.5", "0.12.5", "0.13.1"),
        started="2026-11-30T05:00:00Z",
        seconds=400.0,
        conditions=(),
        level="identical image",
        components=(part,),
        image_first=first.image,
        image_second=first.image,
        image_level="identical image",
        image_differences=(),
    )
    return replace(whole, **changes)


def test_the_levels_are_ordered_from_strongest_to_weakest() -> None:
    assert LEVELS[0] == "identical image"
    assert LEVELS[-1] == "fails"
    assert reaches("identical image", "identical artifacts")
    assert not reaches("same architectures", "identical device code")


def test_a_whole_is_as_good_as_its_weakest_part_and_nothing_without_parts() -> None:
    assert weakest(["identical artifacts", "builds", "identical device code"]) == "builds"
    assert weakest([]) == "incomplete"


@pytest.mark.parametrize(
    ("wheels", "image", "level"),
    [
        (["identical artifacts"], "identical image", "identical image"),
        (["identical artifacts"], "identical after named normalisations", "identical after named normalisations"),
        (["identical artifacts", "identical device code"], "identical image", "identical device code"),
        (["fails", "identical artifacts"], "incomplete", "fails"),
        (["identical artifacts"], "incomplete", "incomplete"),
    ],
)
def test_the_image_counts_only_beside_the_wheels(wheels: list[Level], image: Level, level: Level) -> None:
    parts = [ComponentVerification("x", wheel, None, None, ()) for wheel in wheels]
    assert level_of(parts, image) == level


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base": "python312"}, "another target: sm100 on python312"),
        ({"lock": replace(record().lock, content="sha256:" + "00" * 32)}, "another lock"),
        ({"dockerfile_sha256": "00" * 32}, "another Dockerfile"),
    ],
)
def test_a_record_of_other_inputs_is_not_compared(change: dict[str, Any], said: str) -> None:
    refuse_other_inputs(job_of(record()), record())
    with pytest.raises(RecordError, match=said):
        refuse_other_inputs(job_of(record()), record(**change))


def test_what_the_first_build_left_out_is_left_out_again() -> None:
    first = record(components=(component("deepep", "2.5.0"), not_attempted("deepinfer", "0.1.0")))
    assert components_to_build(first, ()) == ("deepep",)
    with pytest.raises(UnknownName, match="deepinfer"):
        components_to_build(first, ("deepinfer",))


def test_a_record_without_any_build_has_nothing_to_compare_with() -> None:
    with pytest.raises(RecordError, match="no build of any component"):
        components_to_build(record(components=(not_attempted("deepep", "2.5.0"),)), ())


def wheel(folder: Path, text: str) -> File:
    folder.mkdir(exist_ok=True)
    path = folder / "deepep-2.5.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("deepep/__init__.py"), text)
    return File(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)


def one(file: File | None) -> Record:
    return record(components=(component("deepep", "2.5.0", wheel=file),))


def test_equal_wheels_are_identical_without_being_opened(tmp_path: Path) -> None:
    file = File("absent.whl", "ab" * 32, 5)
    assert compare_component("deepep", one(file), one(file), tmp_path, tmp_path).level == "identical artifacts"


def test_a_different_file_in_a_wheel_is_named(tmp_path: Path) -> None:
    first, second = wheel(tmp_path / "a", "x = 1\n"), wheel(tmp_path / "b", "x = 2\n")
    result = compare_component("deepep", one(first), one(second), tmp_path / "a", tmp_path / "b")
    assert not reaches(result.level, "identical artifacts")
    assert [d.file for d in result.differences] == ["deepep/__init__.py"]


def test_a_wheel_that_is_not_beside_its_record_is_no_match_and_says_why(tmp_path: Path) -> None:
    result = compare_component("deepep", one(File("gone.whl", "00" * 32, 3)), one(wheel(tmp_path / "b", "")), tmp_path, tmp_path)
    assert result.level == "builds"
    assert "not beside its record" in result.differences[0].cause


def test_a_wheel_that_only_one_build_made_is_a_failure_with_its_first_error(tmp_path: Path) -> None:
    broken = failed_record()
    name = broken.components[0].name
    whole = record(components=(component(name, "2.8.2"),))
    result = compare_component(name, whole, broken, tmp_path, tmp_path)
    assert result.level == "fails"
    failure = broken.components[0].failure
    assert failure is not None
    assert failure.message in result.differences[0].cause


def test_two_images_of_one_manifest_are_identical_and_one_that_is_missing_is_not(tmp_path: Path) -> None:
    assert compare_image(record(), record(), tmp_path, tmp_path) == ("identical image", ())
    assert compare_image(record(), record(image=None), tmp_path, tmp_path) == ("incomplete", ())


def test_conditions_of_a_docker_that_is_not_ours_are_not_claimed() -> None:
    embedded, docker = (record(engine=EngineUsed(kind, "26.1.5", "0.12.5", "0.13.1")) for kind in ("embedded", "docker"))
    names = {c.name for c in conditions(record(), embedded, ELSEWHERE)}
    assert {"host name", "time zone", "locale", "umask", "user name", "compile jobs", "start"} <= names
    names = {c.name for c in conditions(record(), docker, ELSEWHERE)}
    assert "host name" not in names
    assert "compile jobs" in names


def test_everything_that_can_differ_elsewhere_does() -> None:
    same = [
        name for name in ("host_name", "time_zone", "locale", "umask", "user") if getattr(ELSEWHERE, name) == getattr(USUAL, name)
    ]
    assert same == []


def test_a_verification_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_verification(tmp_path / "verification.json", verification())
    assert read_verification(tmp_path / "verification.json") == verification()


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 2}', "[]"])
def test_a_damaged_verification_is_evidence_of_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "verification.json").write_text(text)
    with pytest.raises(RecordError):
        read_verification(tmp_path / "verification.json")


def test_a_level_that_was_asked_for_passes_and_a_weaker_one_names_its_first_difference() -> None:
    raise_for(verification(), "identical artifacts")
    difference = Difference("deepep", "deep_ep/_C.so", "sm_100a kernel f", "same architectures", "unknown", "", ())
    part = ComponentVerification("deepep", "same architectures", None, None, (difference,))
    weak = verification(level="same architectures", components=(part,))
    raise_for(weak, "same architectures")
    with pytest.raises(VerifyFailed, match="reach 'same architectures'") as error:
        raise_for(weak, "identical artifacts")
    assert "deep_ep/_C.so sm_100a kernel f" in (error.value.means or "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image_second": None}, "no two images with one manifest"),
        ({"image_second": None, "image_level": "incomplete"}, "level is 'identical image', and what was compared comes to"),
        ({"components": ()}, "comes to 'incomplete'"),
        ({"started": "yesterday"}, "not a UTC time"),
    ],
)
def test_a_level_that_does_not_follow_from_what_was_compared_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    write_verification(tmp_path / "verification.json", verifications.verification(**changes))
    with pytest.raises(RecordError, match=says):
        read_verification(tmp_path / "verification.json")


def test_two_wheels_of_different_bytes_are_not_identical(tmp_path: Path) -> None:
    whole = verifications.verification()
    first, *rest = whole.components
    assert first.second is not None
    other = replace(first, second=replace(first.second, sha256="cd" * 32))
    write_verification(tmp_path / "verification.json", replace(whole, components=(other, *rest)))
    with pytest.raises(RecordError, match="its two wheels are not the same bytes"):
        read_verification(tmp_path / "verification.json")
