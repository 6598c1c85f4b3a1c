"""Trials: what is tried, what it came to, and the page and the file that are made of it."""

from __future__ import annotations

import io
import json
import shutil
import threading
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from test_examine import compiled_in_image

from cleanroom import jit as jitting
from cleanroom.arch import parse_arch
from cleanroom.build import Job, Outcome, Work
from cleanroom.console import Console
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import ArchError, BuildFailed, CleanroomError, EnvsError, UnknownName
from cleanroom.failures import Failure, classify
from cleanroom.jit import JitReport, probes
from cleanroom.project import REPOSITORY, Project
from cleanroom.resolve import pins_of_release
from cleanroom.store import Store
from cleanroom.strict_json import to_json
from cleanroom.survey import Survey, Unit, grouped
from cleanroom.trial import (
    Options,
    Part,
    Trial,
    attempt,
    of_units,
    part_of,
    prepare,
    refuse_taken_name,
    refuse_unreadable,
    setting,
    substitution,
    target_of,
    target_yaml,
    write_target,
)
from cleanroom.trial_view import show

REFUSED = classify("ptxas a.ptx, line 9; error   : Feature '.griddepcontrol' requires .target sm_90 or higher\n")
WHEN = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


def job_of(envs: Envs, tmp_path: Path, **options: Any) -> Job:
    project = replace(Project(REPOSITORY))
    made = prepare(project, envs, Options(**{"arch": "sm_120a", "start": "sm100", **options}), Store(tmp_path), quiet())
    return replace(made, out=tmp_path / "out")


def quiet() -> Console:
    return Console(stream=io.StringIO())


def test_a_trial_is_an_experiment_that_expects_and_accepts_nothing(envs: Envs, tmp_path: Path) -> None:
    job = job_of(envs, tmp_path)
    assert (job.target.name, job.target.status) == ("trial_sm_120a", "experimental")
    assert (job.target.expected, job.target.accepts) == ((), ())
    assert {str(arch) for s in job.target.components for arch in job.target.architectures_of(s.component)} == {"sm_120a"}


def test_flashmla_is_told_of_the_architecture_although_its_build_has_no_switch(envs: Envs, tmp_path: Path) -> None:
    (change,) = json.loads(job_of(envs, tmp_path).rendered.files["components/flashmla.json"])["substitute"]
    assert change["replace"] == '["sm_120a"]'


def test_an_interrupted_trial_resumes_what_a_target_of_the_same_architecture_has_compiled(envs: Envs, tmp_path: Path) -> None:
    mine = json.loads(job_of(envs, tmp_path).rendered.files["components/flashmla.json"])["resume_key"]
    theirs = json.loads((REPOSITORY / "dockerfiles/sm120-debian13/components/flashmla.json").read_text())["resume_key"]
    assert mine == theirs


def test_an_architecture_that_nobody_wrote_down_is_tried_with_every_kernel_of_the_start(envs: Envs, tmp_path: Path) -> None:
    job = job_of(envs, tmp_path, arch="sm_110a")
    tried = probes(job.envs.jit, job.target)
    assert len(tried) == len(probes(envs.jit, envs.target("sm100")))
    assert {str(p.architecture) for p in tried if p.component == "deepgemm" and not p.kernel.exact} == {"sm_110f"}
    assert {p.expected for p in tried} == {"compiled"}


def test_what_is_known_of_an_architecture_does_not_hide_what_the_start_gives(envs: Envs) -> None:
    arch, like = parse_arch("sm_120a", where="x"), parse_arch("sm_100a", where="x")
    target = replace(envs.target("sm120"))
    expected = {p.expected for p in probes(jitting.extended(envs.jit, arch, like), target) if like.sm in p.family.expected.outcomes}
    assert expected == {"compiled"}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"arch": "native"}, ArchError, "native"),
        ({"arch": "sm_70"}, ArchError, "sm_70"),
        ({"start": "sm1000"}, UnknownName, "sm100"),
        ({"start": "ascend950"}, UnknownName, "ascend950"),
        ({"components": ("flashmlaa",)}, UnknownName, "flashmlaa"),
        ({"settings": ("NVCC FLAGS",)}, EnvsError, "NAME=VALUE"),
        ({"substitutes": ("setup.py:a=>b",)}, EnvsError, "COMPONENT:FILE:OLD=>NEW"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_is_fetched(
    options: dict[str, Any], error: type[CleanroomError], says: str, envs: Envs, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        job_of(envs, tmp_path, **options)
    assert says in caught.value.what
    assert not list(tmp_path.rglob("*.whl"))


def test_settings_and_substitutions_reach_the_builds(envs: Envs, tmp_path: Path) -> None:
    job = job_of(envs, tmp_path, settings=("A_FLAG=1=2",), substitutes=("flashmla:setup.py:-O3=>-O2",))
    body = json.loads(job.rendered.files["components/flashmla.json"])
    assert {"name": "A_FLAG", "value": "1=2"} in body["environment"]
    first = body["substitute"][0]
    assert (first["file"], first["match"], first["replace"], first["count"]) == ("setup.py", "-O3", "-O2", 1)
    assert len(json.loads(job.rendered.files["components/deepgemm.json"])["substitute"]) == 0


def test_parts_of_an_option_are_told_apart_at_the_first_sign() -> None:
    assert (setting("A=b=c").name, setting("A=b=c").value) == ("A", "b=c")
    component, change = substitution("x:a/b.py:k: 1=>k: 2", ["x"])
    assert (component, change.file, change.match, change.replace) == ("x", "a/b.py", "k: 1", "k: 2")


# --- what it came to -------------------------------------------------------------------------------------------------


def survey(*outcomes: Any) -> Survey:
    units = [Unit(f"{n}.cu", ("sm_89",), o, 1.0, REFUSED if o == "refused" else None) for n, o in enumerate(outcomes)]
    return Survey("flashmla", tuple(units), None)


@pytest.mark.parametrize(
    ("outcomes", "verdict", "counts"),
    [
        (("compiled", "compiled"), "compiles", "2 of 2 translation units"),
        (("compiled", "stub", "refused"), "partly", "1 of 3 translation units, 1 stub"),
        (("stub", "refused"), "refuses", "0 of 2 translation units, 1 stub"),
        (("refused", "refused"), "refuses", "0 of 2 translation units"),
    ],
)
def test_a_stub_does_not_count_as_compiled(outcomes: tuple[str, ...], verdict: str, counts: str) -> None:
    part = of_units("FlashMLA", survey(*outcomes), "supported: all of them")
    assert (part.verdict, part.counts) == (verdict, counts)


def test_one_root_cause_seen_many_times_is_one_line() -> None:
    (cause,) = of_units("FlashMLA", survey(*["refused"] * 40), "").causes
    assert (cause.count, cause.gate, cause.first) == (40, "missing instruction", "0.cu")


def test_kernels_compiled_at_run_time_are_held_against_the_start(envs: Envs, tmp_path: Path) -> None:
    job = job_of(envs, tmp_path)
    family = next(f.name for c in envs.jit if c.component == "deepgemm" for f in c.families if "sm_100a" in f.expected.outcomes)
    results = [compiled_in_image("compiled", "compiled"), compiled_in_image("refused", "compiled", "x.cu(3): error: no tcgen05")]
    report = JitReport(2, 60.0, tuple(replace(r, family=family) for r in results), (), (), (), ())
    part = part_of("deepgemm", job, envs, Options("sm_120a", "sm100"), Outcome("deepgemm", "built"), report)
    assert (part.verdict, part.counts, part.reference) == ("partly", "1 of 2 kernels compiled at run time", "2 of 2")
    assert [(cause.gate, cause.failure.message) for cause in part.causes] == [("nvcc", "no tcgen05")]


def test_host_code_that_does_not_build_refuses_with_its_first_error(envs: Envs, tmp_path: Path) -> None:
    failed = Outcome("deepgemm", "failed", failure=Failure("compile error", "expected ';'", "a.cpp", 3, (), ""))
    part = part_of("deepgemm", job_of(envs, tmp_path), envs, Options("sm_120a", "sm100"), failed, None)
    assert (part.verdict, part.causes[0].gate, part.causes[0].failure.where) == ("refuses", "host compiler", "a.cpp:3")


def test_what_was_not_reached_is_not_called_compiled(envs: Envs, tmp_path: Path) -> None:
    part = part_of("deepgemm", job_of(envs, tmp_path), envs, Options("sm_120a", "sm100"), Outcome("deepgemm", "built"), None)
    assert part.verdict == "not tried"


# --- pages and file --------------------------------------------------------------------------------------------------


def parts() -> tuple[Part, ...]:
    causes = grouped([("a.cu", REFUSED), ("b.cu", REFUSED)])
    return (
        Part("flashmla", "FlashMLA", "partly", "translation units", 29, 2, 0, 27, 0, "supported: all of them", causes),
        Part("deepgemm", "DeepGEMM", "partly", "kernels compiled at run time", 20, 4, 1, 15, 0, "20 of 20", causes),
        Part("deepep", "DeepEP", "compiles", "kernels compiled at run time", 9, 9, 0, 0, 0, "9 of 9", ()),
        Part("tilekernels", "TileKernels", "not tried", "", 0, 0, 0, 0, 0, "", ()),
        Part("deepinfer", "DeepInfer", "refuses", "the wheel does not build", 0, 0, 0, 0, 0, "", causes),
    )


def made(text: str = "name: sm110\n") -> Trial:
    started = "2026-11-30T12:00:00Z"
    return Trial(
        "trial-sm_120a",
        "sm_120a",
        "sm100",
        "debian13",
        "sha256:ab",
        "13.3",
        ("architecture sm_120a",),
        started,
        300.0,
        parts(),
        text,
    )


def test_what_was_measured_becomes_a_target_that_loads(envs: Envs, tmp_path: Path) -> None:
    job = job_of(envs, tmp_path, settings=("A=1",))
    folder = tmp_path / "envs"
    shutil.copytree(REPOSITORY / "envs", folder)
    options = Options("sm_120a", "sm100", settings=("A=1",), write="sm120b")
    path = write_target(replace(envs, folder=folder), "sm120b", target_yaml(envs, options, job, parts(), WHEN))
    target = load_envs(folder).target("sm120b")
    assert path == folder / "targets" / "sm120b.yaml"
    assert (target.status, target.architecture_names) == ("experimental", ("sm_120a",))
    assert str(target.expectation("flashmla")) == "refuses: 2 of 29", "one refused unit, and no wheel comes out"
    assert {e.component: e.outcome for e in target.expected}["deepinfer"] == "refuses"
    deepgemm = target.expectation("deepgemm")
    assert deepgemm is not None
    assert deepgemm.reason == "the wheel is host code; at run time 4 of 20 kernels compiled at run time, 1 stub"
    assert target.toolkit.headers == envs.target("sm100").toolkit.headers


def test_a_target_that_is_there_is_never_overwritten(envs: Envs, tmp_path: Path) -> None:
    with pytest.raises(EnvsError, match="already"):
        refuse_taken_name(envs, "sm90")
    with pytest.raises(EnvsError, match="small letters"):
        refuse_taken_name(envs, "../sm90")
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "x.yaml").write_text("mine")
    with pytest.raises(EnvsError, match="a target x already"):
        write_target(replace(envs, folder=tmp_path), "x", "theirs")


def test_every_form_says_who_refuses_where_and_that_nothing_was_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    show(made(), tmp_path, Console(stream=stream))
    for text in (stream.getvalue(), (tmp_path / "trial.md").read_text(), (tmp_path / "trial.html").read_text()):
        flat = " ".join(text.replace("<wbr/>", "").split())
        assert "griddepcontrol" in flat
        assert "a.cu" in flat
        assert "29 translation units" in flat
        assert "was not run" in flat
    assert yaml.safe_load((tmp_path / "trial.md").read_text().split("```")[1]) == {"name": "sm110"}


def test_with_json_the_trial_is_one_object(tmp_path: Path) -> None:
    events = io.StringIO()
    show(made(), tmp_path, Console(json=True, stream=io.StringIO(), events=events))
    assert json.loads(events.getvalue())["result"] == json.loads(json.dumps(to_json(made())))


def test_text_of_a_compiler_is_never_taken_for_marks_of_the_page(tmp_path: Path) -> None:
    evil = replace(REFUSED, message="<script>alert(1)</script> | **bold**")
    parts_ = (replace(parts()[0], causes=grouped([("a.cu", evil)])),)
    show(replace(made("<b>"), parts=parts_), tmp_path, quiet())
    assert "<script>" not in (tmp_path / "trial.html").read_text()


# --- another CUDA release --------------------------------------------------------------------------------------------


def test_the_versions_that_belong_to_a_release_are_read_from_its_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "cuda_toolkit-13.5.0-py2.py3-none-any.whl", "w") as archive:
        text = 'Metadata-Version: 2.1\nRequires-Dist: nvidia-cuda-nvcc==13.5.37.*; extra == "nvcc"\n'
        archive.writestr("cuda_toolkit-13.5.0.dist-info/METADATA", text)
    pins = pins_of_release(tmp_path / "cuda_toolkit-13.5.0-py2.py3-none-any.whl")
    assert "13.5.37" in pins["nvidia-cuda-nvcc"]
    assert "13.5.38" not in pins["nvidia-cuda-nvcc"]


def test_a_target_keeps_its_own_name_for_every_architecture() -> None:
    start = load_envs(REPOSITORY / "envs").target("sm100")
    made = [target_of(start, parse_arch(a, where="x"), Options(a, "sm100")).name for a in ("sm_120a", "sm_120f")]
    assert made == ["trial_sm_120a", "trial_sm_120f"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settings": ("FOO={bar}",)}, "FOO"),
        ({"substitutes": ("flashmla:../setup.py:a=>b",)}, "substitute"),
        ({"substitutes": ("flashmla:/etc/passwd:a=>b",)}, "substitute"),
    ],
)
def test_what_no_target_could_say_is_refused_before_anything_is_tried(
    envs: Envs, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    job = job_of(envs, tmp_path, **options)
    with pytest.raises(EnvsError, match=says):
        refuse_unreadable(envs, Options(arch="sm_120a", start="sm100", **options), job)


def test_what_was_set_and_substituted_is_a_file_that_loads(envs: Envs, tmp_path: Path) -> None:
    options: dict[str, Any] = {"settings": ("NVCC_APPEND_FLAGS=-lineinfo",), "substitutes": ("flashmla:setup.py:-O3=>-O2",)}
    refuse_unreadable(envs, Options(arch="sm_120a", start="sm100", **options), job_of(envs, tmp_path, **options))


def test_kernels_compiled_at_run_time_are_tried_without_what_is_compiled_unit_by_unit(envs: Envs, tmp_path: Path) -> None:
    """FlashMLA makes no wheel in a trial: waiting for it, nothing of the others was ever tried."""
    job = job_of(envs, tmp_path)
    hosts = {s.component for s in job.target.components if not job.surveyed(s.component)}
    assert "flashmla" not in hosts
    dockerfile = job.rendered.files["Dockerfile"]
    assert {name for name in hosts if f"FROM scratch AS kernels-{name}\n" in dockerfile} == hosts
    assert "jit-environment" not in dockerfile
    stages = dockerfile.split("\nFROM ")
    (deepinfer,) = [stage for stage in stages if stage.startswith("environment AS try-deepinfer\n")]
    assert {name for name in hosts if f"from=build-{name}," in deepinfer} == {"tilekernels", "deepinfer"}
    numbers = [probe["number"] for probe in json.loads(job.rendered.files["jit/deepinfer.json"])["probes"]]
    assert numbers == list(range(1, len(numbers) + 1))


class Interrupted:
    """The running part of a trial, whose wheels are interrupted while a survey goes on until the engine is cancelled."""

    def __init__(self, job: Job) -> None:
        self.job, self.console, self.engine = job, quiet(), self
        self.surveying, self.cancelled = threading.Event(), threading.Event()
        self.survey_ended = False

    def must(self, _view: object, name: str, *_rest: object) -> None:
        if name.startswith("survey"):
            self.surveying.set()
            assert self.cancelled.wait(10), "nobody cancelled the engine"
            self.survey_ended = True
            raise BuildFailed("cancelled")

    def component(self, *_arguments: object) -> None:
        assert self.surveying.wait(10), "the survey does not run beside the wheels"
        raise KeyboardInterrupt

    def cancel(self) -> None:
        self.cancelled.set()


def test_ctrl_c_ends_a_survey_that_runs_beside_the_wheels(envs: Envs, tmp_path: Path) -> None:
    work = Interrupted(job_of(envs, tmp_path))
    outcomes = {name: Outcome(name) for name in ("flashmla", "deepgemm")}
    with pytest.raises(KeyboardInterrupt):
        attempt(cast("Work", work), outcomes, Options("sm_120a", "sm100"), envs)
    assert work.survey_ended
