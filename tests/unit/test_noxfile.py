"""The front door: what `nox -l` lists, what a session runs, and how its failure ends."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cleanroom.project import REPOSITORY

NOXFILE = REPOSITORY / "noxfile.py"
LISTED = re.compile(r"^[*-] (\S+)(?: \[[^]]*\])? -> (.+)$", re.MULTILINE)
TARGETS = sorted(path.stem for path in (REPOSITORY / "envs" / "targets").glob("*.yaml"))


class Session:
    """What a verb's session uses of nox.Session: the words after `--`, and what its commands were."""

    def __init__(self, *posargs: str) -> None:
        self.posargs = list(posargs)
        self.commands: list[list[str]] = []

    def run(self, *arguments: object, **_options: object) -> None:
        self.commands.append([str(argument) for argument in arguments])


def list_sessions(noxfile: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "NOX"))}
    command = [sys.executable, "-m", "nox", "--noxfile", noxfile, "--list", "--nocolor"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.fixture(scope="module")
def listing() -> str:
    return list_sessions(NOXFILE)


@pytest.fixture
def noxfile() -> Iterator[ModuleType]:
    import nox.registry  # noqa: PLC0415 - its registry is emptied before and after

    nox.registry.reset()
    spec = importlib.util.spec_from_file_location("noxfile_under_test", NOXFILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    nox.registry.reset()


def test_loading_imports_only_the_standard_library_and_nox() -> None:
    tree = ast.parse(NOXFILE.read_text())
    imported = {a.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - set(sys.stdlib_module_names) == {"nox"}


def test_every_session_is_listed_with_one_clear_line(listing: str) -> None:
    lines = [line for line in listing.splitlines() if line.startswith(("* ", "- "))]
    assert lines
    for line in lines:
        found = LISTED.match(line)
        assert found is not None, line
        assert 20 <= len(found[2]) <= 110, line


def test_every_target_has_its_sessions(listing: str) -> None:
    names = {name for name, _ in LISTED.findall(listing)}
    assert {f"{verb}-{target}" for verb in ("build", "fetch") for target in TARGETS} <= names


def test_only_fast_sessions_run_by_default(listing: str) -> None:
    default = {line.split()[1] for line in listing.splitlines() if line.startswith("* ")}
    assert default == {"lint", "types", "unit"}


def test_listing_survives_a_target_file_that_is_no_yaml(tmp_path: Path) -> None:
    noxfile = tmp_path / "noxfile.py"
    noxfile.write_text(NOXFILE.read_text())
    targets = tmp_path / "envs" / "targets"
    targets.mkdir(parents=True)
    (targets / "broken.yaml").write_bytes(b"\xff\xfe: [\n")
    assert "Build broken: wheels" in dict(LISTED.findall(list_sessions(noxfile)))["build-broken"]


def test_a_new_target_file_is_a_new_session(tmp_path: Path) -> None:
    noxfile = tmp_path / "noxfile.py"
    noxfile.write_text(NOXFILE.read_text())
    targets = tmp_path / "envs" / "targets"
    targets.mkdir(parents=True)
    (targets / "sm999.yaml").write_text('name: sm999\ntitle: "A card of the future"\n')
    assert "Build A card of the future: wheels" in dict(LISTED.findall(list_sessions(noxfile)))["build-sm999"]


def test_what_follows_two_dashes_reaches_the_verb(noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(noxfile, "cleanroom", lambda _session, *arguments: called.append(arguments))
    import nox.registry  # noqa: PLC0415

    sessions: dict[str, Any] = dict(nox.registry.get())
    sessions["build-sm100"].func(Session("--component", "deepep"))
    sessions["lock"].func(Session("sm100", "--base", "debian13"))
    assert called == [("build", "sm100", "--component", "deepep"), ("lock", "sm100", "--base", "debian13")]


def test_a_failing_verb_ends_nox_with_its_own_exit_status(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(noxfile, "environment", lambda *_: Path(sys.prefix))
    with pytest.raises(SystemExit) as ended:
        noxfile.cleanroom(Session(), "render", "no-such-target")
    assert ended.value.code == 12
    assert "no-such-target" in "".join(capfd.readouterr())


def test_an_environment_is_made_once_and_again_when_its_lock_changes(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(noxfile, "LOCKFILES", tmp_path)
    monkeypatch.setattr(noxfile, "ENVIRONMENTS", tmp_path / ".nox")

    class Making(Session):
        def run(self, *arguments: object, **options: object) -> None:
            super().run(*arguments, **options)
            if "virtualenv" in arguments:
                Path(str(arguments[-1])).mkdir()

    session = Making()
    (tmp_path / "toolkit.txt").write_text("one==1 --hash=sha256:0\n")
    first = noxfile.environment(session, "toolkit")
    assert "--require-hashes" in session.commands[1]
    assert noxfile.environment(session, "toolkit") == first
    assert len(session.commands) == 2
    (tmp_path / "toolkit.txt").write_text("one==2 --hash=sha256:1\n")
    assert noxfile.environment(session, "toolkit") != first
    assert len(session.commands) == 4


def test_an_interrupted_installation_is_not_taken_for_an_environment(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(noxfile, "LOCKFILES", tmp_path)
    monkeypatch.setattr(noxfile, "ENVIRONMENTS", tmp_path / ".nox")
    (tmp_path / "toolkit.txt").write_text("one==1 --hash=sha256:0\n")

    class Interrupted(Session):
        def run(self, *arguments: object, **options: object) -> None:
            super().run(*arguments, **options)
            if "virtualenv" in arguments:
                Path(str(arguments[-1])).mkdir(exist_ok=True)
            else:
                raise KeyboardInterrupt

    session = Interrupted()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            noxfile.environment(session, "toolkit")
    assert len(session.commands) == 4
