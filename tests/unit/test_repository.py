"""What holds for every file of the repository, whoever wrote it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from cleanroom.lock import read_lock
from cleanroom.project import REPOSITORY

# Put together from pieces, so that this file passes its own test.
REGISTRY_HOSTS = [
    ".".join(pieces)
    for pieces in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("debian", "org"),
        ("debian", "net"),
        ("pypi", "nvidia"),
        ("download", "pytorch"),
        ("registry-1", "docker"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("nvcr", "io"),
    )
]
MACHINE_PATHS = [
    "/".join(("", *pieces)) for pieces in (("work", ""), ("tmp", "dev"), ("root", "."), ("opt", "wheels"), ("opt", "pypi"))
]
WORKPLACE_WORDS = ["artifact" + "registry", "pkg" + ".dev"]
LARGEST_FILE = 1024 * 1024


@cache
def files() -> tuple[Path, ...]:
    """Every file that is committed or would be, without links."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = (REPOSITORY / name for name in sorted(set(names)) if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


@cache
def texts() -> tuple[tuple[str, str], ...]:
    return tuple((str(path.relative_to(REPOSITORY)), path.read_bytes().decode()) for path in files() if is_text(path))


def is_text(path: Path) -> bool:
    return b"\0" not in path.read_bytes()[:8192]


def names_with(*suffixes: str) -> list[Path]:
    return [path for path in files() if path.name.endswith(suffixes)]


def test_there_are_files_to_check() -> None:
    assert len(files()) > 50


def test_every_text_file_ends_with_one_newline() -> None:
    wrong = [name for name, text in texts() if text and (not text.endswith("\n") or text.endswith("\n\n"))]
    assert wrong == []


def test_no_line_ends_with_blanks_or_a_carriage_return() -> None:
    data = "tests/unit/data/"  # captured output of other programs, kept as it was
    wrong = [name for name, text in texts() if not name.startswith(data) and re.search(r"[ \t\r]$", text, re.MULTILINE)]
    assert wrong == []


@pytest.mark.parametrize("word", [*REGISTRY_HOSTS, *MACHINE_PATHS, *WORKPLACE_WORDS])
def test_no_file_names_a_registry_host_or_a_path_of_one_machine(word: str) -> None:
    assert [name for name, text in texts() if word in text] == []


def test_no_file_holds_a_credential_in_an_address() -> None:
    assert [name for name, text in texts() if re.search(r"\w+://[^\s/{}'\"<>]+:[^\s/{}'\"<>]+@", text)] == []


def test_no_file_is_large() -> None:
    assert [path.name for path in files() if path.stat().st_size > LARGEST_FILE] == []


def test_every_link_leads_to_something_inside_the_repository() -> None:
    links = [path for path in REPOSITORY.joinpath("tests").rglob("*") if path.is_symlink()]
    assert links
    for link in links:
        assert link.resolve(strict=True).is_relative_to(REPOSITORY), link


@pytest.mark.parametrize("path", names_with(".yaml", ".yml"), ids=lambda path: path.name)
def test_yaml_files_parse(path: Path) -> None:
    if "data" not in path.parts:
        assert yaml.safe_load(path.read_text()) is not None


@pytest.mark.parametrize("path", names_with(".json"), ids=lambda path: path.name)
def test_json_files_parse(path: Path) -> None:
    if "data" not in path.parts:
        json.loads(path.read_text())


@pytest.mark.parametrize("path", names_with(".toml"), ids=lambda path: path.name)
def test_toml_files_parse(path: Path) -> None:
    tomllib.loads(path.read_text())


@pytest.mark.parametrize("path", names_with(".py"), ids=lambda path: path.name)
def test_python_files_parse_as_the_oldest_supported_python(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 11))


@pytest.mark.parametrize("path", [p for p in files() if p.suffix == ".lock"], ids=lambda path: path.name)
def test_locks_are_whole_and_unedited(path: Path) -> None:
    assert read_lock(path).entries


@pytest.mark.parametrize("name", ["toolkit", "dev", "nox"])
def test_requirements_of_the_toolkit_are_pinned_with_hashes_and_name_no_index(name: str) -> None:
    text = (REPOSITORY / "lockfiles" / f"{name}.txt").read_text()
    blocks = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert blocks
    for block in blocks:
        assert re.match(r"[a-z0-9-]+==\S+ ", block), block
        assert "--hash=sha256:" in block
    assert "://" not in text
    assert "--index-url" not in text


def test_the_development_requirements_hold_the_same_versions_as_the_toolkit() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^(\S+==\S+)", (REPOSITORY / "lockfiles" / f"{name}.txt").read_text(), re.MULTILINE))

    assert pins("toolkit") <= pins("dev")


@pytest.mark.parametrize("name", ["scripts/setup", ".ci/run"])
def test_shell_scripts_are_executable_strict_and_well_formed(name: str) -> None:
    path = REPOSITORY / name
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", path], check=True)


def test_failures_are_never_waved_through() -> None:
    waved = re.compile(r"\|\|\s*(true|:)(\s|$)", re.MULTILINE)
    scripts = ("Dockerfile", ".j2", "scripts/setup", ".ci/run", "noxfile.py")
    assert [name for name, text in texts() if name.endswith(scripts) and waved.search(text)] == []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    run = (REPOSITORY / ".ci" / "run").read_text()
    command = "scripts/setup && .venv/bin/nox -s tests"
    assert command in (REPOSITORY / "README.md").read_text()
    for half in command.split(" && "):
        assert f"\n{half}\n" in run
