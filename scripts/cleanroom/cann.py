"""CANN, the Ascend toolkit: which installers an operator has to bring, and whether those that were brought fit.

Nothing of it is downloaded, and nothing of it is executed here: files are judged by their names, their bytes and the
checksums that the installer itself carries. Installing and trying them is done in a container (install_cann.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cleanroom.errors import CannotBuildHere, IntegrityError, ToolchainError
from cleanroom.files import sha256_of
from cleanroom.lock import Entry, Lock
from cleanroom.sources.operator import FOLDER
from cleanroom.strict_yaml import Item, Mistakes, listed, read_bytes, read_item
from cleanroom.target import MACHINES, Target

FILE = "cann.yaml"
EULA_OPTION = "--accept-cann-eula"
HEADER_BYTES = 1 << 20
"""An installer is a shell script of some 20 kB with the archive behind it; its checksums are in the script."""

_NAME = re.compile(r"Ascend-cann-(?P<what>[a-z0-9-]+)_(?P<version>[0-9][^_]*(?:_[0-9]+)?)_linux-(?P<machine>[a-z0-9_]+)\.run")
_OPS = re.compile(r"(?:(?P<chip>[a-z0-9]+)-ops|kernels-(?P<old>[a-z0-9]+))")
"""Packages of operators: of CANN 9, and as they were called up to CANN 8."""
_PRE_RELEASE = re.compile(r"alpha|beta|rc|weekly|T[0-9]", re.IGNORECASE)
_SUMS = re.compile(rb'^(?P<kind>SHA|MD5)="(?P<sum>[0-9a-f]{32,64})"', re.MULTILINE)
_SKIP = re.compile(rb'^skip="(?P<lines>[0-9]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Soc:
    """A chip: its name, the part of file names that means it, and the architecture that its kernels are compiled for."""

    name: str
    chip: str
    npu_arch: str


@dataclass(frozen=True)
class Installer:
    """One of CANN's installers. `file` is the pattern of its name; `needed`: without it nothing can be built."""

    name: str
    file: str
    needed: bool
    holds: str


@dataclass(frozen=True)
class Cann:
    """What envs/cann.yaml says."""

    installers: Mapping[str, Installer]
    socs: Mapping[str, Soc]
    comes_from: str
    source: str


NO_CANN = Cann({}, {}, "", "")


@dataclass(frozen=True)
class Named:
    """What the name of an installer says about it. `chip` is empty for those that serve every chip."""

    path: Path
    package: str
    chip: str
    version: str
    machine: str


@dataclass(frozen=True)
class Supplied:
    """The installers that an operator brought and that fit, and what must be known about them."""

    entries: tuple[Entry, ...]
    notes: tuple[str, ...]


def read_cann(envs_dir: Path, label: str, files: dict[str, bytes], mistakes: Mistakes) -> Cann:
    """Read `envs_dir`/cann.yaml, where there is one; its bytes go into `files`, what is wrong with it into `mistakes`."""
    where = f"{label}/{FILE}"
    content = read_bytes(envs_dir / FILE, where, mistakes) if (envs_dir / FILE).exists() else None
    item = None if content is None else read_item(where, content, mistakes)
    if content is None or item is None:
        return NO_CANN
    files[FILE] = content
    top = item.fields(["installers", "socs", "comes_from", "source"])
    return Cann(
        installers={name: _installer(name, each) for name, each in top.entries("installers")},
        socs={name: _soc(name, each) for name, each in top.entries("socs")},
        comes_from=top.text("comes_from"),
        source=top.text("source"),
    )


def _installer(name: str, item: Item) -> Installer:
    fields = item.fields(["file", "needed", "holds"])
    return Installer(name, fields.text("file"), fields.choice("needed", ("yes", "no")) == "yes", fields.text("holds"))


def _soc(name: str, item: Item) -> Soc:
    fields = item.fields(["chip", "npu_arch"])
    arch = fields.text("npu_arch", "dav- and digits, such as dav-3510", lambda t: bool(re.fullmatch(r"dav-[0-9]+", t)))
    return Soc(name, fields.text("chip"), arch)


def expected_names(cann: Cann, target: Target) -> tuple[tuple[Installer, str], ...]:
    """Every installer of a target, needed or not, with the name that its file has."""
    soc = cann.socs[target.toolkit.soc]
    version, machine = f"{target.toolkit.version}.<n>", MACHINES[target.platform]
    return tuple((i, i.file.format(version=version, machine=machine, chip=soc.chip)) for i in cann.installers.values())


def examine(folder: Path, cann: Cann, target: Target) -> Supplied:
    """The installers in `folder` as entries of a lock, after everything about them was checked that can be without running them.

    Raises CannotBuildHere (one is missing), ToolchainError (another release, chip or machine; two CANNs), IntegrityError
    (an installer that contradicts the checksum in it).
    """
    if not folder.is_dir():
        raise CannotBuildHere(
            f"There is no folder {folder}.", means="CANN's installers are expected there.", next_step=what_to_bring(target)
        )
    found = tuple(named(path, cann) for path in sorted(folder.glob("Ascend-cann-*.run")))
    if objections := list(_objections(found, cann, target)):
        raise ToolchainError(
            f"What is in {folder} does not fit {target.name}:\n" + "\n".join(f"  {o}" for o in objections),
            means=f"It needs CANN {target.toolkit.version} for {target.toolkit.soc} on {MACHINES[target.platform]}. "
            "Nothing was locked.",
            next_step="leave only these in the folder: " + ", ".join(name for _, name in expected_names(cann, target)),
        )
    packages = {each.package: each for each in found}
    missing = [(i, name) for i, name in expected_names(cann, target) if i.needed and i.name not in packages]
    if missing:
        raise CannotBuildHere(
            f"{folder} lacks {len(missing)} of CANN's installers: " + ", ".join(name for _, name in missing) + ".",
            means=f"They come from {cann.comes_from}.",
            next_step="put them into the folder and lock again",
        )
    checked = [(each, carried_checksum(each.path)) for each in found]
    return Supplied(
        tuple(
            Entry("toolkit", "operator", e.package, e.version, e.path.name, e.path.stat().st_size, sha256_of(e.path))
            for e, _ in checked
        ),
        tuple(_notes(checked, cann.comes_from)),
    )


def named(path: Path, cann: Cann) -> Named:
    """What a file name says. A name that is not understood gives a package of that name, which fits nothing."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return Named(path, path.name, "", "", "")
    operators = _OPS.fullmatch(match["what"])
    chip = (operators["chip"] or operators["old"]) if operators else ""
    package = "ops" if operators else match["what"]
    return Named(path, package if package in cann.installers else path.name, chip, match["version"], match["machine"])


def _objections(found: Sequence[Named], cann: Cann, target: Target) -> Iterator[str]:
    machine, wanted = MACHINES[target.platform], target.toolkit.version
    soc = cann.socs[target.toolkit.soc]
    for each in found:
        name = each.path.name
        if each.package not in cann.installers:
            yield f"{name} is not an installer that is known here (known: {listed(cann.installers)})"
            continue
        if not is_release(each.version, wanted):
            yield f"{name} is CANN {each.version}, this target is for CANN {wanted}"
        if each.machine != machine:
            yield f"{name} is for {each.machine}, this target is for {machine} ({target.platform})"
        if each.chip and each.chip != soc.chip:
            other = next(
                (s.name for s in cann.socs.values() if s.chip == each.chip), f"a chip {each.chip!r} that is not known here"
            )
            yield f"{name} holds operators of {other}, this target says soc: {soc.name}"
    versions = sorted({e.version for e in found if e.version})
    packages = [e.package for e in found]
    twice = sorted({p for p in packages if packages.count(p) > 1})
    if len(versions) > 1 or twice:
        yield (
            f"there are two CANNs: versions {' and '.join(versions)}"
            + (f", {', '.join(twice)} more than once" if twice else "")
            + "; two trees in one image shadow one another"
        )


def is_release(version: str, wanted: str) -> bool:
    """Whether 9.2.0, 9.2.0-beta.2 or 9.2.0_20260930220649 is of the release 9.2."""
    return version == wanted or bool(re.match(rf"{re.escape(wanted)}(?![0-9])", version))


def _notes(checked: Iterable[tuple[Named, str]], comes_from: str) -> Iterator[str]:
    for each, checksum in checked:
        if _PRE_RELEASE.search(each.version):
            yield f"{each.path.name}: CANN {each.version} is a pre-release"
        if not checksum:
            yield f"{each.path.name}: no checksum was found in the installer; the sha256 here is of the file as it was brought"
    yield f"CANN was brought by an operator; it comes from {comes_from}. No public sha256 confirms it"


def carried_checksum(path: Path) -> str:
    """Check an installer against the checksum that it carries (Makeself writes one for each archive into the script).

    Returns which kind was checked (SHA, MD5), an empty string where none was found. Raises IntegrityError where it differs
    or where the file is no installer at all. This finds damage, not malice: who changes the archive can change the sum.
    """
    with path.open("rb") as stream:
        head = stream.read(HEADER_BYTES)
        if not head.startswith(b"#!"):
            raise IntegrityError(
                f"{path.name} is not an installer: it does not begin as a script.",
                means="It may be a page that a server sent instead of the file, or a broken download.",
                next_step="bring it again",
            )
        skip = _SKIP.search(head)
        sums = {m["kind"].decode(): m["sum"].decode() for m in _SUMS.finditer(head) if int(m["sum"], 16)}
        kind = next((k for k in ("SHA", "MD5") if k in sums), "")
        if skip is None or not kind:
            return ""
        stream.seek(0)
        for _ in range(int(skip["lines"])):
            stream.readline()
        # Makeself calls SHA what is a sha256; MD5 is read only where nothing better is there.
        digest = hashlib.sha256() if kind == "SHA" else hashlib.md5(usedforsecurity=False)
        while block := stream.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sums[kind]:
        raise IntegrityError(
            f"{path.name} was altered or is incomplete: its archive has {kind} {digest.hexdigest()}, it carries {sums[kind]}.",
            means="Its script and its archive do not belong together. Nothing of it was executed.",
            next_step="bring it again, and compare its size with what the vendor's page says",
        )
    return kind


NOT_SUPPLIED = "was not supplied: this lock is of everything else, and nothing can be built from it"
"""What a lock notes that was written without CANN."""


def require_supplied(cann: Cann, target: Target, lock: Lock, *, tiers: Sequence[str] = ()) -> None:
    """Raise CannotBuildHere if the lock lacks what an operator has to bring; `tiers` is what can be run meanwhile."""
    if target.toolkit.kind != "cann-installers":
        return
    there = {e.name for e in lock.group("toolkit")}
    missing = [(i, name) for i, name in expected_names(cann, target) if i.needed and i.name not in there]
    if not missing:
        return
    optional = [name for i, name in expected_names(cann, target) if not i.needed]
    lines = [f"{name}: {i.holds}" for i, name in missing]
    lines += [f"They come from {cann.comes_from}. Optional: {', '.join(optional)}."]
    if tiers:
        lines += ["Meanwhile these run here, and none of them is a build of the target:", *(f"  {t}" for t in tiers)]
    raise CannotBuildHere(
        f"{target.name} cannot be built: CANN {target.toolkit.version} was not supplied ({len(missing)} installers are missing).",
        means="\n".join(lines),
        next_step=what_to_bring(target) + f" (nox -s tiers-{target.name} runs the rest)" * bool(tiers),
    )


def what_to_bring(target: Target) -> str:
    """The commands that go on once the files are there."""
    return (
        f"put them into a folder DIR (or name it in {FOLDER}); nox -s lock -- {target.name} --cann DIR; "
        f"nox -s render -- {target.name}; nox -s build-{target.name} -- {EULA_OPTION}"
    )


def require_licence(cann: Cann, target: Target, *, accepted: bool) -> None:
    """Raise CannotBuildHere unless a person accepted CANN's licence: its quiet installation accepts it on their behalf."""
    if target.toolkit.kind != "cann-installers" or accepted:
        return
    raise CannotBuildHere(
        f"CANN's licence was not accepted, so {target.name} is not built.",
        means="Installing CANN without questions agrees to Huawei's end user licence agreement in your name. "
        f"Read it first; it is shown where the installers come from: {cann.comes_from}.",
        next_step=f"if you accept it: nox -s build-{target.name} -- {EULA_OPTION}",
    )
