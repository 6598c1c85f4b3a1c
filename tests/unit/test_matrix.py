"""The matrix says what the files in the output folders say, and nothing that nobody ran."""

from __future__ import annotations

import io
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import verifications
from standings import built, damaged, failing, locked, project_at, read_binaries, verified

from cleanroom.console import Console
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import UnknownName
from cleanroom.evidence import Evidence, write_evidence
from cleanroom.lock import lock_path
from cleanroom.matrix import (
    NEVER_RUN,
    PUBLISHED,
    SAYS_NOTHING_OF,
    Options,
    Standing,
    answer,
    html,
    markdown,
    plain,
    remarks,
    run,
    standings_of,
    surprise,
)
from cleanroom.products import Products, read_products
from cleanroom.project import REPOSITORY, Project
from cleanroom.published import Published, published_path, write_published
from cleanroom.survey import Survey, Unit

GOLDEN = Path(__file__).parent / "data" / "matrix"
OTHER = "sha256:" + "0d" * 32


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """sm100 verified, sm90 built with stubs, sm89 failed, sm120 unreadable, sm103 built from an older lock."""
    project = project_at(tmp_path_factory.mktemp("project"))
    sm100 = built(project, "sm100", architecture="sm_100a", content=locked(project, "sm100"))
    verified(project, sm100)
    read_binaries(project, sm100)
    sm90 = built(project, "sm90", architecture="sm_90a", content=locked(project, "sm90"), status="experimental")
    read_binaries(project, sm90, stubs=49)
    sm89 = built(project, "sm89", architecture="sm_89", content=locked(project, "sm89"), status="experimental")
    failing(project, sm89, "deepgemm")
    damaged(project, "sm120")
    locked(project, "sm103")
    built(project, "sm103", architecture="sm_103a", content=OTHER, status="experimental")
    return project


@pytest.fixture(scope="module")
def envs(project: Project) -> Envs:
    return load_envs(project.envs_dir)


@pytest.fixture(scope="module")
def products(project: Project, envs: Envs) -> Products:
    return read_products(project.envs_dir, envs)


def by_target(project: Project, envs: Envs) -> dict[str, Standing]:
    return {each.folder: each for each in standings_of(project, envs)}


def said(project: Project, options: Options) -> str:
    stream = io.StringIO()
    run(project, options, Console(stream=stream))
    text = stream.getvalue().replace(str(project.root), "<project>")
    return "\n".join(line.rstrip() for line in text.split("\n"))


def same_as_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("CLEANROOM_WRITE_GOLDENS"):
        path.write_text(text)
    assert text == path.read_text()


# What stands where


def test_levels_come_from_record_verification_and_evidence(project: Project, envs: Envs) -> None:
    found = by_target(project, envs)
    assert {name: each.level for name, each in found.items()} == {
        "sm100": "identical artifacts",
        "sm100-python312": NEVER_RUN,
        "sm103": "builds",
        "sm120": "unreadable",
        "sm89": "fails",
        "sm90": "builds",
    }
    assert found["sm100"].date == "2026-12-01"
    assert found["sm90"].date == "2026-11-30"
    assert found["sm100"].lock in found["sm100"].lock_now


def test_supported_targets_come_first_and_every_base_has_its_row(project: Project, envs: Envs) -> None:
    order = [(each.target.status, each.base) for each in standings_of(project, envs)]
    assert order[:2] == [("supported", "debian13"), ("supported", "python312")]
    assert {status for status, _ in order[2:]} == {"experimental"}


def test_a_record_of_another_lock_is_told_apart(project: Project, envs: Envs) -> None:
    found = by_target(project, envs)
    assert [name for name, each in found.items() if each.old_lock] == ["sm103"]


def test_a_component_that_was_left_out_is_not_called_built(project: Project, envs: Envs) -> None:
    cells = {c.component: c.level for c in by_target(project, envs)["sm89"].cells}
    assert cells == {
        "flashmla": "builds",
        "deepgemm": "fails",
        "deepep": "builds",
        "tilekernels": "builds",
        "deepinfer": "not attempted",
    }


def test_an_experimental_target_stays_experimental_whatever_its_level(tmp_path: Path, envs: Envs, products: Products) -> None:
    project = project_at(tmp_path)
    made = built(project, "sm90", architecture="sm_90a", content=locked(project, "sm90"), status="experimental")
    verified(project, made)
    each = by_target(project, envs)["sm90"]
    assert each.level == "identical artifacts"
    assert plain(each)["status"] == "experimental"
    assert "| **sm90** on debian13 | experimental | identical artifacts |" in markdown([each], products, envs)
    assert '<span class="tag experimental">experimental</span>' in html([each], products, envs)


# What was expected


@pytest.mark.parametrize(
    ("target", "stubs", "fails", "expected"),
    [
        ("sm90", None, False, ""),  # partly, and nothing read: nothing to contradict
        ("sm90", 49, False, ""),
        ("sm90", 38, False, "better than expected: 38 kernels are stubs, not 49"),
        ("sm90", 60, False, "worse than expected: 60 kernels are stubs, not 49"),
        ("sm90", 0, False, "better than expected (partly: 4 of 29): it compiled and no kernel is a stub"),
        ("sm90", None, True, ""),
        ("sm89", None, False, "compiled; whether kernels are stubs was not read"),
        ("sm89", 0, False, "better than expected (refuses: 2 of 29): it compiled and no kernel is a stub"),
        ("sm89", 40, False, ""),
        ("sm89", None, True, ""),
        ("sm103", None, False, ""),
        ("sm103", 0, False, ""),
        ("sm103", 3, False, "worse than expected: 3 kernels are stubs"),
        ("sm103", None, True, "worse than expected: it fails"),
    ],
)
def test_better_and_worse_than_expected_are_both_told(
    tmp_path: Path, envs: Envs, target: str, stubs: int | None, fails: bool, expected: str
) -> None:
    project = project_at(tmp_path)
    made = built(project, target, architecture="sm_" + target[2:], content=OTHER, status="experimental")
    if stubs is not None:
        read_binaries(project, made, stubs=stubs)
    if fails:
        failing(project, made, "flashmla")
    each = by_target(project, envs)[target]
    expectation, report = each.target.expectation("flashmla"), each.report
    assert expectation is not None
    assert report is not None
    assert surprise(expectation, report.rows[0]) == expected
    assert each.cell("flashmla").surprise == expected


@pytest.mark.parametrize(
    ("target", "compiled", "expected"),
    [
        ("sm89", 2, ""),
        ("sm89", 0, "worse than expected (refuses: 2 of 29): 0 of 29 units compile"),
        ("sm89", 3, "better than expected (refuses: 2 of 29): 3 of 29 units compile"),
        ("sm90", 4, ""),
        ("sm90", 1, "worse than expected (partly: 4 of 29): 1 of 29 units compile"),
        ("sm103", 20, "worse than expected: it fails"),
    ],
)
def test_units_of_what_failed_are_held_against_what_was_expected(
    tmp_path: Path, envs: Envs, target: str, compiled: int, expected: str
) -> None:
    project = project_at(tmp_path)
    failing(project, built(project, target, architecture="sm_" + target[2:], content=OTHER, status="experimental"), "flashmla")
    units = [Unit(f"{n}.cu", (), "compiled" if n < compiled else "refused", 1.0, None) for n in range(29)]
    write_evidence(project.out_dir / target / "evidence.json", Evidence((), (), surveys=(Survey("flashmla", tuple(units), None),)))
    cell = by_target(project, envs)[target].cell("flashmla")
    assert (cell.surprise, cell.text) == (expected, f"fails, {compiled} of 29 units compile")


# Forms


def test_the_matrix_on_a_terminal_looks_as_it_did(project: Project) -> None:
    same_as_golden("terminal.txt", said(project, Options()))


def test_the_matrix_as_pages_looks_as_it_did(project: Project) -> None:
    said(project, Options())
    same_as_golden("matrix.md", (project.out_dir / "matrix.md").read_text())
    same_as_golden("matrix.html", (project.out_dir / "matrix.html").read_text())


def test_before_anything_was_run_every_cell_says_so(tmp_path: Path, envs: Envs) -> None:
    standings = standings_of(project_at(tmp_path), envs)
    assert {each.level for each in standings} == {NEVER_RUN}
    assert {cell.level for each in standings for cell in each.cells} == {NEVER_RUN}


def test_the_page_is_one_file_without_a_script_and_every_element_is_closed(
    project: Project, envs: Envs, products: Products
) -> None:
    text = html(standings_of(project, envs), products, envs)
    assert "<script" not in text
    assert not re.search(r"(src|href)\s*=", text)
    assert "default-src 'none'" in text
    assert SAYS_NOTHING_OF in text

    class Balanced(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

    page = Balanced()
    page.feed(text)
    assert page.open == []


def test_for_machines_it_is_one_object(project: Project) -> None:
    events = io.StringIO()
    run(project, Options(), Console(json=True, stream=io.StringIO(), events=events))
    (line,) = events.getvalue().splitlines()
    targets = {t["target"] + t["base"]: t for t in json.loads(line)["result"]["targets"]}
    assert targets["sm100debian13"]["level"] == "identical artifacts"
    assert targets["sm90debian13"]["components"]["flashmla"] == {
        "level": "builds",
        "stubs": 49,
        "at_run_time": "",
        "expected": "partly: 4 of 29",
        "surprise": "",
    }
    assert targets["sm120debian13"]["trouble"].startswith("record.json is not valid JSON")


# One product


def answered(name: str, standings: tuple[Standing, ...], products: Products, envs: Envs) -> str:
    stream = io.StringIO()
    Console(stream=stream).result(answer(products.find(name), products, standings, envs))
    return stream.getvalue()


@pytest.fixture(scope="module")
def standings(project: Project, envs: Envs) -> tuple[Standing, ...]:
    return standings_of(project, envs)


@pytest.mark.parametrize("name", ["H100", "B200", "RTX 4090", "RTX 5090", "B300", "DGX Spark", "A100", "Ascend 950"])
def test_the_answer_for_one_card_looks_as_it_did(
    standings: tuple[Standing, ...], products: Products, envs: Envs, name: str
) -> None:
    text = answered(name, standings, products, envs)
    assert len(text.splitlines()) <= 10
    same_as_golden(f"{name.replace(' ', '-')}.txt", text)


@pytest.mark.parametrize(
    ("gpu", "step"),
    [
        ("B200", "nox -s checklist-sm100"),  # verified
        ("H100", "nox -s verify-sm90"),  # built, not compared
        ("B300", "nox -s build-sm103"),  # built from another lock
        ("RTX 5090", "nox -s build-sm120"),  # unreadable
        ("RTX 4090", "read out/sm89/record.json"),  # failed
        ("A100", "nox -s trial -- --arch sm_80 --from sm89"),
        ("DGX Spark", "nox -s trial -- --arch sm_121a --from sm120"),
    ],
)
def test_the_next_step_fits_what_is_known(
    standings: tuple[Standing, ...], products: Products, envs: Envs, gpu: str, step: str
) -> None:
    assert f"next: {step}" in re.sub(r" +", " ", answered(gpu, standings, products, envs))


def test_asked_for_one_product_nothing_is_written(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    assert said(project, Options(gpu="H100")).startswith("product: ")
    assert not project.out_dir.exists()


def test_an_unknown_product_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="No product called 'H1000' is known here; close are H100"):
        said(project_at(tmp_path), Options(gpu="H1000"))


def test_a_record_of_another_target_says_nothing_of_this_one(tmp_path: Path, envs: Envs) -> None:
    project = project_at(tmp_path)
    built(project, "sm90", architecture="sm_90a", content=OTHER)
    (project.out_dir / "sm90").rename(project.out_dir / "sm89")
    each = by_target(project, envs)["sm89"]
    assert (each.level, each.trouble) == ("unreadable", "the record in out/sm89 is of sm90 on debian13.")


def test_kernels_that_are_compiled_on_first_use_stand_beside_the_level(tmp_path: Path, envs: Envs) -> None:
    project = project_at(tmp_path)
    made = built(project, "sm100", architecture="sm_100a", content=OTHER)
    write_evidence(project.out_dir / made.target.name / "evidence.json", verifications.evidence())
    cell = by_target(project, envs)["sm100"].cell("deepep")
    assert cell.text.endswith("1 of 2 run-time kernels compile")


def test_what_was_run_for_a_card_is_shown_before_what_was_not_and_all_is_named(tmp_path: Path, envs: Envs) -> None:
    project = project_at(tmp_path)
    built(project, "sm100", architecture="sm_100a", content=OTHER)
    (project.out_dir / "sm100").rename(project.out_dir / "sm100-python312")
    record = project.out_dir / "sm100-python312" / "record.json"
    record.write_text(record.read_text().replace('"base": "debian13"', '"base": "python312"'))
    products = read_products(REPOSITORY / "envs", envs)
    lines = answer(products.find("B200"), products, standings_of(project, envs), envs)
    assert lines["can a clean machine reproduce it"].startswith("builds")
    assert lines["also here"].startswith("sm100 on debian13 (supported): never run")


def test_published_digests_are_told_where_nothing_was_built(tmp_path: Path, envs: Envs) -> None:
    project = project_at(tmp_path)
    content = locked(project, "sm100")
    path = published_path(lock_path(project.root, "sm100-debian13"))
    write_published(path, Published(content, "ab" * 32, "sha256:" + "cd" * 32, {}), "sm100")
    each = by_target(project, envs)["sm100"]
    assert (each.level, each.published) == ("never run", True)
    assert f"sm100 on debian13: {PUBLISHED}" in list(remarks([each]))
    write_published(path, Published("sha256:" + "00" * 32, "ab" * 32, "", {}), "sm100")
    assert not by_target(project, envs)["sm100"].published
