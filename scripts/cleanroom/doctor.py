"""Whether this machine can build, what is missing, what that means and what to type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from cleanroom import bootstrap, engine
from cleanroom.console import Console, human_bytes
from cleanroom.embedded import UNUSABLE_FILE_SYSTEMS, file_system_of
from cleanroom.errors import CleanroomError, EngineError
from cleanroom.project import Project
from cleanroom.resources import RESERVE_MIB, cores_here, memory_here
from cleanroom.store import Store

GB = 1_000_000_000
NEEDED_PYTHON = (3, 11)
NEEDED_FREE_BYTES = 40 * GB
"""For a whole target: inputs of about 4 GB, the Python environment twice, compile caches, image. Less may do."""
LEAST_FREE_BYTES = 10 * GB
NEEDED_MEMORY_BYTES = (RESERVE_MIB + 2048) * 1024 * 1024
"""One compiler at its peak and the reserve that the engine and the linker need."""

NETWORK_TIMEOUT = 10.0

Level = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `missing`: a build cannot work without it; `note`: it can, with what `means` says."""

    name: str
    level: Level
    value: str
    means: str = ""
    next_step: str = ""


def doctor(project: Project, store: Store, console: Console) -> int:
    """Look at everything a build needs and say it. 0 if a build can work, else the exit status of EngineError."""
    findings = tuple(look(project, store))
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = f"{finding.level:<8}{finding.name:<{width}}  {finding.value}"
        (console.info if finding.level == "ok" else console.warn)(line)
        for text in filter(None, (finding.means, finding.next_step and f"Next: {finding.next_step}")):
            console.info(f"{'':<{8 + width}}  {text}")
    missing = [finding.name for finding in findings if finding.level == "missing"]
    console.info(f"A build cannot work here yet: {', '.join(missing)}." if missing else "A build can work on this machine.")
    return EngineError.exit_code if missing else 0


def look(project: Project, store: Store) -> Iterable[Finding]:
    """All findings, in the order a person fixes them."""
    yield _python(sys.version_info[:3])
    yield root(os.geteuid())
    embedded = engine.why_not_embedded()
    docker = engine.find_docker(os.environ)
    yield _engine(engine.objection_to(docker), docker, embedded, project)
    yield from _tools()
    yield store_place(store.root)
    yield disk(store.free_bytes(), store.root)
    yield memory(memory_here())
    yield Finding("cores", "ok", str(cores_here()))
    yield _packages()
    yield _index()


def _python(version: tuple[int, int, int]) -> Finding:
    shown = ".".join(str(number) for number in version)
    if version >= NEEDED_PYTHON:
        return Finding("python", "ok", shown)
    return Finding("python", "missing", shown, "Python 3.11 or newer is needed.", "install a newer Python, then scripts/setup")


def root(user: int) -> Finding:
    """Judge the user's number: only root (0) can make the debian13 base and run the embedded engine."""
    if user == 0:
        return Finding("root", "ok", "yes")
    means = "Only bases that come as an image can be used, with a Docker; debian13 is made from packages, as root."
    return Finding("root", "note", f"no, user {user}", means, "run it as root")


def _engine(objection: str, docker: engine.Docker, embedded: str, project: Project) -> Finding:
    try:
        forced = engine.forced_choice(os.environ)
    except EngineError as error:
        return Finding("engine", "missing", error.what.removesuffix("."), error.means, error.next_step)
    if not objection and forced != "embedded":
        return Finding("engine", "ok", f"Docker {docker.server or docker.builder.driver}, buildx {docker.buildx}")
    if forced == "docker" or (docker.asked_for and forced != "embedded"):
        asked = docker.asked_for or "CLEANROOM_ENGINE=docker"
        return Finding("engine", "missing", objection, f"{asked} asks for it.", "make it answer, or CLEANROOM_ENGINE=embedded")
    if embedded:
        value = f"none: {objection}" if objection else "none"
        return Finding("engine", "missing", value, f"Embedded engine: {embedded}", "run as root, or install Docker 26 or newer")
    try:
        version = engine.engine_lock(project).version_of("docker.io") or "of an unknown version"
    except CleanroomError as error:
        return Finding("engine", "missing", "embedded, not locked", error.what, error.next_step)
    return Finding("engine", "ok", f"embedded, docker.io {version}" + (f" (Docker: {objection})" if objection else ""))


def _tools() -> Iterable[Finding]:
    packages = {"mmdebstrap": "mmdebstrap", "apt-ftparchive": "apt-utils", "unshare": "util-linux", "setpriv": "util-linux"}
    for tool in bootstrap.TOOLS:
        found = shutil.which(tool)
        if found:
            yield Finding(tool, "ok", found)
        else:
            means = "The base and the embedded engine are made with it from Debian packages."
            yield Finding(tool, "missing", "not found", means, f"scripts/setup, or: apt-get install {packages[tool]}")


def store_place(folder: Path) -> Finding:
    """Judge the place of the store: a folder, or room for one, on a file system that can hold container layers."""
    if blocked := next((p for p in (folder, *folder.parents) if p.exists() and not p.is_dir()), None):
        return Finding("store", "missing", str(folder), f"{blocked} is no folder.", "set CLEANROOM_STORE to another place")
    kind = file_system_of(folder)
    if kind in UNUSABLE_FILE_SYSTEMS or kind.startswith("fuse"):
        means = "The embedded engine cannot keep container layers on it; a Docker elsewhere can."
        return Finding("store", "note", f"{folder} ({kind})", means, "set CLEANROOM_STORE to a folder on ext4, xfs or btrfs")
    return Finding("store", "ok", f"{folder} ({kind})")


def disk(free: int, folder: Path) -> Finding:
    """Judge the free space of the store, in bytes."""
    value = f"{human_bytes(free)} free"
    step = f"free some space on the disk of {folder}, or set CLEANROOM_STORE"
    if free < LEAST_FREE_BYTES:
        return Finding("disk", "missing", value, f"Even a small build needs {human_bytes(LEAST_FREE_BYTES)}.", step)
    if free < NEEDED_FREE_BYTES:
        means = f"A whole target with its image can need {human_bytes(NEEDED_FREE_BYTES)}."
        return Finding("disk", "note", value, means, step)
    return Finding("disk", "ok", value)


def memory(available: int) -> Finding:
    """Judge the available memory, in bytes."""
    value = f"{human_bytes(available)} available"
    if available < NEEDED_MEMORY_BYTES:
        means = f"A compiler at its peak and the engine need {human_bytes(NEEDED_MEMORY_BYTES)}; it may be killed."
        return Finding("memory", "note", value, means, "close other programs, or use a larger machine")
    return Finding("memory", "ok", value)


def _packages() -> Finding:
    """Whether apt's first configured archive answers (through apt's own proxy settings)."""
    listed = _output(["apt-get", "indextargets", "--format", "$(SITE)$(FILENAME) $(SITE)"])
    sites = tuple(dict.fromkeys(line.split()[-1] for line in listed.splitlines() if line.split()))
    if not sites:
        means = "Missing Debian packages could not be fetched; those in the store still work."
        return Finding("apt mirror", "note", "apt is not configured here", means, "configure apt's sources")
    failures = []
    for site in sites:
        reason = _reachable(site, _apt_proxies())
        if not reason:
            return Finding("apt mirror", "ok", site)
        failures.append(f"{site}: {reason}")
    means = "Debian packages that are not in the store cannot be fetched."
    return Finding("apt mirror", "note", "; ".join(failures), means, "check network and proxy (apt-get update shows more)")


def _index() -> Finding:
    """Whether pip's configured index answers; pip itself is asked, so that its certificate and proxy settings count."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=0", "--timeout=10"]
    try:
        done = subprocess.run(
            [*command, "index", "versions", "packaging"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("pip index", "note", f"not asked: {error}")
    if done.returncode == 0:
        return Finding("pip index", "ok", "answers")
    if "No module named pip" in done.stderr:
        return Finding("pip index", "note", "not asked: this Python has no pip")
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason given")
    means = "Python packages and source archives that are not in the store cannot be fetched."
    return Finding("pip index", "note", last, means, "check network, proxy and pip's configuration (pip config list)")


def _apt_proxies() -> dict[str, str]:
    shown = _output(["apt-config", "shell", "HTTP", "Acquire::http::Proxy", "HTTPS", "Acquire::https::Proxy"])
    pairs = (line.partition("=") for line in shown.splitlines())
    return {name.lower(): value.strip("'") for name, _, value in pairs if value.strip("'") not in ("", "DIRECT")}


def _reachable(site: str, proxies: Mapping[str, str]) -> str:
    """Why an archive does not answer; empty if it does. Any HTTP answer counts."""
    if not site.startswith(("http://", "https://")):
        return ""
    request = Request(site, method="HEAD")  # noqa: S310  # the scheme was checked
    for scheme, proxy in proxies.items():
        if site.startswith(f"{scheme}:"):
            request.set_proxy(proxy.removeprefix("http://").rstrip("/"), "http")
    try:
        with urlopen(request, timeout=NETWORK_TIMEOUT):  # noqa: S310
            return ""
    except HTTPError:
        return ""
    except (URLError, OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
