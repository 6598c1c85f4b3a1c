"""The embedded engine: a Docker daemon of our own, in namespaces of its own, for a machine that has none.

It runs on a root file system made from locked packages (bootstrap.engine_root), mounted read-only. Its mount, network,
process and host name are its own, so it cannot pull anything, and when its first process ends everything it started
ends with it. Outside those namespaces it leaves a folder with its socket and control groups under one name; a small
shell that outlives us removes both, also when this Python is killed. The daemon's state folder is locked by a file
descriptor that this shell inherits, so a second daemon never opens the same state.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanroom.errors import DiskFull, EngineError
from cleanroom.oci import DEFAULT_PATH

START_TIMEOUT = 90.0
"""Seconds until a daemon that does not answer counts as failed; it takes about 3 on an idle machine."""
STOP_TIMEOUT = 20.0
"""Seconds a daemon may take to stop by itself before it is killed."""

PREFIX = "cleanroom-"
"""Folders under /run and control groups of running engines start with it."""

UNUSABLE_FILE_SYSTEMS = frozenset(
    {"overlay", "overlayfs", "aufs", "nfs", "nfs4", "9p", "virtiofs", "vfat", "exfat", "cifs", "smb3"}
)
"""overlayfs cannot put its upper folder on these (kernel documentation, filesystems/overlayfs); FUSE ones neither."""

_CGROUPS = Path("/sys/fs/cgroup")

_OUTSIDE = r"""
# Waits until the engine's namespaces have ended, then removes what lies outside of them.
run=$1 cgroup=$2
shift 2
"$@"
status=$?
for try in 1 2 3 4 5 6 7 8 9 10; do
    left=
    for folder in /sys/fs/cgroup/"$cgroup" /sys/fs/cgroup/*/"$cgroup"; do
        [ -d "$folder" ] || continue
        find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
    done
    [ -n "$left" ] || break
    sleep 0.2
done
rm -rf -- "$run"
exit $status
"""

_INSIDE = r"""
# First process of the new namespaces. Standard input is a pipe from our Python: its end is the order to stop.
set -eu
exec 3<&0
root=$1 state=$2 run=$3 host=$4
shift 4
echo "$host" > /proc/sys/kernel/hostname
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir "$root/run/state" "$root/run/cleanroom"
mount --bind "$state" "$root/run/state"
mount --bind "$run" "$root/run/cleanroom"
cd "$root"
pivot_root . .
umount -l .
cd /
"$@" </dev/null 3>&- &
daemon=$!
(
    read -r order || :
    kill -TERM "$daemon"
    sleep 15
    kill -KILL "$daemon"
) <&3 3>&- &
wait "$daemon"
"""


@dataclass(frozen=True)
class Surroundings:
    """What an engine is given of a machine, and no output may depend on. `cpus` limits its processors; 0 means all."""

    host_name: str = "cleanroom"
    time_zone: str = "UTC"
    locale: str = "C.UTF-8"
    umask: int = 0o022
    user: str = "root"
    cpus: int = 0


USUAL = Surroundings()


@dataclass(frozen=True)
class Embedded:
    """A running embedded engine. `versions` maps Engine, containerd, runc and so on to what the daemon reports."""

    address: str
    versions: Mapping[str, str]
    start_seconds: float
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        """Whether the daemon answers; its shells may outlive it by a moment."""
        with suppress(OSError, ValueError):
            return self.process.poll() is None and _get(Path(self.address.removeprefix("unix://")), "/_ping") == b"OK"
        return False

    def last_lines(self, count: int = 12) -> str:
        """The end of the daemon's log, without what it says when all is well."""
        return _complaints(self.log, count)


@contextmanager
def embedded_engine(
    root: Path,
    state: Path,
    *,
    say: Callable[[str], None],
    start_timeout: float = START_TIMEOUT,
    surroundings: Surroundings = USUAL,
) -> Iterator[Embedded]:
    """Run the engine on the root file system `root` with its state in the folder `state` while the block runs.

    A second engine on the same state waits, and `say` is told so. Raises EngineError if it cannot start, DiskFull if
    that is because the disk is full.
    """
    state.mkdir(parents=True, exist_ok=True)
    refuse_unusable_file_system(state)
    sweep()
    with locked_state(state, say) as lock:
        began = time.monotonic()
        log = state / "dockerd.log"
        run = _run_folder()
        alive = _lock_file(run / "alive")
        order: int | None = None
        process: subprocess.Popen[bytes] | None = None
        try:
            (run / "daemon.json").write_text(json.dumps(_daemon_configuration(run.name)))
            stop, order = os.pipe()
            with log.open("wb") as output:
                process = _start(root, state / "data", run, surroundings, stop=stop, output=output.fileno(), locks=(lock, alive))
            os.close(stop)
            engine_socket = run / "docker.sock"
            versions = _wait_until_it_answers(process, engine_socket, log, start_timeout)
            yield Embedded(f"unix://{engine_socket}", versions, time.monotonic() - began, log, process)
        finally:
            with _signals_postponed():
                if order is not None:
                    os.close(order)
                if process is not None:
                    _wait_or_kill(process)
                os.close(alive)
                _remove_leftovers(run)


def refuse_unusable_file_system(folder: Path) -> None:
    """Raise EngineError if container layers cannot be kept in `folder` because of its file system."""
    kind = file_system_of(folder)
    if kind in UNUSABLE_FILE_SYSTEMS or kind.startswith("fuse"):
        raise EngineError(
            f"The store is on a file system of type {kind} ({folder}), where the engine cannot keep container layers.",
            means="overlayfs does not stack on it. Inside a container this is the container's own layer.",
            next_step="set CLEANROOM_STORE to a folder on ext4, xfs or btrfs (in a container: a mounted volume)",
        )


def file_system_of(folder: Path, mountinfo: str | None = None) -> str:
    """The type of the file system a folder is on, as the kernel calls it ("ext4"). `mountinfo` is for tests."""
    text = mountinfo if mountinfo is not None else Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    resolved = folder.resolve()
    best, kind = -1, "unknown"
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), left.split()[4])
        # The last of several mounts on one point is the one in use.
        if resolved.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


def sweep() -> None:
    """Remove what engines left behind whose processes were all killed, the cleaning shell included."""
    for parent in _run_parents():
        for run in parent.glob(f"{PREFIX}*"):
            if run.is_dir() and run.stat().st_uid == os.geteuid() and (run / "alive").is_file():
                try:
                    alive = _lock_file(run / "alive", wait=False)
                except (BlockingIOError, FileNotFoundError):
                    continue
                os.close(alive)
                _remove_leftovers(run)


def _daemon_configuration(name: str) -> dict[str, Any]:
    return {
        "hosts": ["unix:///run/cleanroom/docker.sock"],
        "data-root": "/run/state",
        "exec-root": "/run/docker",
        "pidfile": "/run/dockerd.pid",
        "features": {"containerd-snapshotter": True},
        # The default policy throws away compile caches once they exceed half a gigabyte.
        "builder": {"gc": {"enabled": False}},
        # There is no network to manage: the namespace holds nothing but a loopback device that is down.
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        # One name for all control groups, so that they can be removed; no systemd answers in here.
        "cgroup-parent": f"/{name}",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
    }


def _start(
    root: Path, data: Path, run: Path, surroundings: Surroundings, *, stop: int, output: int, locks: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    data.mkdir(exist_ok=True)
    inside = [
        *("sh", "-c", _INSIDE, "cleanroom-engine", str(root), str(data), str(run), surroundings.host_name),
        *("dockerd", "--config-file", "/run/cleanroom/daemon.json"),
    ]
    available = sorted(os.sched_getaffinity(0))
    cpus = ",".join(map(str, available[: surroundings.cpus or None]))
    namespaces = ["taskset", "--cpu-list", cpus]
    namespaces += ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.Popen(
        ["sh", "-c", _OUTSIDE, "cleanroom-engine", str(run), run.name, *namespaces, *inside],
        stdin=stop,
        stdout=output,
        stderr=output,
        cwd="/",
        # Nothing of this machine's environment: proxies and certificates would reach the build steps.
        env={
            "PATH": DEFAULT_PATH,
            "LC_ALL": surroundings.locale,
            "TZ": surroundings.time_zone,
            "USER": surroundings.user,
            "LOGNAME": surroundings.user,
            # Otherwise the daemon cuts the log of a step after 2 MiB.
            "BUILDKIT_STEP_LOG_MAX_SIZE": "-1",
            "BUILDKIT_STEP_LOG_MAX_SPEED": "-1",
        },
        pass_fds=locks,
        start_new_session=True,
        umask=surroundings.umask,
    )


def _wait_until_it_answers(process: subprocess.Popen[bytes], path: Path, log: Path, timeout: float) -> dict[str, str]:
    deadline = time.monotonic() + timeout
    while True:
        if process.poll() is not None:
            raise _not_started(f"The embedded engine ended while starting (status {process.returncode}).", log)
        with suppress(OSError, ValueError):
            return _versions(path)
        if time.monotonic() > deadline:
            raise _not_started(f"The embedded engine did not answer within {timeout:.0f} s.", log)
        time.sleep(0.1)


def _not_started(what: str, log: Path) -> EngineError | DiskFull:
    said = _complaints(log, 12)
    if "no space left on device" in said.lower():
        return DiskFull(what, means=f"Its disk is full.\n{said}", next_step="free some space on the disk of the store")
    if "unshare failed" in said or ("mount" in said and "permission denied" in said.lower()):
        return EngineError(
            "This root may not make namespaces or mounts, so the embedded engine cannot run.",
            means=said,
            next_step="run on the machine itself, in a virtual machine, or in a container started with --privileged",
        )
    return EngineError(
        what,
        means=f"The last lines of its log:\n{said}" if said else "It wrote no log.",
        next_step="if it was killed while writing, its state may be damaged: nox -s clean, then the same command again",
    )


def _versions(path: Path) -> dict[str, str]:
    version = json.loads(_get(path, "/version"))
    return {str(part["Name"]): str(part["Version"]) for part in version["Components"]}


def _get(path: Path, resource: str) -> bytes:
    """One HTTP request to the daemon's socket; the body. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(f"GET {resource} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ValueError(head.decode("latin-1"))
    return body


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _signals_postponed() -> Iterator[None]:
    """A second Ctrl-C while the engine stops would leave it half stopped; it is delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def locked_state(state: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold an engine's state for ourselves, waiting for another process that uses it."""
    try:
        lock = _lock_file(state / "in-use", wait=False)
    except BlockingIOError:
        say("Another Cleanroom is using the embedded engine (or it is still stopping); waiting for it.")
        lock = _lock_file(state / "in-use")
    try:
        yield lock
    finally:
        os.close(lock)


def _lock_file(path: Path, *, wait: bool = True) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _run_parents() -> tuple[Path, ...]:
    return tuple(dict.fromkeys((Path("/run"), Path(tempfile.gettempdir()))))


def _run_folder() -> Path:
    """A private folder with a path short enough for a socket (108 bytes)."""
    for parent in _run_parents():
        try:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOSPC):
                raise
    raise EngineError("There is no folder for the engine's socket.", means="Neither /run nor the temporary folder is writable.")


def _remove_leftovers(run: Path) -> None:
    """What the cleaning shell does, for when it was killed as well."""
    for top in (_CGROUPS / run.name, *_CGROUPS.glob(f"*/{run.name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
    shutil.rmtree(run, ignore_errors=True)


def _complaints(path: Path, count: int) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 200_000))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join([line for line in lines if "level=info" not in line][-count:])
