"""The table envs/architectures.yaml: compute capabilities, their families, CUDA toolkits and torch releases as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import yaml

from cleanroom.arch import Arch, Support
from cleanroom.strict_yaml import Item, Mistakes, read_bytes, read_item

RELEASE = re.compile(r"[1-9][0-9]*\.[0-9]+")


@dataclass(frozen=True)
class Form:
    """One form of a capability: the first toolkit that compiles it and the last one ("": still supported)."""

    arch: Arch
    first: str
    last: str = ""

    def compiles_with(self, toolkit: str) -> bool:
        """Whether the toolkit release ("13.3") knows this form."""
        return release(self.first) <= release(toolkit) and (not self.last or release(toolkit) <= release(self.last))


@dataclass(frozen=True)
class Capability:
    """A compute capability ("10.0"), its cards and forms. `renamed_to`: what later toolkits call the same hardware."""

    name: str
    generation: str
    cards: tuple[str, ...]
    forms: tuple[Form, ...]
    source: str
    renamed_to: str = ""

    def form(self, arch: Arch) -> Form | None:
        """The form with this architecture's suffix, None where the capability has none."""
        return next((f for f in self.forms if f.arch.suffix == arch.suffix), None)


@dataclass(frozen=True)
class Family:
    """Capabilities that share a family; an `f` form runs on the members from its own minor on."""

    members: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class ToolkitRelease:
    """A CUDA release: host gcc majors that nvcc accepts, and the oldest driver branch that runs what it builds."""

    version: str
    gcc_oldest: int
    gcc_newest: int
    driver: int
    source: str


@dataclass(frozen=True)
class TorchRelease:
    """A torch release: what it lets TORCH_CUDA_ARCH_LIST hold, the CUDA of its default build, its wheels' oldest glibc."""

    version: str
    architectures: tuple[Arch, ...]
    cuda: str
    glibc: str
    source: str

    def accepts(self, arch: Arch) -> bool:
        """Whether TORCH_CUDA_ARCH_LIST may hold this architecture; every entry may also carry +PTX."""
        return arch.cubin and Arch(arch.major, arch.minor, arch.suffix) in self.architectures


def release(version: str) -> tuple[int, ...]:
    """A release as numbers that compare: "12.10" is later than "12.9"."""
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True)
class Table:
    """All of architectures.yaml. After a mistake in it, `complete` is false and nothing is checked against it."""

    capabilities: Mapping[str, Capability]
    families: tuple[Family, ...]
    toolkits: Mapping[str, ToolkitRelease]
    torch: Mapping[str, TorchRelease]
    complete: bool

    def support(self, archs: Iterable[Arch], capability: str) -> Support:
        """What device code compiled for `archs` does on a GPU of `capability`: the best that any of them gives."""
        outcomes = {arch.runs_on(capability, family=self.family_of(arch)) for arch in archs}
        return next((o for o in get_args(Support) if o in outcomes), "does not run")

    def family_of(self, arch: Arch) -> tuple[str, ...]:
        """The capabilities of this architecture's family, its own alone where the table has none."""
        return next((f.members for f in self.families if arch.capability in f.members), (arch.capability,))

    def objection(self, arch: Arch) -> str:
        """Why the table does not know an architecture; "" where it does."""
        if not self.complete:
            return ""
        capability = self.capabilities.get(arch.capability)
        if capability is None:
            known = sorted(self.capabilities, key=release)
            return f"{arch} is of the unknown compute capability {arch.capability} (known: {', '.join(known)})"
        if capability.form(arch) is None:
            have = ", ".join(f.arch.sm for f in capability.forms)
            what = "architecture-specific" if arch.suffix == "a" else "family"
            return f"capability {arch.capability} has no {what} form {arch.sm} (it has: {have})"
        return ""


def read_table(envs_dir: Path, label: str, files: dict[str, bytes], mistakes: Mistakes) -> Table:
    """Read `envs_dir`/architectures.yaml; its bytes go into `files`, what is wrong with it into `mistakes`."""
    where = f"{label}/architectures.yaml"
    content = read_bytes(envs_dir / "architectures.yaml", where, mistakes)
    item = None if content is None else read_item(where, content, mistakes)
    if content is None or item is None:
        return Table({}, (), {}, {}, complete=False)
    files["architectures.yaml"] = content
    before = len(mistakes.lines)
    top = item.fields(["capabilities", "families", "toolkits", "torch"])
    capabilities = {n: _capability(n, i) for n, i in top.entries("capabilities")}
    families = tuple(_family(i, capabilities) for i in top.items("families"))
    toolkits = {n: _toolkit_release(n, i) for n, i in top.entries("toolkits")}
    torch = {n: _torch_release(n, i, capabilities) for n, i in top.entries("torch")}
    for name, capability in capabilities.items():
        if capability.renamed_to and capability.renamed_to not in capabilities:
            mistakes.add(where, None, f"capabilities.{name}.renamed_to", f"{capability.renamed_to!r} is not in the table")
        homes = [f for f in families if name in f.members]
        needed = any(form.arch.suffix == "f" for form in capability.forms)
        if len(homes) > 1 or (needed and not homes):
            mistakes.add(where, None, "families", f"{name} is in {len(homes)} families; a capability with an f form is in one")
    return Table(capabilities, families, toolkits, torch, complete=len(mistakes.lines) == before)


def _release_text(item: Item) -> str:
    text = item.text('a release in quotes, such as "13.3"', lambda t: bool(RELEASE.fullmatch(t)))
    return text if RELEASE.fullmatch(text) else "0.0"


def _capability(name: str, item: Item) -> Capability:
    if not re.fullmatch(r"[1-9][0-9]?\.[0-9]", name):
        item.wrong(f'{name!r} is not a compute capability; allowed: major.minor in quotes, such as "10.0"')
    fields = item.fields(["generation", "cards", "forms", "source"], ["renamed_to"])
    forms = []
    for sm, form in fields.entries("forms"):
        first_last = form.fields(["first"], ["last"])
        arch = Item(form.mistakes, form.file, form.key, _as_text(form, sm)).arch()
        first = _release_text(first_last["first"]) if "first" in first_last else "0.0"
        last = _release_text(first_last["last"]) if "last" in first_last else ""
        if arch and (arch.capability != name or arch.ptx or sm != arch.sm):
            form.wrong(f"{sm} is not a form of {name}; allowed: sm_{name.replace('.', '')} with or without a or f")
        if last and release(last) < release(first):
            form.wrong(f"last {last} is before first {first}")
        if arch:
            forms.append(Form(arch, first, last))
    if "forms" in fields and not forms:
        fields["forms"].wrong("no form is given")
    return Capability(
        name=name,
        generation=fields.text("generation"),
        cards=fields.texts("cards"),
        forms=tuple(forms),
        source=fields.text("source"),
        renamed_to=fields.text("renamed_to"),
    )


def _as_text(item: Item, text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, item.node.start_mark, item.node.end_mark)


def _family(item: Item, capabilities: Mapping[str, Capability]) -> Family:
    fields = item.fields(["members", "source"])
    members = fields.texts("members", "capabilities of the table", lambda t: t in capabilities)
    return Family(members, fields.text("source"))


def _toolkit_release(name: str, item: Item) -> ToolkitRelease:
    if not RELEASE.fullmatch(name):
        item.wrong(f'{name!r} is not a toolkit release; allowed: major.minor in quotes, such as "13.3"')
    fields = item.fields(["gcc", "driver", "source"])
    gcc = fields.fields("gcc", ["oldest", "newest"])
    oldest, newest = gcc.integer("oldest", 1), gcc.integer("newest", 1)
    if oldest > newest and "oldest" in gcc and "newest" in gcc:
        gcc["newest"].wrong(f"newest {newest} is before oldest {oldest}")
    return ToolkitRelease(name, oldest, newest, fields.integer("driver", 1), fields.text("source"))


def _torch_release(name: str, item: Item, capabilities: Mapping[str, Capability]) -> TorchRelease:
    if not RELEASE.fullmatch(name):
        item.wrong(f'{name!r} is not a torch release; allowed: major.minor in quotes, such as "2.13"')
    fields = item.fields(["architectures", "cuda", "glibc", "source"])
    archs = fields.archs("architectures")
    for arch in archs:
        if arch.capability not in capabilities:
            fields["architectures"].wrong(f"{arch} is of a capability that this table does not have")
    cuda = _release_text(fields["cuda"]) if "cuda" in fields else ""
    glibc = _release_text(fields["glibc"]) if "glibc" in fields else ""
    return TorchRelease(name, archs, cuda, glibc, fields.text("source"))
