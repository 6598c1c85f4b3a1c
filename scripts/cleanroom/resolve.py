"""Choose every input of a target: the only step that looks at what is newest. It writes nothing and runs nothing of upstream.

Debian packages are solved by apt against indexes whose signature was checked, Python packages by uv; both in isolation
from what this machine happens to have installed or configured beyond addresses, proxies and certificates.
"""

from __future__ import annotations

import email
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import uv
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from cleanroom import fetch as fetching
from cleanroom.base import Base
from cleanroom.cann import NOT_SUPPLIED, examine
from cleanroom.component import Component
from cleanroom.conflicts import refuse_known_conflicts
from cleanroom.console import Console
from cleanroom.envs import Envs
from cleanroom.errors import IntegrityError, LockError, ResolveError
from cleanroom.lock import COMPILED_WITH, Entry, Group, Kind, Lock, lock_path, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.sources import Source, Unreachable
from cleanroom.sources.apt import Package, PrivateApt, open_private_apt
from cleanroom.sources.folder import archive_name, pack
from cleanroom.sources.image import confirmed, image_entry
from cleanroom.sources.operator import OperatorSource, operator_folder
from cleanroom.sources.pypi import File, Index, PypiSource, best_wheel, sdist, supported_tags, versions
from cleanroom.store import Store
from cleanroom.target import MACHINES, Override, Target, Toolkit

ENGINE = "engine"
RELEASE_PACKAGE = "cuda-toolkit"
"""Holds no file, only the versions of the packages that belong to a CUDA release."""
ENGINE_SUITES = ("trixie", "trixie-updates", "trixie-security")
ENGINE_PLATFORM = "linux/amd64"
ENGINE_PACKAGES = ("ca-certificates", "containerd", "docker-buildx", "docker-cli", "docker.io", "iptables", "runc")

UV_GLIBC = (17, 28, *range(31, 41))
"""The glibc releases (2.x) that uv has platform names for; uv 0.13, `uv pip compile --help`."""
AT_ONCE = 8
"""Pages of the index that are asked for at the same time."""

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)
_NO_ANSWER = re.compile(r"Failed to fetch|error sending request|Could not connect|dns error|timed out|HTTP status", re.IGNORECASE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def resolve(
    envs: Envs, target: Target, base: Base, project: Project, store: Store, console: Console, *, supplied: Path | None = None
) -> Lock:
    """Everything that `target` on `base` is built from. `supplied`: the folder of files that only an operator can bring.

    If nothing changed since the lock that is there, that lock comes back, epoch and all: a build stays the same build.
    Raises ResolveError (no solution, a signature that is wrong, an index that does not answer), FetchError,
    IntegrityError, ToolchainError for what is known not to work together; for what an operator brought also CannotBuildHere.
    """
    components = tuple(s.of(envs.component(s.component)) for s in target.components)
    console.info(f"Resolving {target.name} on {base.name}")
    installers, installer_notes = _installers(envs, target, supplied or operator_folder(), store, console)
    with store.scratch("resolve") as scratch, _index_errors():
        index = Index()
        sources = tuple(_source(c, base, index, project) for c in components)
        examined = {_source(envs.component(name), base, index, project) for name in target.examined}
        debian, debian_notes = _debian(target, base, components, scratch / "apt", console)
        python = _Python(target, base, components, index, scratch)
        toolkit = installers or (*python.toolkit(console), *python.headers())
        files = _requirements_files(components, sources, index, project, store, console)
        environment, python_notes = python.environment(files, console)
    lock = Lock(
        target=target.name,
        base=base.name,
        inputs=envs.inputs_checksum(target.name, base.name),
        epoch=int(time.time()),
        notes=(*debian_notes, *python_notes, *installer_notes),
        entries=tuple(sorted({*sources, *examined, *debian, *toolkit, *environment})),
    )
    refuse_known_conflicts(lock)
    return _same_or_new(lock, lock_path(project.root, lock.name))


def resolve_engine(console: Console) -> Lock:
    """The Debian packages of the embedded engine. Raises ResolveError."""
    console.info("Resolving the embedded engine")
    with Store.default().scratch("resolve") as scratch:
        apt = open_private_apt(scratch, ENGINE_PLATFORM, ENGINE_SUITES)
        packages = apt.install([*apt.needed(), *ENGINE_PACKAGES])
    notes = (_debian_note(ENGINE_SUITES),)
    lock = Lock(ENGINE, "", _engine_inputs(), int(time.time()), notes, _entries("engine", packages))
    return _same_or_new(lock, lock_path(REPOSITORY, ENGINE))


def toolkit_of_release(
    toolkit: Toolkit, release: str, target: Target, base: Base, store: Store, console: Console
) -> tuple[Toolkit, tuple[Entry, ...]]:
    """The same wheels of another CUDA release ("13.5"): NVIDIA's package of a release names the versions that belong to it.

    Raises ResolveError where the index has no such release, and what fetching a wheel raises.
    """
    console.info(f"Resolving the wheels of CUDA {release}")
    with store.scratch("resolve") as scratch, _index_errors():
        index = Index()
        python = _Python(target, base, (), index, scratch)
        known = versions(index.files(RELEASE_PACKAGE))
        version = next((v for v in reversed(known) if f"{v}.".startswith(f"{release}.")), None)
        if version is None:
            raise ResolveError(
                f"The index has no {RELEASE_PACKAGE} {release}.",
                means=f"It has {', '.join(known) or 'none at all'}.",
                next_step="choose one of these releases for --cuda",
            )
        (entry,) = python.wheels_of("toolkit", (f"{RELEASE_PACKAGE}=={version}",))
        fetching.receive([entry], {"pypi": PypiSource(index)}, store, console, title=f"Fetching {RELEASE_PACKAGE}", lock_again="")
        belongs = pins_of_release(store.path_of(entry.sha256))
        packages, headers = (_of_release(pins, belongs, release, index) for pins in (toolkit.packages, toolkit.headers))
        found = replace(toolkit, version=release, packages=packages, headers=headers)
        return found, (*python.wheels_of("toolkit", packages), *python.wheels_of("headers", headers))


def pins_of_release(wheel: Path) -> dict[str, SpecifierSet]:
    """What a wheel requires, whatever extra asks for it, by name. Raises ResolveError for what is no wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = email.message_from_bytes(archive.read(name))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise ResolveError(
            f"{wheel.name} cannot be read as a wheel: {error}.", means="What belongs to the release is unknown."
        ) from None
    requirements = map(Requirement, metadata.get_all("Requires-Dist", []))
    return {canonicalize_name(each.name): each.specifier for each in requirements}


def _of_release(pins: Sequence[str], belongs: Mapping[str, SpecifierSet], release: str, index: Index) -> tuple[str, ...]:
    """The same packages, in the newest version that belongs to the release."""
    found = []
    for pin in pins:
        name = canonicalize_name(pin.partition("==")[0])
        fitting = [v for v in versions(index.files(name)) if name in belongs and v in belongs[name]]
        if not fitting:
            raise ResolveError(
                f"CUDA {release} has no {name}.",
                means=f"{RELEASE_PACKAGE} {release} does not name it, or the index lacks what it names.",
                next_step="try another release with --cuda",
            )
        found.append(f"{name}=={fitting[-1]}")
    return tuple(found)


@contextmanager
def _index_errors() -> Iterator[None]:
    try:
        yield
    except Unreachable as error:
        raise ResolveError(
            f"The package index does not answer. {error}.",
            means="Resolving needs the network. Nothing was locked.",
            next_step="check the network, the proxy and pip's configuration (nox -s doctor), then lock again",
        ) from None


def _engine_inputs() -> str:
    """The engine has no YAML of its own: it is resolved from the names above."""
    names = " ".join([ENGINE_PLATFORM, *ENGINE_SUITES, *ENGINE_PACKAGES])
    return f"sha256:{hashlib.sha256(names.encode()).hexdigest()}"


def _same_or_new(lock: Lock, path: Path) -> Lock:
    """With the epoch of a lock that compiles with the very same, its own earlier one first, if there is any.

    The time of resolving is in every file time of base and environment: targets that share what those are made of share
    it too, and with it base, environment and the engine's layers, byte for byte.
    """
    for known in (path, *sorted(path.parent.glob("*.lock"))):
        try:
            present = read_lock(known)
        except LockError:
            continue
        if present.entries and present.group(*COMPILED_WITH) == lock.group(*COMPILED_WITH):
            return replace(lock, epoch=present.epoch)
    return lock


# Debian


def _debian(
    target: Target, base: Base, components: Sequence[Component], folder: Path, console: Console
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    console.info(f"  Debian packages of {', '.join(base.suites)} (apt)")
    folder.mkdir()
    apt = open_private_apt(folder, target.platform, base.suites)
    run = [*base.packages, *target.toolkit.system, *(p for c in components for p in c.system_run)]
    build = [p for c in components for p in c.system_build]
    if base.kind == "image":
        return _on_image(target, base, apt, [*run, *build])
    there = apt.install([*apt.needed(), *run])
    additional = apt.install(build, on_top_of=there)
    notes = (_debian_note(base.suites), *_changed_by_build(there, additional))
    return (*_entries("base", there), *_entries("build", additional)), notes


def _on_image(target: Target, base: Base, apt: PrivateApt, names: Sequence[str]) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """What an image lacks cannot be asked without the image: everything the names need, but what every Debian has."""
    digest = base.digests[target.platform]
    needed = frozenset(apt.needed())
    packages = [p for p in apt.install(names) if p.name not in needed]
    checked = confirmed(base.image, digest)
    notes = (
        f"{base.image}: digest taken from envs, {'confirmed by its registry' if checked else 'not verified against a registry'}",
        _debian_note(base.suites),
        (
            "Debian packages of group build: all that the components need, without knowing what the image has already, "
            "except essential and required packages"
        ),
    )
    return (image_entry(base.image, digest), *_entries("build", packages)), notes


def _changed_by_build(there: Sequence[Package], additional: Sequence[Package]) -> tuple[str, ...]:
    """A build package that replaces one of the base by another version would make the two stages differ: say so."""
    present = {p.name: p.version for p in there}
    return tuple(f"the build stage has {p.name} {p.version}, the base {present[p.name]}" for p in additional if p.name in present)


def _debian_note(suites: Sequence[str]) -> str:
    return f"Debian: {', '.join(suites)}, component main; signatures of the archive checked with debian-archive-keyring"


def _entries(group: Group, packages: Iterable[Package]) -> tuple[Entry, ...]:
    return tuple(Entry(group, "debian", p.name, p.version, p.file, p.size, p.sha256) for p in packages)


# What an operator brings


def _installers(
    envs: Envs, target: Target, folder: Path | None, store: Store, console: Console
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The toolkit's installers, examined and taken into the store; none, and a note, where nobody brought them."""
    if target.toolkit.kind != "cann-installers":
        return (), ()
    if folder is None:
        note = f"CANN {target.toolkit.version} {NOT_SUPPLIED}"
        console.warn(note)
        return (), (note,)
    supplied = examine(folder, envs.cann, target)
    missing = [e for e in supplied.entries if not store.has(e)]
    if missing:
        brought: dict[Kind, Source] = {"operator": OperatorSource(folder)}
        fetching.receive(missing, brought, store, console, title="Taking in CANN", lock_again="nox -s lock")
    return supplied.entries, supplied.notes


# Sources


def _source(component: Component, base: Base, index: Index, project: Project) -> Entry:
    """The source archive of a component."""
    name, version = component.source.name, component.source.version
    if component.source.kind == "folder":
        data = pack(project.root / component.source.path, name, version)
        return Entry("source", "folder", name, version, archive_name(name, version), len(data), hashlib.sha256(data).hexdigest())
    files = index.files(name)
    file = sdist(files, name, version)
    if file is None:
        known = [f"{v}" for v in versions(files) if sdist(files, name, v)]
        raise ResolveError(
            f"The index has no source archive of {name} {version}.",
            means=f"It has source archives of {', '.join(known) or 'no version at all'}.",
            next_step=f"correct source of component {component.name}",
        )
    if file.requires_python and f"{base.python}.0" not in SpecifierSet(file.requires_python):
        raise ResolveError(
            f"{name} {version} needs Python {file.requires_python}, base {base.name} has {base.python}.",
            next_step="use another base for this target",
        )
    return _entry("source", name, version, file, index)


def _requirements_files(
    components: Sequence[Component], sources: Sequence[Entry], index: Index, project: Project, store: Store, console: Console
) -> Mapping[str, Mapping[str, str]]:
    """The text files of the source archives that list requirements, by component and path in the archive."""
    wanted = [(c, e) for c, e in zip(components, sources, strict=True) if c.requirements_file]
    missing = [e for _, e in wanted if not store.has(e)]
    if missing:
        brought: dict[Kind, Source] = {"pypi": PypiSource(index), "folder": fetching.folder_source(components, project)}
        fetching.receive(missing, brought, store, console, title="Fetching source archives", lock_again="nox -s lock")
    for _, entry in wanted:
        store.check(entry)
    return {c.name: text_files(store.path_of(e.sha256), str(e)) for c, e in wanted}


def text_files(archive: Path, label: str) -> dict[str, str]:
    """The .txt files of a source archive by path below its top folder. Nothing is unpacked to disk or executed."""
    found = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if member.isfile() and path.suffix == ".txt" and member.size < 1 << 20 and len(path.parts) > 1:
                    stream = tar.extractfile(member)
                    assert stream is not None
                    found["/".join(path.parts[1:])] = stream.read().decode("utf-8", "replace")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ResolveError(f"{label} cannot be read as a source archive: {error}", means="Its requirements are unknown.") from None
    return found


def read_requirements(files: Mapping[str, str], name: str, label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The requirements of a pip requirements file, `-r` followed inside the archive only, and what was dropped.

    Options that name places (--find-links, --index-url …) are dropped: the machine's index decides where from. Raises
    ResolveError for a file that is missing or leads outside, and for a requirement that names no version but a place.
    """
    requirements: list[str] = []
    dropped: list[str] = []
    seen: set[str] = set()

    def read(path: str, included_by: str) -> None:
        if path in seen:
            return
        seen.add(path)
        if path not in files:
            raise ResolveError(
                f"{label} has no {path}" + (f", which {included_by} includes." if included_by else "."),
                means="The requirements are incomplete without it.",
                next_step="correct requirements_file of the component",
            )
        for line in re.sub(r"\\\r?\n", " ", files[path]).splitlines():
            text = re.sub(r"(^|\s)#.*$", "", line).strip()
            if not text:
                continue
            if included := re.fullmatch(r"(?:-r|--requirement)[\s=]*(\S+)", text):
                read(_inside(path, included[1], label), path)
            elif text.startswith("-"):
                option = re.split(r"[\s=]", text)[0]
                dropped.append(f"{path}: option {option}")
            else:
                requirements.append(_requirement(text, f"{path} of {label}"))

    read(name, "")
    return tuple(requirements), tuple(dict.fromkeys(dropped))


def _inside(path: str, included: str, label: str) -> str:
    parts: list[str] = list(PurePosixPath(path).parent.parts)
    for part in PurePosixPath(included).parts:
        if part == "..":
            if not parts:
                break
            parts.pop()
        elif part != ".":
            parts.append(part)
    if included.startswith("/") or "://" in included or (".." in PurePosixPath(included).parts and not parts):
        raise ResolveError(f"{path} of {label} includes {included}, which is outside of the archive.", means="It is not followed.")
    return "/".join(parts)


def _requirement(text: str, where: str) -> str:
    """A requirement as packaging writes it, its hash options left out: the lock has hashes of its own."""
    try:
        requirement = Requirement(re.split(r"\s--", text)[0].strip())
    except InvalidRequirement as error:
        raise ResolveError(f"{where}: {text!r} is not a requirement.", means=str(error).splitlines()[0]) from None
    if requirement.url:
        raise ResolveError(
            f"{where}: {requirement.name} is asked for from a place of its own.",
            means="Only files of the index, by version, can be locked.",
            next_step="override it in the target with a released version and a reason",
        )
    return str(requirement)


# Python


@dataclass(frozen=True)
class Asked:
    """What an environment must have: requirements, the overrides that replaced or will replace some, and remarks."""

    requirements: tuple[str, ...]
    notes: tuple[str, ...]
    replaced: tuple[Override, ...]


def gather(
    components: Sequence[Component],
    overrides: Sequence[Override],
    files: Mapping[str, Mapping[str, str]],
    toolkit: Sequence[str] = (),
) -> Asked:
    """The requirements of toolkit and components together, without the distributions that are compiled here themselves."""
    own = {canonicalize_name(n): c for c in components for n in (c.distribution, c.source.name)}
    instead = {_normal(o.instead_of): o for o in overrides}
    requirements: dict[str, None] = dict.fromkeys(str(Requirement(r)) for r in toolkit)
    notes: list[str] = []
    replaced: dict[Override, None] = {}
    for component in components:
        asked = [*component.python_build, *component.python_requirements]
        if component.requirements_file:
            label = f"{component.source.name} {component.source.version}"
            listed, dropped = read_requirements(files[component.name], component.requirements_file, label)
            asked += listed
            notes += [f"{label}, {option} dropped: only pip's index-url is used" for option in dropped]
        for text in asked:
            requirement = Requirement(text)
            if (override := instead.get(_normal(text))) is not None and not _only_extras(override):
                replaced[override] = None
                requirements[override.requirement] = None
            elif (compiled := own.get(canonicalize_name(requirement.name))) is not None:
                if compiled.source.version not in requirement.specifier:
                    notes.append(f"{component.name} asks for {requirement}, compiled here is {compiled.source.version}")
            else:
                requirements[str(requirement)] = None
    return Asked(tuple(sorted(requirements)), tuple(dict.fromkeys(notes)), tuple(replaced))


def _normal(requirement: str) -> tuple[str, tuple[str, ...], str]:
    parsed = Requirement(requirement)
    return canonicalize_name(parsed.name), tuple(sorted(parsed.extras)), str(parsed.specifier)


def _only_extras(override: Override) -> bool:
    """An override without a version asks for more of a package (extras), not for another version of it."""
    return not Requirement(override.requirement).specifier


@dataclass(frozen=True)
class Solution:
    """Name and version of every distribution, with the hashes that the index has for that version."""

    versions: Mapping[str, str]
    hashes: Mapping[str, frozenset[str]]


class _Python:
    """Python packages of one target on one base."""

    def __init__(self, target: Target, base: Base, components: Sequence[Component], index: Index, scratch: Path) -> None:
        self.target, self.base, self.components, self.index, self.scratch = target, base, components, index, scratch
        self.tags = supported_tags(base.python, base.glibc, target.platform)

    def toolkit(self, console: Console) -> tuple[Entry, ...]:
        """Exactly the toolkit's wheels: they go into a tree of their own, so nothing else has a say in them."""
        if self.target.toolkit.kind != "cuda-wheels":
            return ()
        console.info(f"  {self.target.toolkit.version} toolkit")
        return self.wheels_of("toolkit", self.target.toolkit.packages)

    def headers(self) -> tuple[Entry, ...]:
        """The wheels of which the image takes the headers."""
        return self.wheels_of("headers", self.target.toolkit.headers)

    def wheels_of(self, group: Group, packages: Sequence[str]) -> tuple[Entry, ...]:
        """The wheels of pins, and nothing that they require."""
        pins = [package.partition("==")[::2] for package in packages]
        return self._wheels(group, {canonicalize_name(n): v for n, v in pins}, {}, packages)

    def environment(self, files: Mapping[str, Mapping[str, str]], console: Console) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
        """The environment's wheels, and what must be known about how they were chosen."""
        console.info("  Python environment (uv)")
        overrides = self.target.overrides
        asked = gather(self.components, overrides, files, self.target.toolkit.python)
        versions_ = tuple(o for o in overrides if not _only_extras(o))
        extras = tuple(o for o in overrides if _only_extras(o))
        solution = self._solve(asked.requirements, versions_)
        wanted = tuple(o for o in extras if canonicalize_name(Requirement(o.requirement).name) in solution.versions)
        plain = solution
        if wanted:
            solution = self._solve((*asked.requirements, *(o.requirement for o in wanted)), versions_)
        effective = [o for o in versions_ if o in asked.replaced or self._matters(o, asked, versions_, plain)]
        effective += [o for o in wanted if solution.versions != plain.versions]
        for override in (o for o in overrides if o not in effective):
            console.warn(f"The override {override.requirement} changes nothing here; consider removing it from {self.target.name}.")
        notes = [f"{o.requirement} instead of {o.instead_of}: {o.reason} ({o.source})" for o in effective]
        own = {canonicalize_name(c.distribution): c for c in self.components}
        notes += [
            f"{name} {solution.versions[name]} was asked for by another package; the one compiled here is used"
            for name in sorted(own.keys() & solution.versions.keys())
        ]
        chosen = {n: v for n, v in solution.versions.items() if n not in own}
        notes.append("Python: pip's index-url only; extra indexes, find-links and constraints of the machine were not consulted")
        return self._wheels("python", chosen, solution.hashes, asked.requirements), (*asked.notes, *notes)

    def _matters(self, override: Override, asked: Asked, overrides: Sequence[Override], with_it: Solution) -> bool:
        """Whether the solution would be another one, or none, without this override."""
        others = tuple(o for o in overrides if o != override)
        try:
            return self._solve(asked.requirements, others).versions != with_it.versions
        except ResolveError:
            return True

    def _solve(self, requirements: Sequence[str], overrides: Sequence[Override]) -> Solution:
        """One version for each distribution (uv). Source archives are no candidates: metadata would need their setup.py."""
        wanted, replacing = self.scratch / "requirements.in", self.scratch / "overrides.in"
        wanted.write_text("".join(f"{r}\n" for r in requirements), encoding="utf-8")
        replacing.write_text("".join(f"{o.requirement}\n" for o in overrides), encoding="utf-8")
        command = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-config", "--no-build", "--generate-hashes"]
        command += ["--no-annotate", "--no-header", "--python", sys.executable, "--python-version", self.base.python]
        command += ["--python-platform", uv_platform(self.base.glibc, self.target.platform)]
        command += ["--cache-dir", str(self.scratch / "uv"), "--overrides", str(replacing), str(wanted)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_", "VIRTUAL_ENV", "CONDA"))}
        environment |= {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", **self.index.settings.environment()}
        done = subprocess.run(
            command, env=environment, cwd=self.scratch, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = re.sub(r"://[^/@\s]+@", "://", done.stderr).strip().removeprefix("error: ")
            raise self._unsolved(said, done.returncode)
        return read_solution(done.stdout)

    def _unsolved(self, said: str, status: int) -> ResolveError:
        if _NO_ANSWER.search(said):
            return ResolveError(
                f"The package index did not answer while {self.target.name} was resolved.",
                means=said,
                next_step="check the network, the proxy and pip's configuration (nox -s doctor), then lock again",
            )
        return ResolveError(
            f"The Python requirements of {self.target.name} have no solution on {self.base.name}.",
            means=said or f"uv ended with status {status}.",
            next_step="correct the requirements or add an override with a reason to the target",
        )

    def _wheels(
        self, group: Group, chosen: Mapping[str, str], hashes: Mapping[str, frozenset[str]], asked: Sequence[str]
    ) -> tuple[Entry, ...]:
        """One wheel for each distribution; pages of the index are asked for in parallel."""
        one = partial(self._wheel, group, hashes, frozenset(canonicalize_name(Requirement(r).name) for r in asked))
        with ThreadPoolExecutor(AT_ONCE, "index") as pool:
            return tuple(pool.map(one, chosen.items()))

    def _wheel(self, group: Group, hashes: Mapping[str, frozenset[str]], asked: frozenset[str], pinned: tuple[str, str]) -> Entry:
        name, version = pinned
        files = self.index.files(name)
        wheel = best_wheel(files, name, version, self.tags)
        if wheel is None:
            raise self._no_wheel(files, name, version, asked=name in asked)
        if name in hashes and wheel.sha256 not in hashes[name]:
            raise IntegrityError(
                f"{wheel.name}: the index lists sha256 {wheel.sha256}, which is none of the hashes that uv was given.",
                means="Two answers of the index about the same file disagree.",
                next_step="try again; if it stays so, find out why before locking",
            )
        return _entry(group, name, version, wheel, self.index)

    def _no_wheel(self, files: Sequence[File], name: str, version: str, *, asked: bool) -> ResolveError:
        fits = f"CPython {self.base.python} with glibc {self.base.glibc} on {self.target.platform}"
        if version not in versions(files):
            newest = ", ".join(versions(files)[-5:]) or "no version at all"
            return ResolveError(
                f"The index has no {name} {version}.", means=f"It has {newest}.", next_step="correct the version under envs/"
            )
        return ResolveError(
            f"{name} {version} has no wheel for {fits}" + (", only a source archive." if sdist(files, name, version) else "."),
            means="A source archive would run its own build at install time, with inputs that no lock names."
            + ("" if asked else " Another package needs it."),
            next_step="choose a version with a wheel (an override with a reason), or make it a component of the target",
        )


def read_solution(text: str) -> Solution:
    """The distributions of a compiled requirements file with hashes."""
    chosen: dict[str, str] = {}
    hashes: dict[str, frozenset[str]] = {}
    for block in re.split(r"\n(?=\S)", text):
        pin = _PIN.match(block)
        if pin:
            name = canonicalize_name(pin[1])
            chosen[name] = pin[2]
            hashes[name] = frozenset(_HASH.findall(block))
        elif block.strip():
            raise ResolveError(f"uv chose something that is no released version: {block.splitlines()[0]}")
    return Solution(chosen, hashes)


def uv_platform(glibc: str, platform: str) -> str:
    """Uv's name of the platform: of its glibc releases the newest that is not newer than the base's."""
    minor = int(glibc.split(".")[1])
    known = max((n for n in UV_GLIBC if n <= minor), default=UV_GLIBC[0])
    return f"{MACHINES[platform]}-manylinux_2_{known}"


def _entry(group: Group, name: str, version: str, file: File, index: Index) -> Entry:
    size = index.size_of(file)
    if file.sha256 is None or size is None:
        raise ResolveError(
            f"The index gives no {'sha256' if file.sha256 is None else 'size'} for {file.name}.",
            means="A file that cannot be checked is not locked.",
            next_step="use an index that speaks the JSON form of the simple API",
        )
    return Entry(group, "pypi", canonicalize_name(name), version, file.name, size, file.sha256)
