"""The report of one target: what was shown and what was not, for a person, as Markdown and as one self-contained page.

Both say the same, in the same order, from a record and, where there are any, a verification and the evidence read from
what was built. Levels are computed from those, never declared. Nothing here asks a clock, the machine or a network.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from cleanroom.arch_table import read_table
from cleanroom.console import human_bytes, human_seconds, without_control
from cleanroom.evidence import AI_CORE, AT_RUN_TIME, BY_PTX, IN_PART, NOT, RUNS, ComponentEvidence, Evidence, Finding, is_npu
from cleanroom.files import write_atomically
from cleanroom.gpu_checks import GpuCheck, read_gpu_checks
from cleanroom.jit import JitResult
from cleanroom.project import Project
from cleanroom.record import ComponentResult, Level, Record, verdict_for
from cleanroom.strict_yaml import Mistakes
from cleanroom.survey import Survey
from cleanroom.survey_view import headline
from cleanroom.verification import LEVELS, Difference, Verification, reaches
from cleanroom.verification_view import SAYS, Cause, by_cause, place_of

REPORT_TEMPLATES = Path(__file__).parent / "report_templates"

SHOWN_PLACES = 20
"""Places of one cause that a report lists, and stubs of one library; verification.json and evidence.json have all."""
SHOWN_LINES = 24
"""Lines of detail at one place."""

Tone = Literal["good", "partial", "open", "bad"]
"""`good`: the same bytes; `partial`: less than that; `open`: not compared; `bad`: fails."""

ANSWER_TONES: Mapping[str, Tone] = {RUNS: "good", IN_PART: "partial", BY_PTX: "partial", NOT: "bad"}
"""For `runs_on` of the evidence; what is not here says nothing about a card."""


State = Literal["verdict", "included", "of what was built", "not reached", "not verified"]
"""Of a level. `of what was built`: reached by all that was built, where a part of the engine is no component of the target."""


@dataclass(frozen=True)
class Rung:
    """One level of the ladder: what it says, what was found about it, and the file that holds the proof."""

    level: Level
    state: State
    found: str
    proof: str

    @property
    def says(self) -> str:
        return SAYS[self.level]


ON_FIRST_USE = "at run time"
"""Found in a wheel whose kernels are compiled later: nothing."""


@dataclass(frozen=True)
class Row:
    """One component: its result, the level it reaches by itself, and what its binaries, or its units where it failed, hold."""

    result: ComponentResult
    level: Level
    tone: Tone
    evidence: ComponentEvidence | None
    survey: Survey | None = None

    @property
    def found(self) -> str:
        """The architectures in the binaries, or why there are none."""
        if self.evidence is None:
            return self._nothing
        if self.evidence.found:
            return ", ".join(self.evidence.found)
        return ON_FIRST_USE if AT_RUN_TIME in self.evidence.runs_on.values() else "none"

    @property
    def compiled(self) -> str:
        return self._nothing if self.evidence is None else ", ".join(self.evidence.compiled) or "none"

    @property
    def _nothing(self) -> str:
        """Why there is no evidence: of what was built for no architecture, none is looked for."""
        return "not read" if self.result.architectures_asked or not self.result.wheel else "host code only"

    @property
    def stubs(self) -> int | None:
        """Kernels that only stop, over all libraries. None where nothing was read, or AI Core code does not tell."""
        if self.evidence is None or AI_CORE in self.evidence.found:
            return None
        return sum(len(n) for each in self.evidence.libraries for n in each.stubs.values())


@dataclass(frozen=True)
class Compared:
    """What the two builds of one component, or of the image, have in common, and what they have not."""

    name: str
    level: Level
    count: int
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Capability:
    """One line of the runs-on table: a compute capability, its cards, and one answer for each component."""

    name: str
    cards: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class AtRunTime:
    """Kernels that one component compiles at run time, as compiled in the image for one architecture."""

    title: str
    architecture: str
    families: int
    counts: Mapping[str, int]
    surprises: int

    @property
    def kernels(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class Named:
    """A file that went in or came out. `linked`: it is in the folder that the report is written to."""

    what: str
    path: str
    size: int = 0
    digest: str = ""
    linked: bool = True


@dataclass(frozen=True)
class Report:
    """All that a template shows. `verification` is None unless it is of this very build; `published` says how the build
    compares with what is published beside its lock, in one sentence.
    """

    record: Record
    verification: Verification | None
    evidence: Evidence | None
    level: Level
    reservations: tuple[str, ...]
    ladder: tuple[Rung, ...]
    rows: tuple[Row, ...]
    compared: tuple[Compared, ...]
    capabilities: tuple[Capability, ...]
    findings: tuple[Finding, ...]
    gpu_checks: Mapping[str, GpuCheck]
    published: str = ""

    @property
    def tone(self) -> Tone:
        return _tone(self.level, compared=_covers(self.verification, self.record))

    @property
    def says(self) -> str:
        return SAYS[self.level]

    @property
    def failing(self) -> tuple[Finding, ...]:
        """Findings that fail the target by themselves: not those about a component that did not build."""
        failed = {c.name for c in self.record.failed}
        return tuple(f for f in _failing_findings(self.evidence) if f.component not in failed)

    @property
    def surveys(self) -> tuple[Survey, ...]:
        """Of components that did not build, what became of every unit."""
        return self.evidence.surveys if self.evidence else ()

    @property
    def at_run_time(self) -> tuple[AtRunTime, ...]:
        """By component and architecture, in the order of the record; empty where nothing of the kind was compiled."""
        rows = []
        for component in self.record.components:
            mine = self._tried_at_run_time(component.name)
            for architecture in dict.fromkeys(r.architecture for r in mine):
                these = [r for r in mine if r.architecture == architecture]
                counts = Counter[str](r.outcome for r in these)
                surprises = sum(not r.as_expected for r in these)
                rows.append(AtRunTime(component.title, architecture, len({r.family for r in these}), counts, surprises))
        return tuple(rows)

    def run_time_counts(self, component: str) -> tuple[int, int]:
        """Of the kernels that a component compiles on first use, how many compile, and how many were tried."""
        outcomes = [result.outcome for result in self._tried_at_run_time(component)]
        return outcomes.count("compiled"), len(outcomes)

    def _tried_at_run_time(self, component: str) -> list[JitResult]:
        results = self.evidence.jit.results if self.evidence and self.evidence.jit else ()
        return [result for result in results if result.component == component]

    @property
    def pace(self) -> str:
        """How fast kernels that are compiled at run time were compiled, all together; empty where none were."""
        jit = self.evidence.jit if self.evidence else None
        if jit is None:
            return ""
        return f"{len(jit.results)} kernels in {human_seconds(jit.seconds)}, {jit.kernels_per_minute:.0f} a minute"

    @property
    def vendor(self) -> str:
        """Whose hardware it is for, by what was asked of its components."""
        asked = [architecture for row in self.rows for architecture in row.result.architectures_asked]
        return "ascend" if any(map(is_npu, asked)) else "nvidia"

    @property
    def built_level(self) -> Level:
        """The level of what was built."""
        return built_level(self.record, self.verification, self.evidence)

    @property
    def lists(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What is told as sentences, by title."""
        record = self.record
        return (
            ("Deviations from what is documented", record.deviations),
            ("Changes to upstream sources", tuple(f"{c.title}: {change}" for c in record.components for change in c.changes)),
            *((("Not built", tuple(f"{n.part}: {n.reason}" for n in record.not_built)),) if record.not_built else ()),
            ("Missing modules", tuple(f"{m.module}, wanted by {m.component}: {m.reason}" for m in record.missing_modules)),
            ("Not verified", self.not_verified),
        )

    @property
    def means(self) -> tuple[tuple[str, str], ...]:
        """How it was made, as names and values."""
        record, again = self.record, self.verification
        engine = record.engine
        versions = (("Docker", engine.version), ("BuildKit", engine.buildkit), ("buildx", engine.buildx))
        units = [c.translation_units for c in record.components]
        pairs: tuple[tuple[str, str], ...] = (
            ("platform", record.target.platform),
            ("base", record.base),
            ("lock", f"{record.lock.name}, {record.lock.content}"),
            ("lock resolved from", record.lock.inputs),
            ("rendered Dockerfile", f"sha256:{record.dockerfile_sha256}"),
            ("engine", f"{engine.kind}: " + ", ".join(f"{name} {version}" for name, version in versions if version)),
            ("tools in the image", ", ".join(f"{name} {version}" for name, version in sorted(record.toolchain.items()))),
            ("resources", record.resources.rule),
            ("compiler runs", f"{sum(u.total for u in units)}, {sum(u.reused for u in units)} of them from an interrupted build"),
            ("built", f"{_moment(record.started)}, {human_seconds(record.seconds)}, Cleanroom {record.tool_version}"),
        )
        if again:
            second = f"{_moment(again.started)}, {human_seconds(again.seconds)} with comparison, Cleanroom {again.tool_version}"
            pairs = (*pairs, ("built again", f"{second}, {again.engine.kind} engine"))
        return tuple(pair for pair in pairs if pair[1])

    @property
    def files(self) -> tuple[Named, ...]:
        """What to look at next, what came out, and what went in."""
        files = [Named("record", "record.json"), Named("this report", "report.md")]
        if self.verification:
            files.append(Named("verification", "verify/verification.json"))
        if self.evidence:
            files.append(Named("evidence", "evidence.json"))
        if image := self.record.image:
            files.append(Named("image, manifest", image.file, image.size, image.manifest))
        components = self.record.components
        files += [Named("wheel", c.wheel.file, c.wheel.size, f"sha256:{c.wheel.sha256}") for c in components if c.wheel]
        files += [Named("log", c.log) for c in components if c.log]
        files += [Named("source", c.source.file, c.source.size, f"sha256:{c.source.sha256}", linked=False) for c in components]
        return tuple(files)

    @property
    def not_verified(self) -> tuple[str, ...]:
        """What this report says nothing about: the record's list, and the steps that were not taken."""
        steps = []
        if self.verification is None:
            steps.append("reproducibility: there is no second build to compare with")
        if self.evidence is None:
            steps.append("machine code: the binaries were not read, so that an architecture may be missing or hold stubs only")
        outside = (f"{p.name} {p.documented}: {p.environment}" for p in self.record.prerequisites if p.verdict == "not verified")
        return (*self.record.not_verified, *steps, *outside)


def write_report(
    out: Path, record: Record, verification: Verification | None, evidence: Evidence | None, published: str = ""
) -> tuple[Path, Path]:
    """Write `out`/report.md and `out`/report.html, each whole or not at all; returns their paths."""
    texts = {
        "report.md": report_markdown(record, verification, evidence, published),
        "report.html": report_html(record, verification, evidence, published),
    }
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return out / "report.md", out / "report.html"


def html_page(template: str, **values: Any) -> str:
    """A page that needs no other file, no network and no script, from one of the report templates."""
    return _html().get_template(template).render(values)


def markdown_page(template: str, **values: Any) -> str:
    """Markdown (CommonMark with tables) from one of the report templates, values escaped."""
    text = _markdown().get_template(template).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def report_html(record: Record, verification: Verification | None, evidence: Evidence | None, published: str = "") -> str:
    """The report as one page that needs no other file, no network and no script."""
    return html_page("report.html.j2", **_known(report_of(record, verification, evidence, published)))


def report_markdown(record: Record, verification: Verification | None, evidence: Evidence | None, published: str = "") -> str:
    """The report as Markdown (CommonMark with tables)."""
    return markdown_page("report.md.j2", **_known(report_of(record, verification, evidence, published)))


def report_of(record: Record, verification: Verification | None, evidence: Evidence | None, published: str = "") -> Report:
    """What both forms show."""
    other = another_build(record, verification) if verification else ""
    valid = None if other else verification
    level = level_of(record, valid, evidence)
    rows = tuple(_row(c, record, valid, evidence) for c in record.components)
    return Report(
        record=record,
        verification=valid,
        evidence=evidence,
        level=level,
        reservations=tuple(_reservations(record, valid, other)),
        ladder=ladder(record, valid, evidence, level),
        rows=rows,
        compared=_compared(valid) if valid else (),
        capabilities=_capabilities(rows),
        findings=_by_severity(evidence.findings if evidence else ()),
        gpu_checks=_gpu_checks(),
        published=published,
    )


def another_build(record: Record, verification: Verification) -> str:
    """Why a verification says nothing about a record; empty where it is of this very build."""
    for what, verified, built in (
        ("target", verification.target.name, record.target.name),
        ("base", verification.base, record.base),
        ("lock", verification.lock.content, record.lock.content),
    ):
        if verified != built:
            return f"its {what} is {verified}, here it is {built}"
    wheels = {c.name: c.wheel for c in record.components}
    for component in verification.components:
        first = component.first.sha256 if component.first else ""
        built_wheel = wheels.get(component.name)
        if first != (built_wheel.sha256 if built_wheel else ""):
            return f"the {component.name} wheel it compares is another one"
    return ""


def level_of(record: Record, verification: Verification | None, evidence: Evidence | None) -> Level:
    """The verdict. A second build raises `builds` only where it covers every component; what fails is never raised."""
    if _failing_findings(evidence):
        return "fails"
    if verification and _covers(verification, record) and record.verdict == "builds":
        return verification.level
    return record.verdict


def built_level(record: Record, verification: Verification | None, evidence: Evidence | None) -> Level:
    """As level_of, of what was built, whatever of the engine is no component of the target."""
    return level_of(replace(record, verdict=verdict_for(record.components, record.imports)), verification, evidence)


def tone_of(level: Level) -> Tone:
    """How good a level is, for its colour; the words always stand beside it."""
    if reaches(level, "identical artifacts"):
        return "good"
    return "bad" if level == "fails" else "partial"


def _tone(level: Level, *, compared: bool) -> Tone:
    """As tone_of; what builds and was not built twice is neither good nor bad so far."""
    return "open" if level == "builds" and not compared else tone_of(level)


def ladder(record: Record, verification: Verification | None, evidence: Evidence | None, level: Level) -> tuple[Rung, ...]:
    """All levels from strongest to `builds`, and the one below it where that is where the target stands."""
    shown = [each for each in LEVELS if reaches(each, "builds") or each == level]
    return tuple(_rung(each, record, verification, evidence, level) for each in shown)


def _rung(rung: Level, record: Record, verification: Verification | None, evidence: Evidence | None, level: Level) -> Rung:
    if rung == level:
        state: State = "verdict"
    elif reaches(level, rung):
        state = "included"
    elif record.not_built and reaches(built_level(record, verification, evidence), rung):
        state = "of what was built"
    else:
        state = "not reached" if reaches("builds", rung) or _covers(verification, record) else "not verified"
    if rung == "fails":
        return Rung(rung, state, *_failing(record, evidence))
    if reaches("builds", rung):
        return Rung(rung, state, _built(record), "record.json")
    if verification is None:
        return Rung(rung, state, "", "")
    proof = "verify/verification.json"
    if rung == "identical image":
        return Rung(rung, state, _images(verification), proof)
    same = sum(reaches(c.level, rung) for c in verification.components)
    return Rung(rung, state, f"{same} of {len(record.components)} components", proof)


def _built(record: Record) -> str:
    done = sum(c.status in ("built", "reused") for c in record.components)
    text = f"{done} of {len(record.components)} components compiled"
    if record.imports:
        text += f", {sum(i.ok for i in record.imports)} of {len(record.imports)} modules import"
    return text


def _failing(record: Record, evidence: Evidence | None) -> tuple[str, str]:
    """What a target fails by, and the file that holds it; the second build, where it is neither build nor binaries."""
    if record.verdict == "fails":
        text = f"{len(record.failed)} of {len(record.components)} components failed"
        if record.imports:
            text += f", {sum(not i.ok for i in record.imports)} of {len(record.imports)} modules do not import"
        return text, "record.json"
    if count := len(_failing_findings(evidence)):
        return f"{count} {'finding fails' if count == 1 else 'findings fail'} it", "evidence.json"
    return "the second build failed where the first did not", "verify/verification.json"


def _failing_findings(evidence: Evidence | None) -> tuple[Finding, ...]:
    return tuple(f for f in evidence.findings if f.severity == "fails") if evidence else ()


def _images(verification: Verification) -> str:
    first, second = verification.image_first, verification.image_second
    if first is None or second is None:
        return "no two images were compared"
    if first.manifest == second.manifest:
        return f"both builds gave manifest {first.manifest}"
    return f"the manifests differ; the images reach: {verification.image_level}"


def _left_out(record: Record, verification: Verification) -> tuple[str, ...]:
    """Components of the record that the second build did not cover."""
    covered = {c.name for c in verification.components}
    return tuple(c.name for c in record.components if c.name not in covered)


def _covers(verification: Verification | None, record: Record) -> bool:
    """Whether there is a second build of every component."""
    return verification is not None and not _left_out(record, verification)


def _reservations(record: Record, verification: Verification | None, other: str) -> Iterable[str]:
    """What a reader of the verdict must know in the same breath."""
    if record.target.status != "supported":
        yield f"The status of this target is {record.target.status}, not supported: nobody promises that what was built here works."
    if other:
        yield f"The verification at hand is of another build and was left out: {other}."
    if record.not_built:
        yield f"What was built is a part of the engine, without {', '.join(n.part for n in record.not_built)}."
    if verification is None:
        return
    if left := _left_out(record, verification):
        parts = ", ".join(f"{c.name} {c.level}" for c in verification.components)
        yield f"Only a part was built twice ({parts}), not {', '.join(left)}: the verdict is that of one build."
    if record.image and verification.image_second is None:
        yield "Only the wheels were compared, not the image."
    worst = [v for v in verification.variations if not reaches(v.level, "identical artifacts")]
    if worst:
        yield f"Changing one condition reached the output: {', '.join(f'{v.condition} ({v.value})' for v in worst)}."


def _row(result: ComponentResult, record: Record, verification: Verification | None, evidence: Evidence | None) -> Row:
    read = next((e for e in evidence.components if e.name == result.name), None) if evidence and result.wheel else None
    compared = next((c for c in verification.components if c.name == result.name), None) if verification else None
    broken = any(i.component == result.name and not i.ok for i in record.imports)
    wrong = any(f.component == result.name for f in _failing_findings(evidence))
    if result.status == "failed" or broken or wrong:
        level: Level = "fails"
    elif result.status == "not attempted":
        level = "incomplete"
    else:
        level = compared.level if compared else "builds"
    survey = next((s for s in evidence.surveys if s.component == result.name), None) if evidence else None
    return Row(result, level, _tone(level, compared=compared is not None), read, survey)


def _compared(verification: Verification) -> tuple[Compared, ...]:
    """Every component and, where there are two, the image; what differs first."""

    def one(name: str, level: Level, differences: tuple[Difference, ...]) -> Compared:
        return Compared(name, level, len(differences), by_cause(differences))

    parts = [one(c.name, c.level, c.differences) for c in verification.components]
    if verification.image_second:
        parts.append(one("image", verification.image_level, verification.image_differences))
    return tuple(sorted(parts, key=lambda part: -LEVELS.index(part.level)))


def _capabilities(rows: tuple[Row, ...]) -> tuple[Capability, ...]:
    """One line for each compute capability that the evidence speaks of, in numerical order."""
    answers = [row.evidence.runs_on if row.evidence else {} for row in rows]
    names = sorted({name for each in answers for name in each}, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    cards = _cards()
    return tuple(Capability(n, cards.get(n, ()), tuple(each.get(n, "not read") for each in answers)) for n in names)


@cache
def _gpu_checks() -> Mapping[str, GpuCheck]:
    return read_gpu_checks(Project().envs_dir)


@cache
def _cards() -> Mapping[str, tuple[str, ...]]:
    """Cards of each compute capability, from the table of architectures."""
    mistakes = Mistakes()
    table = read_table(Project().envs_dir, "envs", {}, mistakes)
    mistakes.raise_if_any("envs")
    return {name: capability.cards for name, capability in table.capabilities.items()}


def _by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: ("fails", "degrades", "note").index(f.severity)))


def _known(report: Report) -> dict[str, Any]:
    """What a template may use besides the report itself."""
    return {
        "report": report,
        "record": report.record,
        "verification": report.verification,
        "tone_of": tone_of,
        "answer_tones": ANSWER_TONES,
    }


@cache
def _html() -> jinja2.Environment:
    return _environment(autoescape=True, finalize=lambda value: _clean(value) if type(value) is str else value)


@cache
def _markdown() -> jinja2.Environment:
    environment = _environment(
        autoescape=False,  # Markdown has no escaping of Jinja's own: `finalize` does it for every value
        finalize=lambda value: value if isinstance(value, _Written) else _escaped(str(value)),
    )
    environment.filters |= {"code": _code, "cell": _code_in_table, "block": _block}
    return environment


def _environment(**options: Any) -> jinja2.Environment:
    environment = jinja2.Environment(  # noqa: S701 - both callers say what escapes values
        loader=jinja2.FileSystemLoader(REPORT_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.filters |= {
        "bytes": lambda count: human_bytes(count) if count else "-",
        "duration": lambda seconds: human_seconds(seconds) if seconds else "-",
        "hash": lambda text: text.removeprefix("sha256:")[:12],
        "link": lambda path: "./" + quote(path),
        "place": place_of,
        "few": lambda items: items[:SHOWN_PLACES],
        "headline": headline,
        "moment": _moment,
        "start": lambda lines: lines[:SHOWN_LINES],
        "counted": lambda count, noun: f"{count} {noun}" + ("" if count == 1 else "s"),
        "slug": lambda level: level.replace(" ", "-"),
        "soft": _breakable,
    }
    return environment


def _clean(text: str) -> str:
    """Text as it would be read, and that can be written: no control characters, no halves of surrogate pairs."""
    return without_control(text).encode(errors="replace").decode()


def _moment(utc: str) -> str:
    """2026-01-31T09:00:00Z as a person reads it."""
    return f"{utc[:10]} {utc[11:16]} UTC"


def _breakable(text: str) -> Markup:
    """File names and the like, which a browser may break after a separator rather than anywhere."""
    return Markup("<wbr/>").join(re.split(r"(?<=[/_.-])", _clean(text)))


class _Written(str):
    """Markdown made on purpose, not to be escaped."""

    __slots__ = ()


_SPECIAL = re.compile(r"[\\`*\[\]<>|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^(?=(?:[+-]|#+|\d+[.)])\s)")


def _escaped(text: str) -> str:
    """Text in Markdown: on one line, and nothing in it taken for a mark."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(_clean(text).split()))


def _code(text: str) -> _Written:
    """A code span, whatever backticks the text holds."""
    line = " ".join(_clean(text).split()) or " "
    ticks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if "`" in line else ""
    return _Written(f"{ticks}{pad}{line}{pad}{ticks}")


def _code_in_table(text: str) -> _Written:
    """As `_code`; in a table a bar has to be escaped even there."""
    return _Written(_code(text).replace("|", r"\|"))


def _block(lines: Iterable[str], indent: int = 0) -> _Written:
    """A fenced block, indented as part of a list item."""
    text = _clean("\n".join(lines))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return _Written("\n".join(" " * indent + line for line in (fence, *text.split("\n"), fence)))
