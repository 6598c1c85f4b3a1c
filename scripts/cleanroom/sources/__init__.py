"""Where locked files come from: one module per kind of entry, behind one Protocol.

A source finds a file by what the lock says (name, version, file) and by the machine's own configuration (apt's, pip's).
It never decides whether the bytes are right: the store does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cleanroom.lock import Entry, Kind

BLOCK = 1 << 20
"""Bytes that are received at once."""


class Gone(Exception):
    """The source answers, but has no such file any more."""


class Unreachable(Exception):
    """The source does not answer, or the transfer breaks again and again. The text says how."""


class Stopped(Exception):
    """The work was called off while this file was being received."""


class Part:
    """A file that is being received: how much of it is there, and a place for the bytes that follow.

    `report` is told how many bytes came (negative: are taken back); `stop` calls the transfer off between two blocks.
    """

    def __init__(self, path: Path, size: int, report: Callable[[int], None], stop: threading.Event) -> None:
        self.path = path
        self.size = size
        self.offset = path.stat().st_size
        self.resumed = self.offset > 0
        self._report = report
        self._stop = stop
        self._report(self.offset)

    @property
    def complete(self) -> bool:
        """Whether as many bytes are there as the lock says, or more."""
        return self.offset >= self.size

    def write(self, block: bytes) -> None:
        """Append the next bytes. Raises Stopped if the work was called off."""
        if self._stop.is_set():
            raise Stopped
        with self.path.open("ab") as stream:
            stream.write(block)
        self.offset += len(block)
        self._report(len(block))

    def restart(self) -> None:
        """Throw away what is there."""
        with self.path.open("wb"):
            pass
        self._report(-self.offset)
        self.offset = 0
        self.resumed = False

    def pause(self, seconds: float) -> None:
        """Wait before another attempt. Raises Stopped if the work is called off meanwhile."""
        if self._stop.wait(seconds):
            raise Stopped


class Source(Protocol):
    """One kind of place that files come from."""

    @property
    def kind(self) -> Kind:
        """The kind of entries it brings."""
        ...

    def fetch(self, entry: Entry, part: Part) -> None:
        """Receive one file. Raises Gone, Unreachable, Stopped, or an error of cleanroom.errors."""
        ...

    def explain(self, entry: Entry) -> str:
        """For an entry that has gone: which version is there now, in one sentence."""
        ...
