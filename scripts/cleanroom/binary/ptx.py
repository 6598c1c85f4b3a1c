"""PTX: the kernels in it, and which of those are stubs.

A guard in the source is decided when PTX is made, not when a driver compiles it: the stub is in the text already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cleanroom.binary.cubin import COMPLAINTS, Kernel

_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LINE_DIRECTIVE = re.compile(r"^\s*\.(?:loc|file|pragma|section)\b[^\n]*", re.MULTILINE)
_BRACE = re.compile(r"[{}]")
_STATEMENT_END = re.compile(r"[;{}]")
_PREFIX = re.compile(r"(?:[\w$]+:\s*)*(?:@!?%\w+\s+)?")  # labels, predicate
_CALLED = re.compile(r"call[.\w]*\s+(?:\([^)]*\)\s*,\s*)?([\w$%]+)")
_TRAPS = frozenset({"trap", "brkpt"})
_HARMLESS = frozenset(
    {
        *("abs", "add", "and", "cvt", "cvta", "mad", "max", "min", "mov", "mul", "neg", "not", "or", "prmt", "rem", "selp", "set"),
        *("setp", "shl", "shr", "sub", "xor", "bra", "exit", "ret", "call", "activemask", "elect", "vote"),
        *("ld.param", "ld.local", "st.param", "st.local"),
    }
)


def kernels(ptx: bytes) -> tuple[Kernel, ...]:
    """The kernels of a PTX text, by name. What a stub is, cubin.Kernel says.

    One difference: a body that calls a function of its own is never a stub here, even if that one only complains.
    """
    text = _LINE_DIRECTIVE.sub("", _COMMENT.sub("", ptx.decode(errors="replace")))
    return tuple(sorted((_kernel(name, body) for name, body in _bodies(text)), key=lambda kernel: kernel.name))


def _bodies(text: str) -> Iterator[tuple[str, str]]:
    """Name and body of every kernel: from the brace after its parameters to the one that closes it."""
    for entry in _ENTRY.finditer(text):
        depth, start = 0, 0
        for brace in _BRACE.finditer(text, entry.end()):
            depth += 1 if brace[0] == "{" else -1
            start = start or brace.end()
            if depth <= 0:
                yield entry[1], text[start : brace.start()]
                break


def _kernel(name: str, body: str) -> Kernel:
    statements = [
        text for part in _STATEMENT_END.split(body) if (text := _PREFIX.sub("", part.strip(), count=1)) and text[0] != "."
    ]
    operations = {statement.split()[0] for statement in statements}
    called = {found[1] if (found := _CALLED.match(statement)) else "" for statement in statements if statement.startswith("call")}
    kinds = {_kind(operation) for operation in operations}
    harmless = kinds <= _HARMLESS | _TRAPS and called <= COMPLAINTS
    complains = bool(kinds & _TRAPS or called)
    return Kernel(name, body.encode(), len(statements), stub=harmless and complains, empty=harmless and not complains)


def _kind(operation: str) -> str:
    """The operation without its types: `mul` of mul.lo.s32; for loads and stores with their space, `ld.param`."""
    parts = operation.split(".")
    return ".".join(parts[:2]) if parts[0] in ("ld", "st") else parts[0]
