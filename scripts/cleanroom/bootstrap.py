"""Root file systems from locked Debian packages, with no network and nothing of this machine in them.

mmdebstrap installs from a folder that holds exactly the locked packages, inside network and process namespaces of its
own. Trust comes from the lock's sha256, which the lock step took from the archive's signed index.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cleanroom.console import Console
from cleanroom.errors import DiskFull, EngineError, IntegrityError
from cleanroom.files import sha256_of, write_atomically
from cleanroom.lock import Entry, Lock
from cleanroom.oci import DEFAULT_PATH, check_layout, write_layout, write_rootfs_tar
from cleanroom.store import Store

RECIPE = 1
"""Raise it whenever the steps below change what comes out; results of another recipe are not reused."""

SUITE = "trixie"
PLATFORM = "linux/amd64"
TOOLS = ("mmdebstrap", "apt-ftparchive", "unshare", "setpriv")
"""What this module runs; Debian packages mmdebstrap, apt-utils, util-linux."""

ENGINE_PROGRAMS = (
    "usr/sbin/dockerd",
    "usr/sbin/runc",
    "usr/bin/containerd",
    "usr/bin/containerd-shim-runc-v2",
    "usr/libexec/docker/cli-plugins/docker-buildx",
    "usr/bin/umount",
)
"""What the embedded engine runs; checked against their recorded sha256 before each start."""

_ENVIRONMENT = {"PATH": DEFAULT_PATH, "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/nonexistent"}


@dataclass(frozen=True)
class Layout:
    """An OCI image layout: its folder and its manifest's digest ("sha256:<hex>")."""

    path: Path
    digest: str

    @property
    def context(self) -> str:
        """As a named build context."""
        return f"oci-layout://{self.path}@{self.digest}"


def base_layout(lock: Lock, platform: str, store: Store, console: Console, *, fresh_in: Path | None = None) -> Layout:
    """The base image of a lock, made from its `base` packages or taken from the store after checking its digests.

    `platform`: "linux/amd64" or another that this machine can run. With `fresh_in` (an existing folder) it is made anew
    there and the store's copy is neither read nor written. Raises EngineError (a tool is missing or a package does not
    install), IntegrityError, DiskFull.
    """
    packages = lock.group("base")
    make = partial(_make_base, packages, lock.epoch, platform, store, console)
    if fresh_in is not None:
        return make(fresh_in / "base")
    return kept_layout("base", store.derived_dir(_key("base", packages, lock.epoch)), store, console, make)


def kept_layout(what: str, place: Path, store: Store, console: Console, make: Callable[[Path], Layout]) -> Layout:
    """The layout at `place` after checking its digests; where there is none, or a damaged one, it is made and moved there whole."""
    with store.lock(f"derived-{place.name}", wait_message=f"Another Cleanroom is preparing the same {what}; waiting for it."):
        if place.is_dir():
            try:
                return Layout(place, check_layout(place))
            except IntegrityError as damage:
                console.warn(f"The stored {what} was damaged and is made again. {damage.what}")
                shutil.rmtree(place)
        with store.scratch(what) as scratch:
            made = make(scratch / "layout")
            move_into_place(made.path, place)
    return Layout(place, made.digest)


def engine_root(lock: Lock, store: Store, console: Console) -> Path:
    """The embedded engine's root file system, made from the `engine` packages once and then kept in the store.

    Raises EngineError, IntegrityError, DiskFull.
    """
    packages = lock.group("engine")
    place = engine_place(lock, store)
    with store.lock(f"derived-{place.name}", wait_message="Another Cleanroom is preparing the engine; waiting for it."):
        if place.is_dir():
            try:
                _check_engine(place)
            except IntegrityError as damage:
                console.warn(f"The stored engine was damaged and is made again. {damage.what}")
                shutil.rmtree(place)
            else:
                return place / "root"
        with store.scratch("engine") as scratch:
            whole = scratch / "engine"
            whole.mkdir()
            _bootstrap(packages, lock.epoch, store, console, whole / "root", title="container engine", platform=PLATFORM)
            _record_engine(whole)
            move_into_place(whole, place)
    return place / "root"


def engine_place(lock: Lock, store: Store) -> Path:
    """Where the embedded engine of this lock is kept once it was made."""
    return store.derived_dir(_key("engine", lock.group("engine"), lock.epoch))


def installed_packages(root: Path) -> dict[str, str]:
    """Name and version of every package that dpkg counts as installed in a root file system."""
    found: dict[str, str] = {}
    for stanza in (root / "var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if re.match(r"(Package|Status|Version): ", line))
        if fields.get("Status") == "install ok installed":
            found[fields["Package"]] = fields["Version"]
    return found


def differences(locked: Mapping[str, str], installed: Mapping[str, str]) -> tuple[str, ...]:
    """How the installed packages differ from the locked ones, one line each; empty if they are the same."""
    lines = []
    for name in sorted(locked.keys() | installed.keys()):
        if name not in installed:
            lines.append(f"{name} {locked[name]} is locked but was not installed")
        elif name not in locked:
            lines.append(f"{name} {installed[name]} was installed but is not locked")
        elif locked[name] != installed[name]:
            lines.append(f"{name} is locked as {locked[name]} but {installed[name]} was installed")
    return tuple(lines)


def _make_base(packages: Sequence[Entry], epoch: int, platform: str, store: Store, console: Console, layout: Path) -> Layout:
    with store.scratch("rootfs") as scratch:
        began = time.time()
        root = scratch / "root"
        _bootstrap(packages, epoch, store, console, root, title="base", platform=platform)
        with disk_full_is_told(store):
            write_rootfs_tar(root, scratch / "rootfs.tar", epoch=epoch, touched_since=began)
            layout.mkdir(parents=True)
            env = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8"}
            digest = write_layout(layout, scratch / "rootfs.tar", env=env, platform=platform, epoch=epoch)
    return Layout(layout, digest)


def _bootstrap(
    packages: Sequence[Entry], epoch: int, store: Store, console: Console, root: Path, *, title: str, platform: str
) -> None:
    """Install exactly these packages into `root`, a folder that does not exist yet."""
    if not packages:
        raise EngineError(f"The lock holds no packages for the {title}.", means="It was written for another kind of base.")
    if os.geteuid() != 0:
        raise EngineError(
            f"Making the {title} needs root.",
            means="Debian packages are unpacked and configured with their own owners, in namespaces of their own.",
            next_step="run it as root, or use a base that comes as an image together with a Docker",
        )
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise EngineError(
            f"{', '.join(missing)} not found.",
            means=f"The {title} is made from Debian packages with these tools.",
            next_step="scripts/setup, or: apt-get install mmdebstrap apt-utils util-linux",
        )
    began = time.monotonic()
    console.info(f"Making the {title} from {len(packages)} locked packages, without network (about a minute).")
    with store.scratch("packages") as pool, disk_full_is_told(store):
        store.stage(packages, pool)
        _index(pool)
        _run(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("mmdebstrap", "--mode=root", "--variant=apt", "--format=directory", "--quiet"),
                *(f"--architectures={platform.partition('/')[2]}", f"--include={','.join(sorted(e.name for e in packages))}"),
                *(SUITE, str(root), f"deb [trusted=yes] copy:{pool} ./"),
            ],
            environment={"SOURCE_DATE_EPOCH": str(epoch), "TMPDIR": str(pool.parent)},
            doing=f"make the {title}",
        )
    wrong = differences({e.name: e.version for e in packages}, installed_packages(root))
    if wrong:
        raise EngineError(
            f"The {title} is not what the lock says: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
            means="\n".join(wrong[:20]),
            next_step="lock again",
        )
    _remove_traces(root)
    console.info(f"The {title} is made ({time.monotonic() - began:.0f} s).")


def _index(pool: Path) -> None:
    """Make a flat archive of the folder: mmdebstrap finds the essential packages only if Suite and Codename are right."""
    packages = _run(["apt-ftparchive", "packages", "."], doing="index the packages", cwd=pool)
    write_atomically(pool / "Packages", packages)
    options = [f"-oAPT::FTPArchive::Release::{name}={SUITE}" for name in ("Suite", "Codename")]
    release = _run(["apt-ftparchive", *options, "release", "."], doing="index the packages", cwd=pool)
    write_atomically(pool / "Release", release)


def _remove_traces(root: Path) -> None:
    """Take out what comes from this machine or this moment, and what is a cache."""
    for name in ("etc/hostname", "etc/resolv.conf", "etc/machine-id"):
        path = root / name
        path.unlink(missing_ok=True)
        path.touch()
        path.chmod(0o644)
    for name in (
        "etc/apt/sources.list",
        *("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-"),
        *("var/lib/dpkg/status-old", "var/lib/dpkg/available", "var/lib/dpkg/diversions-old", "var/lib/dpkg/statoverride-old"),
        *("var/lib/dbus/machine-id", "var/lib/systemd/random-seed"),
        *("var/cache/ldconfig/aux-cache", "var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old"),
    ):
        (root / name).unlink(missing_ok=True)
    for name in ("etc/apt/sources.list.d", "var/lib/apt/lists", "var/cache/apt", "dev", "run", "tmp", "var/tmp"):
        _empty(root / name)
    for folder, _, files in os.walk(root / "var/log"):
        for file in files:
            os.unlink(os.path.join(folder, file))


def _empty(folder: Path) -> None:
    if not folder.is_dir() or folder.is_symlink():
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _key(what: str, packages: Sequence[Entry], epoch: int) -> str:
    inputs = [what, RECIPE, SUITE, PLATFORM, epoch, sorted((e.name, e.version, e.sha256) for e in packages)]
    return f"{what}-" + hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]


def _record_engine(place: Path) -> None:
    missing = [name for name in ENGINE_PROGRAMS if not (place / "root" / name).is_file()]
    if missing:
        raise EngineError(
            f"The engine's packages lack {', '.join(missing)}.",
            means="lockfiles/engine.lock does not name what the embedded engine needs.",
            next_step="nox -s lock -- engine",
        )
    sums = {name: sha256_of(place / "root" / name) for name in ENGINE_PROGRAMS}
    write_atomically(place / "programs.json", json.dumps(sums, indent=1).encode())


def _check_engine(place: Path) -> None:
    try:
        sums = json.loads((place / "programs.json").read_bytes())
        wrong = [name for name in ENGINE_PROGRAMS if sha256_of(place / "root" / name) != sums[name]]
    except (OSError, ValueError, KeyError) as error:
        raise IntegrityError(f"{place} is not complete: {error}", means="The stored engine was damaged.") from None
    if wrong:
        raise IntegrityError(f"{wrong[0]} of {place} changed.", means="The stored engine was damaged.")


def move_into_place(made: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    os.rename(made, place)


def _run(command: Sequence[str], *, doing: str, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> bytes:
    """Run a tool with a clean environment and give its standard output; its last lines are in the error if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**_ENVIRONMENT, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        umask=0o022,
    )
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode("utf-8", "replace").strip()
    if "no space left on device" in said.lower():
        raise OSError(errno.ENOSPC, "No space left on device")
    if "unshare failed" in said or "Operation not permitted" in said:
        raise EngineError(
            f"Could not {doing}: this root may not make namespaces.",
            means=_last_lines(said),
            next_step="run on the machine itself, in a virtual machine, or in a container started with --privileged",
        )
    raise EngineError(f"Could not {doing}: {command[0]} ended with status {done.returncode}.", means=_last_lines(said))


def _last_lines(text: str, count: int = 15) -> str:
    return "\n".join(text.splitlines()[-count:])


@contextmanager
def disk_full_is_told(store: Store) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DiskFull(
            f"The disk of the store ({store.root}) is full.",
            means=f"{store.free_bytes() / 1e9:.1f} GB are free now; a root file system needs about 2 GB while it is made.",
            next_step="free some space, or set CLEANROOM_STORE to a folder on a larger disk",
        ) from None
