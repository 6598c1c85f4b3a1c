"""What the doctor says about numbers; the rest it reads from the machine it runs on."""

from pathlib import Path

import pytest

from cleanroom import doctor
from cleanroom.engine import Docker
from cleanroom.project import Project

GB = 1_000_000_000


def test_free_space_is_judged_in_three_steps() -> None:
    assert doctor.disk(100 * GB, Path("/store")).level == "ok"
    assert doctor.disk(20 * GB, Path("/store")).level == "note"
    full = doctor.disk(1 * GB, Path("/store"))
    assert full.level == "missing"
    assert "/store" in full.next_step
    assert "1.00 GB" in full.value


def test_little_memory_is_a_note_because_one_job_may_still_fit() -> None:
    assert doctor.memory(16 * GB).level == "ok"
    assert doctor.memory(1 * GB).level == "note"


def test_without_root_it_says_which_bases_are_left() -> None:
    assert doctor.root(0).level == "ok"
    assert "debian13" in doctor.root(1000).means


def test_an_old_python_is_missing() -> None:
    assert doctor._python((3, 10, 9)).level == "missing"
    assert doctor._python((3, 11, 0)).level == "ok"


def test_a_docker_that_was_asked_for_and_does_not_answer_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEANROOM_ENGINE", raising=False)
    finding = doctor._engine("it does not answer.", Docker(True, "DOCKER_HOST=tcp://10.0.0.1"), "", Project(tmp_path))
    assert finding.level == "missing"
    assert "DOCKER_HOST=tcp://10.0.0.1" in finding.means


def test_without_docker_and_root_the_engine_is_missing_and_both_reasons_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEANROOM_ENGINE", raising=False)
    finding = doctor._engine("there is no docker command.", Docker(), "it needs root.", Project(tmp_path))
    assert finding.level == "missing"
    assert "no docker command" in finding.value
    assert "needs root" in finding.means


def test_a_usable_docker_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEANROOM_ENGINE", raising=False)
    finding = doctor._engine("", Docker(True, "", "0.13.1", server="26.1.5"), "it needs root.", Project(tmp_path))
    assert (finding.level, finding.value) == ("ok", "Docker 26.1.5, buildx 0.13.1")


def test_an_engine_that_does_not_exist_is_missing_as_a_build_would_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEANROOM_ENGINE", "podman")
    finding = doctor._engine("", Docker(True, ""), "", Project(tmp_path))
    assert (finding.level, finding.value) == ("missing", "CLEANROOM_ENGINE is 'podman'")


def test_a_store_where_a_file_is_in_the_way_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "store"):
        finding = doctor.store_place(place)
        assert (finding.level, finding.means) == ("missing", f"{tmp_path / 'file'} is no folder.")
    assert doctor.store_place(tmp_path / "store").level != "missing"
