"""Why a build failed: the first root error in its log, what kind it is, and what helps.

A log ends with what gave up last (pip, setuptools, torch's extension builder, ninja), which is never the reason. What
counts is the first error of the program that could not go on: it is looked for among ninja's failed steps, else in the
order of the log, by the tables in failure_tables.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from cleanroom.console import without_control
from cleanroom.failure_tables import HINTS, RULES, Kind, Rule, Weight

MARK = "::cleanroom:: "
"""What precedes a JSON object on a line that our own scripts print inside a container."""

_CONTEXT_LINES = 6
_EXCERPT_LINES = 14
_LINE_LENGTH = 300
_SEARCHED = 2000
"""Characters of a line in which an error is looked for; commands can be far longer, messages are not."""


@dataclass(frozen=True)
class Failure:
    """The first root error. `file` and `line` where the program named them; `excerpt` is verbatim; `hint` may be empty."""

    kind: Kind
    message: str
    file: str | None
    line: int | None
    excerpt: tuple[str, ...]
    hint: str

    @property
    def where(self) -> str:
        """`file:line`, `file`, or nothing."""
        return f"{self.file}:{self.line}" if self.file and self.line else self.file or ""


_WRAPPERS = re.compile(
    r"(?:subprocess\.)?CalledProcessError|(?:\S+\.)?(?:CompileError|LinkError|DistutilsExecError|BuildBackendException)\b"
    r"|RuntimeError: Error compiling objects for extension|SystemExit"
)
"""Exceptions that only say that a command failed; the command's own output holds the reason."""

_FAILED = re.compile(r"FAILED: (?:\[code=-?\d+\] )?\S")
_STATUS = re.compile(r"\[\d+/\d+\] ")
_STOPPED = re.compile(r"ninja: build stopped|make(?:\[\d+\])?: \*\*\*")
_COMMAND = re.compile(
    r"(?:\S*/)?(?:[\w.-]*-)?(?:g\+\+|gcc|c\+\+|cc|nvcc|clang\+\+|clang)(?:-[\d.]+)? (?!fatal|error|warning).*\s-\w"
)
_SOURCE = re.compile(r"\s(?P<source>[^\s\"'=]+\.(?:c|cc|cpp|cxx|cu))(?=\s)")
_CONTEXT = re.compile(
    r"In file included from |from \S+:\d+|\S+: In |.*: note: |.*required from|.*required by|\S*ld: \S+: in function"
)
_BUILDKIT = re.compile(r"#\d+ \d+\.\d+ ?")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_INSTALLED = re.compile(r"/site-packages/|/dist-packages/|/lib/python3[\d.]*/|^<frozen")
_TEMPORARY = re.compile(r"\S*tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_")
_FLEETING = re.compile(r"/tmp/\S+|0x[0-9a-f]+")  # noqa: S108  # a pattern, not a folder in use
_EXIT_STATUS = re.compile(r"ended with exit status (?P<status>\d+)")
_STATUSES: Mapping[str, Kind] = {"137": "killed for memory", "9": "killed for memory", "124": "timeout"}
_SUBSTITUTION = re.compile(r"occurs \d+ times, declared \d+")


def parse_events(log: str) -> tuple[Mapping[str, Any], ...]:
    """The JSON objects that our own scripts printed into a log, in order. A line that was cut short is left out."""
    return tuple(event for _, event in _events(_clean(log)))


def classify(log: str) -> Failure:
    """The first root error of a build's log. A log without any gives kind `other` and its last line that says something."""
    found = _found(log)
    best = min(found, key=lambda f: (f.weight > 1, f.weight > 2, f.position), default=None)
    return best.failure if best else _unknown(_clean(log))


def group(log: str) -> tuple[tuple[Failure, int], ...]:
    """Every root error once, with the number of steps that met it, in the order of the log."""
    found = _found(log)
    roots = [f for f in found if f.weight <= 1] or [f for f in found if f.weight == 2] or found
    counted: dict[tuple[str, str], tuple[Failure, int]] = {}
    for each in roots:
        failure, count = counted.get(cause(each.failure), (each.failure, 0))
        counted[cause(each.failure)] = (failure, count + 1)
    return tuple(counted.values()) or ((classify(log), 1),)


@dataclass(frozen=True)
class _Found:
    failure: Failure
    weight: Weight
    position: int


@dataclass(frozen=True)
class _Step:
    """Consecutive lines that belong together. `failed`: ninja says so; `source`: the file that its command compiles."""

    first: int
    lines: tuple[str, ...]
    failed: bool = False
    source: str | None = None


def _found(log: str) -> list[_Found]:
    """What each step of the log says about itself; only ninja's failed steps where they say anything certain."""
    lines = _clean(log)
    steps = _steps(lines)
    in_failed = [found for step in steps if step.failed for found in _roots(step) if found.weight <= 2]
    ours = [_refusal(position, event) for position, event in _events(lines) if event.get("event") == "error"]
    certain = [*in_failed, *(f for f in ours if f.weight <= 1)]
    everything = certain or [*ours, *(found for step in steps for found in _roots(step))]
    return sorted(everything, key=lambda f: f.position)


def _clean(log: str) -> list[str]:
    lines = without_control(log).split("\n")
    return [_BUILDKIT.sub("", line, count=1) if line.startswith("#") else line for line in lines]


def _events(lines: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for position, line in enumerate(lines):
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            event = json.loads(text)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield position, event


def _steps(lines: list[str]) -> list[_Step]:
    """Cut a log at ninja's status lines. Within FAILED the command itself is skipped: it is no output."""
    cuts = [i for i, line in enumerate(lines) if _is_boundary(line)]
    steps = []
    for start, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        failed = start in cuts and bool(_FAILED.match(lines[start].lstrip()))
        command = lines[start + 1] if failed and start + 1 < end else ""
        source = _SOURCE.search(command)
        body = [lines[start], "", *lines[start + 2 : end]] if failed else lines[start:end]
        steps.append(_Step(start, tuple(body), failed, source["source"] if source else None))
    return steps


def _is_boundary(line: str) -> bool:
    text = line.lstrip()
    return bool(_FAILED.match(text) or _STATUS.match(text) or _STOPPED.match(text))


def _roots(step: _Step) -> list[_Found]:
    """The first root error of a failed step; of other lines, the first of each kind for each file: later ones follow."""
    found: dict[tuple[str, str | None, int], _Found] = {}
    raised, inside = _exceptions(step)
    for offset, line in enumerate(step.lines):
        text = line.strip(" │|")[:_SEARCHED]
        if not text or offset in inside or MARK in line or _COMMAND.match(text):
            continue
        if hit := _match(text):
            each = _diagnosis(step, offset, *hit)
            found.setdefault((each.failure.kind, each.failure.file, each.weight), each)
    roots = sorted([*found.values(), *raised], key=lambda f: f.position)
    if step.failed:
        return sorted(roots, key=lambda f: f.weight)[:1]
    return [f for f in roots if f.weight == 0] or roots


def _diagnosis(step: _Step, offset: int, rule: Rule, fields: Mapping[str, str]) -> _Found:
    message = _TEMPORARY.sub("", fields["message"].strip())
    if not message:
        message = next((line.strip() for line in step.lines[offset + 1 :] if line.strip()), "")
    file, number = _place(rule, fields, step)
    hint = _hint(rule.kind, fields.get("subject") or message)
    failure = Failure(rule.kind, message[:_LINE_LENGTH], file, number, _excerpt(step.lines, offset), hint)
    return _Found(failure, rule.weight, step.first + offset)


def _match(text: str) -> tuple[Rule, Mapping[str, str]] | None:
    for rule in RULES:
        if hit := rule.pattern.match(text):
            return rule, {name: value for name, value in hit.groupdict().items() if value is not None}
    return None


def _place(rule: Rule, fields: Mapping[str, str], step: _Step) -> tuple[str | None, int | None]:
    """Where the error is. ptxas counts lines of generated assembly, so its place is the source that was compiled; where a
    compiler ran out of memory is chance.
    """
    file, line = fields.get("file"), fields.get("line")
    if rule.weight == 0 or file is None or file.startswith("<") or (file.endswith(".ptx") and step.source):
        return (step.source if rule.weight <= 1 else None), None
    return os.path.normpath(_TEMPORARY.sub("", file)), int(line) if line else None


def _excerpt(lines: tuple[str, ...], at: int) -> tuple[str, ...]:
    """The include chain before an error, the error, and the source lines that follow it."""
    first = at
    while first > 0 and at - first < _CONTEXT_LINES and _CONTEXT.match(lines[first - 1].lstrip()):
        first -= 1
    last = at + 1
    indent = len(lines[at]) - len(lines[at].lstrip())
    while last < len(lines) and last - first < _EXCERPT_LINES:
        line = lines[last]
        inner = len(line) - len(line.lstrip()) > indent
        if not (inner or ": note: " in line):
            break
        last += 1
    return tuple(line[indent if line[:indent].isspace() else 0 :].rstrip()[:_LINE_LENGTH] for line in lines[first:last])


def _exceptions(step: _Step) -> tuple[list[_Found], set[int]]:
    """Python's own errors, and the lines that tell of them. Of exceptions raised from one another the cause counts, of
    those raised while handling another the last; those that only say that a command failed never do.
    """
    lines = step.lines
    found: list[_Found] = []
    inside: set[int] = set()
    link: Link = "none"
    position = _next_traceback(lines, 0)
    while position < len(lines):
        start, position, failure = _traceback(lines, position)
        inside.update(range(start, position))
        each = [_Found(failure, 2, step.first + position - 1)] if failure else []
        if link == "none" or not found:
            found += each
        elif link == "context" and each:
            found[-1] = each[0]
        link = _link(lines, position)
        position = _next_traceback(lines, position)
    return found, inside


def _next_traceback(lines: tuple[str, ...], position: int) -> int:
    while position < len(lines) and not lines[position].strip(" │|").startswith(_TRACEBACK):
        position += 1
    return position


def _traceback(lines: tuple[str, ...], start: int) -> tuple[int, int, Failure | None]:
    """Read one traceback: where it starts, the line after its exception, and the failure unless it is a mere wrapper."""
    indent = lines[start].index(_TRACEBACK)
    frames: list[tuple[str, int]] = []
    end = start + 1
    while end < len(lines) and (not lines[end][indent:].strip() or lines[end][indent : indent + 1].isspace()):
        if frame := _FRAME.match(lines[end][indent:]):
            frames.append((frame["file"], int(frame["line"])))
        end += 1
    text = lines[end][indent:].rstrip() if end < len(lines) else ""
    if not _EXCEPTION.match(text) or _WRAPPERS.match(text):
        return start, end + 1, None
    file, line = _own_frame(frames)
    kind, subject = _kind_of_exception(text)
    excerpt = tuple(row[indent:].rstrip()[:_LINE_LENGTH] for row in lines[max(start + 1, end - 6) : end + 1])
    return start, end + 1, Failure(kind, text[:_LINE_LENGTH], file, line, excerpt, _hint(kind, subject or text))


Link = Literal["cause", "context", "none"]


def _link(lines: tuple[str, ...], position: int) -> Link:
    """How the traceback that follows hangs together with the one that ends at `position`."""
    for line in lines[position : position + 3]:
        text = line.strip(" │|")
        if text.startswith("The above exception was the direct cause"):
            return "cause"
        if text.startswith("During handling of the above exception"):
            return "context"
    return "none"


def _own_frame(frames: list[tuple[str, int]]) -> tuple[str | None, int | None]:
    """The innermost frame of the project's own code. setuptools runs setup.py as a text, which Python calls <string>."""
    run_by_setuptools = any(file.endswith("setuptools/build_meta.py") for file, _ in frames)
    for file, line in reversed(frames):
        if file == "<string>" and run_by_setuptools:
            return "setup.py", line
        if not _INSTALLED.search(file) and not file.startswith("<"):
            return file, line
    return frames[-1] if frames else (None, None)


def _kind_of_exception(text: str) -> tuple[Kind, str]:
    """What an exception's text says by the same tables, else an error in setup. A tool that is not there is a kind too."""
    hit = _match(text)
    if hit and hit[0].kind in ("disk full", "killed for memory", "network refused", "timeout", "architecture refused"):
        return hit[0].kind, ""
    if hit and hit[0].kind in ("missing tool", "unsupported host compiler"):
        return hit[0].kind, hit[1].get("subject", "")
    return "python error in setup", ""


def _refusal(position: int, event: Mapping[str, Any]) -> _Found:
    """Our own scripts' word. That a build ended with an exit status is no reason; that a check failed is."""
    message = str(event.get("message", ""))
    if status := _EXIT_STATUS.search(message):
        kind: Kind = _STATUSES.get(status["status"], "other")
        return _Found(Failure(kind, message, None, None, (message,), _hint(kind, message)), 3, position)
    kind = "substitution refused" if _SUBSTITUTION.search(message) else "refused by a check"
    if event.get("kind") in get_args(Kind):
        kind = event["kind"]
    file = message.split(": ", 1)[0] if kind == "substitution refused" else None
    return _Found(Failure(kind, message, file, None, (message,), _hint(kind, message)), 1, position)


def _hint(kind: Kind, message: str) -> str:
    return next((hint for of, pattern, hint in HINTS if of == kind and re.search(pattern, message)), "")


def cause(failure: Failure) -> tuple[str, str]:
    """What makes two failures the same one: kind and message, whatever the place; temporary names and addresses aside."""
    return failure.kind, _FLEETING.sub("#", failure.message)


def _unknown(lines: list[str]) -> Failure:
    said = [line.strip() for line in lines if line.strip() and MARK not in line]
    message = said[-1][:_LINE_LENGTH] if said else "the log is empty"
    return replace(Failure("other", message, None, None, (), ""), excerpt=tuple(line[:_LINE_LENGTH] for line in said[-5:]))
