"""Reports: goldens of both forms, what a page may not hold, and that no level is claimed that was not shown."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from records import component, failed_record, not_attempted, record
from verifications import differing, evidence, stubbed, verification

from cleanroom.errors import EnvsError
from cleanroom.evidence import ComponentEvidence, Evidence, Finding, LibraryEvidence
from cleanroom.failures import Failure
from cleanroom.gpu_checks import FILE, read_gpu_checks
from cleanroom.jit import JitReport, JitResult
from cleanroom.project import REPOSITORY
from cleanroom.record import Import, Missing, Record, TargetInfo
from cleanroom.report import REPORT_TEMPLATES, SHOWN_PLACES, report_html, report_markdown, report_of, write_report
from cleanroom.target import NotBuilt
from cleanroom.verification import LEVELS, Variation, Verification
from cleanroom.verification_view import SAYS

GOLDEN = Path(__file__).parent / "data" / "reports"

Case = tuple[Record, Verification | None, Evidence | None]
experimental = record(target=replace(record().target, name="sm120", status="experimental"))
broken = record(verdict="fails", imports=(Import("deepep", "deep_ep", ok=False, error="ImportError: libnccl.so.2: not found"),))
FOR_NPU = {
    "flashmla": ("1.0.0", ("dav-3510",)),
    "tilekernels": ("2.1.0", ("dav-3510",)),
    "deepinfer": ("0.1.0", ()),
}
npu = record(
    target=TargetInfo("ascend950", "Ascend 950 (950PR, 950DT) with CANN 9.2", "supported", "linux/arm64"),
    components=tuple(component(n, version, architectures_asked=asked) for n, (version, asked) in FOR_NPU.items()),
    imports=(Import("flashmla", "flash_mla", ok=True, error=""),),
    missing_modules=(Missing("deepinfer", "deep_gemm", "DeepGEMM for Ascend is not built"),),
    not_built=(NotBuilt("DeepGEMM for Ascend", "no pinned source"), NotBuilt("DeepSelect", "no pinned source")),
    verdict="incomplete",
)
aicore = LibraryEvidence("flash_mla/npu.cpython-313-aarch64-linux-gnu.so", ("AI Core",), (), 12, {})
npu_evidence = Evidence(
    components=(
        ComponentEvidence(
            "flashmla", ("dav-3510",), ("dav-3510",), ("AI Core",), (aicore,), {"dav-3510": "compiled for it, by the log"}
        ),
        ComponentEvidence("tilekernels", ("dav-3510",), (), (), (), {"dav-3510": "compiled at run time"}),
    ),
    findings=(
        Finding(
            "flashmla",
            "NPU architecture by the log",
            "note",
            "AI Core code does not name its architecture; all 6 calls of bisheng for AscendC source name dav-3510",
        ),
    ),
)
CASES: dict[str, Case] = {
    "unverified": (record(), None, None),
    "identical": (record(), verification(), evidence()),
    "differs": (record(), differing(), evidence()),
    "stubs": (record(), verification(), stubbed()),
    "fails": (failed_record(), None, None),
    "does-not-import": (broken, None, None),
    "experimental": (experimental, None, evidence(findings=())),
    "npu": (npu, None, npu_evidence),
}
FORMS = {"html": report_html, "md": report_markdown}


def page(case: Case) -> ET.Element:
    """The page as a tree: it is written to be well-formed XML as well."""
    return ET.fromstring(report_html(*case).removeprefix("<!DOCTYPE html>"))


def text_of(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def tables(markdown: str) -> Iterator[list[str]]:
    """The tables of a Markdown text, as lines."""
    for is_table, lines in itertools.groupby(markdown.split("\n"), lambda line: line.startswith("|")):
        if is_table:
            yield list(lines)


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_a_report_looks_as_it_did(name: str, form: str) -> None:
    golden = GOLDEN / f"{name}.{form}"
    text = FORMS[form](*CASES[name])
    if os.environ.get("CLEANROOM_WRITE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_the_heading_and_the_limits_come_before_every_detail(name: str) -> None:
    record_ = CASES[name][0]
    verdict = f"{record_.target.name} on {record_.base}: {report_of(*CASES[name]).level}"
    assert [text_of(h) for h in page(CASES[name]).iter("h1")] == [verdict]
    headings = [text_of(h) for h in page(CASES[name]).iter("h2")]
    assert headings.index("What this does not say") < headings.index("Components")
    assert report_markdown(*CASES[name]).startswith(f"# {verdict}\n")
    for form in FORMS.values():
        assert "no kernel was started" in form(*CASES[name])
        assert "None of them was run" in form(*CASES[name]) or "none of which was run" in form(*CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_page_needs_no_script_no_network_and_no_other_file(name: str) -> None:
    tree = page(CASES[name])
    assert {e.tag for e in tree.iter()}.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form", "base"})
    attributes = [(key, value) for e in tree.iter() for key, value in e.attrib.items()]
    assert not [key for key, _ in attributes if key.startswith("on") or key in ("src", "style")]
    assert all(value.startswith(("./", "#")) for key, value in attributes if key == "href")
    style = "".join(text_of(e) for e in tree.iter("style"))
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize("name", CASES)
def test_tables_scroll_in_their_own_place_and_can_be_reached_with_the_keyboard(name: str) -> None:
    tree = page(CASES[name])
    scrolled = [d for d in tree.iter("div") if d.get("class") == "scroll"]
    assert len(list(tree.iter("table"))) == sum(len(list(d.iter("table"))) for d in scrolled)
    assert all(d.get("tabindex") == "0" and d.get("aria-label") for d in scrolled)
    assert all(h.get("scope") for h in tree.iter("th"))


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_heading(name: str) -> None:
    found = list(tables(report_markdown(*CASES[name])))
    assert found
    rendered = MarkdownIt("commonmark").enable("table").render(report_markdown(*CASES[name]))
    assert rendered.count("<table>") == len(found)
    for lines in found:
        assert len(lines) > 2, lines
        assert {cells(line) for line in lines} == {cells(lines[0])}, lines[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_text_is_readable_on_every_ground(scheme: str) -> None:
    css = (REPORT_TEMPLATES / "report.css.j2").read_text()
    block = css.split(":root {")[1 if scheme == "light" else 2].split("}")[0]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    for ground in ("ground", "panel"):
        for name in colours.keys() - {"ground", "panel", "line"}:
            assert contrast(colours[name], colours[ground]) >= 4.5, f"{name} on {ground} in {scheme}"


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_without_a_second_build_the_verdict_says_what_to_type() -> None:
    for form in FORMS.values():
        assert "reproducibility is not verified yet" in form(record(), None, None)
        assert "nox -s verify-sm100" in form(record(), None, None)
        assert "nox -s verify-sm100" not in form(record(), verification(), None)


@pytest.mark.parametrize("level", LEVELS[:6])
def test_a_second_build_of_everything_decides_the_level(level: str) -> None:
    made = report_of(record(), verification(level=level), evidence())
    assert made.level == level
    states = {rung.level: rung.state for rung in made.ladder}
    assert states[made.level] == "verdict"
    stronger = LEVELS[: LEVELS.index(made.level)]
    assert {states[each] for each in stronger} <= {"not reached"}


def test_the_levels_that_nobody_looked_at_are_not_called_missed() -> None:
    states = [rung.state for rung in report_of(record(), None, None).ladder]
    assert states == ["not verified"] * 5 + ["verdict"]


def test_kernels_compiled_at_run_time_are_counted_by_component_and_architecture() -> None:
    (row,) = report_of(record(), None, evidence()).at_run_time
    assert (row.architecture, row.families, row.kernels, row.surprises) == ("sm_100f", 1, 2, 1)
    assert (row.counts["compiled"], row.counts["stub"], row.counts["refused"]) == (1, 1, 0)
    assert report_of(record(), None, evidence(jit=None)).at_run_time == ()


def test_a_failed_or_incomplete_build_is_never_raised_by_a_second_one() -> None:
    partial = record(verdict="incomplete", components=(component("deepep", "2.5.0"), not_attempted("deepinfer", "0.1.0")))
    compared = verification(partial, components=verification(partial).components[:1])
    assert report_of(partial, compared, None).level == "incomplete"
    assert report_of(broken, verification(broken), evidence()).level == "fails"
    assert report_of(broken, None, None).ladder[-1].found == "0 of 2 components failed, 1 of 1 modules do not import"
    assert [row.level for row in report_of(broken, None, None).rows] == ["fails", "builds"]
    assert [row.level for row in report_of(partial, None, None).rows] == ["builds", "incomplete"]


def test_a_finding_that_fails_is_stronger_than_identical_bytes() -> None:
    made = report_of(record(), verification(), stubbed())
    assert made.level == "fails"
    assert [row.level for row in made.rows] == ["fails", "identical artifacts"]
    assert made.findings[0].severity == "fails"
    assert made.rows[0].stubs == 1
    assert (made.ladder[-1].found, made.ladder[-1].proof) == ("1 finding fails it", "evidence.json")
    headings = [text_of(h) for h in page(CASES["stubs"]).iter("h2")]
    assert headings[0] == "What failed"


def test_a_component_without_a_wheel_is_not_said_to_hold_nothing() -> None:
    unreadable = Finding("deepep", "unreadable", "fails", "There is no wheel of deepep.")
    lost = record(
        verdict="fails", components=(replace(failed_record().components[0], name="deepep"), component("deepinfer", "0.1.0"))
    )
    made = report_of(lost, None, evidence(findings=(unreadable,)))
    assert (made.rows[0].compiled, made.rows[0].found, made.rows[0].stubs) == ("not read", "not read", None)
    assert made.capabilities[0].answers[0] == "not read"
    assert made.failing == ()
    assert made.findings == (unreadable,)


def test_a_second_build_that_fails_is_named_as_the_proof() -> None:
    lost = verification(level="fails", image_second=None, image_level="incomplete")
    assert report_of(record(), lost, evidence()).ladder[-1].proof == "verify/verification.json"


def test_a_second_build_of_a_part_is_not_one_of_the_target() -> None:
    half = replace(verification(level="identical artifacts"), components=verification().components[:1])
    made = report_of(record(), half, None)
    assert made.level == "builds"
    assert (made.tone, made.ladder[0].state, made.ladder[1].found) == ("open", "not verified", "1 of 2 components")
    assert any("not deepinfer" in each for each in made.reservations)
    assert [row.level for row in made.rows] == ["identical artifacts", "builds"]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (verification(record(lock=replace(record().lock, content="sha256:" + "00" * 32))), "its lock is"),
        (verification(record(base="python312")), "its base is"),
        (verification(experimental), "its target is"),
        (verification(record(components=(component("deepep", "2.5.0", wheel=None),))), "the deepep wheel"),
    ],
)
def test_a_verification_of_another_build_is_left_out_and_named(other: Verification, reason: str) -> None:
    made = report_of(record(), other, None)
    assert made.verification is None
    assert made.level == "builds"
    assert any(reason in each for each in made.reservations)


def test_a_condition_that_reached_the_output_is_named_at_the_top() -> None:
    varied = verification(level="builds", variations=(Variation("umask", "077", "builds", ("deepep: a mode",)),))
    assert "Changing one condition reached the output: umask (077)." in report_of(record(), varied, None).reservations


def test_comparing_wheels_alone_is_said() -> None:
    wheels = verification(level="identical artifacts", image_second=None, image_level="incomplete")
    assert "Only the wheels were compared, not the image." in report_of(record(), wheels, None).reservations


def test_an_experimental_target_is_labelled_in_both_forms() -> None:
    for form in FORMS.values():
        assert "experimental target" in form(*CASES["experimental"])
        assert "not supported" in form(*CASES["experimental"])
        assert "supported target" in form(*CASES["unverified"])


def test_what_a_program_printed_is_shown_and_never_obeyed() -> None:
    hostile = "</pre><script>alert(1)</script> | `cell` | *loud* \x1b[31mred\x1b[0m \x00 \ud800 ```"
    failure = Failure("other", hostile, hostile, 1, (hostile, "```", "after"), hostile)
    bad = record(
        verdict="fails",
        components=(component("deepep", "2.5.0", status="failed", wheel=None, failure=failure, changes=(hostile,)),),
        deviations=(hostile,),
        toolchain={"gcc": hostile},
    )
    tree = page((bad, None, None))
    assert not list(tree.iter("script"))
    assert hostile.partition(" \x1b")[0] in text_of(tree)
    markdown = report_markdown(bad, None, None)
    rendered = MarkdownIt("commonmark").enable("table").render(markdown)
    assert "<script" not in rendered
    assert rendered.count("&lt;script&gt;alert(1)&lt;/script&gt;") == rendered.count("alert(1)") >= 6
    assert rendered.count("*loud*") == rendered.count("loud")
    for lines in tables(markdown):
        assert {cells(line) for line in lines} == {cells(lines[0])}
    assert "\x1b" not in markdown
    assert "\x00" not in report_html(bad, None, None)


def test_a_link_never_leaves_the_folder() -> None:
    odd = record(components=(component("deepep", "2.5.0", log="javascript:alert(1)"),))
    links = [e.get("href", "") for e in page((odd, None, None)).iter("a")]
    assert "./javascript%3Aalert%281%29" in links


def test_thousands_of_differences_give_a_report_one_can_still_open() -> None:
    same = differing()
    first = same.components[0]
    many = tuple(replace(first.differences[0], part=f".text.{n}", detail=("x" * 80,) * 500) for n in range(5000))
    flooded = replace(same, components=(replace(first, differences=many), same.components[1]))
    for form in FORMS.values():
        text = form(record(), flooded, None)
        assert f"and {5000 - SHOWN_PLACES} more places" in text
        assert "476 more lines" in text
        assert len(text) < 200_000


def test_writing_leaves_two_whole_files_and_nothing_else(tmp_path: Path) -> None:
    hostile = record(deviations=("\ud800",))
    assert write_report(tmp_path, hostile, None, None) == (tmp_path / "report.md", tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8").endswith("</html>\n")


def test_the_document_on_verdicts_explains_every_level_in_the_words_of_the_reports() -> None:
    document = " ".join((REPOSITORY / "docs" / "verdict.md").read_text().split())
    for level in LEVELS:
        assert f"`{level}`" in document
        assert SAYS[level] in document


def test_every_component_has_a_check_for_a_gpu_with_its_source() -> None:
    checks = read_gpu_checks(REPOSITORY / "envs")
    assert set(checks) == {path.stem for path in (REPOSITORY / "envs" / "components").glob("*.yaml")}
    assert all(check.commands and check.needs and check.source for check in checks.values())


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("deepep: {commands: [], needs: a GPU, source: README}\n", "the list is empty"),
        ("deepep: {commands: [run], source: README}\n", "the key 'needs' is missing"),
        ("- deepep\n", "a mapping is needed"),
        ("deepep: [\n", "is not valid YAML"),
    ],
)
def test_a_mistake_in_the_checks_is_named_with_its_place(tmp_path: Path, text: str, mistake: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(EnvsError, match=mistake):
        read_gpu_checks(tmp_path)


def test_checks_that_are_not_there_are_an_error_not_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(EnvsError, match=r"gpu-checks\.yaml: cannot be read"):
        read_gpu_checks(tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_how_a_build_compares_with_what_is_published_stands_beside_the_verdict(form: str) -> None:
    page = FORMS[form](record(), None, None, "Matches what is published in this repository.")
    assert page.index("Matches what is published") < page.index("strongest first")


def test_parts_of_the_engine_that_are_not_built_are_told_beside_the_verdict_whatever_was_built_twice() -> None:
    made = replace(record(), not_built=npu.not_built, verdict="incomplete")
    report = report_of(made, verification(), evidence(findings=()))
    assert (report.level, report.built_level) == ("incomplete", verification().level)
    assert any("without DeepGEMM for Ascend, DeepSelect." in line for line in report.reservations)
    states = {rung.level: rung.state for rung in report.ladder}
    assert states["incomplete"] == "verdict"
    assert states[verification().level] == states["builds"] == "of what was built"


def test_a_report_for_an_npu_names_no_test_that_needs_cuda() -> None:
    text = report_markdown(npu, None, npu_evidence)
    assert "tests/test-sparse-prefill.py" in text
    assert "test_fmha_sm100" not in text
    assert "| NPU architecture |" in text


def test_kernels_for_an_npu_are_some_of_the_families_and_no_stub_is_counted() -> None:
    result = JitResult(
        "tilekernels",
        "transform/rope_asc",
        "rope",
        "",
        *["dav-3510"] * 2,
        "compiled",
        "compiled",
        "",
        3.0,
        0.0,
        0,
        9,
        "ab" * 32,
        (),
        (),
    )
    tried = replace(npu_evidence, jit=JitReport(1, 3.0, (result,), (), (), (), ()))
    for text in (form(npu, None, tried) for form in FORMS.values()):
        assert "Kernels of some families, chosen by hand" in text
        assert "every family" not in text
