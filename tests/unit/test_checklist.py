"""The migration checklist ticks what there is evidence for and leaves the rest open."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import cast

import pytest
import verifications
from records import component, record
from standings import built, failing, locked, project_at, read_binaries, verified

from cleanroom import matrix
from cleanroom.checklist import SHOWN, Answer, Question, answers_of, checklist, read_questions, refuse_unknown_tests, run
from cleanroom.console import Console
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import EnvsError, UnknownName
from cleanroom.evidence import BY_LOG, NOT_TOLD, ComponentEvidence, Evidence, LibraryEvidence, write_evidence
from cleanroom.files import write_atomically
from cleanroom.gpu_checks import read_gpu_checks
from cleanroom.lock import lock_path, read_lock
from cleanroom.matrix import standing
from cleanroom.products import read_products
from cleanroom.project import REPOSITORY, Project
from cleanroom.record import EngineUsed, LockInfo, TargetInfo, write_record
from cleanroom.strict_json import dump_document
from cleanroom.target import NotBuilt
from cleanroom.tiers import DEFINITIONS, FILE, NOT_REACHED, Outcome, Tier, Tiers

ENVS = REPOSITORY / "envs"
GOLDEN = Path(__file__).parent / "data" / "checklist"


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(ENVS)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_at(tmp_path)


def tiers_of_evidence(project: Project, *outcomes: str) -> None:
    """What `tiers` writes for ascend950, with these outcomes in the order of the tiers."""
    lock = lock_path(project.root, "ascend950-debian13")
    lock.symlink_to(REPOSITORY / "lockfiles" / lock.name)
    target = project.envs_dir / "targets" / "ascend950.yaml"
    target.symlink_to(REPOSITORY / "envs" / "targets" / target.name)
    ran = zip(DEFINITIONS, outcomes, strict=True)
    made = Tiers(
        tool_version="0.1.0",
        target="ascend950",
        lock=LockInfo(lock.stem, read_lock(lock).content, ""),
        ran_on="ascend950_x86",
        engine=EngineUsed("embedded", "26.1.5", "", ""),
        started="2026-11-30T17:30:00Z",
        tiers=tuple(Tier(d.name, d.shows, d.shows_not, cast("Outcome", o), "linux/amd64", 1.0) for d, o in ran),
        not_reached=NOT_REACHED,
    )
    write_atomically(project.out_dir / "ascend950" / FILE, dump_document(made).encode())


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


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        (["passed"] * 5, "yes"),
        (["passed", "passed", "not run", "passed", "passed"], "open"),
        (["passed", "passed", "partly", "not run", "passed"], "no"),
    ],
)
def test_what_was_tried_without_cann_is_told_and_is_no_build(project: Project, envs: Envs, outcomes: list[str], state: str) -> None:
    tiers_of_evidence(project, *outcomes)
    found = answers(project, envs, "ascend950")
    tried = found["what can be tried without CANN works"]
    assert tried.state == state
    assert f"extension {outcomes[2]}" in tried.evidence
    assert "none of them is a build" in tried.evidence
    assert found["every component compiles in a clean container without a network"].state == "open"


def test_without_tiers_the_checklist_says_how_to_run_them(project: Project, envs: Envs) -> None:
    assert answers(project, envs, "ascend950")["what can be tried without CANN works"].evidence == "nox -s tiers-ascend950"
    assert "what can be tried without CANN works" not in answers(project, envs, "sm100")


def test_one_card_is_told_of_tiers_and_of_what_no_build_of_its_target_holds(project: Project) -> None:
    tiers_of_evidence(project, *["passed"] * 5)
    envs = load_envs(project.envs_dir)
    products = read_products(project.envs_dir, envs)
    said = matrix.answer(products.find("Ascend 950"), products, matrix.standings_of(project, envs), envs)
    assert said["can a clean machine reproduce it"] == "never run"
    assert said["tiers of evidence"].startswith(
        "inputs passed, stages passed, extension passed, lowering passed, host code passed ("
    )
    assert said["not built"].startswith("DeepGEMM for Ascend (no pinned source")
    assert said["next"] == "docs/ascend.md says what a build needs"


def test_the_checklist_of_an_npu_names_no_test_that_needs_cuda(project: Project, envs: Envs) -> None:
    commands = answers(project, envs, "ascend950")["flashmla passes its own tests"].commands
    assert commands == ("python tests/test-sparse-prefill.py", "python tests/test-sparse-decode.py")


def npu_built(project: Project, *, told: str = BY_LOG, second: bool = True) -> None:
    """A build of ascend950 with all its components, and what a second one gave."""
    tiers_of_evidence(project, *["passed"] * 5)
    content = read_lock(lock_path(project.root, "ascend950-debian13")).content
    asked = {"flashmla": ("dav-3510",), "tilekernels": ("dav-3510",), "deepinfer": ()}
    made = record(
        target=TargetInfo("ascend950", "Ascend 950", "supported", "linux/arm64"),
        lock=LockInfo("ascend950-debian13", content, "sha256:" + "1e" * 32),
        components=tuple(component(name, "1.0", architectures_asked=archs) for name, archs in asked.items()),
        not_built=(NotBuilt("DeepSelect", "no pinned source"),),
        verdict="incomplete",
    )
    write_record(project.out_dir / "ascend950" / "record.json", made)
    if second:
        verified(project, made)
    code = LibraryEvidence("flash_mla/npu.so", ("AI Core",), (), 12, {})
    parts = (ComponentEvidence("flashmla", ("dav-3510",), ("dav-3510",), ("AI Core",), (code,), {"dav-3510": told}),)
    write_evidence(project.out_dir / "ascend950" / "evidence.json", Evidence(parts, ()))


def test_a_build_for_an_npu_is_ticked_for_what_was_built_and_not_for_what_was_not(project: Project, envs: Envs) -> None:
    npu_built(project)
    found = answers(project, envs, "ascend950")
    assert found["flashmla holds code for what was asked"].state == "yes"
    assert found["a second clean build gives the same bytes"].state == "yes"
    compiles = found["every component compiles in a clean container without a network"]
    assert (compiles.state, compiles.evidence) == ("no", "not built: DeepSelect (no pinned source)")


def test_code_for_an_npu_of_which_nobody_knows_for_which_it_is_is_not_ticked(project: Project, envs: Envs) -> None:
    npu_built(project, told=NOT_TOLD, second=False)
    assert answers(project, envs, "ascend950")["flashmla holds code for what was asked"].state == "no"


def test_tiers_that_cannot_be_read_hide_no_build(project: Project, envs: Envs) -> None:
    npu_built(project)
    (project.out_dir / "ascend950" / FILE).write_text('{"schema": 1}')
    found = answers(project, envs, "ascend950")
    assert found["flashmla holds code for what was asked"].state == "yes"
    assert found["what can be tried without CANN works"].state == "open"


def test_tiers_of_an_older_lock_are_not_ticked(project: Project, envs: Envs) -> None:
    tiers_of_evidence(project, *["passed"] * 5)
    path = project.out_dir / "ascend950" / FILE
    content = read_lock(lock_path(project.root, "ascend950-debian13")).content
    path.write_text(path.read_text().replace(content, "sha256:" + "0d" * 32))
    tried = answers(project, envs, "ascend950")["what can be tried without CANN works"]
    assert tried.state == "open"
    assert "of an older lock" in tried.evidence


def test_a_lock_without_cann_is_not_ticked(project: Project, envs: Envs) -> None:
    tiers_of_evidence(project, *["passed"] * 5)
    found = answers(project, envs, "ascend950")
    locked_answer = found["every input is locked by version and hash"]
    assert locked_answer.state == "no"
    assert "CANN 9.2 was not supplied" in locked_answer.evidence
    assert "DeepSelect" in found["every part of the engine is a component here"].evidence
    assert not [what for what in found if "NVLink" in what]


def test_tiers_that_cannot_be_read_are_told(project: Project, envs: Envs) -> None:
    tiers_of_evidence(project, *["passed"] * 5)
    (project.out_dir / "ascend950" / FILE).write_text("{")
    (said,) = [r for r in matrix.remarks([standing(project, envs.target("ascend950"), "debian13")]) if "tiers" in r]
    assert "tiers.json is not valid JSON" in said
