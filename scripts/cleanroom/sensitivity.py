"""What in a source depends on the architecture: the facts of envs/sensitivity.yaml, typed and checked.

The facts are of two sorts. Some are about CUDA and hold for every source: which PTX instruction needs which
architecture, which variables and flags decide it. The others are about one component: what is vendored, which macros
stand for which architectures, which kernel families are known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from cleanroom.arch import Arch
from cleanroom.arch_table import Table
from cleanroom.envs import Envs
from cleanroom.project import REPOSITORY
from cleanroom.source_text import Condition, condition
from cleanroom.strict_yaml import Fields, Item, listed, nearest, read_file

FILE = "sensitivity.yaml"

Kind = Literal["build flag", "variable", "device guard", "inline PTX", "CuTe atom", "run-time check", "JIT entry point"]
"""The kinds of places in a source. `device guard`: code that only some architectures get; the others get a stub."""
Compiled = Literal["build", "run-time"]
Vendor = Literal["nvidia", "ascend"]
Language = Literal["cuda", "python", "text"]


@dataclass(frozen=True)
class Instruction:
    """PTX instructions, or names that CUTLASS has for them, and what they need: any one of `needs` is enough.

    A portable form in `needs` stands for itself and everything later, an `f` form for its family from there on, an `a`
    form for itself alone. `example` is one line of PTX that a test gives to ptxas; names of CUTLASS have none.
    """

    name: str
    pattern: re.Pattern[str]
    needs: tuple[Arch, ...]
    source: str
    example: str = ""


@dataclass(frozen=True)
class Rule:
    """A pattern of text. Its groups are what is shown; without groups it is the line.

    `strings`: whether it may match inside string literals (comments never count). `condition`: for which architectures
    it holds, with the match's groups filled in, such as `major {op} {value}`.
    """

    kind: Kind
    name: str
    language: Language
    pattern: re.Pattern[str]
    strings: bool = False
    condition: str = ""
    needs: tuple[Arch, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Variables:
    """Environment variables by pattern, and what they decide."""

    pattern: re.Pattern[str]
    decides: str


@dataclass(frozen=True)
class VendorParts:
    """Files, and modules they import, that only one vendor's hardware uses."""

    name: Vendor
    files: re.Pattern[str]
    modules: re.Pattern[str]


@dataclass(frozen=True)
class FamilyRule:
    """The kernel families of one component: found in files of a pattern (with a group `family`), against the known ones.

    `containing`: text without which a file is no kernel, only a helper. `known`: each family and what it needs.
    """

    vendor: Vendor
    compiled: Compiled
    files: re.Pattern[str]
    containing: str
    known: Mapping[str, tuple[Arch, ...]]
    source: str


@dataclass(frozen=True)
class ComponentFacts:
    """What is known of one component's source. `vendored`: folders that are other projects' code, not read."""

    vendored: tuple[str, ...] = ()
    macros: Mapping[str, Condition] = field(default_factory=dict)
    families: tuple[FamilyRule, ...] = ()
    generated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sensitivity:
    """All of envs/sensitivity.yaml. `left_out`: files that no wheel has."""

    left_out: re.Pattern[str]
    vendors: tuple[VendorParts, ...]
    instructions: tuple[Instruction, ...]
    atoms: tuple[Instruction, ...]
    rules: tuple[Rule, ...]
    variables: tuple[Variables, ...]
    decorators: tuple[str, ...]
    components: Mapping[str, ComponentFacts]

    def of(self, component: str) -> ComponentFacts:
        """The facts about one component; none for one that the file does not name."""
        return self.components.get(component, ComponentFacts())

    def concerns(self, path: str, vendor: str) -> bool:
        """Whether a file of a source is used on the hardware of this vendor."""
        return not any(other.files.search(path) for other in self.vendors if other.name != vendor)

    def decided_by(self, variable: str) -> str:
        """What an environment variable decides; "" for one that is not named."""
        return next((v.decides for v in self.variables if v.pattern.fullmatch(variable)), "")


def current_forms(table: Table) -> tuple[Arch, ...]:
    """Every form of every capability that the newest toolkit still compiles, oldest first."""
    return tuple(sorted(form.arch for c in table.capabilities.values() for form in c.forms if not form.last))


def accepts(form: Arch, needs: Collection[Arch], table: Table) -> bool:
    """Whether code compiled for `form` may use what needs any of `needs`. Source: PTX ISA, Target ISA Notes."""
    return any(_meets(form, need, table) for need in needs)


def _meets(form: Arch, need: Arch, table: Table) -> bool:
    if need.suffix == "a":
        return form.suffix == "a" and form.capability == need.capability
    if need.suffix == "f":
        return form.suffix != "" and form.capability in table.family_of(need) and form.minor >= need.minor
    return (form.major, form.minor) >= (need.major, need.minor)


def load_sensitivity(envs: Envs) -> Sensitivity:
    """The facts of a project; a project without a file of its own (a fixture) uses the repository's.

    Raises EnvsError with every mistake found.
    """
    own = envs.folder / FILE
    path = own if own.is_file() else REPOSITORY / "envs" / FILE
    return read_file(path, f"envs/{FILE}", lambda item: _read(item, envs, path == own))


def _read(item: Item, envs: Envs, own: bool) -> Sensitivity:
    fields = item.fields(
        ["left_out", "vendors", "instructions", "atoms", "rules", "variables", "decorators", "components"],
    )
    components = {}
    for name, facts in fields.entries("components"):
        if own and name not in envs.components:
            facts.wrong(f"there is no component {name!r}{nearest(name, envs.components)} (known: {listed(envs.components)})")
        components[name] = _component(facts, envs.table)
    return Sensitivity(
        left_out=_pattern_of(fields, "left_out"),
        vendors=tuple(_vendor(i) for i in fields.items("vendors")),
        instructions=tuple(_instruction(i, envs.table, ptx=True) for i in fields.items("instructions")),
        atoms=tuple(_instruction(i, envs.table, ptx=False) for i in fields.items("atoms")),
        rules=tuple(_rule(i, envs.table) for i in fields.items("rules")),
        variables=tuple(_variables(i) for i in fields.items("variables")),
        decorators=fields.texts("decorators"),
        components=components,
    )


def _instruction(item: Item, table: Table, *, ptx: bool) -> Instruction:
    fields = item.fields(["name", "pattern", "needs", "source", *(["example"] if ptx else [])])
    return Instruction(
        name=fields.text("name"),
        pattern=_pattern_of(fields, "pattern"),
        needs=_needs(fields, table),
        source=fields.text("source"),
        example=fields.text("example"),
    )


def _rule(item: Item, table: Table) -> Rule:
    fields = item.fields(["kind", "name", "language", "pattern"], ["in_strings", "condition", "needs", "note"])
    return Rule(
        kind=cast("Kind", fields.choice("kind", get_args(Kind))),
        name=fields.text("name"),
        language=cast("Language", fields.choice("language", get_args(Language))),
        pattern=_pattern_of(fields, "pattern"),
        strings=fields.choice("in_strings", ("allowed", "ignored")) == "allowed",
        condition=fields.text("condition"),
        needs=_needs(fields, table),
        note=fields.text("note"),
    )


def _variables(item: Item) -> Variables:
    fields = item.fields(["pattern", "decides"])
    return Variables(_pattern_of(fields, "pattern"), fields.text("decides"))


def _vendor(item: Item) -> VendorParts:
    fields = item.fields(["name", "files", "modules"])
    name = cast("Vendor", fields.choice("name", get_args(Vendor)))
    return VendorParts(name, _pattern_of(fields, "files"), _pattern_of(fields, "modules"))


def _component(item: Item, table: Table) -> ComponentFacts:
    fields = item.fields(["vendored", "macros", "families"], ["generated"])
    macros = {}
    for name, text in fields.entries("macros"):
        macros[name] = _condition(text)
    return ComponentFacts(
        vendored=fields.texts("vendored"),
        macros=macros,
        families=tuple(_families(i, table) for i in fields.items("families")),
        generated=fields.texts("generated"),
    )


def _families(item: Item, table: Table) -> FamilyRule:
    fields = item.fields(["vendor", "compiled", "files", "known", "source"], ["containing"])
    files = _pattern_of(fields, "files")
    if "files" in fields and "family" not in files.groupindex:
        fields["files"].wrong("has no group (?P<family>...), which names the family of a file")
    vendor = cast("Vendor", fields.choice("vendor", get_args(Vendor)))
    known: dict[str, tuple[Arch, ...]] = {}
    for group in fields.items("known"):
        parts = group.fields(["families"], ["needs"])
        if vendor == "nvidia" and "needs" not in parts:
            group.wrong("the key 'needs' is missing; kernels for NVIDIA need some architecture")
        needs = _needs(parts, table)
        for family in parts.texts("families"):
            if family in known:
                group.wrong(f"the family {family!r} is already listed")
            known[family] = needs
    return FamilyRule(
        vendor=vendor,
        compiled=cast("Compiled", fields.choice("compiled", get_args(Compiled))),
        files=files,
        containing=fields.text("containing"),
        known=known,
        source=fields.text("source"),
    )


def _needs(fields: Fields, table: Table) -> tuple[Arch, ...]:
    found = fields.archs("needs")
    for objection in filter(None, map(table.objection, found)):
        fields["needs"].wrong(objection)
    return found


def _condition(item: Item) -> Condition:
    text = item.text()
    found = condition(text) if text else None
    if text and found is None:
        item.wrong(f"{text!r} is not a condition that can be evaluated; write for example __CUDA_ARCH__ >= 1000")
    return found or condition("0") or cast("Condition", None)


def _pattern_of(fields: Fields, key: str) -> re.Pattern[str]:
    return _pattern(fields[key]) if key in fields else re.compile("(?!)")


def _pattern(item: Item) -> re.Pattern[str]:
    try:
        return re.compile(item.text(), re.MULTILINE | re.DOTALL)
    except re.error as error:
        item.wrong(f"is not a regular expression: {error}")
        return re.compile("(?!)")
