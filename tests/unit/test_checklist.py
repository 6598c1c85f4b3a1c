"""The migration checklist ticks what there is evidence for and leaves the rest open."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
import verifications
from standings import built, failing, locked, project_at, read_binaries, verified

from cleanroom.checklist import SHOWN, Answer, Question, answers_of, checklist, read_questions, refuse_unknown_tests, run
from cleanroom.console import Console
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import EnvsError, UnknownName
from cleanroom.evidence import write_evidence
from cleanroom.gpu_checks import read_gpu_checks
from cleanroom.matrix import standing
from cleanroom.project import REPOSITORY, Project

ENVS = REPOSITORY / "envs"
GOLDEN = Path(__file__).parent / "data" / "checklist"


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(ENVS)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_at(tmp_path)


def answers(project: Project, envs: Envs, target: str) -> dict[str, Answer]:
    stands = standing(project, envs.target(target), "debian13")
    groups = answers_of(stands, read_questions(ENVS), read_gpu_checks(ENVS))
    return {answer.what: answer for group in groups.values() for answer in group}


def written(project: Project, envs: Envs, target: str) -> str:
    stands = standing(project, envs.target(target), "debian13")
    return checklist(stands, answers_of(stands, read_questions(ENVS), read_gpu_checks(ENVS)))


def same_as_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("CLEANROOM_WRITE_GOLDENS"):
        path.write_text(text)
    assert text == path.read_text()


def test_before_a_build_only_the_lock_is_shown(project: Project, envs: Envs) -> None:
    locked(project, "sm90")
    found = answers(project, envs, "sm90")
    assert [a.what for a in found.values() if a.state == "yes"] == ["every input is locked by version and hash"]
    assert [a.what for a in found.values() if a.state == "no"] == ["DeepInfer lists the platform"]
    same_as_golden("never-run.md", written(project, envs, "sm90"))


def test_a_verified_target_with_its_evidence_looks_as_it_did(project: Project, envs: Envs) -> None:
    made = built(project, "sm100", architecture="sm_100a", content=locked(project, "sm100"))
    verified(project, made)
    read_binaries(project, made)
    same_as_golden("verified.md", written(project, envs, "sm100"))


def test_a_built_experimental_target_with_stubs_looks_as_it_did(project: Project, envs: Envs) -> None:
    made = built(project, "sm90", architecture="sm_90a", content=locked(project, "sm90"), status="experimental")
    read_binaries(project, made, stubs=49)
    same_as_golden("stubs.md", written(project, envs, "sm90"))
    answer = answers(project, envs, "sm90")["flashmla holds code for what was asked"]
    assert (answer.state, answer.evidence) == ("no", "asked sm_90a; found sm_90a; 49 kernels are stubs that only trap")


def test_a_failed_component_is_a_no_and_what_was_left_out_stays_open(project: Project, envs: Envs) -> None:
    made = built(project, "sm89", architecture="sm_89", content=locked(project, "sm89"), status="experimental")
    failing(project, made, "flashmla")
    found = answers(project, envs, "sm89")
    assert found["every component compiles in a clean container without a network"].state == "no"
    assert found["flashmla holds code for what was asked"].evidence.startswith("Instruction 'griddepcontrol'")
    assert found["deepinfer holds code for what was asked"].state == "open"


def test_kernels_that_are_compiled_on_first_use_are_never_ticked(project: Project, envs: Envs) -> None:
    made = built(project, "sm100", architecture="sm_100a", content=locked(project, "sm100"))
    read_binaries(project, made)
    found = answers(project, envs, "sm100")
    assert found["deepgemm holds code for what was asked"].state == "open"
    assert found["flashmla holds code for what was asked"].state == "yes"


@pytest.mark.parametrize("target", ["sm100", "sm90"])
def test_correctness_speed_and_the_service_stay_open_whatever_was_built(project: Project, envs: Envs, target: str) -> None:
    made = built(project, target, architecture="sm_100a", content=locked(project, target))
    verified(project, made)
    read_binaries(project, made)
    found = answers(project, envs, target)
    tests = [a for a in found.values() if a.what.endswith("passes its own tests")]
    assert len(tests) == 5
    assert all(a.state == "open" and a.commands for a in tests)
    for part in ("throughput", "the engine starts", "the links between devices", "the model answers", "load balancing"):
        (answer,) = [a for a in found.values() if a.what.startswith(part)]
        assert answer.state == "open"


def test_the_session_writes_the_document_and_counts_its_answers(project: Project) -> None:
    stream = io.StringIO()
    run(project, "sm90", None, Console(stream=stream))
    text = (project.out_dir / "sm90" / "checklist.md").read_text()
    counted = dict(re.findall(r"^(yes|no|open): +(\d+)$", stream.getvalue(), re.MULTILINE))
    assert {state: text.count(f": **{state}**") for state in counted} == {state: int(n) for state, n in counted.items()}


def test_an_unknown_target_is_refused(project: Project) -> None:
    with pytest.raises(UnknownName):
        run(project, "sm91", None, Console(stream=io.StringIO()))


def test_every_question_and_every_thing_that_can_be_shown_is_used() -> None:
    questions = read_questions(ENVS)
    assert len(questions) == 4
    assert [name for q in questions for name in q.shown] == list(SHOWN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- {question: Q, shown: [magic]}\n", "'magic' is not acceptable; allowed: any of listed, locked"),
        ("- {question: Q, open: [{what: w, how: h}]}\n", "the key 'source' is missing"),
        ("- {questions: Q}\n", "unknown key"),
        ("question: Q\n", "a list is needed"),
    ],
)
def test_a_mistake_in_the_questions_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "checklist.yaml").write_text(text)
    with pytest.raises(EnvsError) as caught:
        read_questions(tmp_path)
    assert expected in caught.value.what


def test_tests_that_no_file_describes_are_refused_and_not_left_out() -> None:
    refuse_unknown_tests(read_questions(ENVS), read_gpu_checks(ENVS))
    with pytest.raises(EnvsError, match="'flashmlaa'"):
        refuse_unknown_tests((Question("?", (), ("flashmlaa",), ()),), read_gpu_checks(ENVS))


def test_what_compiles_on_first_use_is_answered_by_what_was_tried(project: Project, envs: Envs) -> None:
    made = built(project, "sm100", architecture="sm_100a", content=locked(project, "sm100"))
    write_evidence(project.out_dir / made.target.name / "evidence.json", verifications.evidence())
    answer = answers(project, envs, "sm100")["what deepep compiles on first use compiles"]
    assert (answer.state, answer.evidence) == ("no", "1 of 2 kernels; out/sm100/evidence.json")
