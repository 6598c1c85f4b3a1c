"""Modules that a component's Python source imports, against what the lock and the components themselves provide."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from cleanroom.component import Component
from cleanroom.lock import Entry
from cleanroom.sensitivity import Sensitivity
from cleanroom.source_text import SourceText, When, imports, possible_imports, strongest
from cleanroom.store import Store

MODULE_ENDS = (".py", ".so")


@dataclass(frozen=True)
class Missing:
    """A module that is imported and that nothing provides. `places`: "file:line". `reason`: why that is accepted."""

    module: str
    when: When
    places: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Provided:
    """Modules by dotted name: those of the components, their compiled extensions (whose submodules no file shows), and
    the top-level names of every locked distribution.
    """

    own: frozenset[str]
    extensions: frozenset[str]
    wheels: frozenset[str]

    def lacks(self, module: str) -> str:
        """Which module cannot be imported of a dotted name; "" where nothing is missing."""
        top = module.partition(".")[0]
        if top in self.own:
            parents = {module[: dot.start()] for dot in re.finditer(r"\.", module)}
            return "" if module in self.own or parents & self.extensions else module
        return "" if top in self.wheels or top in sys.stdlib_module_names else top

    def with_tree(self, files: Iterable[str]) -> Provided:
        """Also with every module of one source tree, which its setup.py can import."""
        return Provided(self.own | _modules(files), self.extensions, self.wheels)


def provided_modules(
    packages: Mapping[str, Iterable[str]], components: Iterable[Component], facts: Sensitivity, wheels: frozenset[str]
) -> Provided:
    """What can be imported once all components are installed. `packages`: the files of each component's source."""
    files: list[str] = []
    extensions: set[str] = set()
    for component in components:
        roots = tuple(f"{module}/" for module in component.modules)
        files += [path for path in packages[component.name] if path.startswith(roots)]
        files += [provided.file for provided in component.provides]
        files += [f"{module.replace('.', '/')}.py" for module in facts.of(component.name).generated]
        extensions |= {path.replace("/", ".").split(".*")[0] for path in component.extensions}
    return Provided(_modules(files) | extensions, frozenset(extensions), wheels)


def _modules(files: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for path in files:
        if path.endswith(MODULE_ENDS):
            parts = path.removesuffix("/__init__.py").removesuffix(".py").split("/")
            found.update(".".join(parts[: i + 1]) for i in range(len(parts)))
    return frozenset(found)


def provided_by_wheels(entries: Iterable[Entry], store: Store) -> tuple[frozenset[str], tuple[str, ...]]:
    """The top-level modules of locked wheels, and the names of those that the store lacks.

    Of a wheel that is not there the distribution's own name is taken for its module, which is right for most.
    """
    modules: set[str] = set()
    unread = []
    for entry in entries:
        try:
            with zipfile.ZipFile(store.path_of(entry.sha256)) as wheel:
                modules.update(_top_modules(wheel.namelist()))
        except (OSError, zipfile.BadZipFile):
            modules.add(canonicalize_name(entry.name).replace("-", "_"))
            unread.append(entry.name)
    return frozenset(modules), tuple(unread)


def _top_modules(names: Iterable[str]) -> set[str]:
    found = set()
    for name in names:
        parts = name.split("/")
        if parts[0].endswith(".data"):
            parts = parts[2:]
        if parts and parts[-1].endswith(MODULE_ENDS) and not parts[0].endswith(".dist-info"):
            found.add(parts[0].partition(".")[0])
            if "python_packages" in parts[:-1]:  # nvidia-cutlass-dsl adds this folder to the import path
                found.add(parts[parts.index("python_packages") + 1].partition(".")[0])
    return found


def missing_modules(
    component: Component, texts: Mapping[str, SourceText], provided: Provided, facts: Sensitivity, vendor: str
) -> tuple[Missing, ...]:
    """What the component's packages and its setup.py import and nothing provides.

    Files and modules that only another vendor's hardware uses do not count.
    """
    provided = provided.with_tree(texts)
    others = [each for each in facts.vendors if each.name != vendor]
    roots = tuple(f"{module}/" for module in component.modules)
    places: dict[str, list[tuple[str, When]]] = {}
    for path, source in sorted(texts.items()):
        if not path.startswith(roots) and path != "setup.py":
            continue
        if not facts.concerns(path, vendor):
            continue
        if not any(provided.lacks(name) for name in possible_imports(source)):
            continue
        for found in imports(source):
            lacking = provided.lacks(found.module)
            if lacking and not any(other.modules.fullmatch(lacking) for other in others):
                places.setdefault(lacking, []).append((f"{path}:{found.line}", found.when))
    reasons = {m.module: m.reason for m in component.missing_modules}
    return tuple(
        Missing(module, strongest([w for _, w in found]), tuple(p for p, _ in found), _reason(module, reasons))
        for module, found in sorted(places.items())
    )


def _reason(module: str, reasons: Mapping[str, str]) -> str:
    """Why a missing module, or the package it is in, is accepted; "" where it is not."""
    return reasons.get(module) or reasons.get(module.partition(".")[0], "")
