"""Reading YAML strictly: every mistake of a file is collected, with its line, key, value and what is allowed.

PyYAML alone keeps the last of two equal keys, reads 12.10 as 12.1 and `no` as false, and expands aliases without limit.
Here nothing is converted: text must be text, and a mistake never hides the next one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import yaml

from cleanroom.arch import Arch, parse_arch
from cleanroom.errors import ArchError, CleanroomError, EnvsError

T = TypeVar("T")

_KINDS = {
    "tag:yaml.org,2002:str": "text",
    "tag:yaml.org,2002:int": "a whole number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:null": "empty",
    "tag:yaml.org,2002:timestamp": "a date",
    "tag:yaml.org,2002:merge": "a merge key",
}
_TEXT, _INT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:int"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")


def nearest(word: str, known: Collection[str]) -> str:
    """A hint for a mistyped word: "; did you mean 'x'?", or nothing where none is near."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(words: Collection[str]) -> str:
    """Known words for a message, sorted."""
    return ", ".join(sorted(words)) or "none"


@dataclass
class Mistakes:
    """Everything found wrong so far, over all files."""

    lines: list[str] = field(default_factory=list)
    classes: set[type[CleanroomError]] = field(default_factory=set)

    def add(self, file: str, line: int | None, key: str, text: str, kind: type[CleanroomError] = EnvsError) -> None:
        place = file if line is None else f"{file}:{line}"
        self.lines.append(f"{place}: {key}: {text}" if key else f"{place}: {text}")
        self.classes.add(kind)

    def raise_if_any(self, folder: str) -> None:
        """Raise all mistakes as one error: ArchError where all are about architectures, else EnvsError."""
        if not self.lines:
            return
        kind = ArchError if self.classes == {ArchError} else EnvsError
        count = "1 mistake" if len(self.lines) == 1 else f"{len(self.lines)} mistakes"
        raise kind(
            f"{folder}/ has {count}:\n" + "\n".join(f"  {line}" for line in self.lines),
            means="Nothing was loaded; a target is built from files without mistakes only.",
            next_step=f"correct the line{'' if len(self.lines) == 1 else 's'} named above",
        )


@dataclass(frozen=True)
class Item:
    """One value of a file with its place. Reading it as the wrong type adds a mistake and gives an empty value."""

    mistakes: Mistakes
    file: str
    key: str
    node: yaml.Node

    @property
    def line(self) -> int:
        return cast("int", self.node.start_mark.line) + 1

    def line_of(self, key: str) -> int:
        """The line of a mapping's value, the mapping's own where it has no such key."""
        if isinstance(self.node, yaml.MappingNode):
            for name, value in self.node.value:
                if name.value == key:
                    return cast("int", value.start_mark.line) + 1
        return self.line

    @property
    def shown(self) -> str:
        """The value as it is written, shortened."""
        if isinstance(self.node, yaml.ScalarNode):
            return repr(self.node.value) if len(self.node.value) <= 60 else repr(self.node.value[:57] + "...")
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "a mapping"

    def wrong(self, text: str, kind: type[CleanroomError] = EnvsError) -> None:
        """Add a mistake at this place."""
        self.mistakes.add(self.file, self.line, self.key, text, kind)

    def fields(self, required: Sequence[str], optional: Sequence[str] = ()) -> Fields:
        """The values of a mapping whose keys are known; unknown, missing and repeated keys are mistakes."""
        found = dict(self.entries())
        known = [*required, *optional]
        for name, item in list(found.items()):
            if name not in known:
                hint = nearest(name, known)
                item.wrong(f"unknown key{hint or ''} (known here: {', '.join(known)})")
                del found[name]
        if isinstance(self.node, yaml.MappingNode):
            for name in required:
                if name not in found:
                    self.wrong(f"the key {name!r} is missing")
        return Fields(found)

    def entries(self) -> Iterator[tuple[str, Item]]:
        """The (key, value) pairs of a mapping with free keys; a repeated key is a mistake and only its first value counts."""
        if not isinstance(self.node, yaml.MappingNode):
            self.wrong(f"is {self._kind()} ({self.shown}), a mapping is needed")
            return
        seen: dict[str, int] = {}
        for key_node, value in self.node.value:
            line = key_node.start_mark.line + 1
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            path = f"{self.key}.{name}" if self.key else name
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TEXT:
                written = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                kind = _KINDS.get(key_node.tag, "not text")
                self.mistakes.add(self.file, line, self.key, f"the key {written} is {kind}; keys are text, quote it")
            elif name in seen:
                text = f"the key is already given on line {seen[name]}; YAML would silently keep the last"
                self.mistakes.add(self.file, line, path, text)
            else:
                seen[name] = line
                yield name, Item(self.mistakes, self.file, path, value)

    def items(self) -> list[Item]:
        """The items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.wrong(f"is {self._kind()} ({self.shown}), a list is needed")
            return []
        return [Item(self.mistakes, self.file, f"{self.key}[{i}]", node) for i, node in enumerate(self.node.value)]

    def text(self, allowed: str = "", check: Callable[[str], bool] | None = None, *, empty: bool = False) -> str:
        """A string. `check` decides whether it is acceptable, `allowed` says in words what would be."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != _TEXT:
            if isinstance(self.node, yaml.ScalarNode) and self.node.tag in _KINDS and self.node.value:
                self.wrong(f"{self.node.value} is {self._kind()} to YAML, text is needed; quote it")
            else:
                self.wrong(f"is {self._kind()}, text is needed")
            return ""
        value = cast("str", self.node.value)
        if not value.strip() and not empty:
            self.wrong("is empty" + (f"; allowed: {allowed}" if allowed else ""))
        elif check is not None and not check(value):
            self.wrong(f"{self.shown} is not acceptable; allowed: {allowed}")
        return value

    def choice(self, options: Collection[str]) -> str:
        """One of a few words."""
        value = self.text()
        if value.strip() and value not in options:
            self.wrong(f"{value!r} is not known{nearest(value, options)} (allowed: {listed(options)})")
        return value

    def integer(self, least: int = 0) -> int:
        """A whole number of at least `least`."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != _INT or not _WHOLE.fullmatch(self.node.value):
            self.wrong(f"is {self._kind()} ({self.shown}), a whole number is needed, written without quotes")
            return least
        value = int(self.node.value)
        if value < least:
            self.wrong(f"{value} is too small; allowed: {least} or more")
        return value

    def texts(self, allowed: str = "", check: Callable[[str], bool] | None = None, *, least: int = 0) -> tuple[str, ...]:
        """A list of different strings, at least `least` of them."""
        items = self.items()
        values = [item.text(allowed, check) for item in items]
        for i, (item, value) in enumerate(zip(items, values, strict=True)):
            if value and value in values[:i]:
                item.wrong(f"{value!r} is listed twice")
        if len(values) < least and isinstance(self.node, yaml.SequenceNode):
            self.wrong(f"the list is empty; at least {least} is needed")
        return tuple(values)

    def archs(self) -> tuple[Arch, ...]:
        """A list of different architectures, at least one."""
        if isinstance(self.node, yaml.ScalarNode) and self.node.value:
            # `architectures: native`, or one value without brackets: say what is wrong with the value first.
            arch = self.arch()
            self.wrong("is one value, a list is needed" + (f": [{arch}]" if arch else ""), ArchError)
            return ()
        if not isinstance(self.node, yaml.SequenceNode):
            self.wrong("the list of architectures is empty; write for example [sm_100a]", ArchError)
            return ()
        found: list[Arch] = []
        for item in self.items():
            arch = item.arch()
            same = [a for a in found if arch is not None and a.sm == arch.sm]
            if same and same[0] == arch:
                item.wrong(f"{arch} is listed twice", ArchError)
            elif same:
                text = f"{arch} and {same[0]} are one architecture; for both kinds of code write {same[0].sm}+PTX"
                item.wrong(text, ArchError)
            elif arch is not None:
                found.append(arch)
        if not self.node.value:
            self.wrong("the list of architectures is empty; write for example [sm_100a]", ArchError)
        return tuple(found)

    def arch(self) -> Arch | None:
        """One architecture; None after a mistake."""
        try:
            # YAML has read 12.10 as 12.1 by now; only the node still knows what was written.
            return parse_arch(self._plain(), where=self.key, written=self.node.value if self._is_scalar else "")
        except ArchError as error:
            text = " ".join(part for part in (error.what.removeprefix(f"{self.key}: "), error.means, error.next_step) if part)
            self.wrong(text, ArchError)
            return None

    @property
    def _is_scalar(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode)

    def _plain(self) -> object:
        if not self._is_scalar:
            return [] if isinstance(self.node, yaml.SequenceNode) else {}
        if self.node.tag == _TEXT:
            return self.node.value
        return yaml.safe_load(self.node.value) if self.node.tag in _KINDS else self.node.value

    def _kind(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        return _KINDS.get(self.node.tag, f"of the type {self.node.tag}")


class _Loader(yaml.SafeLoader):
    """Refuses anchors and aliases: they hide what a target says, and a few of them can expand without limit."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs do not describe the parser
        if getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not used here, write the value out"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


@dataclass(frozen=True)
class Fields:
    """The values of a mapping by key. A key that is absent reads as empty: where it was required, that is a mistake already."""

    found: Mapping[str, Item]

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def __getitem__(self, key: str) -> Item:
        return self.found[key]

    def text(self, key: str, allowed: str = "", check: Callable[[str], bool] | None = None, *, empty: bool = False) -> str:
        return self[key].text(allowed, check, empty=empty) if key in self else ""

    def choice(self, key: str, options: Collection[str]) -> str:
        return self[key].choice(options) if key in self else ""

    def integer(self, key: str, least: int = 0) -> int:
        return self[key].integer(least) if key in self else least

    def texts(self, key: str, allowed: str = "", check: Callable[[str], bool] | None = None, *, least: int = 0) -> tuple[str, ...]:
        return self[key].texts(allowed, check, least=least) if key in self else ()

    def archs(self, key: str) -> tuple[Arch, ...]:
        return self[key].archs() if key in self else ()

    def items(self, key: str) -> list[Item]:
        return self[key].items() if key in self else []

    def entries(self, key: str) -> list[tuple[str, Item]]:
        return list(self[key].entries()) if key in self else []

    def fields(self, key: str, required: Sequence[str], optional: Sequence[str] = ()) -> Fields:
        return self[key].fields(required, optional) if key in self else Fields({})


def read_item(label: str, data: bytes, mistakes: Mistakes) -> Item | None:
    """The content of one file as an Item; None, with a mistake added, where it is not YAML at all."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        mistakes.add(label, None, "", f"is not UTF-8 text (byte {error.start})")
        return None
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        mistakes.add(label, mark.line + 1 if mark else None, "", f"is not valid YAML: {reason}")
        return None
    except (yaml.YAMLError, RecursionError) as error:
        mistakes.add(label, None, "", f"is not valid YAML: {' '.join(str(error).split()) or 'nested too deeply'}")
        return None
    if node is None:
        mistakes.add(label, None, "", "is empty")
        return None
    return Item(mistakes, label, "", node)


def read_file(path: Path, label: str, read: Callable[[Item], T]) -> T:
    """What `read` makes of one YAML file that must be there. Raises EnvsError with every mistake of the file."""
    mistakes = Mistakes()
    content = read_bytes(path, label, mistakes)
    item = None if content is None else read_item(label, content, mistakes)
    found = None if item is None else read(item)
    mistakes.raise_if_any(label.rpartition("/")[0])
    return cast("T", found)


def read_bytes(path: Path, label: str, mistakes: Mistakes) -> bytes | None:
    """The bytes of a file; None, with a mistake added, where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        mistakes.add(label, None, "", f"cannot be read: {error.strerror or error}")
        return None
