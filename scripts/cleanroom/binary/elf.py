"""ELF files as pyelftools reads them, with damage turned into an error that a person can use."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from cleanroom.errors import IntegrityError

_DAMAGE = (
    # What pyelftools lets through of a file whose offsets, sizes or numbers make no sense.
    *(ELFError, ConstructError, struct.error, zlib.error, ArithmeticError, AssertionError, AttributeError, EOFError),
    *(LookupError, MemoryError, RecursionError, TypeError, ValueError),
)


@contextmanager
def reading(data: bytes) -> Iterator[ELFFile]:
    """An ELF file to read inside `with`. Raises IntegrityError if it is damaged, whenever that is noticed."""
    try:
        yield ELFFile(io.BytesIO(data))
    except _DAMAGE as error:
        raise IntegrityError(
            f"An ELF file cannot be read: {str(error) or type(error).__name__}.",
            means="It is cut off or damaged.",
            next_step="build it again",
        ) from None


UNDEFINED = 0
"""The section of a symbol that another file defines."""

_SYMBOL = struct.Struct("<IBBHQQ")  # name, type and binding, other, section, value, size


class Symbol(NamedTuple):
    """One symbol of a table. `kind` and `binding` as ELF numbers them (2 is a function, 2 is weak), `other` as it stands."""

    name: str
    kind: int
    binding: int
    other: int
    section: int


def symbols(table: Section | None, strings: Section | None) -> Iterator[Symbol]:
    """The symbols of a table in their order; none without a table.

    Read here and not by pyelftools, which drops the bit of `other` that marks a CUDA kernel, and takes minutes for torch.
    """
    names = strings.data() if strings else b""
    for name, info, other, section, _, _ in _SYMBOL.iter_unpack(table.data()) if table else ():
        text = names[name : names.index(b"\0", name)].decode(errors="replace")
        yield Symbol(text, info & 0xF, info >> 4, other, section)
