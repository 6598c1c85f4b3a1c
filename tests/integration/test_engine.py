"""The embedded engine for real: builds, repeats, is interrupted and killed, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleanroom import engine as engine_module
from cleanroom.bootstrap import Layout, base_layout, engine_root
from cleanroom.console import Console
from cleanroom.embedded import PREFIX, USUAL, embedded_engine
from cleanroom.engine import BuildRequest, Engine, LocalOutput, OciOutput, StepEvent, StepFailed, engine_lock, open_engine
from cleanroom.errors import EngineError
from cleanroom.fetch import fetch
from cleanroom.files import sha256_of
from cleanroom.lock import Lock, lock_path, read_lock
from cleanroom.oci import write_layout, write_rootfs_tar
from cleanroom.project import REPOSITORY, Project
from cleanroom.store import Store

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="the embedded engine needs Linux and root"),
]

EPOCH = 1_764_000_000
DOCKERFILE = """
FROM tiny AS first
RUN --mount=type=secret,id=jobs cat /run/secrets/jobs > /dev/null && echo one && date > /when
FROM first AS second
RUN echo two && sleep 2 && date > /later
FROM tiny AS third
RUN echo to-output; echo to-error >&2; exit 3
FROM tiny AS talkative
RUN i=0; while [ $i -lt 120000 ]; do echo "line $i of a log that is longer than two mebibytes"; i=$((i+1)); done
FROM tiny AS online
RUN --network=none cat /proc/net/dev | grep -c : > /devices
FROM tiny AS endless
COPY --from=first /when /when
RUN echo sleeping && sleep 600
FROM tiny AS resumed
RUN --mount=type=cache,id=kept,target=/kept read said < /kept/mark || said=anew; echo $said > /said; echo resumed > /kept/mark
FROM scratch AS kept
COPY --from=resumed /said /
FROM scratch AS files
COPY --from=second /when /later /
COPY --from=online /devices /
"""
PROGRAMS = ("dash", "cat", "date", "echo", "sleep", "grep")


@pytest.fixture(scope="module")
def store() -> Store:
    return Store.default()


@pytest.fixture(scope="module")
def lock() -> Lock:
    return engine_lock(Project())


@pytest.fixture(scope="module")
def root(store: Store, lock: Lock) -> Path:
    console = Console()
    fetch(lock, store, console, project=Project())
    return engine_root(lock, store, console)


@pytest.fixture(scope="module")
def tiny(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A base of a shell and a few programs, taken from the engine's root file system, so that tests start in seconds."""
    folder = tmp_path_factory.mktemp("tiny")
    made = folder / "root"
    for name in ("usr/bin", "usr/lib/x86_64-linux-gnu", "usr/lib64", "etc", "tmp", "run", "proc", "dev", "sys"):
        (made / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (made / name).symlink_to(f"usr/{name}")
    for name in PROGRAMS:
        (made / "usr/bin" / name).write_bytes((root / "usr/bin" / name).read_bytes())
        (made / "usr/bin" / name).chmod(0o755)
    (made / "usr/bin/sh").symlink_to("dash")
    libraries = "usr/lib/x86_64-linux-gnu"
    for pattern in ("libc.so.6", "ld-linux-x86-64.so.2", "libpcre2-8.so.0"):
        (made / libraries / pattern).write_bytes((root / libraries / pattern).read_bytes())
        (made / libraries / pattern).chmod(0o755)
    (made / "usr/lib64/ld-linux-x86-64.so.2").symlink_to("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    write_rootfs_tar(made, folder / "root.tar", epoch=EPOCH, touched_since=0)
    digest = write_layout(folder / "layout", folder / "root.tar", env={"PATH": "/usr/bin"}, platform="linux/amd64", epoch=EPOCH)
    return Layout(folder / "layout", digest)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("context")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "jobs").write_text("2")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def running(store: Store, root: Path) -> Iterator[Engine]:
    assert root.is_dir()
    with forced_embedded(), open_engine(store, Project(), Console(), fresh=True) as engine:
        yield engine


@contextmanager
def forced_embedded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEANROOM_ENGINE", "embedded")
        yield


def request(
    context: Path, tiny: Layout, target: str, output: LocalOutput | OciOutput | None = None, *, no_cache: bool = False
) -> BuildRequest:
    return BuildRequest(
        dockerfile=context / "Dockerfile",
        context=context / "empty",
        target=target,
        epoch=EPOCH,
        contexts={"tiny": tiny.context},
        secrets={"jobs": context / "jobs"},
        output=output,
        no_cache=no_cache,
    )


def ignore(_event: StepEvent) -> None:
    """For tests that look at the result only."""


def test_the_engine_reports_its_versions(running: Engine, lock: Lock) -> None:
    assert running.info.kind == "embedded"
    assert running.info.fresh
    assert (lock.version_of("docker.io") or "").startswith(running.info.version)
    assert running.info.buildx.startswith("0.1")
    assert running.info.runc
    assert running.info.containerd


def test_files_come_out_and_the_second_build_is_cached(running: Engine, tiny: Layout, context: Path, tmp_path: Path) -> None:
    events: list[StepEvent] = []
    running.build(request(context, tiny, "files", LocalOutput(tmp_path / "out")), events.append)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["devices", "later", "when"]
    assert ("second", "log", "two") in {(e.stage, e.status, e.text) for e in events}
    took = [e.seconds for e in events if e.stage == "second" and e.status == "done"]
    assert took
    assert took[0] >= 2
    (context / "jobs").write_text("4")  # a secret's contents are not part of the cache's key
    again = running.build(request(context, tiny, "files", LocalOutput(tmp_path / "out")), ignore)
    assert any("sleep 2" in step for step in again.cached)
    assert again.seconds < 5


def test_dropped_layers_are_made_again_and_compile_caches_stay(
    running: Engine, tiny: Layout, context: Path, tmp_path: Path
) -> None:
    said = []
    for _ in range(2):
        running.build(request(context, tiny, "kept", LocalOutput(tmp_path / "kept")), ignore)
        said.append((tmp_path / "kept" / "said").read_text().strip())
        running.drop_layers()
    assert said == ["anew", "resumed"]
    assert running.build(request(context, tiny, "second"), ignore).cached == ()


def test_a_step_has_no_network_device_but_its_own_loopback(running: Engine, tiny: Layout, context: Path, tmp_path: Path) -> None:
    running.build(request(context, tiny, "files", LocalOutput(tmp_path / "out")), ignore)
    assert (tmp_path / "out/devices").read_text() == "1\n"


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_two_builds_without_cache_give_the_same_image_bytes(
    running: Engine, tiny: Layout, tmp_path: Path, compression: str
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM tiny AS same\nRUN echo text > /text && sleep 1 && echo more > /tmp/more\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "jobs").touch()
    digests = set()
    for name in ("one", "two"):
        output = OciOutput(tmp_path / f"{name}.tar", "zstd" if compression == "zstd" else "uncompressed")
        result = running.build(request(tmp_path, tiny, "same", output, no_cache=True), ignore)
        digests.add(result.digest)
    assert len(digests) == 1
    assert digests.pop().startswith("sha256:")
    assert sha256_of(tmp_path / "one.tar") == sha256_of(tmp_path / "two.tar")


def test_a_failing_step_gives_its_exit_code_and_log_and_no_output(
    running: Engine, tiny: Layout, context: Path, tmp_path: Path
) -> None:
    with pytest.raises(StepFailed) as caught:
        running.build(request(context, tiny, "third", LocalOutput(tmp_path / "out")), ignore)
    assert caught.value.step_exit_code == 3
    assert caught.value.stage == "third"
    assert sorted(caught.value.log.splitlines()) == ["to-error", "to-output"]
    assert list(tmp_path.iterdir()) == []


def test_a_long_log_is_not_cut(running: Engine, tiny: Layout, context: Path) -> None:
    result = running.build(request(context, tiny, "talkative"), ignore)
    (text,) = (text for step, text in result.logs.items() if "[talkative" in step)
    expected = [f"line {number} of a log that is longer than two mebibytes" for number in range(120_000)]
    lines = text.splitlines()
    wrong = next((number for number, line in enumerate(expected) if lines[number : number + 1] != [line]), None)
    assert wrong is None, lines[max(0, wrong - 2) : wrong + 3]
    assert len(lines) == len(expected), lines[len(expected) :][:5]
    assert len(text) > 2 * 1024 * 1024


def test_a_malformed_dockerfile_is_named_with_its_line(running: Engine, tiny: Layout, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM tiny AS broken\nRUM true\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "jobs").touch()
    with pytest.raises(EngineError, match="could not build") as caught:
        running.build(request(tmp_path, tiny, "broken"), ignore)
    assert "RUM true" in caught.value.means


def test_an_image_that_is_not_here_cannot_be_pulled(running: Engine, tiny: Layout, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM registry.invalid/some:image AS elsewhere\nRUN true\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "jobs").touch()
    with pytest.raises(EngineError):
        running.build(request(tmp_path, tiny, "elsewhere"), ignore)


# life and death


class Outside:
    """What an engine could leave on the machine: mounts, processes, network devices, control groups, folders."""

    def __init__(self) -> None:
        self.mounts = Path("/proc/self/mountinfo").read_text()
        self.devices = sorted(os.listdir("/sys/class/net"))

    def assert_nothing_is_left(self, name: str, processes: dict[int, str]) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (still_running(processes) or leftovers(name)):
            time.sleep(0.2)
        assert still_running(processes) == []
        assert leftovers(name) == []
        assert Path("/proc/self/mountinfo").read_text() == self.mounts
        assert sorted(os.listdir("/sys/class/net")) == self.devices


def leftovers(name: str) -> list[str]:
    groups = Path("/sys/fs/cgroup")
    return [str(path) for path in (Path("/run") / name, groups / name, *groups.glob(f"*/{name}")) if path.exists()]


def started(pid: int) -> str:
    """When a process began, to tell it from a later one of the same number; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def processes_of(name: str) -> dict[int, str]:
    """The processes in the mount namespace of the engine with this name, and the shells around it, by number and start."""
    mine = os.readlink("/proc/self/ns/mnt")
    found: dict[int, str] = {}
    namespaces = set()
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            command = (proc / "cmdline").read_bytes().decode(errors="replace")
            namespace = os.readlink(proc / "ns/mnt")
        except OSError:
            continue
        if name in command:
            found[int(proc.name)] = started(int(proc.name))
            namespaces.add(namespace)
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(proc / "ns/mnt") in namespaces - {mine}:
                found[int(proc.name)] = started(int(proc.name))
        except OSError:
            continue
    return found


def still_running(processes: dict[int, str]) -> list[int]:
    return [pid for pid, start in processes.items() if start and started(pid) == start]


def name_of(address: str) -> str:
    return Path(address.removeprefix("unix://")).parent.name


def test_it_starts_in_seconds_and_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    before = Outside()
    with embedded_engine(root, tmp_path / "state", say=print) as engine:
        name, processes = name_of(engine.address), processes_of(name_of(engine.address))
        assert engine.start_seconds < 30
        assert len(processes) >= 4  # the shell outside, unshare, the shell inside, dockerd, containerd
        assert name.startswith(PREFIX)
    before.assert_nothing_is_left(name, processes)


PROGRAM = """
import sys
from pathlib import Path
from cleanroom.console import Console
from cleanroom.embedded import USUAL, embedded_engine
from cleanroom.engine import BuildRequest, _embedded_engine
from cleanroom.store import Store

root, state, context, base, target = sys.argv[1:]
context = Path(context)
with _embedded_engine(Path(root), Path(state), Store.default(), Console(), USUAL, fresh=True) as engine:
    print("address", engine._environment["DOCKER_HOST"], flush=True)
    secrets = {"jobs": context / "jobs"}
    wanted = BuildRequest(context / "Dockerfile", context / "empty", target, 1764000000, {"tiny": base}, secrets)
    result = engine.build(wanted, lambda event: print(event.status, event.step, event.text, flush=True))
    print("cached", *result.cached, flush=True)
"""


@contextmanager
def another_cleanroom(arguments: Sequence[object]) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """The first line of its output that contains `text`."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} never came:\n" + "".join(seen))


def test_after_kill_9_nothing_is_left_and_finished_steps_are_kept(root: Path, tiny: Layout, context: Path, tmp_path: Path) -> None:
    before = Outside()
    with another_cleanroom([root, tmp_path, context, tiny.context, "endless"]) as process:
        name = name_of(wait_for(process, "address").split()[1])
        wait_for(process, "sleep 600 sleeping")
        processes = processes_of(name)
        assert len(processes) >= 5
        process.send_signal(signal.SIGKILL)
        process.wait()
    before.assert_nothing_is_left(name, processes)
    with another_cleanroom([root, tmp_path, context, tiny.context, "first"]) as process:
        wait_for(process, "cached [first")


def test_after_ctrl_c_the_engine_stops_and_finished_steps_are_kept(root: Path, tiny: Layout, context: Path, tmp_path: Path) -> None:
    before = Outside()
    with another_cleanroom([root, tmp_path, context, tiny.context, "endless"]) as process:
        name = name_of(wait_for(process, "address").split()[1])
        wait_for(process, "sleep 600 sleeping")
        processes = processes_of(name)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        wait_for(process, "KeyboardInterrupt")
        process.wait(30)
        assert time.monotonic() - began < 25
    before.assert_nothing_is_left(name, processes)
    with another_cleanroom([root, tmp_path, context, tiny.context, "first"]) as process:
        wait_for(process, "cached [first")


def test_a_second_engine_on_the_same_state_waits_for_the_first(root: Path, tiny: Layout, context: Path, tmp_path: Path) -> None:
    with another_cleanroom([root, tmp_path, context, tiny.context, "endless"]) as first:
        wait_for(first, "sleep 600 sleeping")
        with another_cleanroom([root, tmp_path, context, tiny.context, "first"]) as second:
            wait_for(second, "Another Cleanroom is using the embedded engine")
            first.send_signal(signal.SIGINT)
            wait_for(second, "cached [first")
            assert second.wait(30) == 0


def test_a_daemon_that_cannot_start_is_quoted(root: Path, tmp_path: Path) -> None:
    database = tmp_path / "data/containerd/daemon/io.containerd.metadata.v1.bolt/meta.db"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"not a database " * 1000)
    before = Outside()
    with pytest.raises(EngineError, match="embedded engine") as caught, embedded_engine(root, tmp_path, say=print):
        pass
    assert "invalid database" in caught.value.means
    assert Path("/proc/self/mountinfo").read_text() == before.mounts


def test_a_daemon_that_dies_during_a_build_is_named(root: Path, tiny: Layout, context: Path, store: Store, tmp_path: Path) -> None:
    with engine_module._embedded_engine(root, tmp_path, store, Console(), USUAL, fresh=True) as engine:
        name = name_of(engine._environment["DOCKER_HOST"])
        (daemon,) = (pid for pid in processes_of(name) if Path(f"/proc/{pid}/comm").read_text() == "dockerd\n")

        def kill_once_it_sleeps(event: StepEvent) -> None:
            if event.text == "sleeping":
                os.kill(daemon, signal.SIGKILL)

        with pytest.raises(EngineError, match="ended during the build"):
            engine.build(request(context, tiny, "endless"), kill_once_it_sleeps)


# the base


def test_the_base_is_the_same_bytes_when_made_again(store: Store, tmp_path: Path) -> None:
    lock = read_lock(lock_path(REPOSITORY, "sm100-debian13"))
    base_only = Lock(lock.target, lock.base, lock.inputs, lock.epoch, lock.notes, lock.group("base"))
    fetch(base_only, store, Console(), project=Project())
    stored = base_layout(lock, "linux/amd64", store, Console())
    fresh = base_layout(lock, "linux/amd64", store, Console(), fresh_in=tmp_path)
    assert stored.digest == fresh.digest
    assert stored.path != fresh.path
