"""Documentation names only what exists: sessions, verbs, options, files, exit codes."""

from __future__ import annotations

import argparse
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from cleanroom import errors
from cleanroom.__main__ import parser
from cleanroom.project import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
# Messages, comments and rendered files send readers to sessions as well.
SPEAKING = sorted(
    [
        *DOCUMENTS,
        *(REPOSITORY / "scripts").rglob("*.py"),
        *(REPOSITORY / "dockerfiles").rglob("*.j2"),
        REPOSITORY / "noxfile.py",
        REPOSITORY / "scripts" / "setup",
        REPOSITORY / "pyproject.toml",
    ]
)
SESSION = re.compile(r"\bnox -s ([A-Za-z][\w-]*(?:<target>|\{[\w.]+\})?)")
VERB = re.compile(r"\bpython -m cleanroom(?: --project \S+)? ([a-z][a-z-]*)((?: +[^\s`|]+)*)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@cache
def sessions() -> frozenset[str]:
    command = [sys.executable, "-m", "nox", "--noxfile", REPOSITORY / "noxfile.py", "--list", "--nocolor"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"^[*-] (\S+)", listed, re.MULTILINE))


@cache
def verbs() -> dict[str, argparse.ArgumentParser]:
    (choices,) = (action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices)


def exists(session: str) -> bool:
    """`build-<target>` in a text, and `build-{target}` in a message, mean any session of that verb."""
    stem = re.split(r"[<{]", session)[0]
    return session in sessions() if stem == session else any(name.startswith(stem) for name in sessions())


@pytest.mark.parametrize("path", SPEAKING, ids=relative)
def test_every_session_that_is_named_exists(path: Path) -> None:
    assert [name for name in SESSION.findall(path.read_text()) if not exists(name)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_verb_and_option_that_is_named_exists(path: Path) -> None:
    for verb, words in VERB.findall(path.read_text()):
        assert verb in verbs(), f"{verb} is no verb"
        known = {option for action in verbs()[verb]._actions for option in action.option_strings}
        assert [word for word in words.split() if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_link_leads_to_a_file(path: Path) -> None:
    assert [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()] == []


def test_the_commands_name_every_verb() -> None:
    readme = (REPOSITORY / "docs" / "commands.md").read_text()
    named = {verb for verb, _ in VERB.findall(readme)}
    assert set(verbs()) == named


def test_the_commands_list_every_exit_code_once() -> None:
    table = re.findall(r"^\| (\d+) \|", (REPOSITORY / "docs" / "commands.md").read_text(), re.MULTILINE)
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.CleanroomError)]
    codes = {kind.exit_code for kind in classes}
    assert len(codes) == len(classes), "two kinds of failure share an exit code"
    assert sorted(int(code) for code in table) == sorted(codes | {0, 1, 2})


def test_the_readme_begins_with_the_two_commands() -> None:
    first_screen = "\n".join((REPOSITORY / "README.md").read_text().splitlines()[:40])
    assert "scripts/setup && .venv/bin/nox -s build-sm100" in first_screen
    assert "scripts/setup && .venv/bin/nox -s tests" in first_screen


def test_the_changelog_knows_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{version[1]}]" in changelog


def test_every_document_is_reachable_from_the_readme() -> None:
    linked = set(LINK.findall((REPOSITORY / "README.md").read_text()))
    assert {relative(path) for path in DOCUMENTS if path.parent.name == "docs"} <= linked
