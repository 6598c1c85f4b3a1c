"""Reading source text without compiling it: comments, strings, preprocessor conditions, inline PTX, Python's syntax tree.

No guesses about meaning are made here; what a name or an instruction means is data (sensitivity.py).
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

When = Literal["always", "in a function", "under a condition", "if it is there"]
"""When an import statement runs. `if it is there`: its absence is caught."""

_CUDA = re.compile(
    r"""//[^\n]*(?<!\\)(?:\\\n[^\n]*)*"""
    r"""|/\*.*?\*/"""
    r"""|R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)\""""
    r"""|"(?:\\.|[^"\\\n])*\""""
    r"""|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
_PYTHON = re.compile(
    r"""\#[^\n]*"""
    r"""|(?P<quote>\"{3}|'{3})(?:\\.|.)*?(?P=quote)"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""",
    re.DOTALL,
)
_HASH = re.compile(r"#[^\n]*")
_NOT_NEWLINE = re.compile(r"[^\n]")

CUDA_ENDS = (".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".asc")
PYTHON_ENDS = (".py",)
TEXT_ENDS = (".toml", ".cfg", ".cmake", ".txt", ".sh")


@dataclass(frozen=True)
class SourceText:
    """One file. `path` is relative to the source tree; lines are counted from 1."""

    path: str
    raw: str

    @property
    def language(self) -> Literal["cuda", "python", "text"]:
        return "cuda" if self.path.endswith(CUDA_ENDS) else "python" if self.path.endswith(PYTHON_ENDS) else "text"

    @cached_property
    def text(self) -> str:
        """Without comments and docstrings. They become blanks, so that every position stays where it was."""
        return self._blanked(strings=False)

    @cached_property
    def code(self) -> str:
        """Without comments and without the content of string literals."""
        return self._blanked(strings=True)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer("\n", self.raw))]

    def line_of(self, position: int) -> int:
        return bisect_right(self._line_starts, position)

    def line(self, number: int) -> str:
        """One line without comments, spaces squeezed."""
        start = self._line_starts[number - 1]
        end = self.text.find("\n", start)
        return " ".join(self.text[start : end if end >= 0 else None].split())

    @cached_property
    def tree(self) -> ast.Module | None:
        """Python's syntax tree; None for another language, and for a file that this Python cannot read."""
        if self.language != "python":
            return None
        try:
            return ast.parse(self.raw)
        except (SyntaxError, ValueError, RecursionError):
            return None

    def _blanked(self, *, strings: bool) -> str:
        token = {"cuda": _CUDA, "python": _PYTHON, "text": _HASH}[self.language]

        def blank(match: re.Match[str]) -> str:
            found = match[0]
            if found.startswith(("//", "/*", "#")) or (strings and len(found) > 1) or self._is_docstring(match):
                return _NOT_NEWLINE.sub(" ", found)
            return found

        return token.sub(blank, self.raw)

    def _is_docstring(self, match: re.Match[str]) -> bool:
        """A string in triple quotes that is a statement of its own: nothing else is on its first and last line."""
        if self.language != "python" or not match["quote"]:
            return False
        before = self.raw[self.raw.rfind("\n", 0, match.start()) + 1 : match.start()]
        after = self.raw[match.end() : match.end() + 1]
        return not before.strip(" \trRuU") and after in ("\n", "")


# --- conditions ------------------------------------------------------------------------------------------------------

Condition = Callable[[Mapping[str, int]], "bool | None"]
"""True or false for values of names; None where a name it depends on has no value."""

_WORDS = {"&&": " and ", "||": " or ", "!": " not "}
_NAME = re.compile(r"[A-Za-z_]\w*")


def condition(text: str, macros: Mapping[str, Condition] | None = None) -> Condition | None:
    """A preprocessor expression, or a comparison such as `major == 10`, as a function. None where it is not one.

    `macros` are names that are defined exactly where another condition holds.
    """
    known = dict(macros or {})
    prepared = re.sub(r"\bdefined\s*\(?\s*([A-Za-z_]\w*)\s*\)?", r"__defined__(\1)", text)
    prepared = re.sub(r"&&|\|\||!(?!=)", lambda m: _WORDS[m[0]], prepared).strip()
    try:
        tree = ast.parse(prepared, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    return lambda values: _truth(tree, values, known)


def _truth(node: ast.expr, values: Mapping[str, int], macros: Mapping[str, Condition]) -> bool | None:
    match node:
        case ast.BoolOp():
            parts = [_truth(part, values, macros) for part in node.values]
            decisive = isinstance(node.op, ast.Or)
            return decisive if decisive in parts else None if None in parts else not decisive
        case ast.UnaryOp(op=ast.Not()):
            inner = _truth(node.operand, values, macros)
            return None if inner is None else not inner
        case ast.Call(func=ast.Name(id="__defined__"), args=[ast.Name(id=name)]):
            return macros[name](values) if name in macros else name in values
        case ast.Compare():
            numbers = [_number(part, values) for part in (node.left, *node.comparators)]
            pairs = zip(numbers, node.ops, numbers[1:], strict=False)
            results = [None if a is None or b is None else _compare(a, op, b) for a, op, b in pairs]
            return False if False in results else None if None in results else True
        case _:
            number = _number(node, values)
            return None if number is None else bool(number)


def _number(node: ast.expr, values: Mapping[str, int]) -> int | None:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return values.get(name)
    return None


def _compare(left: int, op: ast.cmpop, right: int) -> bool | None:
    results = {
        ast.Eq: left == right,
        ast.NotEq: left != right,
        ast.Lt: left < right,
        ast.LtE: left <= right,
        ast.Gt: left > right,
        ast.GtE: left >= right,
    }
    return results.get(type(op))


_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?P<word>if|ifdef|ifndef|elif)\b(?P<rest>(?:\\\n|[^\n])*)", re.MULTILINE)


def directives(source: SourceText, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """The conditions of #if, #ifdef, #ifndef and #elif on any of `names`, with their lines, each as one expression."""
    if not any(name in source.raw for name in names):
        return
    for match in _DIRECTIVE.finditer(source.code):
        rest = " ".join(match["rest"].replace("\\\n", " ").split())
        if not set(_NAME.findall(rest)) & set(names):
            continue
        expression = {"ifdef": f"defined({rest})", "ifndef": f"!defined({rest})"}.get(match["word"], rest)
        yield source.line_of(match.start("word")), expression


# --- inline PTX ------------------------------------------------------------------------------------------------------

_ASM = re.compile(r"\b(?:asm|__asm__)\b(?:\s+(?:volatile|__volatile__))?\s*\(")
_ASM_PART = re.compile(r'"(?P<string>(?:\\.|[^"\\\n])*)"|(?P<end>[:;])|(?P<open>\()|(?P<close>\))')
_ESCAPE = re.compile(r"\\[nt]")
_OPCODE = re.compile(r"(?:^|[;{}:\n])\s*(?:@!?%*\w+\s+)?(?P<opcode>[a-z][a-z0-9_]*(?:\.[A-Za-z0-9_:.%]+)?)(?=[\s;\[]|$)")


def opcodes(source: SourceText) -> Iterator[tuple[int, str]]:
    """The instructions of every inline PTX statement with their lines: `tcgen05.fence::before_thread_sync`."""
    if "asm" not in source.raw:
        return
    for statement in _ASM.finditer(source.text):
        joined, places = _joined(source.text, statement.end())
        for match in _OPCODE.finditer(joined):
            start = match.start("opcode")
            index = bisect_right([offset for offset, _ in places], start) - 1
            yield source.line_of(places[index][1]), match["opcode"]


def _joined(text: str, position: int) -> tuple[str, list[tuple[int, int]]]:
    """The template of an asm statement, its string literals joined; where each begins in it, and in the text."""
    joined, depth = "", 0
    places: list[tuple[int, int]] = []
    for part in _ASM_PART.finditer(text, position):
        if part["string"] is not None:
            places.append((len(joined), part.start()))
            joined += _ESCAPE.sub("\n", part["string"])
        elif part["open"]:
            depth += 1
        elif part["end"] or depth == 0:
            break
        else:
            depth -= 1
    return joined, places


# --- Python ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decorated:
    """A function under a decorator of a compiler. `target`: the value of a literal target= argument, else ""."""

    line: int
    name: str
    decorator: str
    target: str


_TARGET = re.compile(r"\btarget\s*=\s*[\"'](\w+)[\"']")


def decorated(source: SourceText, decorators: tuple[str, ...]) -> Iterator[Decorated]:
    """The functions under one of these decorators ("tilelang.jit"), with or without arguments."""
    if source.language != "python" or not any(name in source.raw for name in decorators):
        return
    names = "|".join(map(re.escape, decorators))
    pattern = rf"^[ \t]*@(?P<decorator>{names})\b(?P<arguments>.*?)^[ \t]*(?:async )?(?:def|class) (?P<name>\w+)"
    for match in re.finditer(pattern, source.text, re.MULTILINE | re.DOTALL):
        target = _TARGET.search(match["arguments"])
        line = source.line_of(match.start("decorator"))
        yield Decorated(line, match["name"], match["decorator"], target[1] if target else "")


_VARIABLE = {
    "cuda": re.compile(r'\b(?:get_env|getenv|env\.get)(?:<[\w:]+>)?\(\s*"(?P<name>\w+)"'),
    "python": re.compile(
        r"""\b(?:environ(?:\.(?:get|setdefault|pop))?|getenv)\s*[\[(]\s*["'](?P<name>\w+)["']"""
        r"""|["'](?P<member>\w+)["']\s+(?:not\s+)?in\s+os\.environ"""
    ),
}


def variables(source: SourceText) -> Iterator[tuple[int, str]]:
    """The environment variables that a file reads or sets by name, with their lines."""
    if source.language == "text" or "env" not in source.raw:
        return
    for match in _VARIABLE[source.language].finditer(source.text):
        yield source.line_of(match.start()), match["name"] or match["member"]


@dataclass(frozen=True)
class Import:
    """One absolute import. `module` is dotted, as it is written after `import` or `from`."""

    line: int
    module: str
    when: When


_IMPORT = re.compile(r"\bfrom\s+([\w.]+)\s+import\b|\bimport\s+(\w[\w., \t]*)")


def possible_imports(source: SourceText) -> Iterator[str]:
    """Every dotted name that a file may import, and some that it does not: found in its text, without its tree."""
    for match in _IMPORT.finditer(source.raw):
        for name in (match[1] or match[2]).split(","):
            yield name.split()[0] if name.strip() else ""


def imports(source: SourceText) -> Iterator[Import]:
    """Every absolute import of a file, except those that only a type checker sees."""
    if source.tree:
        yield from _imports(source.tree.body, "always")


_CATCHES = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


def _imports(body: list[ast.stmt], when: When) -> Iterator[Import]:
    for node in body:
        match node:
            case ast.Import():
                yield from (Import(node.lineno, alias.name, when) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield Import(node.lineno, module, when)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _imports(node.body, _weaker(when, "in a function"))
            case ast.If():
                if "TYPE_CHECKING" not in ast.unparse(node.test):
                    yield from _imports(node.body, _weaker(when, "under a condition"))
                yield from _imports(node.orelse, _weaker(when, "under a condition"))
            case ast.Try():
                caught = any(h.type is None or any(n in ast.unparse(h.type) for n in _CATCHES) for h in node.handlers)
                yield from _imports(node.body, "if it is there" if caught else when)
                for handler in node.handlers:
                    yield from _imports(handler.body, _weaker(when, "under a condition"))
                yield from _imports([*node.orelse, *node.finalbody], when)
            case _:
                for block in ("body", "orelse"):
                    inner = getattr(node, block, None)
                    if isinstance(inner, list):
                        yield from _imports(inner, when)


_STRENGTH: tuple[When, ...] = ("always", "in a function", "under a condition", "if it is there")


def _weaker(first: When, second: When) -> When:
    return max(first, second, key=_STRENGTH.index)


def strongest(whens: list[When]) -> When:
    """The one of these that most surely happens."""
    return min(whens, key=_STRENGTH.index)
