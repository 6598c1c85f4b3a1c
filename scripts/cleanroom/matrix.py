"""The answer page: every target and component with the level that a clean machine has reached, from the records present.

Nothing is declared: a level comes from a record, a verification and the evidence, as in the report, and what was never
run says so. An experimental target stays one whatever its level.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
from rich.table import Table
from rich.text import Text

from cleanroom.arch_table import release
from cleanroom.cann import NOT_SUPPLIED
from cleanroom.console import Console, without_control
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import LockError, RecordError
from cleanroom.evidence import read_evidence
from cleanroom.files import write_atomically
from cleanroom.lock import lock_path, read_lock
from cleanroom.products import Product, Products, read_products
from cleanroom.project import Project
from cleanroom.published import published_path, read_published
from cleanroom.record import read_record
from cleanroom.report import REPORT_TEMPLATES, Report, Row, Tone, report_of
from cleanroom.target import Expectation, Target
from cleanroom.tiers import FILE as TIERS_FILE
from cleanroom.tiers import Tiers, read_tiers
from cleanroom.verification import reaches, read_verification

NEVER_RUN = "never run"
UNREADABLE = "unreadable"
NOT_PART = "not part of it"
PUBLISHED = "nothing was built here; two clean builds of this lock agreed on the digests beside it, for yours to be compared with"
SAYS_NOTHING_OF = (
    "A verdict says nothing about correct results or speed, and an experimental target stays experimental whatever it is."
)
_COLOURS: Mapping[Tone, str] = {"good": "bold green", "partial": "yellow", "open": "cyan", "bad": "bold red"}


@dataclass(frozen=True)
class Cell:
    """One component of one target. `surprise` says how it differs from what was expected, empty where it does not.

    `stubs`: kernels whose machine code only traps, which no level tells; `units`: of what failed, how many units compile;
    `at_run_time`: of the kernels that are compiled on first use, how many compile.
    """

    component: str
    level: str
    tone: Tone | None = None
    expected: str = ""
    surprise: str = ""
    stubs: int = 0
    units: str = ""
    at_run_time: str = ""

    @property
    def text(self) -> str:
        more = self.units or (f"{self.stubs} kernels are stubs" if self.stubs else "")
        return ", ".join(filter(None, (self.level, more, self.at_run_time)))


@dataclass(frozen=True)
class Standing:
    """One target on one base. `report` is None where nothing was run, or where `trouble` says what cannot be read.

    `lock_now` is the checksum of the lock as it is in the project, empty where there is none to use; `published`: whether
    digests on which two clean builds of that lock agreed are beside it; `tiers`: what was tried without the toolkit, and
    `tiers_trouble` why it cannot be read; `lock_lacks`: what nobody brought when it was written, so that nothing can be built.
    """

    target: Target
    base: str
    folder: str
    report: Report | None
    trouble: str
    lock_now: str
    published: bool = False
    tiers: Tiers | None = None
    tiers_trouble: str = ""
    lock_lacks: str = ""

    @property
    def tried(self) -> str:
        """What the tiers of evidence came to, empty where none ran."""
        if self.tiers is None:
            return ""
        outcomes = ", ".join(f"{tier.name} {tier.outcome}" for tier in self.tiers.tiers)
        old = "" if self.tiers.lock.content == self.lock_now else ", of an older lock"
        return f"{outcomes} ({self.tiers.started[:10]}{old}); none of them is a build"

    @property
    def old_lock(self) -> bool:
        """Whether what was built is not what the lock says now."""
        return self.report is not None and self.report.record.lock.content != self.lock_now

    @property
    def name(self) -> str:
        return f"{self.target.name} on {self.base}"

    @property
    def level(self) -> str:
        return self.report.level if self.report else UNREADABLE if self.trouble else NEVER_RUN

    @property
    def tone(self) -> Tone | None:
        return self.report.tone if self.report else "bad" if self.trouble else None

    @property
    def date(self) -> str:
        """The day of the newest evidence, UTC."""
        if self.report is None:
            return ""
        newest = self.report.verification or self.report.record
        return newest.started[:10]

    @property
    def lock(self) -> str:
        """The first digits of the checksum of the lock that was built."""
        return self.report.record.lock.content.removeprefix("sha256:")[:12] if self.report else ""

    def cell(self, component: str) -> Cell:
        """How one component stands."""
        if self.target.selection(component) is None:
            return Cell(component, NOT_PART)
        expectation = self.target.expectation(component)
        expected = str(expectation) if expectation else ""
        row = next((r for r in self.report.rows if r.result.name == component), None) if self.report else None
        if row is None:
            return Cell(component, UNREADABLE if self.trouble else NEVER_RUN, expected=expected)
        if row.result.status == "not attempted":
            return Cell(component, "not attempted", expected=expected)
        found = surprise(expectation, row) if expectation else ""
        units = f"{row.survey.counts['compiled']} of {len(row.survey.units)} units compile" if row.survey else ""
        compiled, tried = self.run_time_counts(component)
        at_run_time = f"{compiled} of {tried} run-time kernels compile" if tried else ""
        return Cell(component, row.level, row.tone, expected, found, row.stubs or 0, units, at_run_time)

    def run_time_counts(self, component: str) -> tuple[int, int]:
        """As the report's; none where nothing was run."""
        return self.report.run_time_counts(component) if self.report else (0, 0)

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(self.cell(s.component) for s in self.target.components)


@dataclass(frozen=True)
class Options:
    """What the person who types `matrix` may choose: one product to ask about instead."""

    gpu: str | None = None


def run(project: Project, options: Options, console: Console) -> int:
    """Show the matrix and write it to out/matrix.md and .html; or only say what it means for one product.

    Raises EnvsError, and UnknownName for an unknown product.
    """
    envs = load_envs(project.envs_dir)
    products = read_products(project.envs_dir, envs)
    standings = standings_of(project, envs)
    if options.gpu is not None:
        product = products.find(options.gpu)
        console.result(answer(product, products, standings, envs))
        return 0
    files = {"matrix.md": markdown, "matrix.html": html}
    for name, text in files.items():
        write_atomically(project.out_dir / name, text(standings, products, envs).encode())
    if console.json:
        console.result({"targets": [plain(each) for each in standings]})
    for part in terminal(standings):
        console.show(part)
    console.show(Text(f"Also as a page: {' and '.join(str(project.out_dir / name) for name in files)}"))
    return 0


def standings_of(project: Project, envs: Envs) -> tuple[Standing, ...]:
    """Every target on each of its bases, supported targets first."""
    targets = sorted(envs.targets.values(), key=lambda t: t.status != "supported")
    return tuple(standing(project, target, base) for target in targets for base in target.bases)


def standing(project: Project, target: Target, base: str) -> Standing:
    """What the output folder of one target on one base says."""
    folder = target.name if base == target.bases[0] else f"{target.name}-{base}"
    out, lock_now = project.out_dir / folder, locked_now(project, target, base)
    published = published_now(project, target, base) == lock_now != ""
    tiers, tiers_trouble = tiers_of(out)
    lacks = lock_lacks(project, target, base)
    stands = Standing(target, base, folder, None, "", lock_now, published, tiers, tiers_trouble, lacks)
    if not (out / "record.json").exists():
        return stands
    try:
        report = known(out)
    except RecordError as error:
        return replace(stands, trouble=error.what, published=False)
    made_of = report.record.target.name, report.record.base
    if made_of != (target.name, base):
        return replace(stands, trouble=f"the record in out/{folder} is of {' on '.join(made_of)}.", published=False)
    return replace(stands, report=report)


def tiers_of(out: Path) -> tuple[Tiers | None, str]:
    """What the tiers of evidence came to, or why it cannot be read; neither where none ran."""
    if not (out / TIERS_FILE).exists():
        return None, ""
    try:
        return read_tiers(out / TIERS_FILE), ""
    except RecordError as error:
        return None, error.what


def lock_lacks(project: Project, target: Target, base: str) -> str:
    """What the lock says that nobody brought, empty where nothing is missing, or there is no lock that can be read."""
    if target.toolkit.kind != "cann-installers":
        return ""
    try:
        notes = read_lock(lock_path(project.root, f"{target.name}-{base}")).notes
    except LockError:
        return ""
    return next((note for note in notes if NOT_SUPPLIED in note), "")


def known(out: Path) -> Report:
    """The report on what lies in one output folder. Raises RecordError for a file that is missing or damaged."""
    record = read_record(out / "record.json")
    verified, read = out / "verify" / "verification.json", out / "evidence.json"
    verification = read_verification(verified) if verified.exists() else None
    return report_of(record, verification, read_evidence(read) if read.exists() else None)


def locked_now(project: Project, target: Target, base: str) -> str:
    """The checksum that the lock in the project says of itself, empty where there is none. Whoever builds checks it."""
    try:
        text = lock_path(project.root, f"{target.name}-{base}").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    content = re.search(r"^content: (sha256:[0-9a-f]{64})$", text, re.MULTILINE)
    return content[1] if content else ""


def published_now(project: Project, target: Target, base: str) -> str:
    """The checksum of the lock whose digests are published, empty where none are or they cannot be read."""
    try:
        published = read_published(published_path(lock_path(project.root, f"{target.name}-{base}")))
    except LockError:
        return ""
    return published.lock if published else ""


def surprise(expectation: Expectation, row: Row) -> str:
    """How a component came out against what was expected of it, empty where it did as expected.

    Some refused units fail a whole component, so that by itself a failure contradicts only `compiles`; its survey says more.
    That nothing is a stub is known only once the machine code was read.
    """
    stubs = row.stubs
    if row.survey and row.survey.units and expectation.outcome != "compiles":
        compiled, tried = row.survey.counts["compiled"], len(row.survey.units)
        how = "better" if compiled > expectation.compiles else "worse"
        return (
            f"{how} than expected ({expectation}): {compiled} of {tried} units compile" if compiled != expectation.compiles else ""
        )
    if row.level == "fails":
        return "worse than expected: it fails" if expectation.outcome == "compiles" else ""
    if expectation.outcome == "compiles":
        return f"worse than expected: {stubs} kernels are stubs" if stubs else ""
    if stubs is None:
        return "compiled; whether kernels are stubs was not read" if expectation.outcome == "refuses" else ""
    if stubs and expectation.stubs not in (None, stubs):
        how = "better" if stubs < expectation.stubs else "worse"
        return f"{how} than expected: {stubs} kernels are stubs, not {expectation.stubs}"
    return "" if stubs else f"better than expected ({expectation}): it compiled and no kernel is a stub"


# One product


def answer(product: Product, products: Products, standings: Sequence[Standing], envs: Envs) -> dict[str, str]:
    """What to say about one product, in a few lines: listed or not, verdict, what to do next."""
    capability = f"compute capability {product.capability}, " if product.capability else ""
    lines = {
        "product": f"{product.name} ({capability}{product.source})",
        "listed by DeepInfer": f"yes ({product.listed})" if product.listed else "no",
    }
    names = [target.name for target in product.targets(envs)]
    found = [s for s in standings if s.target.name in names]
    if not found:
        lines["target here"] = "none"
        lines["next"] = next_without_target(product, envs)
    best = sorted(found, key=lambda s: s.report is None)  # what was run says more than what was not
    for each in best[:1]:
        old = ", of an older lock" if each.old_lock else ""
        when = f" ({each.date}, lock {each.lock}{old})" if each.report else ""
        lines["target here"] = f"{each.target.name}, {each.target.status}"
        lines["can a clean machine reproduce it"] = f"{each.level}{when}{': ' + each.trouble if each.trouble else ''}"
        if each.report:
            lines["by component"] = "; ".join(
                f"{c.component} {c.text}{f' ({c.surprise})' if c.surprise else ''}" for c in each.cells
            )
        if each.tried or each.tiers_trouble:
            lines["tiers of evidence"] = each.tried or each.tiers_trouble
        if each.target.not_built:
            lines["not built"] = "; ".join(map(str, each.target.not_built))
        if not each.report and each.target.expected:
            lines["expected"] = ", ".join(f"{e.component} {e}" for e in each.target.expected)
        if each.published and not each.report:
            lines["published"] = PUBLISHED
        lines["next"] = next_step(each)
        if others := [f"{s.name} ({s.target.status}): {s.level}" for s in best[1:]]:
            lines["also here"] = "; ".join(others)
    if not product.listed:
        for document in products.documented(product):
            key = f"elsewhere, {document.engine}"
            lines[key] = "; ".join(filter(None, (lines.get(key), f"{document.says} ({document.source})")))
    return lines


def next_without_target(product: Product, envs: Envs) -> str:
    """What helps with a product that no target is for: the target of the nearest capability is what to start from."""
    here = [t for t in envs.targets.values() if t.architectures]
    if not product.capability or not here:
        return f"write a target for it under envs/targets/ (vendor {product.vendor}); docs/adding-a-target.md says how"
    wanted = release(product.capability)
    near = min(here, key=lambda t: [abs(a - b) for a, b in zip(release(t.architectures[0].capability), wanted, strict=True)])
    forms = [f.arch for f in envs.architectures[product.capability].forms]
    form = next((a for a in forms if a.suffix == "a"), forms[0])
    return f"nox -s trial -- --arch {form} --from {near.name}; docs/porting.md says how to read it, and how to make it a target"


def next_step(standing: Standing) -> str:
    """What would tell more about one target than is known now."""
    target, report = standing.target.name, standing.report
    on = "" if standing.base == standing.target.bases[0] else f" -- --base {standing.base}"
    if report is None and standing.target.toolkit.kind == "cann-installers":
        first = "" if standing.tiers else f"nox -s tiers-{target}, which needs no CANN; "
        return f"{first}docs/ascend.md says what a build needs"
    if report is None or standing.old_lock or (report.level == "incomplete" and not report.record.complete):
        return f"nox -s build-{target}{on}"
    if report.level == "fails":
        return f"read out/{standing.folder}/record.json, or build again: nox -s build-{target}{on}"
    if not reaches(report.level, "identical artifacts") and report.verification is None:
        return f"nox -s verify-{target}{on}"
    return f"nox -s checklist-{target}"


# Forms


def terminal(standings: Sequence[Standing]) -> Iterator[Table | Text]:
    """The matrix for a terminal, then what needs a sentence."""
    names = columns(standings)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("target", "verdict", "date, lock"):
        table.add_column(heading)
    for name in names:
        table.add_column(name)
    for each in standings:
        head = Text.assemble((each.target.name, "bold"), f"\non {each.base}\n", (each.target.status, "dim"))
        made = Text(f"{each.date}\n{each.lock}" if each.report else "")
        verdict = Text(each.level, style=_COLOURS[each.tone] if each.tone else "dim")
        table.add_row(head, verdict, made, *(_shown(each.cell(name)) for name in names))
    yield table
    for remark in remarks(standings):
        yield Text(remark, style="yellow")
    yield Text(SAYS_NOTHING_OF)


def _shown(cell: Cell) -> Text:
    style = _COLOURS[cell.tone] if cell.tone else "dim"
    return Text.assemble((cell.text, style), (f"\nexpected\n{cell.expected}" if cell.expected else "", "dim"))


def columns(standings: Sequence[Standing]) -> tuple[str, ...]:
    """All components of all targets, in the order of the targets."""
    return tuple(dict.fromkeys(s.component for each in standings for s in each.target.components))


def remarks(standings: Sequence[Standing]) -> Iterator[str]:
    """What a level alone does not tell."""
    for each in standings:
        if each.trouble:
            yield f"{each.name}: {each.trouble}"
        if each.published and not each.report:
            yield f"{each.name}: {PUBLISHED}"
        if each.target.not_built:
            yield f"{each.name}: not built: {', '.join(n.part for n in each.target.not_built)}"
        if each.tried:
            yield f"{each.name}, tiers of evidence: {each.tried}"
        if each.tiers_trouble:
            yield f"{each.name}, tiers of evidence: {each.tiers_trouble}"
        if each.old_lock:
            yield f"{each.name}: built from lock {each.lock}, which is not the one in the repository now"
        for cell in each.cells:
            if cell.surprise:
                yield f"{each.name}, {cell.component}: {cell.surprise}"


def plain(standing: Standing) -> dict[str, Any]:
    """One standing for machines."""
    return {
        "target": standing.target.name,
        "status": standing.target.status,
        "base": standing.base,
        "level": standing.level,
        "date": standing.date,
        "lock": standing.report.record.lock.content if standing.report else "",
        "old_lock": standing.old_lock,
        "published": standing.published,
        "trouble": standing.trouble,
        "tiers": {tier.name: tier.outcome for tier in standing.tiers.tiers} if standing.tiers else {},
        "not_built": [part.part for part in standing.target.not_built],
        "components": {
            c.component: {
                "level": c.level,
                "stubs": c.stubs,
                "at_run_time": c.at_run_time,
                "expected": c.expected,
                "surprise": c.surprise,
            }
            for c in standing.cells
        },
    }


def markdown(standings: Sequence[Standing], products: Products, envs: Envs) -> str:
    """The matrix and the products as two Markdown tables."""
    names = columns(standings)
    rows = [
        (f"**{s.target.name}** on {s.base}", s.target.status, s.level, s.date, s.lock, *(_cell_text(s.cell(n)) for n in names))
        for s in standings
    ]
    said = [f"- {remark}" for remark in remarks(standings)]
    parts = [
        "# What a clean machine can reproduce\n",
        _table(("target", "status", "verdict", "date", "lock", *names), rows),
        *(["\n".join(said) + "\n"] if said else []),
        SAYS_NOTHING_OF + "\n",
        "## Which target is for my card\n",
        _table(("product", "compute capability", "listed by DeepInfer", "target"), product_rows(products, envs)),
    ]
    return "\n".join(parts)


def product_rows(products: Products, envs: Envs) -> list[tuple[str, ...]]:
    """Every product with the target that is for it."""
    rows: list[tuple[str, ...]] = []
    for product in products.by_name.values():
        targets = ", ".join(f"{t.name} ({t.status})" for t in product.targets(envs)) or "none"
        rows.append((product.name, product.capability or "-", product.listed or "no", targets))
    return rows


def _cell_text(cell: Cell) -> str:
    return cell.text + (f" (expected {cell.expected})" if cell.expected else "")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(_in_table(text) for text in line) + " |\n" for line in lines)


def _in_table(text: str) -> str:
    return " ".join(without_control(text).split()).replace("|", r"\|")


def html(standings: Sequence[Standing], products: Products, envs: Envs) -> str:
    """The matrix as one self-contained page without a script."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REPORT_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: without_control(value) if type(value) is str else value,
    )
    return environment.get_template("matrix.html.j2").render(
        standings=standings,
        columns=columns(standings),
        remarks=tuple(remarks(standings)),
        products=product_rows(products, envs),
        says_nothing_of=SAYS_NOTHING_OF,
    )
