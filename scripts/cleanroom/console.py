"""What a person sees on the terminal, and what a program reads with --json.

A terminal gets bars and a live table; anything else (a pipe, a CI log) gets plain lines, a few seconds apart. With
--json nothing is written for people: every event is one JSON object on a line of its own on standard output.
All methods may be called from several threads.
"""

from __future__ import annotations

import json as json_module
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cleanroom.errors import CleanroomError

PLAIN_WIDTH = 120
"""Columns of a table where there is no terminal to ask."""
PLAIN_INTERVAL = 5.0
"""Seconds between two progress lines, or two log lines of one step, where there is no terminal."""
HEARTBEAT = 60.0
"""Seconds of silence after which plain output names what still runs, so that a CI log does not look dead."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_STYLES = {"failed": "bold red", "cached": "dim", "reused": "dim", "not attempted": "yellow", "interrupted": "yellow"}


def without_control(text: str) -> str:
    """The text as it would be read: no escape sequences, and of a line rewritten with carriage returns the last state."""
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return _CONTROL.sub("", "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines))


def human_bytes(count: float) -> str:
    """Bytes in decimal units with three figures: 999 B, 1.23 kB, 45.6 MB, 5.70 GB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.5 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{value:.0f} B"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f} {unit}"


def human_seconds(seconds: float) -> str:
    """A duration as a person says it: 0.4 s, 12 s, 3 min 58 s, 1 h 04 min."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


class Progress:
    """How far a piece of work is. Made by Console.progress."""

    def __init__(self, console: Console, title: str, total: int | None, unit: str) -> None:
        self.title, self.total, self.unit, self.done = title, total, unit, 0
        self._console = console
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._said = self._began

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._began

    def advance(self, count: int = 1) -> None:
        """Say that `count` more units are done. Negative takes back what a retry will do again."""
        with self._lock:
            self.done += count
            due = time.monotonic() - self._said >= PLAIN_INTERVAL
            if due:
                self._said = time.monotonic()
        if due:
            self._console._progress_line(self)  # noqa: SLF001  # two halves of one module

    def amount(self) -> str:
        """`1.20 GB of 3.40 GB`, or `12 of 40 files`."""
        if self.unit == "B":
            return human_bytes(self.done) + ("" if self.total is None else f" of {human_bytes(self.total)}")
        return (f"{self.done}" if self.total is None else f"{self.done} of {self.total}") + f" {self.unit}"

    def speed(self) -> str:
        """Average so far, empty until it means something."""
        if self.seconds < 0.5 or self.done <= 0:
            return ""
        rate = self.done / self.seconds
        return f"{human_bytes(rate)}/s" if self.unit == "B" else f"{rate:.1f} {self.unit}/s"

    def line(self) -> str:
        """One plain line: amount, share, speed and time."""
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        parts = [self.amount() + share, self.speed(), human_seconds(self.seconds)]
        return f"{self.title}: " + ", ".join(p for p in parts if p)

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self.total or None, completed=min(self.done, self.total or 0), width=20)
        share = f"{min(100, 100 * self.done // self.total)} %" if self.total else ""
        cells = (Text(self.title, style="bold"), bar, share, self.amount(), self.speed(), human_seconds(self.seconds))
        for _ in cells:
            table.add_column(no_wrap=True)
        table.add_row(*cells)
        return table


@dataclass
class _Step:
    began: float
    text: str = ""
    said: float = 0.0


class StepView:
    """Steps that run side by side. Made by Console.steps."""

    def __init__(self, console: Console, title: str, total: int | None) -> None:
        self.title, self.total, self.finished = title, total, 0
        self._console = console
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._running: dict[str, _Step] = {}

    def expect(self, total: int) -> None:
        """Set the number of steps once it is known."""
        self.total = total

    def start(self, name: str) -> None:
        """A step begins."""
        with self._lock:
            self._running[name] = _Step(time.monotonic())
        self._console._event("step_started", f"{self.title}: {name} started", title=self.title, step=name)  # noqa: SLF001

    def log(self, name: str, text: str) -> None:
        """A line (or several) that a step printed. Terminals show the last one; plain output one every few seconds."""
        shown = without_control(text).rstrip("\n")
        last = next((line.strip() for line in reversed(shown.split("\n")) if line.strip()), "")
        now = time.monotonic()
        with self._lock:
            step = self._running.setdefault(name, _Step(now))
            step.text = last or step.text
            due = bool(last) and now - step.said >= PLAIN_INTERVAL
            if due:
                step.said = now
        if self._console.json:
            self._console._emit("step_log", title=self.title, step=name, text=shown)  # noqa: SLF001
        elif due and not self._console.live:
            self._console.info(f"{name} | {last}")

    def finish(self, name: str, status: str, seconds: float | None = None) -> None:
        """A step ends with a status ("built", "failed", "cached", "not attempted" …) after so many seconds."""
        with self._lock:
            step = self._running.pop(name, None)
            self.finished += 1
            count = f"{self.finished} of {self.total}" if self.total else f"{self.finished}"
        if seconds is None:
            seconds = time.monotonic() - step.began if step else 0.0
        self._console._event(  # noqa: SLF001
            "step_finished",
            f"[{count}] {name} {status}" + (f", {human_seconds(seconds)}" if seconds >= 0.05 else ""),
            style=_STYLES.get(status, "green"),
            title=self.title,
            step=name,
            status=status,
            seconds=round(seconds, 3),
        )

    def running(self) -> tuple[tuple[str, float, str], ...]:
        """Name, seconds so far and last line of each running step, oldest first."""
        now = time.monotonic()
        with self._lock:
            return tuple((name, now - s.began, s.text) for name, s in self._running.items())

    def line(self) -> str:
        """One plain line that names what runs."""
        names = ", ".join(f"{name} ({human_seconds(seconds)})" for name, seconds, _ in self.running())
        return f"{self.title}: {self._count()} done" + (f", running: {names}" if names else "")

    def _count(self) -> str:
        return f"{self.finished} of {self.total}" if self.total else str(self.finished)

    def __rich__(self) -> RenderableType:
        elapsed = human_seconds(time.monotonic() - self._began)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for name, seconds, text in self.running():
            table.add_row(Text(f"  {name}"), Text(human_seconds(seconds)), Text(text, style="dim"))
        return Group(Text(f"{self.title}  {self._count()}  {elapsed}", style="bold"), table)


class Console:
    """The one place that writes to the terminal.

    What people asked for goes to standard output, what happens meanwhile to standard error; both to `stream` if one is given.
    With `json`, every line goes to `events`, standard output unless given.
    """

    def __init__(self, *, json: bool = False, stream: TextIO | None = None, events: TextIO | None = None) -> None:
        self.json = json
        self.stream = stream if stream is not None else sys.stderr
        self._events = events if events is not None else sys.stdout
        self._answers = stream if stream is not None else sys.stdout
        terminal = not json and self.stream.isatty()
        self.rich = _rich(self.stream, terminal=terminal)
        self._rich_answers = _rich(self._answers, terminal=not json and self._answers.isatty())
        self.live = terminal and not self.rich.is_dumb_terminal
        """Whether bars and tables move; otherwise plain lines are written."""
        self._lock = threading.RLock()
        self._wrote = time.monotonic()
        self._shown: list[RenderableType] = []
        self._display: Live | None = None

    def info(self, text: str) -> None:
        """A plain line."""
        self._event("info", text, text=text)

    def warn(self, text: str) -> None:
        """A line that a person should read although the work goes on."""
        self._event("warning", f"warning: {text}", style="yellow", text=text)

    def error(self, error: CleanroomError) -> None:
        """What happened, what it means, what to type next."""
        if self.json:
            self._emit(
                "error",
                kind=type(error).__name__,
                exit_code=error.exit_code,
                what=error.what,
                means=error.means,
                next_step=error.next_step,
            )
            return
        self._print(Text.assemble(("error: ", "bold red"), (without_control(error.what), "bold")))
        if error.means:
            self._print(Text(without_control(error.means)))
        if error.next_step:
            self._print(Text.assemble(("Next: ", "bold"), without_control(error.next_step)))

    def result(self, values: Mapping[str, Any]) -> None:
        """What a command was asked for, as names and values."""
        if self.json:
            self._emit("result", result=dict(values))
            return
        width = max((len(str(key)) for key in values), default=0)
        for key, value in values.items():
            self._answer(Text.assemble((f"{key}:".ljust(width + 2), "bold"), without_control(_as_text(value))))

    def show(self, renderable: RenderableType) -> None:
        """A rich table or text for people; nothing with --json."""
        if not self.json:
            self._answer(renderable)

    @contextmanager
    def progress(self, title: str, total: int | None, unit: str = "B") -> Iterator[Progress]:
        """A bar with total, speed and elapsed time while the block runs; one line that says how it ended."""
        work = Progress(self, title, total, unit)
        if self.json:
            self._emit("progress", title=title, done=0, total=total, unit=unit, seconds=0.0)
        elif not self.live:
            self.info(f"{title}: " + (work.amount() if total is None else _amount(total, unit)))
        with self._on_screen(work):
            yield work
        if self.json:
            self._progress_line(work)
        else:
            speed = work.speed()
            self.info(f"{title}: {_amount(work.done, unit)} in {human_seconds(work.seconds)}" + (f", {speed}" if speed else ""))

    @contextmanager
    def steps(self, title: str, total: int | None = None) -> Iterator[StepView]:
        """A table of what runs, with elapsed time for each step and `n of m`, while the block runs."""
        view = StepView(self, title, total)
        if self.json or self.live:
            with self._on_screen(view):
                yield view
            return
        stop = threading.Event()
        heartbeat = threading.Thread(target=self._heartbeat, args=(view, stop), name=f"heartbeat {title}", daemon=True)
        heartbeat.start()
        try:
            yield view
        finally:
            stop.set()
            heartbeat.join()

    def _heartbeat(self, view: StepView, stop: threading.Event) -> None:
        while not stop.wait(min(1.0, HEARTBEAT)):
            if view.running() and time.monotonic() - self._wrote >= HEARTBEAT:
                self.info(view.line())

    @contextmanager
    def _on_screen(self, renderable: RenderableType) -> Iterator[None]:
        """Keep `renderable` at the bottom of the terminal. One display is shared, so that bars of threads stack up."""
        if not self.live:
            yield
            return
        with self._lock:
            self._shown.append(renderable)
            if self._display is None:
                self._display = Live(
                    console=self.rich,
                    get_renderable=lambda: Group(*self._shown),
                    refresh_per_second=5,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=self.stream is sys.stderr,
                )
                self._display.start()
        try:
            yield
        finally:
            with self._lock:
                self._shown.remove(renderable)
                if not self._shown and self._display is not None:
                    display, self._display = self._display, None
                    display.stop()

    def _progress_line(self, work: Progress) -> None:
        if self.json:
            self._emit(
                "progress", title=work.title, done=work.done, total=work.total, unit=work.unit, seconds=round(work.seconds, 3)
            )
        elif not self.live:
            self.info(work.line())

    def _event(self, event: str, line: str, *, style: str = "", **fields: Any) -> None:
        if self.json:
            self._emit(event, **fields)
        else:
            self._print(Text(without_control(line), style=style))

    def _print(self, renderable: RenderableType) -> None:
        self._write("stream", self.rich, renderable)

    def _answer(self, renderable: RenderableType) -> None:
        self._write("_answers", self._rich_answers, renderable)

    def _write(self, stream: str, rich: RichConsole, renderable: RenderableType) -> None:
        with self._lock, self._until_reader_leaves(stream):
            self._wrote = time.monotonic()
            rich.print(renderable, soft_wrap=isinstance(renderable, Text))
            rich.file.flush()

    def _emit(self, event: str, **fields: Any) -> None:
        line = json_module.dumps({"event": event, **fields}, default=str)
        with self._lock, self._until_reader_leaves("_events"):
            self._wrote = time.monotonic()
            self._events.write(line + "\n")
            self._events.flush()

    @contextmanager
    def _until_reader_leaves(self, name: str) -> Iterator[None]:
        """`cleanroom … | head` closes the pipe: the work goes on, into nothing, as the reader wanted no more."""
        try:
            yield
        except BrokenPipeError:
            stream: TextIO = getattr(self, name)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)


class _Rich(RichConsole):
    def on_broken_pipe(self) -> None:
        """Let the reader's leaving be told by the exit code that a shell gives it; Rich would end with 1."""
        raise BrokenPipeError


def _rich(stream: TextIO, *, terminal: bool) -> RichConsole:
    width = None if terminal else PLAIN_WIDTH
    return _Rich(file=stream, force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False)


def _amount(count: int, unit: str) -> str:
    return human_bytes(count) if unit == "B" else f"{count} {unit}"


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value)
    return str(value)
