"""Build a target: from lock to wheels, image and record, in clean containers without a network."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cleanroom import fetch as fetching
from cleanroom import render as rendering
from cleanroom.base import Base
from cleanroom.bootstrap import base_layout
from cleanroom.check import preflight
from cleanroom.console import Console, StepView
from cleanroom.engine import BuildRequest, Engine, LocalOutput, OciOutput, StepEvent, StepFailed, open_engine
from cleanroom.envs import Envs
from cleanroom.errors import BuildFailed, CannotBuildHere, DiskFull, UnknownName
from cleanroom.failures import Failure, classify
from cleanroom.files import sha256_of, write_atomically
from cleanroom.lock import Lock, lock_path, read_lock
from cleanroom.project import IN_CONTAINER, Project
from cleanroom.resources import Resources, cores_here, memory_here, plan
from cleanroom.store import Store
from cleanroom.target import Target

IMAGE_FILE = "image.oci.tar"
IMAGE_COMPRESSION = "zstd"
MARK = "::cleanroom:: "


@dataclass(frozen=True)
class Options:
    """What the person who types `build` may choose. No components means all of them."""

    components: tuple[str, ...] = ()
    keep_going: bool = False
    jobs: int | None = None
    image: bool = True


@dataclass(frozen=True)
class Job:
    """One target on one base, loaded, checked and ready to build."""

    project: Project
    envs: Envs
    target: Target
    base: Base
    lock: Lock
    rendered: rendering.Rendered
    out: Path
    warnings: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.project.dockerfiles_dir / self.rendered.name


@dataclass
class Outcome:
    """What became of one component. `result` is what the container reported about the wheel it made."""

    name: str
    status: str = "not attempted"
    result: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    seconds: float = 0.0
    cached: bool = False


def prepare(project: Project, envs: Envs, target_name: str, base_name: str | None) -> Job:
    """Load, check and pin down what will be built; nothing is fetched and nothing is started."""
    target = envs.target(target_name)
    base = envs.base(base_name or target.bases[0])
    if base.name not in target.bases:
        raise UnknownName(
            f"{target.name} is not defined on base {base.name!r}.", means=f"Its bases are {', '.join(target.bases)}."
        )
    lock = read_lock(
        lock_path(project.root, f"{target.name}-{base.name}"), inputs=envs.inputs_checksum(target.name, base.name)
    )
    warnings = preflight(envs, target, base, torch_version=lock.version_of("torch"))
    rendered = rendering.render(envs, target, base, lock)
    rendering.check(rendered, project.dockerfiles_dir / rendered.name)
    name = target.name if base.name == target.bases[0] else rendered.name
    return Job(project, envs, target, base, lock, rendered, project.out_dir / name, warnings)
