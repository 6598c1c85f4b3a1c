"""The front door: one session for each thing to do, and one for each target that envs/targets defines.

Thin on purpose. A session prepares an environment and calls `python -m cleanroom VERB`, passing on what follows `--`.
Only the standard library and nox are imported here, so that `nox -l` works on a bare machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
LOCKFILES = ROOT / "lockfiles"
ENVIRONMENTS = ROOT / ".nox"
NEEDS_OPERATOR = re.compile(r"^\s*kind:\s*cann-installers\b", re.MULTILINE)
TITLE = re.compile(r"^title:\s*['\"]?(.*?)['\"]?\s*$", re.MULTILINE)

nox.needs_version = ">=2024.10.9"
# Sessions share the environments below instead of having one each.
nox.options.default_venv_backend = "none"


def place_of(name: str) -> Path:
    """Where the environment of lockfiles/<name>.txt, as that file is now, belongs."""
    key = (LOCKFILES / f"{name}.txt").read_bytes() + sys.version.encode() + str(ROOT).encode()
    return ENVIRONMENTS / f"{name}-{hashlib.sha256(key).hexdigest()[:12]}"


def environment(session: nox.Session, name: str) -> Path:
    """The environment that holds exactly lockfiles/<name>.txt, made once for each state of that file."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the Python that nox runs on is the user's, not this project's
        session.error(f"Python 3.11 or newer is needed, nox runs on {sys.version.split()[0]}. Next: scripts/setup")
    lock, home = LOCKFILES / f"{name}.txt", place_of(name)
    complete = home / "complete"
    if complete.exists():
        return home
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / f"{name}.in-use").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # two sessions that start at once must not fill one folder
        if not complete.exists():
            session.run(sys.executable, "-m", "virtualenv", "--quiet", "--clear", "--no-periodic-update", home)
            pip = (home / "bin" / "python", "-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check")
            session.run(*pip, "install", "--require-hashes", "--requirement", lock)
            complete.touch()
    return home


def cleanroom(session: nox.Session, *arguments: str) -> None:
    """Run a verb. A failure ends nox with the verb's own exit status and leaves the verb's message as the last word."""
    home = environment(session, "toolkit")
    path = f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "PATH": path}
    process = subprocess.Popen([str(home / "bin" / "python"), "-m", "cleanroom", *arguments], env=variables)
    # The terminal sends Ctrl-C to the verb as well; nox would kill it within a second, in the middle of tidying up.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    status = process.wait()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if status:
        sys.exit(status if status > 0 else 128 - status)


def title_of(target: Path) -> str:
    """The title line of a target's file, read without a YAML parser; its name where there is none."""
    found = TITLE.search(target.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else target.stem


def define(verb: str, target: str, text: str) -> None:
    """Register the session `<verb>-<target>`; its text is what `nox -l` shows."""

    def run(session: nox.Session) -> None:
        cleanroom(session, verb, target, *session.posargs)

    run.__doc__ = text
    nox.session(name=f"{verb}-{target}", default=False, tags=[verb])(run)


for _target in sorted((ROOT / "envs" / "targets").glob("*.yaml")):
    define("build", _target.stem, f"Build {title_of(_target)}: wheels, image and record in out/{_target.stem}")
    define("verify", _target.stem, f"Build {_target.stem} again on a clean slate, compare, and explain what differs")
    define("inventory", _target.stem, f"List what in the locked sources of {_target.stem} depends on the architecture")
    define("checklist", _target.stem, f"Write the migration checklist of {_target.stem}, filled in as far as there is evidence")
    define("fetch", _target.stem, f"Bring every locked input of {_target.stem} into the store, to build without a network")
    if NEEDS_OPERATOR.search(_target.read_text(encoding="utf-8", errors="replace")):
        define("tiers", _target.stem, f"Run what can be shown of {_target.stem} without the toolkit that an operator has to bring")


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve what is newest and write lockfiles; all targets, or those named after `--` (also: engine)"""
    cleanroom(session, "lock", *session.posargs)


@nox.session(default=False)
def render(session: nox.Session) -> None:
    """Write dockerfiles/ from envs/ and lockfiles/; with `-- --check` only report what has drifted"""
    cleanroom(session, "render", *session.posargs)


@nox.session(default=False)
def inventory(session: nox.Session) -> None:
    """Say what machine code a wheel holds and where it runs: `-- --wheel FILE`, anybody's wheel"""
    cleanroom(session, "inventory", *session.posargs)


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """Show every target and component from the records present; `-- --gpu H100` answers for one card"""
    cleanroom(session, "matrix", *session.posargs)


@nox.session(default=False)
def trial(session: nox.Session) -> None:
    """Try an architecture or flags over a target, and say who refuses and why: `-- --arch sm_120a`"""
    cleanroom(session, "trial", *session.posargs)


@nox.session(default=False)
def compare(session: nox.Session) -> None:
    """Say what changed between two records: `-- A B`, targets, folders or record files"""
    cleanroom(session, "compare", *session.posargs)


@nox.session(default=False)
def doctor(session: nox.Session) -> None:
    """Say whether this machine can build, and what it lacks"""
    cleanroom(session, "doctor", *session.posargs)


@nox.session(default=False)
def clean(session: nox.Session) -> None:
    """Remove engine state and scratch files; fetched inputs stay unless `-- --store` is given"""
    cleanroom(session, "clean", *session.posargs)
    current = {place_of(name) for name in ("toolkit", "dev")}
    for folder in ENVIRONMENTS.iterdir():
        if folder.is_dir() and folder not in current:
            shutil.rmtree(folder)


@nox.session(name="lock-toolkit", default=False)
def lock_toolkit(session: nox.Session) -> None:
    """Resolve the toolkit's own requirements (lockfiles/*.in) to the newest releases, with hashes"""
    uv = environment(session, "toolkit") / "bin" / "uv"
    options = ["--no-config", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-header"]
    options += ["--no-emit-index-url", "--annotation-style", "line", "--upgrade"]
    for name in ("toolkit", "dev", "nox"):
        files = ["--output-file", f"lockfiles/{name}.txt", f"lockfiles/{name}.in"]
        session.run(uv, "pip", "compile", *options, *files, *session.posargs)


def developer_tool(session: nox.Session, *arguments: str) -> None:
    """Run a module of the environment that the tests, the linter and the type checker share."""
    python = environment(session, "dev") / "bin" / "python"
    session.run(python, "-m", *arguments, env={"PYTHONPATH": str(ROOT / "scripts")}, interrupt_timeout=60)


LINT = ("ruff", "check", ".")
TYPES = ("mypy",)
UNIT = ("pytest", "tests/unit", "--numprocesses", "2")
INTEGRATION = ("pytest", "tests/integration", "--durations", "10")


@nox.session(tags=["check"])
def lint(session: nox.Session) -> None:
    """Check the style of all Python files with ruff"""
    developer_tool(session, *LINT, *session.posargs)


@nox.session(tags=["check"])
def types(session: nox.Session) -> None:
    """Check all type annotations with mypy"""
    developer_tool(session, *TYPES, *session.posargs)


@nox.session(tags=["check"])
def unit(session: nox.Session) -> None:
    """Run the unit tests: no network and no container, done in seconds"""
    developer_tool(session, *UNIT, *session.posargs)


@nox.session(default=False)
def integration(session: nox.Session) -> None:
    """Run the tests that lock, fetch and build in real containers"""
    developer_tool(session, *INTEGRATION, *session.posargs)


@nox.session(default=False)
def tests(session: nox.Session) -> None:
    """Run all that CI runs: lint, types, unit and integration tests; what follows `--` goes to pytest"""
    developer_tool(session, *LINT)
    developer_tool(session, *TYPES)
    developer_tool(session, *UNIT, *session.posargs)
    developer_tool(session, *INTEGRATION, *session.posargs)
