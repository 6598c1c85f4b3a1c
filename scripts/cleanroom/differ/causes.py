"""Why two builds of one source differ: the causes that are known, what helps, and how their traces are recognised.

A pattern takes the varying bytes out of both sides. Where nothing but such bytes differed, both sides are then equal,
and the difference is explained; whatever still differs has another cause. No pattern is ever applied to machine code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cleanroom.record import Level
from cleanroom.verification import Difference

Scope = Literal["names", "debug", "data", "text"]
"""Where bytes come from: symbol and section names; debug information; read-only and other data; text files and PTX."""

LINES = 6
"""How many lines of detail one difference shows at most."""

NORMALISED: Level = "identical after named normalisations"
HOST_DIFFERS: Level = "identical device code"
DEVICE_DIFFERS: Level = "same architectures"
OTHER_KERNELS: Level = "builds"


@dataclass(frozen=True)
class Cause:
    """A cause in plain words and its remedy. Two files that differ by harmless causes alone do the same."""

    name: str
    remedy: str
    harmless: bool = True


@dataclass(frozen=True)
class Found:
    """A difference inside one file; the fields are those of verification.Difference."""

    part: str
    level: Level
    cause: Cause
    detail: tuple[str, ...] = ()


UNKNOWN = Cause("unknown", "look at the place named; build twice in one folder to see whether it comes back", harmless=False)
BUILD_ID = Cause(
    "build id: the linker's hash over the whole file, or a random number",
    "it goes away with the other differences; if it stands alone, link with -Wl,--build-id=sha1 or none",
)
TEMPORARY_NAME = Cause(
    "temporary file name",
    "nvcc: --objdir-as-tempdir and --frandom-seed, with the same object names; others: keep temporary names out of outputs",
)
PROCESS_NUMBER = Cause("process number in internal symbol names", "nvcc: --frandom-seed together with --objdir-as-tempdir")
FOLDER_HASH = Cause(
    "hash of the source's folder in names of internal symbols (anonymous namespaces)",
    "compile in the same folder in every build; no compiler option removes it",
)
BUILD_PATH = Cause(
    "path of a source file (line table, __FILE__, debug information)",
    "compile in the same folder in every build, or -ffile-prefix-map for host code",
)
MACHINE_PATH = Cause(
    "a path of the building machine", "build in the same folder; no path of the machine belongs in a product", harmless=False
)
SOURCE_TIME = Cause(
    "modification time of a source file in the device line table (-lineinfo)",
    "give every source the same time before compiling (SOURCE_DATE_EPOCH), or compile without -lineinfo",
)
EMBEDDED_DATE = Cause(
    "embedded date or time (__DATE__, __TIME__, a generator's stamp)", "set SOURCE_DATE_EPOCH; do not stamp the clock into files"
)
USER_OR_HOST = Cause("user or host name", "build as the same user under the same host name, or leave the name out")
COMPRESSION = Cause(
    "compression only: the same content compressed otherwise", "use the same compression settings and library version"
)
ADDRESSES = Cause(
    "addresses that moved because something else changed its size or place", "nothing: it goes away with the other differences"
)
LINK_ORDER = Cause(
    "order of objects at link",
    "link in a sorted order; never in the order in which parallel compilers finish or a folder lists",
    harmless=False,
)
COMPILER = Cause("another compiler or linker version", "use the locked toolchain", harmless=False)
ZIP_TIME = Cause("times in the archive", "set SOURCE_DATE_EPOCH for whatever packs it")
ZIP_ORDER = Cause("order of members in the archive", "sort the file list before packing")
PERMISSIONS = Cause("permission bits (umask)", "set umask 022 before building and packing")
RECORD_ORDER = Cause("order of lines in RECORD", "sort the file list before packing")
RECORD_FOLLOWS = Cause("RECORD lists hash and size of files that differ", "nothing: it goes away with the other differences")
LINE_ORDER = Cause("order of lines in a list", "sort the list; do not write in the order of a folder or of a hash")
BYTECODE = Cause(
    "Python bytecode: time of the source in its header, or compiled otherwise from the same source",
    "PYTHONDONTWRITEBYTECODE=1, or compile with --invalidation-mode unchecked-hash",
)
GZIP_HEADER = Cause("time or name in a gzip header", "gzip -n")
FILE_TIME = Cause("times of files in a layer", "set SOURCE_DATE_EPOCH and export with rewrite-timestamp=true")
LAYER_ORDER = Cause(
    "order of files in a layer", "write files in a sorted order; never in the order in which parallel work finishes"
)
OWNER = Cause("owner of a file", "create files as the same user, by number", harmless=False)
CREATED = Cause("creation time in the image's configuration", "set SOURCE_DATE_EPOCH")
LEFTOVER = Cause("log or cache that a tool leaves behind", "remove it in the step that makes it")
FOLLOWS = Cause("digests of layers that differ", "nothing: it goes away with the other differences")

_SOURCE = rb"(?:cu|cuh|ptx|cubin|cpp|cc|cxx|c|hpp|hh|h|hxx|inl|inc|ipp|tpp|S|s|py|pyx|pyi|rs|cuda_impl)"
_FOLDERS = rb"(?<![\w.+-])(?:/[\w.+@~%=-]+)+"


@dataclass(frozen=True)
class Pattern:
    """Bytes that vary for a known cause. `to` is what is left of a match, in re's template syntax.

    Where not the whole match varies, the group "varies" does.
    """

    cause: Cause
    pattern: re.Pattern[bytes]
    to: bytes
    scopes: tuple[Scope, ...] = get_args(Scope)


_UNIT = rb"_(?:cu|cpp|cc|cxx|c)_[0-9a-f]{8}"
_MONTHS = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
PATTERNS: tuple[Pattern, ...] = (
    Pattern(TEMPORARY_NAME, re.compile(rb"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}-\d+_"), b""),
    Pattern(TEMPORARY_NAME, re.compile(rb"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}"), b"tmpxft"),
    # With --objdir-as-tempdir nvcc names its own files after the object, else after the source.
    Pattern(TEMPORARY_NAME, re.compile(rb"\.o(?=(?:\.compute_\w+)?\.cudafe1\.)"), b""),
    Pattern(TEMPORARY_NAME, re.compile(rb"\bcc[A-Za-z0-9]{6}(?=\.(?:o|s|c|res|ltrans)\b)"), b"cc"),
    Pattern(TEMPORARY_NAME, re.compile(rb"(/tmp/)(?:pip-[a-z-]+-|build-|tmp)[a-z0-9_]{8}\b"), rb"\1"),
    # The number makes a name longer, so the length before it may change as well. A name of nvcc's own consists of the
    # folder's hash, the length and the name of the source, another hash, and the number; a mangled name goes on after it.
    Pattern(
        PROCESS_NUMBER,
        re.compile(
            rb"\d*(_INTERNAL_|_GLOBAL__N__)([0-9a-f]{8}_\d+_(?:(?!" + _UNIT + rb")\w)+" + _UNIT + rb")(?P<varies>_\d+)",
        ),
        rb"\1\2_",
    ),
    Pattern(FOLDER_HASH, re.compile(rb"(_INTERNAL_|_GLOBAL__N__|__nv_static_\d+__)[0-9a-f]{8}(?=_\d+_)"), rb"\1"),
    Pattern(
        SOURCE_TIME,
        re.compile(rb'(\.file\s+\d+\s+"[^"\n]*",\s*)\d+(?=,\s*\d+)'),
        rb"\1",
        ("debug", "text"),
    ),
    # Zeros after it fill up to where the next string begins.
    Pattern(
        BUILD_PATH, re.compile(_FOLDERS + rb"(/[\w.+-]+\." + _SOURCE + rb")(?![\w])(\0)?\0*"), rb"\1\2", ("data", "debug", "text")
    ),
    Pattern(BUILD_PATH, re.compile(_FOLDERS + rb"/[\w.+@~%=-]+/?(\0)?\0*"), rb"/\1", ("debug",)),
    Pattern(MACHINE_PATH, re.compile(_FOLDERS + rb"/[\w.+@~%=-]+"), b"/", ("data", "text")),
    Pattern(
        EMBEDDED_DATE,
        re.compile(
            rb"\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(?:\d{1,2} )?"
            + _MONTHS
            + rb" +(?:\d{1,2},? +)?(?:\d\d:\d\d:\d\d )?(?:[A-Z]{3} )?\d{4}\b"
        ),
        b"@",
        ("data", "text"),
    ),
    Pattern(
        EMBEDDED_DATE,
        re.compile(rb"\b20\d\d-\d\d-\d\d(?:[T_ ]\d\d:?\d\d(?::?\d\d(?:\.\d+)?)?)?(?: ?Z| ?[+-]\d\d:?\d\d| UTC)?"),
        b"@",
        ("data", "text"),
    ),
    Pattern(EMBEDDED_DATE, re.compile(rb"(?<![\d:])[0-2]\d:[0-5]\d:[0-5]\d(?![\d:])"), b"@", ("data", "text")),
    Pattern(
        EMBEDDED_DATE,
        re.compile(rb"(?<!\d)20[2-4]\d[01]\d[0-3]\d(?:[T_.-]?[0-2]\d[0-5]\d(?:[0-5]\d)?)?Z?(?!\d)"),
        b"@",
        ("data", "text"),
    ),
    Pattern(
        EMBEDDED_DATE,
        re.compile(rb"(?i)((?:time|date|epoch|stamp|built)\w*['\"]?\s*[:=]\s*['\"]?)[12]\d{9}(?:\.\d+)?(?!\d)"),
        rb"\1@",
        ("data", "text"),
    ),
    Pattern(USER_OR_HOST, re.compile(rb"(?<![\w.+-])[a-z_][a-z0-9_-]{0,31}@[A-Za-z0-9][A-Za-z0-9.-]*"), b"@", ("data", "text")),
    Pattern(
        USER_OR_HOST,
        re.compile(
            rb"(?i)((?:host_?name|user_?name|log_?name|build_?(?:host|user|machine|by|on)|built[ _](?:by|on|at))['\"]?"
            rb"(?:\s*[:=]\s*|\s+)['\"]?)[A-Za-z_][\w.-]*"
        ),
        rb"\1",
        ("data", "text"),
    ),
)

_VARIES = re.compile(rb"tmpxft|cudafe1|_INTERNAL_|_GLOBAL__N__|__nv_static_|\bcc|/tmp/")
"""What any pattern for names begins with: most names have none of it."""

LEFTOVERS = re.compile(
    r"(?:var/log|var/cache|var/lib/apt|var/lib/systemd|tmp|var/tmp|root/\.cache|etc/(?:hostname|hosts|resolv\.conf|machine-id)$)"
)
"""Paths in an image that hold what tools leave behind, not what anyone runs."""


@dataclass(frozen=True)
class Explanation:
    """Causes that were found, each with lines that show it; `complete` where they explain every differing byte."""

    causes: tuple[tuple[Cause, tuple[str, ...]], ...]
    complete: bool
    rest: tuple[bytes, bytes]

    def found(self, part: str, level: Level) -> list[Found]:
        """The differences: one for each cause; `level` is what a cause that is not harmless, or unknown, still allows."""
        found = [Found(part, NORMALISED if cause.harmless else level, cause, detail) for cause, detail in self.causes]
        if not self.complete:
            found.append(Found(part, level, UNKNOWN, differing_bytes(*self.rest)))
        return found


def explain(first: bytes, second: bytes, scope: Scope, equal: Callable[[bytes, bytes], bool] = bytes.__eq__) -> Explanation:
    """Take what varies for known causes out of both sides, and see whether they are `equal` then."""
    causes: dict[Cause, list[str]] = {}
    for known in PATTERNS:
        if scope not in known.scopes or equal(first, second):
            continue
        varies = "varies" if "varies" in known.pattern.groupindex else 0
        ours, theirs = ([m[varies] for m in known.pattern.finditer(side)] for side in (first, second))
        if ours != theirs and (ours or theirs):
            pairs = [f"{_shown(a)} | {_shown(b)}" for a, b in zip(ours, theirs, strict=False) if a != b]
            alone = [*ours[len(theirs) :], *theirs[len(ours) :]]
            causes.setdefault(known.cause, []).extend(pairs or [_shown(value) for value in alone])
            first, second = (known.pattern.sub(known.to, side) for side in (first, second))
    lines = tuple((cause, few(dict.fromkeys(detail))) for cause, detail in causes.items())
    return Explanation(lines, equal(first, second), (first, second))


def same_strings(first: bytes, second: bytes) -> bool:
    """Whether two string tables hold the same strings, in whatever order."""
    return first == second or sorted(first.split(b"\0")) == sorted(second.split(b"\0"))


def plain_name(name: str) -> str:
    """A symbol's or section's name without what varies from build to build."""
    text = name.encode("utf-8", "surrogateescape")
    if not _VARIES.search(text):
        return name
    for known in PATTERNS:
        if "names" in known.scopes:
            text = known.pattern.sub(known.to, text)
    return text.decode("utf-8", "surrogateescape")


def graded(component: str, found: Sequence[tuple[str, Found]], strongest: Level) -> tuple[Level, tuple[Difference, ...]]:
    """Differences, each with the path of its file, as the result of a comparison: the weakest first, and the level of all."""
    order: tuple[Level, ...] = get_args(Level)
    from_weakest = sorted(found, key=lambda located: -order.index(located[1].level))
    differences = tuple(
        Difference(component, file, f.part, f.level, f.cause.name, f.cause.remedy, f.detail) for file, f in from_weakest
    )
    return max((d.level for d in differences), key=order.index, default=strongest), differences


def few(lines: Iterable[str]) -> tuple[str, ...]:
    """The first lines, and how many there are besides."""
    every = list(lines)
    return tuple(every[:LINES]) + ((f"and {len(every) - LINES} more",) if len(every) > LINES else ())


def next_difference(first: bytes, second: bytes, start: int = 0) -> int:
    """The offset of the first byte from `start` on that differs; the length of the shorter where none does."""
    end = min(len(first), len(second))
    for block in range(start, end, 4096):
        if first[block : block + 4096] != second[block : block + 4096]:
            return next((i for i in range(block, min(block + 4096, end)) if first[i] != second[i]), end)
    return end


def differing_bytes(first: bytes, second: bytes) -> tuple[str, ...]:
    """A few lines that show where two byte strings differ."""
    lines = []
    if len(first) != len(second):
        lines.append(f"{len(first)} | {len(second)} bytes")
    at = next_difference(first, second)
    while at < min(len(first), len(second)) and len(lines) < LINES:
        lines.append(f"at {at:#x}: {_around(first, at)} | {_around(second, at)}")
        at = next_difference(first, second, at + 16)
    return tuple(lines)


def _around(data: bytes, at: int) -> str:
    piece = data[at : at + 16]
    text = bytes(data[max(0, at - 16) : at + 32])
    return repr(text)[1:] if _is_text(text) else piece.hex(" ")


def _is_text(data: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\n\r" for byte in data)


def _shown(value: bytes) -> str:
    text = value.rstrip(b"\0").decode("utf-8", "backslashreplace")
    return text if len(text) <= 120 else text[:60] + "..." + text[-57:]
