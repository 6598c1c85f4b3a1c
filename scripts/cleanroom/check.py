"""Preflight: do architectures, toolkit, torch and host compiler fit together? Answered from data, before anything runs.

Pure: nothing is fetched, started or probed, so a combination that cannot work is refused in a second, not after an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from cleanroom.arch import Arch
from cleanroom.arch_table import Capability, TorchRelease, release
from cleanroom.base import Base
from cleanroom.component import Component
from cleanroom.envs import Envs
from cleanroom.errors import ArchError, ToolchainError
from cleanroom.target import Target

TORCH_LIST = "TORCH_CUDA_ARCH_LIST"


@dataclass(frozen=True)
class Objection:
    """Who does not accept an architecture, why, and what to write instead."""

    by: str
    text: str
    remedy: str


@dataclass(frozen=True)
class TorchBuild:
    """A locked torch. `cuda` is what it was built for ("13.0"), None where that is not known; `facts` from the table."""

    version: str
    name: str
    cuda: str | None
    facts: TorchRelease | None


def preflight(envs: Envs, target: Target, base: Base, *, torch_version: str | None) -> tuple[str, ...]:
    """Refuse what cannot work; return warnings about what may.

    `torch_version` is the locked one ("2.13.0", "2.13.0+cu132"), None where the lock has no torch. Raises ArchError for an
    architecture that the toolkit, torch or a component does not accept, ToolchainError where host compiler, C library,
    toolkit and torch do not fit.
    """
    if target.vendor != "nvidia":
        return ()
    torch = torch_build(envs, target, torch_version) if torch_version is not None else None
    refuse_architectures(envs, target, torch)
    check_host_compiler(envs, target, base)
    check_glibc(base, torch)
    warnings = [*cuda_warnings(target, torch), *torch_list_warnings(envs, target, torch)]
    warnings += prerequisite_warnings(target, base)
    return tuple(warnings)


# --- architectures ---------------------------------------------------------------------------------------------------


def asked_of(target: Target) -> dict[Arch, list[str]]:
    """Every architecture that is asked for, with the components it is asked of."""
    asked: dict[Arch, list[str]] = {arch: [] for arch in target.architectures}
    for selection in target.components:
        for arch in target.architectures_of(selection.component):
            asked.setdefault(arch, []).append(selection.component)
    return asked


def refuse_architectures(envs: Envs, target: Target, torch: TorchBuild | None) -> None:
    """Raise one ArchError with every objection, saying who objects and who does not."""
    if not target.architectures:
        raise ArchError(
            f"The target {target.name} has no architecture.",
            means="An empty list would be filled from the GPUs of the building machine, and there need not be one.",
            next_step=f"write for example architectures: [sm_100a] in envs/targets/{target.name}.yaml",
        )
    toolkit = f"CUDA {target.toolkit.version}"
    objections = [o for arch in asked_of(target) for o in toolkit_objections(envs, target, arch)]
    askers = [toolkit]
    if torch is not None and torch.facts is not None:
        askers.append(torch.name)
        objections += torch_objections(envs, target, torch.facts, torch.name)
    objections += list(component_objections(envs, target))
    if not objections:
        return
    objecting = list(dict.fromkeys(o.by for o in objections))
    content = [name for name in askers if name not in objecting]
    raise ArchError(
        f"The target {target.name} cannot be built for what it asks:\n" + "\n".join(f"  {o.text}" for o in objections),
        means=f"{_and(objecting)} object{'s' if len(objecting) == 1 else ''}"
        + (f"; {_and(content)} {'has' if len(content) == 1 else 'have'} no objection." if content else "."),
        next_step="; ".join(dict.fromkeys(o.remedy for o in objections)),
    )


def toolkit_objections(envs: Envs, target: Target, arch: Arch) -> Iterator[Objection]:
    """Whether the pinned toolkit compiles an architecture."""
    version = target.toolkit.version
    by = f"CUDA {version}"
    where = f"envs/targets/{target.name}.yaml"
    unknown = envs.table.objection(arch)
    if unknown:
        yield Objection("the table of architectures", f"{unknown}.", f"correct it in {where}, or add it to architectures.yaml")
        return
    capability = envs.architectures[arch.capability]
    form = capability.form(arch)
    if form is None or form.compiles_with(version):
        return
    if release(version) < release(form.first):
        instead = others(capability, arch, version) + former_names(envs, arch, version)
        yield Objection(
            by,
            f"{arch} needs CUDA >= {form.first}, the target pins {version}.",
            f"pin toolkit {form.first} or newer in {where}" + (f", or write {' or '.join(instead)} for {arch}" if instead else ""),
        )
        return
    text = f"{arch} is not supported by {by}: {form.last} was the last; {by} compiles {span(envs, version)}."
    if capability.renamed_to:
        new = envs.architectures[capability.renamed_to]
        name = renamed(arch, new)
        first = min((f.first for f in new.forms), key=release)
        text += f" From CUDA {first} on, {arch.capability} is called {new.name}."
        yield Objection(by, text, f"write {name} in {where}")
    else:
        yield Objection(by, text, f"remove {arch} from {where}, or pin toolkit {form.last}")


def torch_objections(envs: Envs, target: Target, facts: TorchRelease, name: str) -> Iterator[Objection]:
    """Whether torch lets its list hold what is asked of the components that read the list, and of the target itself."""
    readers = [s.component for s in target.components if reads_torch_list(envs.component(s.component))]
    asked = asked_of(target)
    for arch in refused_by_torch(asked, facts):
        who = [c for c in asked[arch] if c in readers]
        if who:
            text = f"{arch} is not accepted by {name} in {TORCH_LIST}, which {_and(who)} read{'s' if len(who) == 1 else ''}."
            yield Objection(name, text + torch_hint(envs, arch, facts), torch_remedy(envs, target, arch, facts))
        elif not arch.cubin:
            text = f"{arch} is PTX only, which {TORCH_LIST} cannot say, and every build sets that variable."
            yield Objection(name, text, f"write {arch.sm}+PTX in envs/targets/{target.name}.yaml")


def component_objections(envs: Envs, target: Target) -> Iterator[Objection]:
    """Components whose own list is fixed in their source, asked for another one."""
    for selection in target.components:
        component = selection.of(envs.component(selection.component))
        rule = component.architecture
        asked = target.architectures_of(component.name)
        follows = follows_request(component) or bool(selection.substitute)
        if rule.decided == "build" and rule.default and not follows and set(asked) != set(rule.default):
            fixed = ", ".join(map(str, rule.default))
            yield Objection(
                component.title,
                f"{component.title} compiles {fixed} whatever is asked ({rule.by}); the target asks {', '.join(map(str, asked))}.",
                f"write {component.name}: {{architectures: [{fixed}], reason: ...}} in envs/targets/{target.name}.yaml, "
                f"or add architecture.substitute to envs/components/{component.name}.yaml",
            )


def reads_torch_list(component: Component) -> bool:
    """Whether the component's machine code is compiled for what TORCH_CUDA_ARCH_LIST says.

    One that has its own list in its source passes -gencode itself, and then torch does not look at the variable; one that
    compiles at run time or not at all has no CUDA unit to apply it to. Source: torch/utils/cpp_extension.py of 2.13.0.
    """
    rule = component.architecture
    if rule.decided != "build":
        return False
    return TORCH_LIST in rule.by or "{torch_arch_list}" in _filled_in(component) or not (rule.default or rule.substitute)


def follows_request(component: Component) -> bool:
    """Whether anything in the component's definition carries the asked architectures into its build."""
    text = _filled_in(component)
    return bool(component.architecture.substitute) or "{torch_arch_list}" in text or "{sm_list}" in text


def _filled_in(component: Component) -> str:
    rule = component.architecture
    values = [v.value for v in (*component.environment, *rule.environment)]
    return "\n".join([*values, *(s.replace for s in (*component.substitute, *rule.substitute))])


def refused_by_torch(archs: Iterable[Arch], facts: TorchRelease) -> list[Arch]:
    return [arch for arch in archs if not facts.accepts(arch)]


def torch_hint(envs: Envs, arch: Arch, facts: TorchRelease) -> str:
    """What explains torch's refusal: no PTX alone, no family form, a rename."""
    if not arch.cubin:
        return " It cannot ask for PTX alone."
    if arch.suffix == "f" and not any(a.suffix == "f" for a in facts.architectures):
        return " It knows no family form at all."
    new = envs.architectures[arch.capability].renamed_to if arch.capability in envs.architectures else ""
    if new and any(a.capability == new for a in facts.architectures):
        first = min((f.first for f in envs.architectures[new].forms), key=release)
        return f" It knows this hardware as {new}, the name since CUDA {first}."
    return ""


def torch_remedy(envs: Envs, target: Target, arch: Arch, facts: TorchRelease) -> str:
    where = f"envs/targets/{target.name}.yaml"
    new = envs.architectures[arch.capability].renamed_to if arch.capability in envs.architectures else ""
    if new and any(a.capability == new for a in facts.architectures):
        first = min((f.first for f in envs.architectures[new].forms), key=release)
        return f"write {renamed(arch, envs.architectures[new])} with toolkit {first} or newer in {where}"
    same = [a for a in facts.architectures if a.capability == arch.capability]
    if not arch.cubin and Arch(arch.major, arch.minor, arch.suffix) in same:
        return f"write {arch.sm}+PTX in {where}"
    if same:
        plus = "+PTX" if arch.ptx else ""
        return f"write {' or '.join(a.sm + plus for a in reversed(same))} in {where}"
    return f"remove {arch} from {where}, or lock a torch that knows it"


def renamed(arch: Arch, new: Capability) -> Arch:
    """The same form of the same hardware under its new name."""
    major, minor = release(new.name)
    return Arch(major, minor, arch.suffix, arch.ptx, arch.cubin)


def others(capability: Capability, arch: Arch, toolkit: str) -> list[str]:
    """Other forms of the same capability that the toolkit compiles, nearest in meaning first."""
    forms = [f.arch for f in capability.forms if f.arch.suffix != arch.suffix and f.compiles_with(toolkit)]
    return [a.sm for a in sorted(forms, key=lambda a: a.suffix != "a")]


def former_names(envs: Envs, arch: Arch, toolkit: str) -> list[str]:
    """What this toolkit calls the hardware that later ones renamed."""
    old = [c for c in envs.architectures.values() if c.renamed_to == arch.capability]
    return [
        f"{f.arch.sm} (what CUDA {toolkit} calls the same hardware)"
        for c in old
        for f in c.forms
        if f.arch.suffix == arch.suffix and f.compiles_with(toolkit)
    ]


def span(envs: Envs, toolkit: str) -> str:
    """The capabilities that a toolkit compiles: "7.5 to 12.1"."""
    known = [c.name for c in envs.architectures.values() if any(f.compiles_with(toolkit) for f in c.forms)]
    return f"{min(known, key=release)} to {max(known, key=release)}" if known else "none of the known capabilities"


# --- compilers and libraries -----------------------------------------------------------------------------------------


def check_host_compiler(envs: Envs, target: Target, base: Base) -> None:
    """Raise ToolchainError where nvcc refuses the base's gcc, or where the toolkit release is not in the table."""
    version = target.toolkit.version
    toolkit = envs.toolkits.get(version)
    if toolkit is None:
        known = ", ".join(sorted(envs.toolkits, key=release))
        raise ToolchainError(
            f"The target {target.name} pins CUDA {version}, which the table does not know (known: {known}).",
            means="Which host compilers and drivers it needs is not known either.",
            next_step="pin a known release, or add this one to envs/architectures.yaml with its source",
        )
    gcc = release(base.gcc)[0]
    if toolkit.gcc_oldest <= gcc <= toolkit.gcc_newest:
        return
    fitting = [t for t in envs.toolkits.values() if t.gcc_oldest <= gcc <= t.gcc_newest]
    newer = [t.version for t in fitting if release(t.version) > release(version)] if gcc > toolkit.gcc_newest else []
    wanted = toolkit.gcc_newest if gcc > toolkit.gcc_newest else toolkit.gcc_oldest
    remedy = f"add gcc-{wanted} and g++-{wanted} to the base and name g++-{wanted} to nvcc with NVCC_CCBIN"
    if newer:
        remedy += f"; or pin toolkit {min(newer, key=release)}, the first known release that accepts gcc {gcc}"
    raise ToolchainError(
        f"CUDA {version} accepts gcc {toolkit.gcc_oldest} to {toolkit.gcc_newest}; the base {base.name} has gcc {base.gcc}.",
        means="nvcc stops at its first header with an unsupported host compiler.",
        next_step=remedy,
    )


def check_glibc(base: Base, torch: TorchBuild | None) -> None:
    """Raise ToolchainError where the base's C library is older than torch's wheels ask for."""
    if torch is None or torch.facts is None or release(base.glibc) >= release(torch.facts.glibc):
        return
    raise ToolchainError(
        f"{torch.name}'s wheels need glibc {torch.facts.glibc}; the base {base.name} has {base.glibc}.",
        means="The wheel would not install, or fail when it is imported.",
        next_step="use a base with a newer C library, or lock an older torch",
    )


def torch_build(envs: Envs, target: Target, version: str) -> TorchBuild:
    """What is known of a locked torch. Raises ToolchainError for one without CUDA, or a version that is none."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        raise ToolchainError(
            f"The locked torch version {version!r} is not a version.",
            means="The lock is damaged or was edited.",
            next_step=f"nox -s lock -- {target.name}",
        ) from None
    facts = envs.table.torch.get(f"{parsed.major}.{parsed.minor}")
    local = parsed.local or ""
    if local and not local.startswith("cu"):
        raise ToolchainError(
            f"The locked torch {version} is built without CUDA ({local}); the target {target.name} is for NVIDIA.",
            means="CUDA extensions neither compile nor load with it.",
            next_step=f"lock a CUDA build of torch: nox -s lock -- {target.name}",
        )
    digits = local.removeprefix("cu")
    if digits.isdigit() and len(digits) >= 3:
        cuda: str | None = f"{digits[:-1]}.{digits[-1]}"
    else:
        cuda = facts.cuda if facts else None
    return TorchBuild(version, f"torch {parsed.major}.{parsed.minor}", cuda, facts)


def cuda_warnings(target: Target, torch: TorchBuild | None) -> Iterator[str]:
    """Raise ToolchainError for two CUDA majors, warn about two minors or about a torch nothing is known of."""
    if torch is None:
        return
    toolkit = target.toolkit.version
    if torch.cuda is None:
        yield f"What torch {torch.version} is built for is not known here; add it to envs/architectures.yaml with its source."
    elif release(torch.cuda)[0] != release(toolkit)[0]:
        raise ToolchainError(
            f"The target {target.name} pins CUDA {toolkit}; torch {torch.version} is built for CUDA {torch.cuda}.",
            means="Two CUDA majors in one process have two incompatible runtimes; torch's build step refuses it too.",
            next_step=f"pin a toolkit {release(torch.cuda)[0]}.x, or lock a torch built for CUDA {release(toolkit)[0]}.x",
        )
    elif torch.cuda != toolkit:
        yield (
            f"Toolkit CUDA {toolkit}, torch {torch.version} built for CUDA {torch.cuda}: "
            "a minor difference, compatible within one major release."
        )


def torch_list_warnings(envs: Envs, target: Target, torch: TorchBuild | None) -> Iterator[str]:
    """Architectures that torch's list cannot hold but that no component takes from it."""
    if torch is None:
        return
    if torch.facts is None:
        known = ", ".join(sorted(envs.table.torch, key=release))
        yield f"Which architectures torch {torch.version} accepts in {TORCH_LIST} is not known here (known: {known})."
        return
    for arch in refused_by_torch(asked_of(target), torch.facts):
        hint = torch_hint(envs, arch, torch.facts)
        yield f"{torch.name} does not accept {arch} in {TORCH_LIST}; no component of this target compiles from it.{hint}"


def prerequisite_warnings(target: Target, base: Base) -> Iterator[str]:
    """Documented needs that the base or toolkit does not meet: named here, and in every report."""
    have = {"gcc": base.gcc, "python": base.python, "toolkit": target.toolkit.version}
    for need in target.prerequisites:
        value = have.get(need.kind)
        if value is not None and not SpecifierSet(need.requires).contains(value, prereleases=True):
            place = f"target {target.name} has" if need.kind == "toolkit" else f"base {base.name} has"
            yield f"{need.name} {need.requires} is documented ({need.source}); the {place} {value}."


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
