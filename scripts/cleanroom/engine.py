"""The engine that builds containers: the only module that talks to Docker and BuildKit.

A Docker that answers is used through the user's own `docker buildx` (DOCKER_HOST, contexts and builders included);
otherwise the embedded engine is started. Needs BuildKit 0.13, the first with `rewrite-timestamp` (its release notes),
which Docker has since 26.0, and buildx 0.13, the first with `--progress=rawjson`.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import os
import re
import secrets as random_names
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from cleanroom import bootstrap
from cleanroom.console import Console
from cleanroom.embedded import USUAL, Embedded, Surroundings, embedded_engine
from cleanroom.errors import CleanroomError, DiskFull, EngineError, Interrupted
from cleanroom.fetch import fetch
from cleanroom.lock import Lock, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.store import Store

PLATFORM = "linux/amd64"
NEEDED_DOCKER = (26, 0)
NEEDED_BUILDKIT = (0, 13)
NEEDED_BUILDX = (0, 13)

Choice = Literal["docker", "embedded"]
Status = Literal["started", "log", "cached", "done", "failed", "transfer"]
Compression = Literal["uncompressed", "gzip", "zstd"]


@dataclass(frozen=True)
class EngineInfo:
    """What builds. Versions as the programs report them, empty where they do not; `fresh`: nothing kept from before."""

    kind: Choice
    version: str
    buildkit: str
    buildx: str
    containerd: str = ""
    runc: str = ""
    fresh: bool = False
    start_seconds: float = 0.0


@dataclass(frozen=True)
class LocalOutput:
    """The result's files; afterwards the folder `dest` holds exactly them."""

    dest: Path


@dataclass(frozen=True)
class OciOutput:
    """The result as an OCI image in a tar file. Layers are compressed anew, so that their bytes depend only on content."""

    dest: Path
    compression: Compression = "zstd"


@dataclass(frozen=True)
class BuildRequest:
    """One build. `epoch` is SOURCE_DATE_EPOCH; without `output` the result stays in the cache only.

    `contexts`: name to folder or "oci-layout://PATH@sha256:…". `secrets`: name to file; their contents are not part of
    the cache's key.
    """

    dockerfile: Path
    context: Path
    target: str
    epoch: int
    contexts: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    output: LocalOutput | OciOutput | None = None
    no_cache: bool = False
    platform: str = PLATFORM


@dataclass(frozen=True)
class StepEvent:
    """Something happened to a step. `step` is its name ("[deepep 3/5] RUN …"), `text` one line of its log or its error.

    `seconds` is how long it took, once it ended; `known` is how many steps are known so far, internal ones excluded. The
    last lines of a step may come after its end, as BuildKit sends them so.
    """

    step: str
    status: Status
    text: str = ""
    seconds: float = 0.0
    known: int = 0

    @property
    def stage(self) -> str:
        """The stage of the Dockerfile ("deepep"); empty for what is not a stage's step."""
        return stage_of(self.step)

    @property
    def internal(self) -> bool:
        """Whether the step is the engine's own work (loading, exporting), not a line of the Dockerfile."""
        return not self.stage


@dataclass(frozen=True)
class BuildResult:
    """`digest` is the image manifest's ("sha256:<hex>"), empty if no image was exported. `logs`: step name to its log."""

    digest: str
    seconds: float
    logs: Mapping[str, str]
    cached: tuple[str, ...]
    took: Mapping[str, float]


class StepFailed(EngineError):
    """A step of the Dockerfile ended with an error.

    `step_exit_code` is the exit status of the step's process, None if it had none; `exit_code` stays Cleanroom's own.
    """

    def __init__(self, step: str, exit_code: int | None, log: str, error: str) -> None:
        ended = error if exit_code is None else f"exit code {exit_code}"
        super().__init__(f"{step} failed: {ended}", means="\n".join(log.splitlines()[-20:]))
        self.step = step
        self.step_exit_code = exit_code
        self.log = log
        self.error = error

    @property
    def stage(self) -> str:
        return stage_of(self.step)


OnEvent = Callable[[StepEvent], None]


def stage_of(step: str) -> str:
    """The stage in a step's name: "deepep" of "[deepep 3/5] RUN …", "stage-1" of "[stage-1 2/2] …"; else empty."""
    match = re.match(r"\[(?:[a-z0-9]+/\S+ )?(\S+)\s+\d+/\d+\] ", step)
    return match[1] if match else ""


class Engine:
    """A running engine. Made by open_engine."""

    def __init__(
        self,
        info: EngineInfo,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        store: Store,
        embedded: Embedded | None = None,
        cache_namespace: str = "",
    ) -> None:
        self.info = info
        self._command = tuple(command)
        self._environment = dict(environment)
        self._store = store
        self._embedded = embedded
        self._cache_namespace = cache_namespace
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._cancelled = False

    def build(self, request: BuildRequest, on_event: OnEvent) -> BuildResult:
        """Build, telling every event as it happens. Outputs appear whole or not at all.

        May be called from several threads at once; `on_event` is called in the thread that called. Raises StepFailed (a
        line of the Dockerfile failed), DiskFull, EngineError, Interrupted (after `cancel`). On Ctrl-C the build is
        cancelled, finished steps stay in the cache, and KeyboardInterrupt goes on.
        """
        began = time.monotonic()
        with self._store.scratch("build") as folder, _output(request.output) as output:
            metadata = folder / "metadata.json"
            reader = ProgressReader(on_event)
            status, said = self._stream([*self._arguments(request, metadata), *output, str(request.context)], reader)
            if status != 0:
                raise self._failure(status, said, reader)
            digest = _digest(metadata)
        return BuildResult(digest, time.monotonic() - began, reader.logs(), reader.cached(), reader.took())

    def drop_layers(self) -> None:
        """Remove the layers that finished steps left in the engine's cache. Compile caches, from which builds resume, stay.

        Raises EngineError.
        """
        arguments = [*self._command, "prune", "--all", "--force", "--filter", "type=regular"]
        done = subprocess.run(
            arguments, check=False, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise EngineError("The engine could not remove layers of earlier builds.", means=done.stderr.strip())

    def cancel(self) -> None:
        """Cancel the builds of all threads and refuse further ones; returns when their clients have ended."""
        with self._lock:
            self._cancelled = True
            running = tuple(self._running)
        for process in running:
            _signal(process, signal.SIGINT)
        for process in running:
            _cancel(process)

    def _arguments(self, request: BuildRequest, metadata: Path) -> list[str]:
        arguments = [
            *("build", "--progress=rawjson", "--network=none", "--provenance=false", "--sbom=false", "--pull=false"),
            *(f"--platform={request.platform}", f"--file={request.dockerfile}", f"--target={request.target}"),
            *(f"--build-arg=SOURCE_DATE_EPOCH={request.epoch}", f"--metadata-file={metadata}"),
        ]
        arguments += [f"--build-context={name}={place}" for name, place in sorted(request.contexts.items())]
        arguments += [f"--secret=id={name},src={path}" for name, path in sorted(request.secrets.items())]
        if self._cache_namespace:
            arguments.append(f"--build-arg=BUILDKIT_CACHE_MOUNT_NS={self._cache_namespace}")
        if request.no_cache or self._cache_namespace:
            arguments.append("--no-cache")
        return arguments

    def _stream(self, arguments: Sequence[str], reader: ProgressReader) -> tuple[int, str]:
        with self._lock:
            if self._cancelled:
                raise _interrupted()
            process = subprocess.Popen(
                [*self._command, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C reaches it through us, once
            )
            self._running.add(process)
        assert process.stderr is not None
        said: list[str] = []
        try:
            for document in _documents(process.stderr, said):
                reader.feed(document)
            reader.close()
            status = process.wait()
        except BaseException:
            _cancel(process)
            raise
        finally:
            process.stderr.close()
            with self._lock:
                self._running.discard(process)
        if self._cancelled and status != 0:
            raise _interrupted()
        return status, "\n".join(said).strip()

    def _failure(self, status: int, said: str, reader: ProgressReader) -> CleanroomError:
        failed = reader.failure()
        text = said + (f"\n{failed.error}" if failed else "")
        if "no space left on device" in text.lower():
            return DiskFull(
                "The disk filled up during the build.",
                means=f"{self._store.free_bytes() / 1e9:.1f} GB are free now on the disk of {self._store.root}."
                if self._embedded
                else "It is the disk of the Docker daemon that builds.",
                next_step="free some space; finished steps are kept, so the same command goes on where it stopped",
            )
        if self._embedded is not None and not self._embedded.alive:
            return EngineError(
                "The embedded engine ended during the build.",
                means=f"The last lines of its log:\n{self._embedded.last_lines()}",
                next_step="run the same command again; finished steps are kept",
            )
        if failed is not None:
            return StepFailed(failed.step, failed.exit_code, failed.log, failed.error)
        return EngineError(f"The engine could not build (status {status}).", means="\n".join(said.splitlines()[-15:]))


@contextmanager
def open_engine(
    store: Store, project: Project, console: Console, *, fresh: bool = False, surroundings: Surroundings = USUAL
) -> Iterator[Engine]:
    """The engine of this machine, running while the block runs.

    `fresh`: with nothing kept from earlier builds, neither steps nor compile caches. `surroundings` are for an embedded
    engine; a Docker that runs already has its own. CLEANROOM_ENGINE=docker|embedded decides; without it a usable Docker
    goes first. Raises EngineError with what to install.
    """
    choice, docker = choose(os.environ, console)
    if choice == "docker":
        assert docker is not None
        with _cancelled_at_the_end(_docker_engine(docker, store, fresh=fresh)) as engine:
            yield engine
        return
    lock = engine_lock(project)
    place = bootstrap.engine_place(lock, store)
    if not place.is_dir():
        fetch(lock, store, console, project=project)
    root = bootstrap.engine_root(lock, store, console)
    if fresh:
        with (
            store.scratch("fresh-engine") as scratch,
            _embedded_engine(root, scratch, store, console, surroundings, fresh=True) as engine,
        ):
            yield engine
        return
    with _embedded_engine(root, store.root / "engine", store, console, surroundings, fresh=False) as engine:
        yield engine


def engine_lock(project: Project) -> Lock:
    """The lock of the embedded engine: the project's own, else the one that comes with Cleanroom."""
    own = project.lockfiles_dir / "engine.lock"
    return read_lock(own if own.is_file() else REPOSITORY / "lockfiles" / "engine.lock")


@contextmanager
def _embedded_engine(
    root: Path, state: Path, store: Store, console: Console, surroundings: Surroundings, *, fresh: bool
) -> Iterator[Engine]:
    buildx = root / "usr/libexec/docker/cli-plugins/docker-buildx"
    with (
        store.scratch("buildx") as configuration,
        embedded_engine(root, state, say=console.info, surroundings=surroundings) as running,
    ):
        environment = {
            **{name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ},
            "HOME": str(configuration),
            "DOCKER_CONFIG": str(configuration),
            "DOCKER_HOST": running.address,
        }
        info = EngineInfo(
            kind="embedded",
            version=running.versions.get("Engine", ""),
            buildkit=_builder([str(buildx)], environment).buildkit,
            buildx=_text_version(_ask([str(buildx), "version"], environment).stdout),
            containerd=running.versions.get("containerd", ""),
            runc=running.versions.get("runc", ""),
            fresh=fresh,
            start_seconds=running.start_seconds,
        )
        console.info(f"Embedded engine {info.version} started ({info.start_seconds:.1f} s).")
        with _cancelled_at_the_end(Engine(info, [str(buildx)], environment, store=store, embedded=running)) as engine:
            yield engine


@contextmanager
def _cancelled_at_the_end(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.cancel()


def _docker_engine(docker: Docker, store: Store, *, fresh: bool) -> Engine:
    # An existing Docker keeps its cache between builds: for a fresh build no step is taken from it, and compile caches
    # get a name that was never used.
    namespace = f"cleanroom-{random_names.token_hex(8)}" if fresh else ""
    info = EngineInfo("docker", docker.server, docker.builder.buildkit, docker.buildx, fresh=fresh)
    return Engine(info, ["docker", "buildx"], dict(os.environ), store=store, cache_namespace=namespace)


# --- which engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Builder:
    """What `buildx inspect` says: its driver and BuildKit's version."""

    driver: str = ""
    buildkit: str = ""
    error: str = ""


@dataclass(frozen=True)
class Docker:
    """What was found of the user's Docker. Fields are empty where it did not answer; `error` says why."""

    installed: bool = False
    asked_for: str = ""
    buildx: str = ""
    builder: Builder = Builder()
    server: str = ""
    snapshotter: bool = False
    error: str = ""


def forced_choice(environment: Mapping[str, str]) -> str:
    """What CLEANROOM_ENGINE asks for, empty if nothing. Raises EngineError for what is no engine."""
    forced = environment.get("CLEANROOM_ENGINE", "").strip()
    if forced not in ("", *_CHOICES):
        raise EngineError(
            f"CLEANROOM_ENGINE is {forced!r}.", means=f"It may be {', '.join(_CHOICES)}.", next_step="unset CLEANROOM_ENGINE"
        )
    return forced


_CHOICES = ("auto", "docker", "embedded")


def choose(environment: Mapping[str, str], console: Console) -> tuple[Choice, Docker | None]:
    """Which engine to use, saying so where it is not obvious. Raises EngineError if none can be used."""
    forced = forced_choice(environment)
    if forced == "embedded":
        _refuse_embedded()
        return "embedded", None
    docker = find_docker(environment)
    objection = objection_to(docker)
    if not objection:
        return "docker", docker
    asked_for = "CLEANROOM_ENGINE" if forced == "docker" else docker.asked_for
    if asked_for:
        raise EngineError(
            f"The Docker of this machine cannot be used: {objection}",
            means=f"It was asked for by {asked_for}, so nothing else is tried.",
            next_step="make it answer, or use the embedded engine (Linux, as root): CLEANROOM_ENGINE=embedded",
        )
    _refuse_embedded(objection)
    if docker.server:
        console.info(f"Using the embedded engine: {objection}")
    return "embedded", None


def objection_to(docker: Docker) -> str:
    """Why this Docker cannot build for us, with what was found and what is needed; empty if it can."""
    if not docker.installed:
        return "there is no docker command."
    if not docker.buildx:
        return docker.error or "docker has no buildx plugin (Debian: docker-buildx; elsewhere: docker-buildx-plugin)."
    if _numbers(docker.buildx) < NEEDED_BUILDX:
        return f"found buildx {docker.buildx}, needed is {_dotted(NEEDED_BUILDX)} or newer."
    if docker.builder.driver not in ("", "docker"):
        if docker.builder.error:
            return docker.builder.error
        if _numbers(docker.builder.buildkit) < NEEDED_BUILDKIT:
            return f"found BuildKit {docker.builder.buildkit or '(unknown)'}, needed is {_dotted(NEEDED_BUILDKIT)} or newer."
        return ""
    if not docker.server:
        return docker.error or docker.builder.error or "no Docker daemon answers."
    if _numbers(docker.server) < NEEDED_DOCKER:
        return (
            f"found Docker {docker.server}, needed is {_dotted(NEEDED_DOCKER)} or newer (its BuildKit is the first that can "
            "set all times in an image)."
        )
    if not docker.snapshotter:
        return (
            f"Docker {docker.server} keeps images in its old store, which cannot export OCI images (set "
            '"features": {"containerd-snapshotter": true} in its daemon.json, or: docker buildx create --use).'
        )
    return ""


def find_docker(environment: Mapping[str, str]) -> Docker:
    """Ask the docker command, if there is one, what it would build with."""
    names = ("BUILDX_BUILDER", "DOCKER_HOST", "DOCKER_CONTEXT")
    asked_for = next((f"{name}={environment[name]}" for name in names if environment.get(name)), "")
    if shutil.which("docker", path=environment.get("PATH")) is None:
        return Docker(asked_for=asked_for)
    if not asked_for:
        context = _ask(["docker", "context", "show"], environment).stdout.strip()
        asked_for = f"the Docker context {context}" if context not in ("", "default") else ""
    version = _ask(["docker", "version", "--format", "{{json .Server}}"], environment)
    server = _json_field(version.stdout, "Version")
    error = "" if server else f"no Docker daemon answers: {_last_line(version.stderr) or 'no reason given'}"
    buildx = _text_version(_ask(["docker", "buildx", "version"], environment).stdout)
    if not buildx:
        return Docker(installed=True, asked_for=asked_for, server=server, error=error)
    builder = _builder(["docker", "buildx"], environment)
    snapshotter = False
    if server:
        status = _ask(["docker", "info", "--format", "{{json .DriverStatus}}"], environment).stdout
        snapshotter = "io.containerd.snapshotter" in status
    return Docker(True, asked_for, buildx, builder, server, snapshotter, error)


def why_not_embedded() -> str:
    """Why the embedded engine cannot run on this machine; empty if it can, as far as can be seen without starting it."""
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        return f"it needs Linux on x86_64, this is {os.uname().sysname} on {os.uname().machine}."
    if os.geteuid() != 0:
        return "it needs root."
    missing = [tool for tool in (*bootstrap.TOOLS, "mount", "pivot_root") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (scripts/setup installs them)."
    tried = _ask(["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"], os.environ)
    if tried.status != 0:
        return f"this root may not make namespaces ({_last_line(tried.stderr)}); a container needs --privileged."
    return ""


def _refuse_embedded(docker: str = "") -> None:
    reason = why_not_embedded()
    if reason:
        raise EngineError(
            "No container engine can be used.",
            means=(f"Docker: {docker}\n" if docker else "") + f"Embedded engine: {reason}",
            next_step=f"install Docker {_dotted(NEEDED_DOCKER)} or newer, or run as root on Linux after scripts/setup; "
            "nox -s doctor shows what is missing",
        )


@dataclass(frozen=True)
class _Answer:
    status: int
    stdout: str
    stderr: str


def _ask(command: Sequence[str], environment: Mapping[str, str], *, timeout: float = 60) -> _Answer:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=timeout,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return _Answer(124, "", f"{' '.join(command)} did not end within {timeout:.0f} s")
    except OSError as error:
        return _Answer(127, "", f"{command[0]}: {error.strerror}")
    return _Answer(done.returncode, done.stdout, done.stderr)


def _builder(buildx: Sequence[str], environment: Mapping[str, str]) -> Builder:
    answer = _ask([*buildx, "inspect", "--bootstrap"], environment, timeout=180)
    return parse_inspect(answer.stdout, "" if answer.status == 0 else _last_line(answer.stderr))


def parse_inspect(text: str, error: str = "") -> Builder:
    """Driver and BuildKit version out of `docker buildx inspect`."""
    fields = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    buildkit = fields.get("buildkit version", fields.get("buildkit", ""))
    return Builder(fields.get("driver", ""), buildkit, fields.get("error", error))


def _numbers(version: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _short(digest: str) -> str:
    """A digest as people recognise it; anything else as it is."""
    return digest[:19] if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else digest


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)


def _text_version(text: str) -> str:
    """The version in "github.com/docker/buildx v0.13.1 788433953af1"."""
    match = re.search(r"buildx v?(\d+\.\d+\S*)", text)
    return match[1] if match else ""


def _json_field(text: str, name: str) -> str:
    with suppress(ValueError):
        data = json.loads(text)
        return str(data.get(name) or "") if isinstance(data, dict) else ""
    return ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# --- outputs --------------------------------------------------------------------------------------------------------


@contextmanager
def _output(output: LocalOutput | OciOutput | None) -> Iterator[list[str]]:
    """The arguments that export to a temporary place beside the wanted one; it is moved there once the build is done."""
    if output is None:
        yield ["--output=type=cacheonly"]
        return
    output.dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.dest.name}.", dir=output.dest.parent) as folder:
        new = Path(folder) / "new"
        if isinstance(output, LocalOutput):
            new.mkdir()
            yield [f"--output=type=local,dest={new}"]
            if output.dest.exists():
                output.dest.rename(Path(folder) / "old")
        else:
            options = f"rewrite-timestamp=true,compression={output.compression},force-compression=true"
            yield [f"--output=type=oci,dest={new},{options}"]
        os.replace(new, output.dest)


def _digest(metadata: Path) -> str:
    try:
        return str(json.loads(metadata.read_bytes()).get("containerimage.digest", ""))
    except (OSError, ValueError, AttributeError):
        return ""


# --- progress -------------------------------------------------------------------------------------------------------


@dataclass
class _Stream:
    """Standard output or error of a step: its unfinished line, and a decoder, as a chunk may end within a character."""

    partial: str = ""
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


@dataclass
class _Step:
    name: str
    running: bool = False
    ended: bool = False
    cached: bool = False
    seconds: float = 0.0
    error: str = ""
    order: int = 0
    lines: list[str] = field(default_factory=list)
    streams: dict[int, _Stream] = field(default_factory=dict)


@dataclass(frozen=True)
class FailedStep:
    """The step that failed first, with the exit status of its process if it had one, and its whole log."""

    step: str
    exit_code: int | None
    log: str
    error: str


class ProgressReader:
    """Turns BuildKit's progress documents (`--progress=rawjson`) into StepEvents, and keeps each step's whole log.

    BuildKit may send the last lines of a step after its end.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._steps: dict[str, _Step] = {}
        self._endings = 0

    def feed(self, document: Mapping[str, Any]) -> None:
        """One document: any of `vertexes`, `statuses`, `logs`."""
        vertexes = document.get("vertexes") or ()
        # Lines that come in the document of a step's end are told before it.
        for vertex in vertexes:
            self._steps.setdefault(vertex["digest"], _Step(str(vertex.get("name", ""))))
        for vertex in vertexes:
            if not vertex.get("completed"):
                self._vertex(vertex)
        for status in document.get("statuses") or ():
            self._status(status)
        for log in document.get("logs") or ():
            self._log(log)
        for vertex in vertexes:
            if vertex.get("completed"):
                self._vertex(vertex)

    def close(self) -> None:
        """Everything has been fed: last lines that did not end with a line break are told now."""
        for step in self._steps.values():
            for stream in step.streams.values():
                rest = stream.partial + stream.decoder.decode(b"", final=True)
                stream.partial = ""
                if rest:
                    self._line(step, rest)

    def logs(self) -> dict[str, str]:
        """Each step's whole log by its name."""
        return {step.name: "\n".join(step.lines) for step in self._steps.values() if step.lines}

    def cached(self) -> tuple[str, ...]:
        """Names of the steps that were taken from the cache."""
        return tuple(step.name for step in self._steps.values() if step.cached)

    def took(self) -> dict[str, float]:
        """Seconds of each step that ran."""
        return {step.name: step.seconds for step in self._steps.values() if step.ended and not step.cached}

    def failure(self) -> FailedStep | None:
        """The first step that failed by itself; those cancelled because of it do not count unless there is nothing else."""
        failed = sorted((step for step in self._steps.values() if step.error), key=lambda step: step.order)
        real = [step for step in failed if not step.error.endswith(("context canceled", "context cancelled"))]
        for step in real or failed:
            code = re.search(r"exit code: (\d+)", step.error)
            return FailedStep(step.name, int(code[1]) if code else None, "\n".join(step.lines), step.error)
        return None

    def _known(self) -> int:
        return sum(bool(stage_of(step.name)) for step in self._steps.values())

    def _tell(self, step: _Step, status: Status, text: str = "") -> None:
        self._on_event(StepEvent(step.name, status, text, step.seconds, self._known()))

    def _vertex(self, vertex: Mapping[str, Any]) -> None:
        step = self._steps[vertex["digest"]]
        if step.ended and not vertex.get("error"):
            return  # BuildKit looks at finished steps again
        if vertex.get("started") and not step.running and not vertex.get("cached"):
            step.running = True
            self._tell(step, "started")
        if not vertex.get("completed"):
            return
        again = step.ended
        step.running, step.ended = False, True
        step.seconds = _seconds_between(vertex.get("started"), vertex["completed"])
        step.error = str(vertex.get("error") or "")
        self._endings += 1
        step.order = self._endings
        if step.error:
            if not again:
                self._tell(step, "failed", step.error)
        elif vertex.get("cached"):
            step.cached = True
            self._tell(step, "cached")
        else:
            self._tell(step, "done")

    def _status(self, status: Mapping[str, Any]) -> None:
        step = self._steps.get(status.get("vertex", ""))
        if step is None:
            return
        current, total = int(status.get("current") or 0), int(status.get("total") or 0)
        amount = f" {current / 1e6:.1f} MB" + (f" of {total / 1e6:.1f} MB" if total else "") if current else ""
        self._tell(step, "transfer", f"{_short(str(status.get('id', '')))}{amount}")

    def _log(self, log: Mapping[str, Any]) -> None:
        step = self._steps.get(log.get("vertex", ""))
        if step is None:
            return
        with suppress(binascii.Error, TypeError):
            stream = step.streams.setdefault(int(log.get("stream") or 0), _Stream())
            text = stream.partial + stream.decoder.decode(base64.b64decode(log["data"]))
            *whole, stream.partial = text.split("\n")
            for line in whole:
                self._line(step, line)

    def _line(self, step: _Step, line: str) -> None:
        line = line.rstrip("\r")
        step.lines.append(line)
        self._tell(step, "log", line)


def _seconds_between(started: object, completed: object) -> float:
    with suppress(ValueError, TypeError):
        return (_moment(str(completed)) - _moment(str(started))).total_seconds()
    return 0.0


def _moment(text: str) -> datetime:
    """RFC 3339 with nanoseconds, which datetime does not read."""
    return datetime.fromisoformat(re.sub(r"(\.\d{1,6})\d*", r"\1", text))


def _documents(stream: Iterable[bytes], said: list[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects in buildx's output, one a line or spread over lines; every other line is added to `said`."""
    collected: list[str] = []
    for raw in stream:
        line = raw.decode("utf-8", "replace").rstrip("\n")
        if collected:
            collected.append(line)
            if line == "}":
                document, collected = _object("\n".join(collected)), []
                if document is not None:
                    yield document
        elif line == "{":
            collected.append(line)
        else:
            document = _object(line) if line.startswith("{") else None
            if document is not None:
                yield document
            else:
                said.append(line)
    said.extend(collected)


def _object(text: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        data = json.loads(text)
        if isinstance(data, dict):
            return data
    return None


def _cancel(process: subprocess.Popen[bytes]) -> None:
    """Ask buildx to cancel, as Ctrl-C would; kill it if it does not."""
    for order in (signal.SIGINT, signal.SIGKILL):
        _signal(process, order)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return


def _signal(process: subprocess.Popen[bytes], order: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(order)


def _interrupted() -> Interrupted:
    return Interrupted("The build was cancelled.", means="Finished steps are kept.", next_step="run the same command again")
