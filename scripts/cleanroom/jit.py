"""Kernels that the engine's packages compile at run time: what a container without a GPU compiles of them, and what came of it.

envs/jit/ holds the facts, one file per component; `request` renders them for a target into what
scripts/in_container/jit_probe.py reads, `read_report` judges what that brought back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

import yaml

from cleanroom.arch import Arch
from cleanroom.binary.cubin import Kernel, arch_of, kernels
from cleanroom.component import Component
from cleanroom.errors import EnvsError, IntegrityError, RecordError
from cleanroom.strict_json import from_json
from cleanroom.strict_yaml import Fields, Item, Mistakes, listed, nearest, read_bytes, read_item
from cleanroom.target import Target

FOLDER = "jit"
FIRST_WITH_FAMILIES = 10
"""Major compute capability; PTX ISA 8.8 knows no family before."""
LIMIT_SECONDS = 600
"""For one kernel, on a machine whose cores are shared with other work; the slowest takes about a minute on a free one."""

Kind = Literal["deepjit", "tilelang"]
Outcome = Literal["compiled", "refused", "stub"]
"""`refused`: a compiler said no. `stub`: it said yes, and the machine code traps or returns at once (binary.cubin.Kernel)."""
Result = Literal["compiled", "refused", "stub", "failed"]
"""`failed`: the probe could not be made, which says nothing about the architecture."""


@dataclass(frozen=True)
class Flag:
    """A compiler flag, and how installed files spell it: `found` in the files that match `within`; both "" where it is computed."""

    flag: str
    found: str = ""
    within: str = ""


@dataclass(frozen=True)
class Expected:
    """What compiling should come to by architecture, and why. An architecture that is not there does not use the family."""

    outcomes: Mapping[str, Outcome]
    reason: str


@dataclass(frozen=True)
class JitKernel:
    """One instantiation. `arguments` by name, in upstream's order: C++ text for a template, Python expressions for a function.

    `template` is the installed file with the source text, `find` what only that text contains (its name and `<`, if nothing
    else). `exact`: compiled for the architecture itself where the component asks for its family otherwise.
    """

    name: str
    variant: str
    arguments: Mapping[str, str]
    template: str = ""
    find: str = ""
    exact: bool = False


@dataclass(frozen=True)
class Family:
    """Kernels of one file: a header below include/<package>/, or a Python module."""

    name: str
    expected: Expected
    kernels: tuple[JitKernel, ...]


@dataclass(frozen=True)
class JitComponent:
    """How one component compiles at run time, and what. `compiles_for`: target's architecture to the one nvcc is asked for.

    `unused` are families that are deliberately not compiled, each with its reason. `device` is what torch is made to say
    of the card besides its capability, `names` modules whose names the arguments may use. `beside`: components that it imports.
    """

    component: str
    kind: Kind
    package: str
    source: str
    compiles_for: Mapping[str, Arch]
    flags: tuple[Flag, ...]
    conditional_flags: tuple[str, ...]
    include: tuple[str, ...]
    files: tuple[str, ...]
    excluded: tuple[str, ...]
    device: Mapping[str, int]
    names: tuple[str, ...]
    beside: tuple[str, ...]
    unused: Mapping[str, str]
    families: tuple[Family, ...]


@dataclass(frozen=True)
class Probe:
    """One kernel to compile for one architecture of a target. `architecture` is what the compiler is asked for."""

    number: int
    component: str
    family: Family
    kernel: JitKernel
    target_architecture: Arch
    architecture: Arch

    @property
    def expected(self) -> Outcome:
        return self.family.expected.outcomes[self.target_architecture.sm]


@dataclass(frozen=True)
class JitResult:
    """What came of one probe. `seconds` is wall time beside others, `size` and `sha256` the code's, "" where there is none."""

    component: str
    family: str
    kernel: str
    variant: str
    target_architecture: str
    architecture: str
    outcome: Result
    expected: Outcome
    reason: str
    seconds: float
    cpu_seconds: float
    instructions: int
    size: int
    sha256: str
    command: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def as_expected(self) -> bool:
        return self.outcome == self.expected


@dataclass(frozen=True)
class JitReport:
    """All of a target. `uncovered`: families that are installed and that no file of ours knows; `gone`: the reverse.

    `drift`: the installed package no longer compiles as our data says. `not_used`: families that upstream does not use
    on these architectures. Anything in the first three makes the evidence incomplete.
    """

    jobs: int
    seconds: float
    results: tuple[JitResult, ...]
    uncovered: tuple[str, ...]
    gone: tuple[str, ...]
    drift: tuple[str, ...]
    not_used: tuple[str, ...]
    schema: int = 1

    @property
    def counts(self) -> Mapping[Result, int]:
        """Results by outcome; an outcome that no result has counts 0."""
        found = Counter(result.outcome for result in self.results)
        return {outcome: found[outcome] for outcome in get_args(Result)}

    @property
    def kernels_per_minute(self) -> float:
        return 60 * len(self.results) / self.seconds if self.seconds else 0.0

    @property
    def surprises(self) -> tuple[JitResult, ...]:
        """Results that are not what the data expects; each needs a look, in the code or in the data."""
        return tuple(result for result in self.results if not result.as_expected)


# --- envs/jit --------------------------------------------------------------------------------------------------------


def read_jit(envs_dir: Path, label: str, components: Mapping[str, Component], mistakes: Mistakes) -> tuple[JitComponent, ...]:
    """Every file of `envs_dir`/jit/, by name, where there are any; what is wrong with them goes into `mistakes`."""
    found = []
    for path in sorted((envs_dir / FOLDER).glob("*.yaml")):
        where = f"{label}/{FOLDER}/{path.name}"
        content = read_bytes(path, where, mistakes)
        item = None if content is None else read_item(where, content, mistakes)
        if item is not None:
            found.append(_component(item, path.stem, components))
    return tuple(found)


def _component(item: Item, stem: str, components: Mapping[str, Component]) -> JitComponent:
    fields = item.fields(
        [
            *("component", "kind", "package", "source", "compiles_for", "flags", "include", "files", "excluded"),
            *("expectations", "unused", "families"),
        ],
        ["conditional_flags", "device", "names", "beside"],
    )
    name = fields.text("component")
    if name and name != stem:
        fields["component"].wrong(f"{name!r} is not the file's name {stem!r}; they must be equal")
    elif name and name not in components:
        fields["component"].wrong(f"{name!r} is not a component{nearest(name, components)} (known: {listed(components)})")
    compiles_for = {key: arch for key, value in fields.entries("compiles_for") if (arch := value.arch())}
    expectations = {key: _expected(value, compiles_for) for key, value in fields.entries("expectations")}
    kind = cast("Kind", fields.choice("kind", get_args(Kind)))
    return JitComponent(
        component=name,
        kind=kind,
        package=fields.text("package"),
        source=fields.text("source"),
        compiles_for=compiles_for,
        flags=tuple(_flag(each) for each in fields.items("flags")),
        conditional_flags=fields.texts("conditional_flags"),
        include=fields.texts("include"),
        files=fields.texts("files", least=1),
        excluded=fields.texts("excluded"),
        device={key: value.integer(1) for key, value in fields.entries("device")},
        names=fields.texts("names"),
        beside=fields.texts("beside", listed(components), lambda t: t in components),
        unused=dict(_unused(fields)),
        families=tuple(_family(each, kind, expectations) for each in fields.items("families")),
    )


def _expected(item: Item, known: Mapping[str, Arch]) -> Expected:
    fields = item.fields(["reason", "outcomes"])
    outcomes = {}
    for arch, value in fields.entries("outcomes"):
        if arch not in known:
            value.wrong(f"{arch!r} is not among compiles_for{nearest(arch, known)} (known: {listed(known)})")
        outcomes[arch] = cast("Outcome", value.choice(get_args(Outcome)))
    return Expected(outcomes, fields.text("reason"))


def _flag(item: Item) -> Flag:
    fields = item.fields(["flag"], ["found", "in"])
    if ("found" in fields) != ("in" in fields):
        item.wrong("found and in belong together: a text, and the installed files that contain it")
    return Flag(fields.text("flag"), fields.text("found"), fields.text("in"))


def _unused(fields: Fields) -> Iterator[tuple[str, str]]:
    for item in fields.items("unused"):
        each = item.fields(["reason", "families"])
        yield from ((family, each.text("reason")) for family in each.texts("families", least=1))


def _family(item: Item, kind: Kind, expectations: Mapping[str, Expected]) -> Family:
    fields = item.fields(["family", "expect", "kernels"])
    expected = expectations.get(fields.choice("expect", expectations), Expected({}, ""))
    return Family(fields.text("family"), expected, tuple(_kernel(each, kind) for each in fields.items("kernels")))


def _kernel(item: Item, kind: Kind) -> JitKernel:
    required = ["kernel", "template", "arguments"] if kind == "deepjit" else ["kernel", "arguments"]
    fields = item.fields(required, ["variant", "find", "architecture"])
    name = fields.text("kernel")
    return JitKernel(
        name=name,
        variant=fields.text("variant"),
        arguments={key: _as_written(value) for key, value in fields.entries("arguments")},
        template=fields.text("template"),
        find=fields.text("find") or f"{name}<",
        exact=fields.choice("architecture", ["exact"]) == "exact",
    )


def _as_written(item: Item) -> str:
    """Source text: `4096`, `true` and `1e-6` mean what the language they are put into makes of them, not what YAML does."""
    if isinstance(item.node, yaml.ScalarNode) and item.node.value:
        return str(item.node.value)
    item.wrong(f"is {item.shown}, source text is needed")
    return ""


def extended(components: Sequence[JitComponent], arch: Arch, like: Arch) -> tuple[JitComponent, ...]:
    """The same with another architecture, of which nothing is known but what `like` gives: that is what is expected of it."""
    return tuple(
        replace(
            component,
            compiles_for={**component.compiles_for, arch.sm: component.compiles_for.get(arch.sm, family_of(component, arch))},
            families=tuple(replace(family, expected=_like(family.expected, arch, like)) for family in component.families),
        )
        for component in components
    )


def family_of(component: JitComponent, arch: Arch) -> Arch:
    """What a component asks its compiler for: DeepJIT takes the family where there are any, that is from 10.0 on."""
    by_family = component.kind == "deepjit" and arch.major >= FIRST_WITH_FAMILIES and arch.suffix == "a"
    return replace(arch, suffix="f") if by_family else arch


def _like(expected: Expected, arch: Arch, like: Arch) -> Expected:
    outcome = expected.outcomes.get(like.sm) or expected.outcomes.get(arch.sm)
    return replace(expected, outcomes={**expected.outcomes, **({arch.sm: outcome} if outcome else {})})


# --- asking ----------------------------------------------------------------------------------------------------------


def probes(components: Sequence[JitComponent], target: Target) -> tuple[Probe, ...]:
    """What to compile for a target: every kernel of every family its components use, for each architecture.

    Raises EnvsError for an architecture that a component's file does not know: nothing compiled would look like nothing wrong.
    """
    wanted = [
        (component, family, kernel, arch)
        for component in components
        if target.selection(component.component)
        for arch in _known(target.architectures_of(component.component), component, target)
        for family in component.families
        for kernel in family.kernels
        if arch.sm in family.expected.outcomes
    ]
    return tuple(
        Probe(number, component.component, family, kernel, arch, arch if kernel.exact else component.compiles_for[arch.sm])
        for number, (component, family, kernel, arch) in enumerate(wanted, start=1)
    )


def _known(architectures: Sequence[Arch], component: JitComponent, target: Target) -> Sequence[Arch]:
    for arch in architectures:
        if arch.sm not in component.compiles_for:
            raise EnvsError(
                f"envs/{FOLDER}/{component.component}.yaml does not say what is compiled at run time for {arch}.",
                means=f"{target.name} asks for it; the file knows {listed(component.compiles_for)}.",
                next_step="add it to compiles_for, and to the expectations of the families that are used there",
            )
    return architectures


def request(components: Sequence[JitComponent], target: Target) -> str:
    """What jit_probe.py reads, as JSON: facts of the components, and the probes in the order in which to make them."""
    selected = [c for c in components if target.selection(c.component)]
    rows = [
        {
            "number": probe.number,
            "component": probe.component,
            "module": probe.family.name.replace("/", "."),
            "kernel": probe.kernel.name,
            "capability": [probe.architecture.major, probe.architecture.minor],
            "architecture": probe.architecture.sm,
            "template": probe.kernel.template,
            "find": probe.kernel.find,
            "arguments": dict(probe.kernel.arguments),
        }
        for probe in probes(components, target)
    ]
    facts = [
        {
            "component": c.component,
            "kind": c.kind,
            "package": c.package,
            "flags": [{"flag": f.flag, "found": f.found, "in": f.within} for f in c.flags],
            "conditional_flags": list(c.conditional_flags),
            "include": list(c.include),
            "files": list(c.files),
            "excluded": list(c.excluded),
            "device": dict(c.device),
            "names": list(c.names),
        }
        for c in selected
    ]
    return json.dumps({"limit_seconds": LIMIT_SECONDS, "components": facts, "probes": rows}, indent=1) + "\n"


# --- judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    """One result as the container writes it."""

    number: int
    outcome: Result
    seconds: float
    cpu_seconds: float
    command: tuple[str, ...]
    errors: tuple[str, ...]
    sha256: str
    size: int
    cubin: str


@dataclass(frozen=True)
class _Installed:
    component: str
    families: Mapping[str, tuple[str, ...]]
    drift: tuple[str, ...]


@dataclass(frozen=True)
class _Answers:
    schema: int
    jobs: int
    seconds: float
    installed: tuple[_Installed, ...]
    results: tuple[_Answer, ...]


def read_report(folder: Path, components: Sequence[JitComponent], target: Target) -> JitReport:
    """Judge what jit_probe.py left in `folder`: jit.json and the cubins.

    Raises RecordError if jit.json is missing, damaged, or an answer to another request.
    """
    answers = _read(folder / "jit.json")
    asked = {probe.number: probe for probe in probes(components, target)}
    if [answer.number for answer in answers.results] != list(asked):
        raise RecordError(
            f"{folder / 'jit.json'} answers other probes than those of {target.name}.",
            means="envs/jit/ has changed since the image was probed.",
            next_step="probe the image again",
        )
    families = {each.component: each.families for each in answers.installed}
    known = [c for c in components if c.component in families]
    return JitReport(
        jobs=answers.jobs,
        seconds=answers.seconds,
        results=tuple(_judged(asked[answer.number], answer, folder) for answer in answers.results),
        uncovered=tuple(
            f"{c.component}: {family} ({', '.join(families[c.component][family])})"
            for c in known
            for family in sorted(set(families[c.component]) - _known_families(c))
        ),
        gone=tuple(f"{c.component}: {family}" for c in known for family in sorted(_known_families(c) - set(families[c.component]))),
        drift=tuple(f"{each.component}: {text}" for each in answers.installed for text in each.drift),
        not_used=tuple(
            f"{c.component}: {family.name} ({family.expected.reason})"
            for c in known
            for family in c.families
            if not any(arch.sm in family.expected.outcomes for arch in target.architectures_of(c.component))
        ),
    )


def together(reports: Iterable[JitReport]) -> JitReport | None:
    """Reports of one component each as one; None without any. The time is that of all, one after the other."""
    parts = tuple(reports)
    if not parts:
        return None
    return JitReport(
        jobs=max(each.jobs for each in parts),
        seconds=round(sum(each.seconds for each in parts), 1),
        results=tuple(result for each in parts for result in each.results),
        uncovered=tuple(line for each in parts for line in each.uncovered),
        gone=tuple(line for each in parts for line in each.gone),
        drift=tuple(line for each in parts for line in each.drift),
        not_used=tuple(line for each in parts for line in each.not_used),
    )


def _known_families(component: JitComponent) -> set[str]:
    return {family.name for family in component.families} | set(component.unused)


def _read(path: Path) -> _Answers:
    try:
        return cast("_Answers", from_json(_Answers, json.loads(path.read_bytes()), ""))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}.", next_step="probe the image again") from None
    except ValueError as error:
        raise RecordError(f"{path}: {error}.", means="It is damaged.", next_step="probe the image again") from None


def _judged(probe: Probe, answer: _Answer, folder: Path) -> JitResult:
    """The container's word, except where its cubin holds a stub, or is not what was asked for."""
    result = JitResult(
        component=probe.component,
        family=probe.family.name,
        kernel=probe.kernel.name,
        variant=probe.kernel.variant,
        target_architecture=str(probe.target_architecture),
        architecture=str(probe.architecture),
        outcome=answer.outcome,
        expected=probe.expected,
        reason=probe.family.expected.reason,
        seconds=answer.seconds,
        cpu_seconds=answer.cpu_seconds,
        instructions=0,
        size=answer.size,
        sha256=answer.sha256,
        command=answer.command,
        errors=answer.errors,
    )
    if answer.outcome != "compiled":
        return result
    try:
        cubin = (folder / f"cubins/{probe.number}.cubin").read_bytes()
        arch, found = arch_of(cubin), kernels(cubin)
    except (OSError, IntegrityError) as error:
        return replace(result, outcome="failed", errors=(f"the cubin cannot be read: {error}",))
    if arch != probe.architecture:
        return replace(result, outcome="failed", errors=(f"the cubin is for {arch}, not for {probe.architecture}",))
    if not found:
        return replace(result, outcome="failed", errors=("the cubin holds no kernel",))
    instructions = sum(kernel.instructions for kernel in found)
    return replace(result, outcome="stub" if any(_does_nothing(k) for k in found) else "compiled", instructions=instructions)


def _does_nothing(kernel: Kernel) -> bool:
    """It traps or returns at once. Every kernel in envs/jit/ has work to do, so one that returns at once is a stub too."""
    return kernel.stub or kernel.empty
