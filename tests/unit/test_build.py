"""The parts of a build that need no engine: what is selected, what counts as finished, and what is said at the end."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import images
import pytest
from locks import ENTRIES, entry, lock
from records import component as result_of
from records import record as whole_record

from cleanroom.build import (
    Job,
    Options,
    Outcome,
    component_result,
    environment_of,
    manifest_digest,
    prepare,
    publish,
    raise_for,
    select,
    toolchain_of,
    unmet_requirements,
    up_to_date,
)
from cleanroom.envs import load_envs
from cleanroom.errors import BuildFailed, IntegrityError, LockError, RenderDrift, UnknownName
from cleanroom.evidence import Evidence, Finding
from cleanroom.failures import classify
from cleanroom.lock import lock_path, write_lock
from cleanroom.project import Project
from cleanroom.record import File, Image, Import, LockInfo, Record, write_record
from cleanroom.render import render, write
from cleanroom.target import Override, Selection

WHEEL = b"the bytes of a wheel"
TORCH = Override("torch==2.13.0", "torch==2.13.0+cu132", "the build for 13.2 is elsewhere", "requirements")
NCCL = Override("nvidia-nccl-cu13==2.32.3", "nvidia-nccl-cu13==2.29.7", "DeepEP needs a newer one", "README")


@pytest.fixture
def project(fixture_project: Project) -> Project:
    """The fixture project, locked and rendered."""
    envs = load_envs(fixture_project.envs_dir)
    whole = lock(inputs=envs.inputs_checksum("fixture", "debian13"))
    write_lock(lock_path(fixture_project.root, whole.name), whole)
    rendered = render(envs, envs.target("fixture"), envs.base("debian13"), whole)
    write(rendered, fixture_project.dockerfiles_dir / rendered.name)
    return fixture_project


@pytest.fixture
def job(project: Project) -> Job:
    return prepare(project, load_envs(project.envs_dir), "fixture", None)


# Preparing and selecting


SOUND = Evidence((), ())


def test_a_prepared_job_has_its_inputs_pinned_and_a_place_of_its_own(job: Job) -> None:
    assert (job.target.name, job.base.name, job.lock.name) == ("fixture", "debian13", "fixture-debian13")
    assert job.out == job.project.root / "out" / "fixture"
    assert (job.folder / "Dockerfile").is_file()
    assert not job.out.exists()


def test_a_base_that_the_target_is_not_defined_on_is_refused(project: Project) -> None:
    with pytest.raises(UnknownName, match="not defined on base 'python312'") as caught:
        prepare(project, load_envs(project.envs_dir), "fixture", "python312")
    assert "debian13" in caught.value.means


def test_a_target_without_a_lock_is_refused(fixture_project: Project) -> None:
    for path in fixture_project.lockfiles_dir.glob("*"):
        path.unlink()
    with pytest.raises(LockError, match="no lock fixture-debian13"):
        prepare(fixture_project, load_envs(fixture_project.envs_dir), "fixture", None)


def test_yaml_changed_after_locking_is_refused(project: Project) -> None:
    path = project.envs_dir / "components" / "vectors.yaml"
    path.write_text(path.read_text().replace("version: 1.0.0", "version: 1.0.1"))
    with pytest.raises(LockError, match="is stale"):
        prepare(project, load_envs(project.envs_dir), "fixture", None)


def test_a_dockerfile_edited_by_hand_is_refused(project: Project) -> None:
    with (project.dockerfiles_dir / "fixture-debian13" / "Dockerfile").open("a") as stream:
        stream.write("RUN true\n")
    with pytest.raises(RenderDrift):
        prepare(project, load_envs(project.envs_dir), "fixture", None)


def test_components_are_built_in_the_target_s_order_each_once(job: Job) -> None:
    three = replace(job, target=replace(job.target, components=tuple(Selection(name) for name in ("b", "a", "c"))))
    assert select(three, Options()) == ("b", "a", "c")
    assert select(three, Options(components=("c", "b", "c"))) == ("b", "c")


def test_a_component_that_the_target_has_not_is_named_with_those_it_has(job: Job) -> None:
    with pytest.raises(UnknownName, match="fixture has no component 'vektors'") as caught:
        select(job, Options(components=("vectors", "vektors")))
    assert caught.value.means == "It has vectors."
    assert caught.value.next_step == "nox -s build-fixture -- --component vectors"


# What counts as finished


def image(path: Path, text: bytes = b"1") -> str:
    """An image with one file that holds this text; its manifest's digest."""
    images.image(path, images.layer({"file": text}))
    return manifest_digest(path)


@pytest.fixture
def finished(job: Job) -> Record:
    """A record of this very job, with its wheel and image beside it."""
    name = "cleanroom_vectors-1.0.0-cp313-cp313-linux_x86_64.whl"
    job.out.mkdir(parents=True)
    (job.out / name).write_bytes(WHEEL)
    digest = image(job.out / "image.oci.tar")
    built = result_of("vectors", "1.0.0", wheel=File(name, hashlib.sha256(WHEEL).hexdigest(), len(WHEEL)))
    record = whole_record(
        dockerfile_sha256=job.rendered.digest.removeprefix("sha256:"),
        lock=LockInfo(job.lock.name, job.lock.content, job.lock.inputs),
        components=(built,),
        imports=(Import("vectors", "vectors", ok=True, error=""),),
        image=Image("image.oci.tar", digest, 10240, "zstd"),
    )
    write_record(job.out / "record.json", record)
    return record


def test_a_finished_build_of_the_same_inputs_is_up_to_date(job: Job, finished: Record) -> None:
    assert up_to_date(job, Options(), ("vectors",)) == finished


def test_without_a_record_nothing_is_up_to_date(job: Job) -> None:
    assert up_to_date(job, Options(), ("vectors",)) is None


def test_a_damaged_record_is_no_record(job: Job, finished: Record) -> None:
    path = job.out / "record.json"
    path.write_text(path.read_text()[:-20])
    assert up_to_date(job, Options(), ("vectors",)) is None


@pytest.mark.parametrize("data", [b"the bytes of another", WHEEL[:-1], WHEEL + b"\0", None])
def test_an_altered_or_missing_wheel_is_built_again(job: Job, finished: Record, data: bytes | None) -> None:
    wheel = finished.components[0].wheel
    assert wheel is not None
    if data is None:
        (job.out / wheel.file).unlink()
    else:
        (job.out / wheel.file).write_bytes(data)
    assert up_to_date(job, Options(), ("vectors",)) is None


def test_another_dockerfile_or_lock_is_another_build(job: Job, finished: Record) -> None:
    other = replace(job.rendered, files={**job.rendered.files, "Dockerfile": "FROM scratch\n"})
    assert up_to_date(replace(job, rendered=other), Options(), ("vectors",)) is None
    assert up_to_date(replace(job, lock=replace(job.lock, epoch=1)), Options(), ("vectors",)) is None


def test_an_image_of_another_digest_or_none_is_made_again(job: Job, finished: Record) -> None:
    image(job.out / "image.oci.tar", b"another")
    assert up_to_date(job, Options(), ("vectors",)) is None
    assert up_to_date(job, Options(image=False), ("vectors",)) == finished, "only wheels are asked for"
    (job.out / "image.oci.tar").unlink()
    assert up_to_date(job, Options(), ("vectors",)) is None


@pytest.mark.parametrize("changes", [{"verdict": "fails"}, {"image": None}])
def test_a_build_that_did_not_end_well_is_not_up_to_date(job: Job, finished: Record, changes: dict[str, object]) -> None:
    write_record(job.out / "record.json", replace(finished, **changes))  # type: ignore[arg-type]
    assert up_to_date(job, Options(), ("vectors",)) is None


def test_a_component_never_built_is_not_up_to_date(job: Job, finished: Record) -> None:
    nothing = replace(finished.components[0], status="not attempted", wheel=None)
    write_record(job.out / "record.json", replace(finished, components=(nothing,), verdict="incomplete"))
    assert up_to_date(job, Options(components=("vectors",)), ("vectors",)) is None


def test_the_manifest_digest_is_what_the_index_names(tmp_path: Path) -> None:
    digest = image(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        (named,) = json.load(archive.extractfile("index.json") or io.BytesIO())["manifests"]
    assert digest == named["digest"]
    images.image(tmp_path / "attested.tar", images.layer({"file": b"1"}), attested=True)
    assert manifest_digest(tmp_path / "attested.tar") == digest, "attestations beside an image are none"


@pytest.mark.parametrize("length", [0, 1, 100, 512, 513, 600])
def test_a_truncated_image_has_no_digest(tmp_path: Path, length: int) -> None:
    image(tmp_path / "image.tar")
    (tmp_path / "image.tar").write_bytes((tmp_path / "image.tar").read_bytes()[:length])
    assert manifest_digest(tmp_path / "image.tar") == ""


@pytest.mark.parametrize(
    "index", ["{}", "[]", "null", "5", '{"manifests": []}', '{"manifests": {}}', '{"manifests": [5]}', "{", "\xff"]
)
def test_an_image_with_an_index_of_another_shape_has_no_digest(tmp_path: Path, index: str) -> None:
    with tarfile.open(tmp_path / "image.tar", "w") as made:
        item = tarfile.TarInfo("index.json")
        item.size = len(index.encode("latin-1"))
        made.addfile(item, io.BytesIO(index.encode("latin-1")))
    assert manifest_digest(tmp_path / "image.tar") == ""


def test_a_file_or_folder_that_is_no_archive_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive " * 1000)
    assert [manifest_digest(tmp_path / name) for name in ("text", "absent", "")] == ["", "", ""]


# Publishing


def test_a_wheel_that_is_the_reported_one_is_put_beside_the_record(tmp_path: Path) -> None:
    (tmp_path / "made.whl").write_bytes(WHEEL)
    outcome = Outcome("vectors", result={"wheel_sha256": hashlib.sha256(WHEEL).hexdigest()})
    publish(tmp_path / "made.whl", tmp_path / "out" / "made.whl", outcome)
    assert (tmp_path / "out" / "made.whl").read_bytes() == WHEEL


def test_a_wheel_that_is_another_than_reported_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "made.whl").write_bytes(WHEEL + b"\0")
    outcome = Outcome("vectors", result={"wheel_sha256": hashlib.sha256(WHEEL).hexdigest()})
    with pytest.raises(IntegrityError, match="the container that built it reported"):
        publish(tmp_path / "made.whl", tmp_path / "out" / "made.whl", outcome)
    assert not (tmp_path / "out").exists()


# What is said at the end


def test_a_built_component_is_reported_with_what_the_container_said(job: Job) -> None:
    said = {"wheel": "v.whl", "wheel_sha256": "ab" * 32, "wheel_size": 9, "seconds": 12.5, "cpu_seconds": 20.0, "units": 3,
            "units_reused": 2, "peak_memory_bytes": 7, "changes": ["substituted in a: b"]}  # fmt: skip
    result = component_result(job, Outcome("vectors", "built", said, seconds=99.0))
    assert result.wheel == File("v.whl", "ab" * 32, 9)
    units = result.translation_units
    assert (units.total, units.compiled, units.reused) == (3, 1, 2)
    assert (result.seconds, result.log, result.architectures_asked) == (12.5, "components/vectors/build.log", ("sm_100a",))
    assert result.source.sha256 == next(e.sha256 for e in ENTRIES if e.name == "cleanroom-vectors")


def test_a_failed_component_is_reported_with_its_failure_and_the_step_s_log(job: Job) -> None:
    failure = classify("a.cu(3): error: no such thing")
    result = component_result(job, Outcome("vectors", "failed", failure=failure, seconds=3.14))
    assert (result.wheel, result.failure, result.seconds, result.log) == (None, failure, 3.1, "logs/vectors.log")


def test_without_a_probe_the_environment_is_what_is_locked(job: Job) -> None:
    assert environment_of(job, {}) == {
        "os": "Linux", "gcc": "14", "python": "3.13", "toolkit": "13.3", "distribution:setuptools": "80.9.0",
    }  # fmt: skip
    assert toolchain_of({}) == {}


def test_what_was_seen_from_inside_counts_more_than_what_is_locked(job: Job) -> None:
    probe = {"os": "Linux", "gcc": "14.2.0", "python": "3.13.5", "toolkit": "13.3.73", "release": "Debian", "glibc": "2.41",
             "distributions": {"setuptools": "1", "torch": "2.13.0"},
             "torch": {"version": "2.13.0+cu130", "cuda": "13.0"}}  # fmt: skip
    found = environment_of(job, probe)
    assert (found["gcc"], found["distribution:setuptools"]) == ("14.2.0", "1")
    assert found["distribution:torch"] == "2.13.0+cu130"
    assert toolchain_of(probe)["torch cuda"] == "13.0"


def unmet(job: Job, line: str, *overrides: Override) -> str:
    (told,) = unmet_requirements(replace(job, target=replace(job.target, overrides=overrides)), {"pip_check": [line]})
    return told


def test_an_unmet_requirement_is_explained_by_its_declared_override(job: Job) -> None:
    line = "deepinfer 0.1.0 has requirement torch==2.13.0+cu132, but you have torch 2.13.0."
    assert unmet(job, line, NCCL, TORCH) == f"{line} (the build for 13.2 is elsewhere)"


def test_an_unmet_requirement_without_an_override_is_said_as_it_is(job: Job) -> None:
    line = "thing 1.0 requires other, which is not installed."
    assert unmet(job, line, TORCH, NCCL) == line
    assert unmet_requirements(job, {}) == ()


def test_the_override_of_what_is_required_explains_and_not_that_of_who_requires_it(job: Job) -> None:
    line = "torch 2.13.0 has requirement nvidia-nccl-cu13==2.29.7, but you have nvidia-nccl-cu13 2.32.3."
    assert unmet(job, line, TORCH, NCCL) == f"{line} (DeepEP needs a newer one)"


def test_an_override_does_not_explain_a_distribution_whose_name_only_contains_its_own(job: Job) -> None:
    line = "thing 1.0 has requirement torchvision==1, but you have torchvision 2."
    assert unmet(job, line, TORCH) == line


def test_a_build_that_is_fine_or_only_partly_asked_for_raises_nothing() -> None:
    raise_for(whole_record(), SOUND)
    raise_for(whole_record(verdict="incomplete"), SOUND)


def test_a_failed_component_is_named_with_its_first_error_and_log() -> None:
    failure = classify("a.cu(3): error: no such thing")
    failed = result_of("flashmla", "1.0.0", status="failed", wheel=None, failure=failure)
    with pytest.raises(BuildFailed, match="sm100: flashmla failed") as caught:
        raise_for(whole_record(verdict="fails", components=(result_of("deepep", "2.5.0"), failed)), SOUND)
    assert "no such thing" in caught.value.means
    assert "logs/flashmla.log" in caught.value.next_step


def test_a_module_that_does_not_import_is_named() -> None:
    imports = (Import("deepep", "deep_ep", ok=False, error="ImportError: libcuda.so.1"),)
    with pytest.raises(BuildFailed, match="deep_ep failed") as caught:
        raise_for(whole_record(verdict="fails", imports=imports), SOUND)
    assert caught.value.means == "It compiled but does not import."


def test_what_compiled_but_is_not_what_was_asked_for_is_named_with_its_finding() -> None:
    found = (Finding("flashmla", "missing architecture", "fails", "sm_100a is not in it"),) * 2
    with pytest.raises(BuildFailed, match="sm100: flashmla failed") as caught:
        raise_for(whole_record(verdict="fails"), Evidence((), found))
    assert caught.value.means == "It compiled, but: sm_100a is not in it (and 1 more)"
    assert "report.md" in caught.value.next_step


def test_a_locked_distribution_is_found_by_its_name() -> None:
    torch = entry("python", "pypi", "torch", "2.13.0", "torch-2.13.0-cp313-cp313-manylinux_2_28_x86_64.whl")
    assert lock(entries=(*ENTRIES, torch)).version_of("torch") == "2.13.0"
