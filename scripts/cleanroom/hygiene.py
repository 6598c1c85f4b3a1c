"""Binary hygiene: what the ELF files of a wheel need, promise and give away."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import socket
import struct
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from cleanroom.arch_table import release
from cleanroom.binary.dynamic import Library, read_library
from cleanroom.binary.elf import UNDEFINED, Symbol, reading, symbols
from cleanroom.binary.wheel import is_elf, members
from cleanroom.envs import IMAGE
from cleanroom.errors import IntegrityError
from cleanroom.evidence import NAMED, Finding, Severity, some
from cleanroom.strict_yaml import Fields, Item, read_file


@dataclass(frozen=True)
class Supplier:
    """Libraries that no wheel brings: file names with wildcards, how their functions begin (a pattern), and who brings them.

    `toolkit`: the kind of toolkit that they are part of, empty for a driver's.
    """

    names: tuple[str, ...]
    symbols: str
    by: str
    toolkit: str = ""


@dataclass(frozen=True)
class Optional:
    """Libraries that an image does without: file names with wildcards, who brings them, and what does not work then."""

    names: tuple[str, ...]
    by: str
    without: str


@dataclass(frozen=True)
class Rules:
    """envs/libraries.yaml. `drivers` are outside of the image, `toolkits` in it, outside of every wheel. `stub_folders`
    hold what is linked with and never run. `device_machines`: ELF's names of machines that a host does not execute.
    `versions`: by glibc, the newest of each family of symbol versions that such a system has.
    """

    system: Mapping[str, str]
    drivers: tuple[Supplier, ...]
    toolkits: tuple[Supplier, ...]
    optional: tuple[Optional, ...]
    stub_folders: tuple[str, ...]
    machines: Mapping[str, str]
    device_machines: tuple[str, ...]
    versions: Mapping[str, Mapping[str, str]]

    def driver_of(self, library: str) -> Supplier | None:
        """The driver that brings a library, None if none does."""
        return next((driver for driver in self.drivers if _is_one_of(library, driver.names)), None)

    def supplier_of(self, library: str, toolkit: str) -> Supplier | None:
        """The driver, or the toolkit of this kind, that brings a library, None if neither does."""
        mine = (*self.drivers, *(each for each in self.toolkits if each.toolkit == toolkit))
        return next((each for each in mine if _is_one_of(library, each.names)), None)

    def is_stub(self, file: str) -> bool:
        """Whether a file, or a folder that is searched, is among stubs."""
        return not set(self.stub_folders).isdisjoint(file.split("/"))

    def optional_of(self, library: str) -> Optional | None:
        """What an image may lack that brings a library, None if nothing does."""
        return next((optional for optional in self.optional if _is_one_of(library, optional.names)), None)

    def newest(self, glibc: str) -> Mapping[str, str]:
        """The newest symbol versions on a system with this glibc; of the nearest older one where the table has a gap."""
        known = max((g for g in self.versions if release(g) <= release(glibc)), key=release, default=None)
        return {"GLIBC": glibc, **(self.versions[known] if known else {})}


def _is_one_of(library: str, names: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(library, name) for name in names)


def read_rules(envs: Path) -> Rules:
    """Read envs/libraries.yaml. Raises EnvsError with every mistake in it."""
    return read_file(envs / "libraries.yaml", f"{envs.name}/libraries.yaml", _rules)


def _rules(item: Item) -> Rules:
    top = item.fields(["system", "driver", "toolkit", "optional", "stub_folders", "machines", "device_machines", "versions"])
    return Rules(
        system={library: package.text() for library, package in top.entries("system")},
        drivers=tuple(_supplier(entry.fields(["names", "symbols", "by"])) for entry in top.items("driver")),
        toolkits=tuple(_supplier(entry.fields(["names", "symbols", "by", "toolkit"])) for entry in top.items("toolkit")),
        stub_folders=top.texts("stub_folders", least=1),
        device_machines=top.texts("device_machines", least=1),
        optional=tuple(_optional(entry.fields(["names", "by", "without"])) for entry in top.items("optional")),
        machines={platform: machine.text() for platform, machine in top.entries("machines")},
        versions={g: {k: _version(v) for k, v in row.entries()} for g, row in top.entries("versions")},
    )


def _supplier(fields: Fields) -> Supplier:
    symbols = fields.text("symbols", "a regular expression", _is_pattern)
    return Supplier(fields.texts("names", least=1), symbols, fields.text("by"), fields.text("toolkit"))


def _optional(fields: Fields) -> Optional:
    return Optional(fields.texts("names", least=1), fields.text("by"), fields.text("without"))


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _version(item: Item) -> str:
    return item.text("numbers and points, such as 3.4.33", lambda text: bool(_VERSION.fullmatch(text)))


@dataclass(frozen=True)
class Place:
    """Where the wheels are to run: an image, and what is in it besides them.

    `packages`: Debian packages; `libraries`: file names of libraries that other wheels bring; `folders`: where an
    absolute search path may point; `traces`: text that must not be in any file, with what it is; `toolkit`: its kind.
    """

    platform: str
    glibc: str
    packages: frozenset[str]
    libraries: frozenset[str]
    folders: tuple[str, ...] = ("/opt/venv", "/usr/local/cuda", "/opt/cann")
    build_folder: str = "/build/"
    traces: Mapping[str, str] = field(default_factory=dict)
    toolkit: str = ""


def examine(wheels: Mapping[str, Path], others: Mapping[str, Path], place: Place, rules: Rules) -> tuple[Finding, ...]:
    """All findings about the wheels of a target, by component. `others`: those of the environment, by distribution.

    Raises IntegrityError for a wheel that cannot be read.
    """
    brought = place.libraries | libraries_in(wheels.values())
    findings = [f for component, wheel in wheels.items() for f in _of_wheel(component, wheel, place, brought, rules)]
    return (*findings, *overlaps(wheels, others))


def libraries_in(wheels: Iterable[Path]) -> frozenset[str]:
    """The file names of all shared libraries in wheels, from their tables of contents."""
    return frozenset(PurePosixPath(i.filename).name for w in wheels for i in _contents(w) if _LIBRARY.search(i.filename))


def overlaps(wheels: Mapping[str, Path], others: Mapping[str, Path]) -> tuple[Finding, ...]:
    """Paths that two wheels install with different bytes: which one is there afterwards depends on the order."""
    owners: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    for name, wheel in (*others.items(), *wheels.items()):
        for item in _contents(wheel):
            owners[_installed_as(item.filename)].setdefault((item.CRC, item.file_size), name)
    return tuple(
        Finding(
            next((name for name in sorted(content.values()) if name in wheels), IMAGE),
            "shared path",
            "fails",
            f"{path} is installed by {' and by '.join(sorted(content.values()))}, with different bytes",
        )
        for path, content in sorted(owners.items())
        if len(content) > 1
    )


def _installed_as(path: str) -> str:
    """Where the environment gets a file of a wheel: what lies below <name>.data/ goes to a folder by its kind.

    Headers keep their path: each distribution has a folder of its own for them.
    """
    found = _DATA.match(path)
    if found is None or found[1] == "headers":
        return path
    return path[found.end() :] if found[1] in ("purelib", "platlib") else f"<{found[1]}>/{path[found.end() :]}"


def unresolved(wheels: Mapping[str, Path], providers: Iterable[Path], rules: Rules, toolkit: str) -> tuple[Finding, ...]:
    """Functions that a library of ours calls and that no library it needs has: it was compiled against another release,
    or linked against a stub that the linker then dropped. Python resolves all of them at import.

    `providers`: the wheels of the environment that bring what ours need (torch, NCCL). What those need themselves is
    read only while something is missing. Functions of the interpreter, and those with a symbol version (the system's),
    are not looked for.
    """
    ours = {
        (component, file): (_sought(data), read_library(file, data))
        for component, wheel in wheels.items()
        for file, data in members(wheel)
        if is_elf(data)
    }
    missing = {s for sought, library in ours.values() for s in sought if not _is_supplied(s, [library], rules, toolkit)}
    known = {name: wheel for wheel in [*wheels.values(), *providers] for name in libraries_in([wheel])}
    read: dict[str, Library] = {}
    wanted = {name for _, library in ours.values() for name in library.needed}
    while missing and (level := {name for name in wanted - set(read) if name in known}):
        for wheel in dict.fromkeys(known[name] for name in sorted(level)):
            for file, data in members(wheel, lambda path: PurePosixPath(path).name in level):
                missing -= _exported(data)
                library = read[PurePosixPath(file).name] = read_library(file, data)
                wanted.update(library.needed)
    findings = []
    for (component, file), (sought, library) in ours.items():
        tree = _with_dependencies(library, read)
        if lacking := {s for s in sought & missing if not _is_supplied(s, tree, rules, toolkit)}:
            message = f"{file} needs {some(sorted(lacking), NAMED, ' symbols')}, which none of the libraries that it names has"
            findings.append(Finding(component, "unresolved symbols", "fails", message))
    return tuple(findings)


def _is_supplied(symbol: str, libraries: Iterable[Library], rules: Rules, toolkit: str) -> bool:
    """Whether a driver or toolkit that one of the libraries needs has a function of this name."""
    suppliers = [s for library in libraries for name in library.needed if (s := rules.supplier_of(name, toolkit))]
    return any(re.match(supplier.symbols, symbol) for supplier in suppliers)


def _with_dependencies(library: Library, read: Mapping[str, Library]) -> list[Library]:
    tree, names = [library], {""}
    for each in tree:  # grows while it is walked
        tree += [read[name] for name in each.needed if name in read and name not in names]
        names.update(each.needed)
    return tree


def _exported(data: bytes) -> set[str]:
    return {symbol.name for symbol, _ in _dynamic(data) if symbol.section != UNDEFINED}


def _sought(data: bytes) -> set[str]:
    """What a library must find elsewhere, without the interpreter's and what has a version."""
    found = {s.name for s, version in _dynamic(data) if s.section == UNDEFINED and s.binding != _WEAK and version <= _NO_VERSION}
    return {name for name in found if name and not name.startswith(_INTERPRETER)}


def _dynamic(data: bytes) -> list[tuple[Symbol, int]]:
    """The dynamic symbols, each with the number of its version."""
    with reading(data) as elf:
        sections = {s.name: s for s in elf.iter_sections() if s.name in (".dynsym", ".dynstr", ".gnu.version")}
        table = list(symbols(sections.get(".dynsym"), sections.get(".dynstr")))
        versions = sections[".gnu.version"].data() if ".gnu.version" in sections else bytes(2 * len(table))
        return [(symbol, n & 0x7FFF) for symbol, (n,) in zip(table, struct.iter_unpack("<H", versions), strict=True)]


def machine_traces() -> dict[str, str]:
    """What would tell where a build ran: this machine's host name, and the folders of its user and of this process."""
    host, home, here = socket.gethostname(), str(Path.home()), str(Path.cwd())
    traces = {host: "this machine's host name"} if len(host) >= _TELLING and host not in _ORDINARY else {}
    return traces | {f: "a folder of this machine" for f in (home, here) if len(Path(f).parts) > 2}


# --- one wheel -------------------------------------------------------------------------------------------------------

_DATA = re.compile(r"^[^/]+\.data/([^/]+)/")
_LIBRARY = re.compile(r"\.so(\.[0-9]+)*$")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
_TAG = re.compile(r"manylinux_([0-9]+)_([0-9]+)_(\w+)|(manylinux1|manylinux2010|manylinux2014)_(\w+)")
_OLD_TAGS = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_INTERPRETER = ("Py", "_Py")
_WEAK, _NO_VERSION = 2, 1
_ORDINARY = ("localhost", "debian", "ubuntu", "linux", "server", "docker", "runner", "builder", "container")
"""Names of machines that are words in many a file."""
_TELLING = 5
"""A shorter name would be found in files that have nothing to do with it."""


def _of_wheel(component: str, wheel: Path, place: Place, brought: frozenset[str], rules: Rules) -> Iterator[Finding]:
    promised = _promised_glibc(wheel)
    traced: dict[str, list[str]] = defaultdict(list)
    native = False
    for file, data in members(wheel):
        for text in (place.build_folder, *place.traces):
            if occurs(text, data):
                traced[text].append(file)
        if not is_elf(data):
            continue
        native = True
        library = read_library(file, data)
        for kind, severity, message in _objections(library, place, brought, promised, rules):
            yield Finding(component, kind, severity, f"{file} {message}")
    if native and wheel.stem.endswith("-any"):
        yield Finding(component, "wheel tag", "degrades", f"{wheel.name} is tagged for any platform and holds machine code")
    for text, files in traced.items():
        where = f"{files[0]}" + (f" and {len(files) - 1} more files" if len(files) > 1 else "")
        if text == place.build_folder:
            message = f"{where} name the container's build folder {text}; it is the same in every build"
            yield Finding(component, "build path", "note", message)
        else:
            yield Finding(component, "trace of a machine", "fails", f"{where} hold {text!r}, {place.traces[text]}")


def _objections(
    library: Library, place: Place, brought: frozenset[str], promised: str, rules: Rules
) -> Iterator[tuple[str, Severity, str]]:
    if library.machine in rules.device_machines:
        return
    wanted = rules.machines.get(place.platform, "")
    if library.machine != wanted:
        yield "machine type", "fails", f"is for {library.machine}, and {place.platform} needs {wanted}"
    for name in sorted(library.names):
        if driver := rules.driver_of(name):
            yield "packaged driver library", "fails", f"is {name}, which the {driver.by} brings: a copy or stub hides it"
    for name in library.needed:
        package = rules.system.get(name)
        if name in brought or rules.supplier_of(name, place.toolkit) or package in place.packages:
            continue
        if package:
            yield "missing library", "fails", f"needs {name}, and the image lacks the package {package}"
        else:
            yield "missing library", "fails", f"needs {name}, which is in no wheel, no system package, no toolkit and no driver"
    for entry in library.search_path:
        yield from _search_path(entry, library.file, place, rules)
    limits = {f"the wheel's tag promises glibc {promised}": promised, f"the image has glibc {place.glibc}": place.glibc}
    for reason, glibc in limits.items():
        for needed, newest in too_new(library, glibc, rules):
            yield "symbol version", "fails", f"needs {needed}, and {reason}, which has {newest} at most"


def too_new(library: Library, glibc: str, rules: Rules) -> Iterator[tuple[str, str]]:
    """Symbol versions that a library needs and a system with this glibc lacks, each with the newest that it has."""
    for family, newest in rules.newest(glibc).items() if glibc else ():
        if release(library.newest.get(family, "0")) > release(newest):
            yield f"{family}_{library.newest[family]}", f"{family}_{newest}"


Leads = Literal["into stubs", "beside the file", "to the current folder", "to a fixed folder"]


def leads(entry: str, rules: Rules) -> Leads:
    """Where an entry of a library's search path leads."""
    if rules.is_stub(entry):
        return "into stubs"
    if entry.startswith(("$ORIGIN", "${ORIGIN}")):
        return "beside the file"
    return "to a fixed folder" if entry.startswith("/") else "to the current folder"


def _search_path(entry: str, file: str, place: Place, rules: Rules) -> Iterator[tuple[str, Severity, str]]:
    kind = "library search path"
    match leads(entry, rules):
        case "into stubs":
            yield kind, "fails", f"searches {entry}: the libraries there are stubs, to link with and not to run"
        case "beside the file":
            below = entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", posixpath.dirname(file) or ".", 1)
            if posixpath.normpath(below).startswith(".."):
                yield kind, "fails", f"searches {entry}, which leaves the folder that it is installed in"
        case "to the current folder" if not entry:
            yield kind, "fails", "searches the current folder for libraries (an empty entry in its RUNPATH)"
        case "to the current folder":
            yield kind, "fails", f"searches {entry}, which depends on the current folder"
        case "to a fixed folder" if any(entry == folder or entry.startswith(f"{folder}/") for folder in place.folders):
            yield kind, "note", f"searches {entry}: it works in an environment at that place only"
        case "to a fixed folder":
            yield kind, "fails", f"searches {entry}, which is not part of the image"


def _promised_glibc(wheel: Path) -> str:
    """The oldest glibc that the wheel's tag promises to run on; "" where it promises none (linux_x86_64, any)."""
    try:
        platforms = {tag.platform for tag in parse_wheel_filename(wheel.name)[3]}
    except InvalidWheelFilename:
        return ""
    found = [m for platform in platforms if (m := _TAG.fullmatch(platform))]
    return min((_OLD_TAGS[m[4]] if m[4] else f"{m[1]}.{m[2]}" for m in found), key=release, default="")


def occurs(text: str, data: bytes) -> bool:
    """Whether the text stands in the bytes as a word of its own, or begins a path."""
    wanted = text.encode()
    if wanted not in data:
        return False
    return bool(re.search(rb"(?<![\w.-])" + re.escape(wanted) + (b"" if text.endswith("/") else rb"(?![\w-])"), data))


def _contents(wheel: Path) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return [item for item in archive.infolist() if not item.is_dir()]
    except (OSError, zipfile.BadZipFile) as error:
        raise IntegrityError(f"{wheel.name} cannot be read as a wheel: {error}.") from None
