"""GPU architectures: one typed model, rendered separately for nvcc, torch and CMake.

Pure syntax and rules. Which capabilities exist, since which toolkit, and which form a family are data
(envs/architectures.yaml), checked by envs.py and check.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from cleanroom.errors import ArchError

Suffix = Literal["", "a", "f"]
Support = Literal["runs", "runs by PTX", "does not run"]
"""What device code does on a GPU: loads as it is, is compiled by the driver when loaded, or fails to load."""

_DOTTED = re.compile(r"([1-9][0-9]?)\.([0-9])([a-z]*)(\+PTX)?")
_NAMED = re.compile(r"(sm|compute)_([1-9][0-9]?)([0-9])([a-z]*)(\+PTX)?")
_NOT_FIXED = {
    "native": "asks for the GPU of the building machine; without a GPU nvcc silently takes sm_75 for it and exits 0",
    "all": "is whatever the toolkit of the day knows, which says nothing about this target",
    "all-major": "is whatever the toolkit of the day knows, which says nothing about this target",
}
_FIRST_JOINED = 20
"""From here on, a number without a point is major and minor joined (75, 100); below, it is a major alone (9, 10)."""
_WRITE = "Write one compute capability, for example sm_100a, 12.0f+PTX, or compute_90 for PTX only."


@dataclass(frozen=True, order=True)
class Arch:
    """A compute capability with its form: "" portable, "a" architecture-specific, "f" family.

    `cubin` is machine code for it, `ptx` the intermediate code that a driver can still compile. At least one is there.
    """

    major: int
    minor: int
    suffix: Suffix = ""
    ptx: bool = False
    cubin: bool = True

    def __post_init__(self) -> None:
        if not (self.cubin or self.ptx):
            raise ValueError("an architecture without cubin and without PTX is nothing")

    def __str__(self) -> str:
        """The way it is written in YAML; parse_arch reads it back."""
        return (self.sm + "+PTX" if self.ptx else self.sm) if self.cubin else self.compute

    @property
    def capability(self) -> str:
        """As NVIDIA's documents write it, without the form: "10.0"."""
        return f"{self.major}.{self.minor}"

    @property
    def sm(self) -> str:
        """As ptxas names the machine code: sm_100a."""
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def compute(self) -> str:
        """As nvcc names the intermediate code: compute_100a."""
        return f"compute_{self.major}{self.minor}{self.suffix}"

    @property
    def torch(self) -> str:
        """For TORCH_CUDA_ARCH_LIST: "10.0a", "12.0f+PTX". Raises ArchError for PTX alone, which torch cannot express."""
        if not self.cubin:
            raise ArchError(
                f"{self} is PTX only, and TORCH_CUDA_ARCH_LIST has no way to say that.",
                means="torch always compiles machine code; PTX can only be added to it.",
                next_step=f"write {self.sm}+PTX",
            )
        return f"{self.capability}{self.suffix}" + ("+PTX" if self.ptx else "")

    @property
    def cmake(self) -> str:
        """For CMAKE_CUDA_ARCHITECTURES: "100a-real" machine code, "100-virtual" PTX, "120f" both."""
        kind = "" if self.cubin and self.ptx else "-real" if self.cubin else "-virtual"
        return f"{self.major}{self.minor}{self.suffix}{kind}"

    @property
    def gencode(self) -> tuple[str, ...]:
        """Arguments for nvcc, one -gencode for each kind of code."""
        codes = [self.sm] * self.cubin + [self.compute] * self.ptx
        return tuple(argument for code in codes for argument in ("-gencode", f"arch={self.compute},code={code}"))

    def runs_on(self, capability: str, *, family: Collection[str] = ()) -> Support:
        """What this code does on a GPU of `capability` ("10.3").

        `family`: the capabilities that share this one's family, by the table (Table.support looks it up). Without it an
        `f` form is only claimed for its own capability. Rules: `a` is for exactly its capability; `f` for its family
        from its own minor on; portable machine code for the same major from its own minor on (NVIDIA excepts Tegra);
        portable PTX for its own capability and every later one.
        Source: CUDA programming guide, compute capabilities; ptxas --help.
        """
        major, minor = (int(part) for part in capability.split("."))
        if self.suffix == "a":
            matches = (major, minor) == (self.major, self.minor)
        elif self.suffix == "f":
            members = {self.capability, *family}
            matches = capability in members and major == self.major and minor >= self.minor
        else:
            matches = major == self.major and minor >= self.minor
        if self.cubin and matches:
            return "runs"
        by_ptx = matches if self.suffix else (major, minor) >= (self.major, self.minor)
        return "runs by PTX" if self.ptx and by_ptx else "does not run"


def parse_arch(text: object, *, where: str, written: str = "") -> Arch:
    """Read one architecture: `10.0`, `10.0a`, `12.0f+PTX`, `sm_100a`, `compute_100f` (PTX only), as a string.

    `where` is the place to name in a message (file and key), `written` how a value that is no string looks in its file.
    Raises ArchError saying the reason and what to write. Whether the capability exists is a question to the table, not
    asked here.
    """
    if not isinstance(text, str):
        raise _not_text(text, where, written or str(text))
    dotted, named = _DOTTED.fullmatch(text), _NAMED.fullmatch(text)
    if dotted:
        major, minor, suffix, plus = dotted.groups()
        kind = "sm"
    elif named:
        kind, major, minor, suffix, plus = named.groups()
    else:
        raise _unreadable(text, where)
    if suffix not in ("", "a", "f"):
        raise ArchError(
            f"{where}: {text!r} has the unknown suffix {suffix!r}.",
            means="The suffixes are a (exactly this capability) and f (its family).",
            next_step=f"write sm_{major}{minor}, sm_{major}{minor}a or sm_{major}{minor}f",
        )
    virtual = kind == "compute"
    if virtual and plus:
        raise ArchError(
            f"{where}: {text!r} asks for PTX twice.",
            means="compute_ alone already means PTX and no machine code.",
            next_step=f"write sm_{major}{minor}{suffix}+PTX for both, or compute_{major}{minor}{suffix} for PTX only",
        )
    form: Suffix = "a" if suffix == "a" else "f" if suffix == "f" else ""
    return Arch(int(major), int(minor), form, ptx=virtual or bool(plus), cubin=not virtual)


def _not_text(value: object, where: str, written: str) -> ArchError:
    if isinstance(value, bool):
        reason, write = f"is {written}, which YAML reads as {str(value).lower()}", _WRITE
    elif isinstance(value, (int, float)):
        reason = f"is the number {written}: without quotes YAML reads 12.10 as 12.1 and 10.0 as a quantity"
        write = f"Quote it, or write its name: {_example(value)}." if 1 <= value < 1000 else _WRITE
    elif value is None:
        reason, write = "is empty", _WRITE
    elif isinstance(value, (list, tuple)):
        reason, write = "is a list inside the list of architectures", "Write each architecture as an item of its own."
    else:
        reason, write = f"is {value!r}, not text", _WRITE
    return ArchError(f"{where}: the architecture {reason}.", means="An architecture is text.", next_step=write)


def _example(number: float) -> str:
    text = f"{number:.1f}" if number < _FIRST_JOINED else f"{number / 10:.1f}"
    return f'"{text}" or sm_{text.replace(".", "")}'


def _unreadable(text: str, where: str) -> ArchError:
    bare = text.strip()
    if not bare:
        return ArchError(
            f"{where}: the architecture is empty.",
            means="Nothing may be left to what a build machine happens to have.",
            next_step=_WRITE,
        )
    if bare.lower() in _NOT_FIXED:
        return ArchError(
            f"{where}: {text!r} is refused.",
            means=f"It {_NOT_FIXED[bare.lower()]}.",
            next_step=_WRITE,
        )
    if re.search(r"[;,\s]", bare):
        return ArchError(
            f"{where}: {text!r} is not one architecture.",
            means="Several architectures are a YAML list, one item each.",
            next_step="write [sm_100a, sm_103a]",
        )
    return ArchError(f"{where}: {text!r} is not an architecture.", next_step=_meant(bare))


def _meant(text: str) -> str:
    """What to write instead of `text`, as exactly as its digits allow."""
    squeezed = text.lower().replace(" ", "")
    plus = "+PTX" if squeezed.endswith("+ptx") else ""
    squeezed = squeezed.removesuffix("+ptx")
    virtual = squeezed.startswith("compute")
    found = re.fullmatch(r"(?:(?:sm|compute)[_-]?)?([1-9][0-9]{0,2})(?:[._]([0-9]))?[._-]?([af]?)", squeezed)
    if not found:
        return _WRITE
    major, minor, suffix = found.groups()
    if minor is None:
        # "10" can only mean 10.0, "100" and "90" only 10.0 and 9.0: no capability's major has reached 20.
        major, minor = (major, "0") if int(major) < _FIRST_JOINED else (major[:-1], major[-1])
    if int(major) >= _FIRST_JOINED:
        return _WRITE
    if virtual:
        return f"Write compute_{major}{minor}{suffix}."
    return f"Write sm_{major}{minor}{suffix}{plus} or {major}.{minor}{suffix}{plus}."


def torch_arch_list(archs: Iterable[Arch]) -> str:
    """The value of TORCH_CUDA_ARCH_LIST: "10.0a;10.3a", in the order given, machine code and PTX of one form together.

    Raises ArchError for an empty list, which torch would fill from the GPUs it finds, and for PTX alone.
    """
    merged: dict[tuple[int, int, Suffix], Arch] = {}
    for arch in archs:
        key = (arch.major, arch.minor, arch.suffix)
        other = merged.get(key, arch)
        merged[key] = Arch(*key, ptx=arch.ptx or other.ptx, cubin=arch.cubin or other.cubin)
    if not merged:
        raise ArchError(
            "The list of architectures is empty.",
            means="torch would take the GPUs of the building machine instead, and fails where there is none.",
            next_step=_WRITE,
        )
    return ";".join(arch.torch for arch in merged.values())
