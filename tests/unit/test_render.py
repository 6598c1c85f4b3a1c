"""Rendering: the same YAML and lock give the same bytes anywhere, and those bytes keep the rules of a clean build."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from locks import ENTRIES, lock

from cleanroom.arch import parse_arch
from cleanroom.base import Base
from cleanroom.component import Component, Provided, Substitution, Variable
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import LockError, RenderDrift
from cleanroom.jit import probes
from cleanroom.lock import Lock
from cleanroom.project import IN_CONTAINER, REPOSITORY
from cleanroom.render import Rendered, check, image_name, render, specification, squeeze, write
from cleanroom.target import Selection, Target

GOLDEN = Path(__file__).parent / "data" / "golden"
FIXTURE_ENVS = REPOSITORY / "tests" / "fixture" / "envs"
RESUME = re.compile(r"(?<=cleanroom-resume-)[0-9a-f]{32}")
CONTEXTS = {"base", "locked-packages", "locked-toolkit", "locked-python", "locked-sources", "scripts"}
SM100A, SM103A = parse_arch("sm_100a", where=""), parse_arch("sm_103a", where="")


@pytest.fixture(scope="module")
def fixture_envs() -> Envs:
    return load_envs(FIXTURE_ENVS)


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


def whole_lock(envs: Envs, target: Target) -> Lock:
    """A lock with a source archive for every component of `target`."""
    pattern = next(e for e in ENTRIES if e.group == "source")
    sources = [envs.component(s.component).source for s in target.components]
    named = [replace(pattern, name=s.name, version=s.version, file=f"{s.name}-{s.version}.tar.gz") for s in sources]
    return lock(target=target.name, entries=(*(e for e in ENTRIES if e.group != "source"), *named))


def rendered_fixture(envs: Envs) -> Rendered:
    return render(envs, envs.target("fixture"), envs.base("debian13"), lock())


@pytest.fixture(params=["fixture", "sm100 on debian13", "sm100 on python312"])
def rendered(request: pytest.FixtureRequest, fixture_envs: Envs, envs: Envs) -> Rendered:
    if request.param == "fixture":
        return rendered_fixture(fixture_envs)
    target = envs.target("sm100")
    return render(envs, target, envs.base(request.param.split()[-1]), whole_lock(envs, target))


def instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, each on one line, without comments."""
    text = "\n".join(line for line in dockerfile.splitlines() if not line.startswith("#"))
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def component_of(envs: Envs, **changes: Any) -> Component:
    return replace(envs.component("vectors"), **changes)


# The same bytes


def test_rendering_twice_gives_the_same_bytes(rendered: Rendered, fixture_envs: Envs) -> None:
    assert rendered_fixture(fixture_envs) == rendered_fixture(load_envs(FIXTURE_ENVS))
    assert rendered_fixture(fixture_envs).digest == rendered_fixture(fixture_envs).digest
    assert rendered.digest.startswith("sha256:")


def test_rendering_does_not_depend_on_folder_time_zone_language_or_hash_seed(tmp_path: Path, fixture_envs: Envs) -> None:
    program = (
        "import sys; from pathlib import Path; from cleanroom.envs import load_envs; from locks import lock;"
        "from cleanroom.render import render; e = load_envs(Path(sys.argv[1]));"
        "print(render(e, e.target('fixture'), e.base('debian13'), lock()).digest)"
    )
    path = os.pathsep.join([str(REPOSITORY / "scripts"), str(Path(__file__).parent)])
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7",
                 "SOURCE_DATE_EPOCH": "1", "TORCH_CUDA_ARCH_LIST": "7.0", "HOME": str(tmp_path)}  # fmt: skip
    command = [sys.executable, "-c", program, str(FIXTURE_ENVS)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == rendered_fixture(fixture_envs).digest


def test_the_order_of_a_lock_s_entries_changes_nothing(fixture_envs: Envs) -> None:
    target, base = fixture_envs.target("fixture"), fixture_envs.base("debian13")
    assert render(fixture_envs, target, base, lock(entries=ENTRIES[::-1])) == rendered_fixture(fixture_envs)


def test_the_fixture_renders_to_the_golden_files(fixture_envs: Envs) -> None:
    """To accept a wanted change: CLEANROOM_GOLDEN=write, then read the diff."""
    found = rendered_fixture(fixture_envs)
    if os.environ.get("CLEANROOM_GOLDEN") == "write":
        write(found, GOLDEN / found.name)
    expected = {str(p.relative_to(GOLDEN / found.name)) for p in (GOLDEN / found.name).rglob("*") if p.is_file()}
    assert set(found.files) == expected
    text, golden_text = found.files["Dockerfile"], (GOLDEN / found.name / "Dockerfile").read_text()
    assert RESUME.sub("", text) == RESUME.sub("", golden_text)
    # The launcher's own text is part of the resume key; everything else is compared.
    body = json.loads(found.files["components/vectors.json"])
    golden = json.loads((GOLDEN / found.name / "components/vectors.json").read_text())
    assert {**body, "resume_key": ""} == {**golden, "resume_key": ""}


# The rules of a clean build


def test_no_step_has_a_network(rendered: Rendered) -> None:
    runs = [line for line in instructions(rendered.files["Dockerfile"]) if line.startswith("RUN")]
    assert len(runs) >= 6
    assert [line for line in runs if not line.startswith("RUN --network=none ")] == []


def test_no_failure_is_swallowed_and_nothing_is_downloaded(rendered: Rendered) -> None:
    dockerfile = rendered.files["Dockerfile"]
    text = "\n".join(instructions(dockerfile))
    assert re.search(r"\|\||; *true|set \+e|--ignore|curl|wget|https?://|apt-get|\bADD\b", text) is None


def test_every_stage_comes_from_a_stage_or_context_that_is_known(rendered: Rendered) -> None:
    known = {*CONTEXTS, "scratch"}
    official = re.compile(r"python:3\.12-trixie@sha256:[0-9a-f]{64}")
    for line in instructions(rendered.files["Dockerfile"]):
        for name in re.findall(r"(?:^FROM(?: --platform=\S+)? |--from=|from=)([^\s,]+)", line):
            assert name in known or official.fullmatch(name), line
        if found := re.fullmatch(r"FROM .* AS (\S+)", line):
            assert found[1] not in known, f"{found[1]}: BuildKit puts a context of that name in the place of the stage"
            known.add(found[1])
    assert {"build-environment", "runtime", "probe"} <= known


def test_every_script_and_specification_that_is_mounted_exists(rendered: Rendered) -> None:
    dockerfile = rendered.files["Dockerfile"]
    scripts = set(re.findall(r"from=scripts,source=([^,]+)", dockerfile))
    assert {"build_component.py", "compile_launcher.py", "probe.py"} <= scripts
    assert {script for script in scripts if not (IN_CONTAINER / script).is_file()} == set()
    specifications = set(re.findall(r"bind,source=([^,]+)", dockerfile))
    assert specifications == set(rendered.files) - {"Dockerfile"}


def test_every_component_has_a_stage_for_its_artifacts_and_is_probed(rendered: Rendered) -> None:
    for path, text in rendered.files.items():
        if path.startswith("components/"):
            body = json.loads(text)
            assert f"FROM scratch AS artifacts-{body['name']}\n" in rendered.files["Dockerfile"]
            for module in body["modules"]:
                assert f" --module {body['name']}={module} " in rendered.files["Dockerfile"]


def test_no_instruction_holds_a_trailing_space_and_no_two_blank_lines_follow_each_other(rendered: Rendered) -> None:
    dockerfile = rendered.files["Dockerfile"]
    assert not re.search(r"[ \t]\n|\n\n\n|\n\n\Z", dockerfile)
    assert dockerfile.endswith("\n")
    assert "{{" not in dockerfile
    assert "{%" not in dockerfile


def test_squeezing_keeps_text_and_drops_surplus_lines() -> None:
    assert squeeze("\n\na  \n\n\n b\n\n") == "a\n\n b\n"


def test_an_official_image_is_taken_by_its_digest(envs: Envs) -> None:
    target = envs.target("sm100")
    base = envs.base("python312")
    dockerfile = render(envs, target, base, whole_lock(envs, target)).files["Dockerfile"]
    assert f"FROM --platform=linux/amd64 {base.image}@{base.digests['linux/amd64']} AS system" in dockerfile


def test_no_step_swallows_an_error_or_searches_for_a_path(rendered: Rendered) -> None:  # D23
    dockerfile = rendered.files["Dockerfile"]
    for swallowed in ("|| true", "|| :", "|| echo", "set +e", "; exit 0", "--ignore-"):
        assert swallowed not in dockerfile
    assert not re.search(r"\b(find|locate|which)\b", dockerfile)


# Architectures


def test_the_architecture_list_is_set_for_every_component_so_that_an_inherited_one_never_decides(rendered: Rendered) -> None:  # D04
    for path, text in rendered.files.items():
        if path.startswith("components/"):
            first = json.loads(text)["environment"][0]
            assert first["name"] == "TORCH_CUDA_ARCH_LIST"
            assert first["value"].split(";")[0] == "10.0a"
    assert 'ENV TORCH_CUDA_ARCH_LIST="10.0a"' in rendered.files["Dockerfile"]


def test_a_component_with_architectures_of_its_own_gets_those(envs: Envs) -> None:
    target = envs.target("sm100")
    body = specification(envs.component("flashmla"), target, whole_lock(envs, target))
    assert body["architectures"] == ["sm_100a", "sm_103a"]
    assert body["environment"][0] == {"name": "TORCH_CUDA_ARCH_LIST", "value": "10.0a;10.3a"}


@pytest.mark.parametrize(
    ("asked", "applied"),
    [((SM100A,), []), ((SM103A,), ['CODE = ["sm_103a"]']), ((SM100A, SM103A), ['CODE = ["sm_100a", "sm_103a"]'])],
)
def test_an_architecture_substitution_is_applied_only_where_another_architecture_is_asked_for(
    fixture_envs: Envs, asked: tuple[Any, ...], applied: list[str]
) -> None:
    rule = fixture_envs.component("vectors").architecture
    switch = Substitution("setup.py", "CODE = []", "CODE = [{sm_list}]", 1, "has no switch")
    component = component_of(fixture_envs, architecture=replace(rule, substitute=(switch,)), substitute=())
    target = replace(fixture_envs.target("fixture"), components=(Selection("vectors", asked, "wanted"),))
    assert [s["replace"] for s in specification(component, target, lock())["substitute"]] == applied


def test_a_component_that_decides_at_run_time_is_never_substituted(fixture_envs: Envs) -> None:
    rule = fixture_envs.component("vectors").architecture
    switch = Substitution("setup.py", "a", "b", 1, "why")
    component = component_of(fixture_envs, architecture=replace(rule, decided="run-time", substitute=(switch,)), substitute=())
    target = replace(fixture_envs.target("fixture"), components=(Selection("vectors", (SM103A,), "wanted"),))
    assert specification(component, target, lock())["substitute"] == []


def test_host_code_names_no_architecture(fixture_envs: Envs) -> None:
    rule = replace(fixture_envs.component("vectors").architecture, decided="nowhere")
    body = specification(component_of(fixture_envs, architecture=rule), fixture_envs.target("fixture"), lock())
    assert body["architectures"] == []


# Specifications


def test_placeholders_are_filled_in_but_those_of_the_machine_stay(fixture_envs: Envs) -> None:
    texts = ("{version}", "{torch_arch_list}", "{sm_list}", "{nvcc_threads}", "{other}")
    variables = tuple(Variable(text, text, "why") for text in texts)
    body = specification(component_of(fixture_envs, environment=variables), fixture_envs.target("fixture"), lock())
    assert [v["value"] for v in body["environment"][1:6]] == ["1.0.0", "10.0a", '"sm_100a"', "{nvcc_threads}", "{other}"]


def test_a_provided_file_is_mounted_from_our_scripts(fixture_envs: Envs) -> None:
    provided = (Provided("tests/kernelkit/__init__.py", "kernelkit.py", "missing"),)
    changed = replace(fixture_envs, components={"vectors": component_of(fixture_envs, provides=provided)})
    dockerfile = rendered_fixture(changed).files["Dockerfile"]
    assert "from=scripts,source=kernelkit.py,target=/opt/cleanroom/kernelkit.py" in dockerfile
    assert "source=kernelkit.py" not in rendered_fixture(fixture_envs).files["Dockerfile"]


def test_a_component_added_after_locking_asks_for_a_new_lock(fixture_envs: Envs) -> None:
    with pytest.raises(LockError, match="no source archive for vectors") as caught:
        render(fixture_envs, fixture_envs.target("fixture"), fixture_envs.base("debian13"), lock(entries=ENTRIES[:4]))
    assert caught.value.next_step == "nox -s lock -- fixture"


def test_the_resume_key_changes_with_whatever_an_object_depends_on(fixture_envs: Envs) -> None:
    target = fixture_envs.target("fixture")

    def key(component: Component | None = None, inputs: Lock | None = None, asked: Target = target) -> str:
        found: str = specification(component or fixture_envs.component("vectors"), asked, inputs or lock())["resume_key"]
        return found

    def with_changed(number: int) -> Lock:
        return lock(entries=tuple(replace(e, sha256="0" * 64) if n == number else e for n, e in enumerate(ENTRIES)))

    others = [
        key(inputs=replace(lock(), epoch=1)),
        key(asked=replace(target, architectures=(SM103A,))),
        key(component_of(fixture_envs, substitute=())),
        key(component_of(fixture_envs, environment=(Variable("A", "b", "c"),))),
        *(key(inputs=with_changed(number)) for number in range(5)),
    ]
    assert len({key(), *others}) == len(others) + 1
    assert key() == key(inputs=lock(notes=("only a remark",)))
    assert key() == key(inputs=with_changed(6)), "the archive of another component is no input"


# Status and name


def test_an_experimental_target_says_so_in_name_and_labels(fixture_envs: Envs) -> None:
    target = replace(fixture_envs.target("fixture"), status="experimental")
    base: Base = fixture_envs.base("debian13")
    dockerfile = render(fixture_envs, target, base, lock()).files["Dockerfile"]
    assert image_name(target, base) == "cleanroom-fixture-debian13-experimental"
    assert 'image.title="cleanroom-fixture-debian13-experimental"' in dockerfile
    assert 'cleanroom.status="experimental"' in dockerfile


def test_a_supported_target_has_a_plain_name(envs: Envs) -> None:
    assert image_name(envs.target("sm100"), envs.base("debian13")) == "cleanroom-sm100-debian13"


def test_labels_say_what_the_image_was_made_of(rendered: Rendered, fixture_envs: Envs) -> None:
    dockerfile = rendered_fixture(fixture_envs).files["Dockerfile"]
    for label in ('cleanroom.target="fixture"', 'cleanroom.architectures="sm_100a"', f'cleanroom.lock="{lock().content}"'):
        assert label in dockerfile
    assert "not run on a GPU" in rendered.files["Dockerfile"]


def test_kernels_compiled_at_run_time_are_compiled_in_the_image_where_a_component_has_any(fixture_envs: Envs, envs: Envs) -> None:
    target = envs.target("sm100")
    made = render(envs, target, envs.base("debian13"), whole_lock(envs, target))
    (asked,) = (text for text in instructions(made.files["Dockerfile"]) if "jit_probe.py" in text)
    assert "source=jit.json," in asked
    assert "FROM runtime AS jit-runtime" in made.files["Dockerfile"]
    assert len(json.loads(made.files["jit.json"])["probes"]) == len(probes(envs.jit, target))
    assert "jit.json" not in rendered_fixture(fixture_envs).files
    assert "jit" not in rendered_fixture(fixture_envs).files["Dockerfile"]


def test_headers_for_the_run_time_are_in_the_image_and_in_no_build(envs: Envs) -> None:
    target = envs.target("sm100")
    whole = whole_lock(envs, target)
    header = replace(whole.group("toolkit")[0], group="headers", name="nvidia-curand")
    with_headers = replace(whole, entries=(*whole.entries, header))
    made = [render(envs, target, envs.base("debian13"), each) for each in (whole, with_headers)]
    assert ["from=locked-headers" in each.files["Dockerfile"] for each in made] == [False, True]
    keys = [{json.loads(t)["resume_key"] for path, t in each.files.items() if path.startswith("components/")} for each in made]
    assert keys[0] == keys[1]


# Drift


@pytest.fixture
def folder(tmp_path: Path, fixture_envs: Envs) -> Path:
    write(rendered_fixture(fixture_envs), tmp_path / "rendered")
    return tmp_path / "rendered"


def drift(envs: Envs, folder: Path) -> RenderDrift:
    with pytest.raises(RenderDrift) as caught:
        check(rendered_fixture(envs), folder)
    assert caught.value.next_step == "nox -s render -- fixture"
    return caught.value


def test_what_was_just_written_is_no_drift_and_is_not_written_again(folder: Path, fixture_envs: Envs) -> None:
    check(rendered_fixture(fixture_envs), folder)
    assert write(rendered_fixture(fixture_envs), folder) == []


def test_an_edited_file_is_drift(folder: Path, fixture_envs: Envs) -> None:
    with (folder / "Dockerfile").open("a") as stream:
        stream.write("RUN true\n")
    assert drift(fixture_envs, folder).what.endswith("render to: Dockerfile.")
    assert write(rendered_fixture(fixture_envs), folder) == ["Dockerfile"]
    check(rendered_fixture(fixture_envs), folder)


def test_other_line_ends_are_drift(folder: Path, fixture_envs: Envs) -> None:
    path = folder / "Dockerfile"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    drift(fixture_envs, folder)


def test_bytes_that_are_no_text_are_drift(folder: Path, fixture_envs: Envs) -> None:
    (folder / "Dockerfile").write_bytes(b"FROM \xff\xfe")
    drift(fixture_envs, folder)


def test_a_missing_file_is_drift(folder: Path, fixture_envs: Envs) -> None:
    (folder / "components" / "vectors.json").unlink()
    assert "components/vectors.json" in drift(fixture_envs, folder).what


def test_a_folder_never_rendered_is_drift_that_names_every_file(tmp_path: Path, fixture_envs: Envs) -> None:
    assert "Dockerfile, components/vectors.json" in drift(fixture_envs, tmp_path / "absent").what


def test_a_leftover_file_is_drift_and_is_removed_by_writing(folder: Path, fixture_envs: Envs) -> None:
    (folder / "components" / "gone.json").write_text("{}")
    assert "components/gone.json" in drift(fixture_envs, folder).what
    assert write(rendered_fixture(fixture_envs), folder) == ["components/gone.json"]
    check(rendered_fixture(fixture_envs), folder)


def test_another_lock_is_drift(folder: Path, fixture_envs: Envs) -> None:
    target, base = fixture_envs.target("fixture"), fixture_envs.base("debian13")
    with pytest.raises(RenderDrift):
        check(render(fixture_envs, target, base, replace(lock(), epoch=1)), folder)
