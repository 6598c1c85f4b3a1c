"""Everything under envs/: targets, components, bases, and the table of architectures, toolkits and torch releases.

The loader is strict and complete: every mistake of every file is reported in one error, with file, line, key, value and
what is allowed, so that a port author corrects a new target in one go.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from cleanroom.arch import Arch
from cleanroom.arch_table import (
    RELEASE,
    Capability,
    Table,
    ToolkitRelease,
    read_table,
    release,
)
from cleanroom.base import Base
from cleanroom.cann import NO_CANN, Cann, read_cann
from cleanroom.component import (
    ArchitectureRule,
    Component,
    MissingModule,
    Provided,
    Source,
    Substitution,
    Variable,
)
from cleanroom.errors import ArchError, EnvsError, UnknownName
from cleanroom.jit import JitComponent, read_jit
from cleanroom.lock import Lock, lock_path, read_lock
from cleanroom.strict_yaml import Fields, Item, Mistakes, listed, nearest, read_bytes, read_item
from cleanroom.target import (
    Accepted,
    Expectation,
    NotBuilt,
    Outcome,
    Override,
    Prerequisite,
    Selection,
    Status,
    Target,
    Toolkit,
    ToolkitKind,
)

PLACEHOLDERS = ("cann", "launchers", "npu_arch", "nvcc_threads", "path", "sm_list", "torch_arch_list", "venv", "version")
"""What an environment value or a replacement may contain in braces; render.py and the build fill them in."""

PLATFORMS = ("linux/amd64", "linux/arm64")
VENDORS = ("ascend", "nvidia")
TOOLKITS: Mapping[str, tuple[str, ...]] = {"ascend": ("cann-installers",), "nvidia": ("cuda-wheels",)}
"""The kinds of toolkit that compile for each vendor."""
DECIDED = ("build", "nowhere", "run-time")
PREREQUISITE_KINDS = ("gcc", "os", "outside", "python", "toolkit")
IMAGE = "image"
"""What a finding names that is of no component."""
NOT_RESOLVED: Mapping[str, tuple[str, ...]] = {
    "targets": ("title", "status", "status_source", "architectures", "prerequisites", "expected", "accepts", "not_built"),
    "components": (
        "title",
        "modules",
        "architecture",
        "environment",
        "substitute",
        "provides",
        "yields",
        "missing_modules",
        "cost",
    ),
    "bases": ("title", "gcc", "digest_source"),
}
"""Keys that resolve.py does not read: a key that is not named here counts, read or not."""
RESERVED = ("engine",)
"""engine.lock is the embedded engine's, so no target may have its name."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NAME_SAYS = "lower-case letters, digits and _ (no hyphen: locks and folders are called TARGET-BASE)"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DEBIAN = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True)
class Envs:
    """All that envs/ defines. `files` holds the bytes that were read, by path relative to the folder."""

    folder: Path
    targets: Mapping[str, Target]
    components: Mapping[str, Component]
    bases: Mapping[str, Base]
    table: Table
    files: Mapping[str, bytes]
    cann: Cann = NO_CANN
    jit: tuple[JitComponent, ...] = ()

    @property
    def architectures(self) -> Mapping[str, Capability]:
        """The compute capabilities that are known, by name ("10.0")."""
        return self.table.capabilities

    @property
    def toolkits(self) -> Mapping[str, ToolkitRelease]:
        """The CUDA releases that are known, by name ("13.3")."""
        return self.table.toolkits

    def target(self, name: str) -> Target:
        """The target called `name`; UnknownName with the nearest one otherwise."""
        return _lookup("target", name, self.targets)

    def component(self, name: str) -> Component:
        """The component called `name`; UnknownName with the nearest one otherwise."""
        return _lookup("component", name, self.components)

    def base_of(self, target: Target, name: str | None) -> Base:
        """A base that a target is defined on, its first one by default. Raises UnknownName."""
        base = self.base(name or target.bases[0])
        if base.name not in target.bases:
            means = f"Its bases are {', '.join(target.bases)}."
            raise UnknownName(f"{target.name} is not defined on base {base.name!r}.", means=means)
        return base

    def base(self, name: str) -> Base:
        """The base called `name`; UnknownName with the nearest one otherwise."""
        return _lookup("base", name, self.bases)

    def lock_of(self, root: Path, target_name: str, base_name: str) -> Lock:
        """The lock of a target on a base, below `root`. Raises LockError, also if it was not resolved from these very files."""
        return read_lock(lock_path(root, f"{target_name}-{base_name}"), inputs=self.inputs_checksum(target_name, base_name))

    def inputs_checksum(self, target_name: str, base_name: str) -> str:
        """Over all that a lock is resolved from: the target, its components, the base, CANN's facts. "sha256:<hex>".

        Only what resolving reads counts, so that a new title, source or remark makes no lock stale. What else is built
        from these files is rendered, and `render.check` tells where that drifted.
        """
        target, base = self.target(target_name), self.base(base_name)
        components = sorted({*(s.component for s in target.components), *target.examined})
        names = [f"targets/{target.name}", f"bases/{base.name}", *(f"components/{name}" for name in components)]
        if target.toolkit.kind == "cann-installers":
            names.append("cann")
        text = json.dumps({name: self._resolved_from(name) for name in names}, sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def _resolved_from(self, name: str) -> dict[str, Any]:
        """One file without the keys that resolving does not read; of a target's components only the names."""
        kind = name.partition("/")[0]
        content = yaml.safe_load(self.files[f"{name}.yaml"])
        found = {key: value for key, value in content.items() if key not in NOT_RESOLVED.get(kind, ())}
        return found | {"components": sorted(found["components"])} if kind == "targets" else found


def _lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name in known:
        return known[name]
    raise UnknownName(
        f"There is no {kind} {name!r}{nearest(name, known)}.",
        means=f"envs/{kind}s/ defines {listed(known)}.",
        next_step="use one of these names" + (f", or add envs/{kind}s/{name}.yaml" if _NAME.fullmatch(name) else ""),
    )


def load_envs(envs_dir: Path) -> Envs:
    """Read everything under `envs_dir`.

    Raises EnvsError with every mistake found, or ArchError where every mistake is about architectures.
    """
    if not envs_dir.is_dir():
        raise EnvsError(
            f"There is no folder {envs_dir}.",
            means="A project keeps its targets, components and bases there.",
            next_step="start from the repository's root, or give --project the folder that holds envs/",
        )
    folder = _Folder(envs_dir, _short(envs_dir))
    table = read_table(envs_dir, folder.label, folder.files, folder.mistakes)
    bases = folder.read("bases", _base)
    components = folder.read("components", partial(_component, table=table))
    cann = read_cann(envs_dir, folder.label, folder.files, folder.mistakes)
    jit = read_jit(envs_dir, folder.label, _present(components), folder.mistakes)
    targets = folder.read("targets", partial(_target, components=components, bases=bases, table=table, cann=cann))
    folder.mistakes.raise_if_any(folder.label)
    return Envs(
        folder=envs_dir,
        targets=_present(targets),
        components=_present(components),
        bases=_present(bases),
        table=table,
        files=folder.files,
        cann=cann,
        jit=jit,
    )


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _present(found: Mapping[str, N | None]) -> dict[str, N]:
    return {name: value for name, value in found.items() if value is not None}


def _short(path: Path) -> str:
    """The folder as a person in the current directory would type it."""
    with contextlib.suppress(ValueError, OSError):
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    return str(path)


@dataclass(frozen=True)
class _Folder:
    """What has been read of an envs folder so far, and what was wrong. `label` names it in messages."""

    path: Path
    label: str
    files: dict[str, bytes] = field(default_factory=dict)
    mistakes: Mistakes = field(default_factory=Mistakes)

    def read(self, kind: str, read: Callable[[Item], N]) -> dict[str, N | None]:
        """Every file of one kind by name: None for one with mistakes, which is still a name that others may refer to."""
        found: dict[str, N | None] = {}
        for path in self._files_of(kind):
            where = f"{self.label}/{kind}/{path.name}"
            found[path.stem] = None
            content = read_bytes(path, where, self.mistakes)
            item = None if content is None else read_item(where, content, self.mistakes)
            if content is None or item is None:
                continue
            self.files[f"{kind}/{path.name}"] = content
            before = len(self.mistakes.lines)
            value = read(item)
            if not _NAME.fullmatch(path.stem):
                self.mistakes.add(where, None, "", f"the file name {path.stem!r} is not acceptable; allowed: {_NAME_SAYS}")
            elif value.name and value.name != path.stem:
                text = f"{value.name!r} is not the file's name {path.stem!r}; they must be equal"
                self.mistakes.add(where, item.line_of("name"), "name", text)
            if len(self.mistakes.lines) == before:
                found[path.stem] = value
        if not found:
            self.mistakes.add(f"{self.label}/{kind}", None, "", "holds no .yaml file")
        return found

    def _files_of(self, kind: str) -> list[Path]:
        """The YAML files of one kind, sorted; what looks like one but would be overlooked is a mistake."""
        try:
            paths = sorted((self.path / kind).iterdir())
        except OSError as error:
            self.mistakes.add(f"{self.label}/{kind}", None, "", f"cannot be read: {error.strerror or error}")
            return []
        for path in paths:
            where = f"{self.label}/{kind}/{path.name}"
            if path.is_dir() and any(path.glob("*.y*ml")):
                text = f"files lie directly in {self.label}/{kind}/; what tells them apart is a field such as status"
                self.mistakes.add(where, None, "", text)
            elif path.suffix == ".yml":
                self.mistakes.add(where, None, "", "the file name must end in .yaml, or it would be overlooked")
        return [p for p in paths if p.suffix == ".yaml" and not p.name.startswith(".") and not p.is_dir()]


def _archs(fields: Fields, key: str, table: Table) -> tuple[Arch, ...]:
    """A list of architectures, each known to the table."""
    archs = fields.archs(key)
    for objection in filter(None, map(table.objection, archs)):
        fields[key].wrong(objection, ArchError)
    return archs


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def is_requirement(text: str) -> bool:
    """Whether it is a requirement as packages name them (PEP 508)."""
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _is_specifier(text: str) -> bool:
    try:
        return len(SpecifierSet(text)) > 0
    except InvalidSpecifier:
        return False


def _is_pin(text: str) -> bool:
    """`name==version` and nothing else."""
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[^*,;\s]+", text)) and is_requirement(text)


def _is_inside(text: str) -> bool:
    """A relative path that stays where it starts."""
    return not text.startswith(("/", "~")) and "\\" not in text and ".." not in text.split("/")


_REQUIREMENT = "a requirement such as numpy or setuptools>=77"
_PIN = "an exact pin such as nvidia-cuda-nvcc==13.3.73"
_INSIDE = "a relative path with / and without .."
_PACKAGE = "a Debian package name"


def _is_package(text: str) -> bool:
    return bool(_DEBIAN.fullmatch(text))


# --- bases -----------------------------------------------------------------------------------------------------------


def _base(item: Item) -> Base:
    fields = item.fields(
        ["name", "title", "kind", "suite", "suites", "python", "gcc", "glibc", "packages"],
        ["image", "digests", "digest_source"],
    )
    kind = fields.choice("kind", ("debian", "image"))
    for key in ("image", "digests", "digest_source"):
        if kind == "image" and key not in fields:
            item.wrong(f"the key {key!r} is missing; a base of kind image needs it")
        if kind == "debian" and key in fields:
            fields[key].wrong("belongs to a base of kind image; this one is of kind debian")
    suite = fields.text("suite")
    suites = fields.texts("suites", least=1)
    if suite and suites and suite not in suites:
        fields["suites"].wrong(f"lacks the base's own suite {suite!r}")
    numbers = 'numbers in quotes, such as "3.13"'
    digests = {}
    for platform, digest in fields.entries("digests"):
        if platform not in PLATFORMS:
            digest.wrong(f"the platform {platform!r} is not known{nearest(platform, PLATFORMS)} (allowed: {listed(PLATFORMS)})")
        digests[platform] = digest.text("sha256: and 64 hexadecimal digits", lambda t: bool(_DIGEST.fullmatch(t)))
    if "digests" in fields and not digests:
        fields["digests"].wrong("no digest is given; an image is never taken by its tag alone")
    return Base(
        name=fields.text("name"),
        title=fields.text("title"),
        kind=cast("Literal['debian', 'image']", kind),
        suite=suite,
        suites=suites,
        python=fields.text("python", numbers, lambda t: bool(RELEASE.fullmatch(t))),
        gcc=fields.text("gcc", 'numbers in quotes, such as "14"', lambda t: bool(_NUMBERS.fullmatch(t))),
        glibc=fields.text("glibc", 'numbers in quotes, such as "2.41"', lambda t: bool(RELEASE.fullmatch(t))),
        packages=fields.texts("packages", _PACKAGE, _is_package),
        image=fields.text("image"),
        digests=digests,
        digest_source=fields.text("digest_source"),
    )


# --- components ------------------------------------------------------------------------------------------------------


def _component(item: Item, table: Table) -> Component:
    fields = item.fields(
        [
            *("name", "title", "source", "distribution", "modules", "architecture"),
            *("system", "python", "environment", "yields", "cost"),
        ],
        ["substitute", "provides", "missing_modules"],
    )
    system = fields.fields("system", ["build", "run"])
    python = fields.fields("python", ["build", "requirements"], ["requirements_file"])
    yields = fields.fields("yields", ["extensions", "contains"])
    cost = fields.fields("cost", ["memory_mib", "minutes"])
    rule = _rule(fields["architecture"], table) if "architecture" in fields else ArchitectureRule("nowhere", "")
    environment = _variables(fields, "environment")
    twice = {v.name for v in environment} & {v.name for v in rule.environment}
    if twice:
        fields["environment"].wrong(f"{listed(twice)} is also set under architecture.environment; set it in one place")
    return Component(
        name=fields.text("name"),
        title=fields.text("title"),
        source=_source(fields["source"]) if "source" in fields else Source("pypi", "", ""),
        distribution=fields.text("distribution", "a distribution name", is_requirement),
        modules=fields.texts("modules", "names that can be imported", lambda t: bool(_MODULE.fullmatch(t)), least=1),
        architecture=rule,
        system_build=system.texts("build", _PACKAGE, _is_package),
        system_run=system.texts("run", _PACKAGE, _is_package),
        python_build=python.texts("build", _REQUIREMENT, is_requirement),
        python_requirements=python.texts("requirements", _REQUIREMENT, is_requirement),
        requirements_file=python.text("requirements_file", _INSIDE, _is_inside),
        environment=environment,
        substitute=tuple(_substitution(i) for i in fields.items("substitute")),
        provides=tuple(_provided(i) for i in fields.items("provides")),
        extensions=yields.texts("extensions", _INSIDE, _is_inside),
        contains=yields.texts("contains", _INSIDE, _is_inside),
        missing_modules=tuple(_missing_module(i) for i in fields.items("missing_modules")),
        memory_mib=_memory(cost),
        minutes=cost.integer("minutes", 0),
    )


def _source(item: Item) -> Source:
    fields = item.fields(["kind", "name", "version"], ["path"])
    kind = fields.choice("kind", ("pypi", "folder"))
    if kind == "folder" and "path" not in fields:
        item.wrong("the key 'path' is missing; a source of kind folder needs it")
    if kind == "pypi" and "path" in fields:
        fields["path"].wrong("belongs to a source of kind folder; this one is of kind pypi")
    return Source(
        kind=cast("Literal['pypi', 'folder']", kind),
        name=fields.text("name", "a distribution name", is_requirement),
        version=fields.text("version", "an exact version, such as 2.5.0", _is_version),
        path=fields.text("path", _INSIDE, _is_inside),
    )


def _rule(item: Item, table: Table) -> ArchitectureRule:
    fields = item.fields(["decided", "by"], ["default", "environment", "substitute"])
    decided = fields.choice("decided", DECIDED)
    if decided and decided != "build":
        for key in ("default", "substitute"):
            if key not in fields:
                continue
            fields[key].wrong(f"has no meaning where the architecture is decided {decided}; only at build")
    return ArchitectureRule(
        decided=cast("Literal['build', 'run-time', 'nowhere']", decided),
        by=fields.text("by"),
        default=_archs(fields, "default", table),
        environment=_variables(fields, "environment"),
        substitute=tuple(_substitution(i) for i in fields.items("substitute")),
    )


def _variables(fields: Fields, key: str) -> tuple[Variable, ...]:
    found = []
    for name, item in fields.entries(key):
        if not _VARIABLE.fullmatch(name):
            item.wrong(f"{name!r} is not the name of an environment variable")
        parts = item.fields(["value", "reason"])
        value = parts.text("value", empty=True)
        if "value" in parts:
            _check_placeholders(parts["value"], value)
            if "\n" in value:
                parts["value"].wrong("has more than one line; an environment value has one")
        found.append(Variable(name, value, parts.text("reason")))
    return tuple(found)


def _check_placeholders(item: Item, value: str) -> None:
    for word in _PLACEHOLDER.findall(value):
        if word not in PLACEHOLDERS:
            allowed = ", ".join(f"{{{p}}}" for p in PLACEHOLDERS)
            item.wrong(f"the placeholder {{{word}}} is not known{nearest(word, PLACEHOLDERS)} (allowed: {allowed})")


def _substitution(item: Item) -> Substitution:
    fields = item.fields(["file", "match", "replace", "count", "reason"])
    return Substitution(
        file=fields.text("file", _INSIDE, _is_inside),
        match=fields.text("match"),
        replace=fields.text("replace", empty=True),
        count=fields.integer("count", 1),
        reason=fields.text("reason"),
    )


def _provided(item: Item) -> Provided:
    fields = item.fields(["file", "from", "reason"])
    return Provided(
        file=fields.text("file", _INSIDE, _is_inside),
        origin=fields.text("from", _INSIDE, _is_inside),
        reason=fields.text("reason"),
    )


def _missing_module(item: Item) -> MissingModule:
    fields = item.fields(["module", "reason"])
    module = fields.text("module", "a name that can be imported", lambda t: bool(_MODULE.fullmatch(t)))
    return MissingModule(module, fields.text("reason"))


# --- targets ---------------------------------------------------------------------------------------------------------


def _target(
    item: Item, components: Mapping[str, Component | None], bases: Mapping[str, Base | None], table: Table, cann: Cann
) -> Target:
    fields = item.fields(
        ["name", "title", "status", "status_source", "platform", "vendor", "architectures", "bases", "toolkit", "components"],
        ["overrides", "prerequisites", "expected", "accepts", "not_built", "examined"],
    )
    name = fields.text("name", _NAME_SAYS + f"; not {listed(RESERVED)}", lambda t: t not in RESERVED)
    platform = fields.choice("platform", PLATFORMS)
    vendor = fields.choice("vendor", VENDORS)
    if vendor == "ascend" and "architectures" in fields:
        archs: tuple[Arch, ...] = ()
        if fields["architectures"].items():
            fields["architectures"].wrong("holds NVIDIA's compute capabilities; for ascend the list is empty", ArchError)
    else:
        archs = _archs(fields, "architectures", table)
    status = cast("Status", fields.choice("status", get_args(Status)))
    selections = tuple(_selection(n, i, components, table) for n, i in _selections(fields))
    return Target(
        name=name,
        title=fields.text("title"),
        status=status,
        status_source=fields.text("status_source"),
        platform=platform,
        vendor=cast("Literal['nvidia', 'ascend']", vendor),
        architectures=archs,
        bases=_bases_of(fields, bases, platform),
        toolkit=_toolkit(fields["toolkit"], table, cann, vendor) if "toolkit" in fields else Toolkit("cuda-wheels", "0.0", ()),
        components=selections,
        overrides=_overrides(fields),
        prerequisites=tuple(_prerequisite(i) for i in fields.items("prerequisites")),
        expected=_expected(item, fields, [s.component for s in selections], status),
        accepts=_accepts(fields, [s.component for s in selections]),
        not_built=tuple(_not_built(i.fields(["part", "reason"])) for i in fields.items("not_built")),
        examined=fields.texts("examined", listed(components), lambda t: t in components),
    )


def _bases_of(fields: Fields, bases: Mapping[str, Base | None], platform: str) -> tuple[str, ...]:
    names = fields.texts("bases", least=1)
    for name in filter(None, names):
        if name not in bases:
            fields["bases"].wrong(f"there is no base {name!r}{nearest(name, bases)} (known: {listed(bases)})")
        base = bases.get(name)
        if base is not None and base.kind == "image" and platform not in base.digests:
            fields["bases"].wrong(f"the base {name!r} has no image digest for {platform} (it has: {listed(base.digests)})")
    return names


def _memory(cost: Fields) -> tuple[int, ...]:
    found = tuple(each.integer(1) for each in cost.items("memory_mib"))
    if "memory_mib" in cost and (not found or list(found) != sorted(found, reverse=True)):
        cost["memory_mib"].wrong("needs at least one number, the largest first; the last is what any further compiler takes")
    return found or (1,)


def _toolkit(item: Item, table: Table, cann: Cann, vendor: str) -> Toolkit:
    kinds = TOOLKITS.get(vendor, get_args(ToolkitKind))
    kind = dict(item.entries())["kind"].choice(kinds) if "kind" in dict(item.entries()) else kinds[0]
    return _cann(item, cann) if kind == "cann-installers" else _cuda(item, table)


def _cann(item: Item, cann: Cann) -> Toolkit:
    fields = item.fields(["kind", "version", "packages", "soc"], ["system", "python", "environment", "build_environment"])
    soc = fields.choice("soc", cann.socs)
    packages = fields.texts("packages", listed(cann.installers), lambda t: t in cann.installers, least=1)
    missing = [i.name for i in cann.installers.values() if i.needed and i.name not in packages]
    if missing and "packages" in fields:
        fields["packages"].wrong(f"lacks {listed(missing)}, without which nothing compiles for a chip")
    return Toolkit(
        kind="cann-installers",
        version=fields.text("version", 'a release in quotes, such as "9.2"', lambda t: bool(RELEASE.fullmatch(t))),
        packages=packages,
        soc=soc,
        npu_arch=cann.socs[soc].npu_arch if soc in cann.socs else "",
        system=fields.texts("system", _PACKAGE, _is_package),
        python=fields.texts("python", _REQUIREMENT, is_requirement),
        environment=_variables(fields, "environment"),
        build_environment=_variables(fields, "build_environment"),
    )


def _cuda(item: Item, table: Table) -> Toolkit:
    fields = item.fields(["kind", "version", "packages"], ["headers"])
    version = fields.text("version", 'a release in quotes, such as "13.3"', lambda t: bool(RELEASE.fullmatch(t)))
    if table.complete and RELEASE.fullmatch(version) and version not in table.toolkits:
        known = sorted(table.toolkits, key=release)
        fields["version"].wrong(f"the toolkit release {version} is not known (known: {', '.join(known)})")
    packages = fields.texts("packages", _PIN, _is_pin, least=1)
    headers = fields.texts("headers", _PIN, _is_pin)
    pins = [p.partition("==") for p in (*packages, *headers)]
    for pinned, _, pin in pins:
        if canonicalize_name(pinned) == "nvidia-cuda-nvcc" and version and not f"{pin}.".startswith(f"{version}."):
            fields["packages"].wrong(f"{pinned}=={pin} is not of the toolkit release {version}")
    for pinned, count in Counter(canonicalize_name(name) for name, _, _ in pins).items():
        if count > 1:
            fields["packages"].wrong(f"{pinned} is pinned {count} times")
    return Toolkit("cuda-wheels", version, packages, headers)


def _selections(fields: Fields) -> list[tuple[str, Item]]:
    found = fields.entries("components")
    if "components" in fields and not found:
        fields["components"].wrong("a target has at least one component")
    return found


def _selection(name: str, item: Item, components: Mapping[str, Component | None], table: Table) -> Selection:
    if name not in components:
        item.wrong(f"there is no component {name!r}{nearest(name, components)} (known: {listed(components)})")
    changes = ["requirements_file", "environment", "extensions", "missing_modules"]
    fields = item.fields([], ["architectures", "reason", "substitute", *changes])
    if "architectures" in fields and "reason" not in fields:
        item.wrong("has architectures of its own without a reason; say why they are not the target's")
    changed = [key for key in changes if key in fields]
    if changed and "reason" not in fields:
        item.wrong(f"has {listed(changed)} of its own without a reason; say why the component's are not right here")
    if "reason" in fields and not changed and not {"architectures", "substitute"} & set(fields.found):
        item.wrong("has a reason and nothing that it is for; give both or neither")
    return Selection(
        name,
        _archs(fields, "architectures", table),
        fields.text("reason"),
        tuple(_substitution(i) for i in fields.items("substitute")),
        requirements_file=fields.text("requirements_file", _INSIDE, _is_inside),
        environment=_variables(fields, "environment"),
        extensions=fields.texts("extensions", _INSIDE, _is_inside),
        missing_modules=tuple(_missing_module(i) for i in fields.items("missing_modules")),
    )


def _expected(item: Item, fields: Fields, components: Sequence[str], status: Status) -> tuple[Expectation, ...]:
    """What each component should come to; an experimental target leaves none out."""
    found = tuple(_expectation(name, each, components) for name, each in fields.entries("expected"))
    missing = [name for name in components if name not in {e.component for e in found}]
    if missing and status == "experimental":
        place = fields.found.get("expected", item)
        place.wrong(f"nothing is expected of {listed(missing)}; an experimental target says it of every component")
    return found


def _expectation(name: str, item: Item, components: Sequence[str]) -> Expectation:
    _refuse_stranger(item, name, components)
    fields = item.fields(["outcome", "source"], ["compiles", "of", "stubs", "reason"])
    outcome = fields.choice("outcome", get_args(Outcome))
    compiles, of = fields.integer("compiles", 1), fields.integer("of", 2)
    if outcome == "partly" and not ("compiles" in fields and "of" in fields):
        item.wrong("is partly without its counts; give compiles and of")
    if outcome == "compiles" and any(count in fields for count in ("compiles", "of", "stubs")):
        item.wrong("has counts, which belong to partly and refuses")
    if outcome == "refuses" and ("compiles" in fields) != ("of" in fields):
        item.wrong("has one count without the other; give compiles and of, or neither")
    counted = outcome == "partly" or "of" in fields
    if counted and compiles >= of:
        item.wrong(f"compiles {compiles} of {of} is not a part")
    if outcome in ("partly", "refuses") and "reason" not in fields:
        item.wrong(f"{outcome} without a reason")
    return Expectation(
        component=name,
        outcome=cast("Outcome", outcome),
        compiles=compiles if counted else 0,
        of=of if counted else 0,
        reason=fields.text("reason"),
        source=fields.text("source"),
        stubs=fields.integer("stubs", 1) if "stubs" in fields else None,
    )


def _accepts(fields: Fields, components: Sequence[str]) -> tuple[Accepted, ...]:
    found: list[Accepted] = []
    for item in fields.items("accepts"):
        parts = item.fields(["component", "kind", "reason"])
        accepted = Accepted(parts.text("component"), parts.text("kind"), parts.text("reason"))
        if "component" in parts:
            _refuse_stranger(parts["component"], accepted.component, [*components, IMAGE])
        if any((accepted.component, accepted.kind) == (other.component, other.kind) for other in found):
            item.wrong(f"{accepted.kind} of {accepted.component} is accepted twice")
        found.append(accepted)
    return tuple(found)


def _not_built(fields: Fields) -> NotBuilt:
    return NotBuilt(fields.text("part"), fields.text("reason"))


def _refuse_stranger(item: Item, name: str, components: Sequence[str]) -> None:
    if name and name not in components:
        item.wrong(f"{name!r} is no component of this target{nearest(name, components)} (it has: {listed(components)})")


def _overrides(fields: Fields) -> tuple[Override, ...]:
    found: list[Override] = []
    for item in fields.items("overrides"):
        parts = item.fields(["requirement", "instead_of", "reason", "source"])
        override = Override(
            requirement=parts.text("requirement", _REQUIREMENT, is_requirement),
            instead_of=parts.text("instead_of", _REQUIREMENT, is_requirement),
            reason=parts.text("reason"),
            source=parts.text("source"),
        )
        if any(_distribution(override.requirement) == _distribution(other.requirement) for other in found):
            item.wrong(f"{_distribution(override.requirement)} is overridden more than once")
        found.append(override)
    return tuple(found)


def _distribution(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name) if is_requirement(requirement) else requirement


def _prerequisite(item: Item) -> Prerequisite:
    fields = item.fields(["name", "requires", "kind", "source"])
    kind = fields.text(
        "kind",
        f"{listed(PREREQUISITE_KINDS)}, distribution:<name>",
        lambda t: t in PREREQUISITE_KINDS or bool(re.fullmatch(r"distribution:[A-Za-z0-9][A-Za-z0-9._-]*", t)),
    )
    needs_specifier = kind in ("gcc", "python", "toolkit") or kind.startswith("distribution:")
    return Prerequisite(
        name=fields.text("name"),
        requires=fields.text("requires", 'a version specifier, such as ">=13"', _is_specifier if needs_specifier else None),
        kind=kind,
        source=fields.text("source"),
    )
