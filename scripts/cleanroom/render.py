"""Render a target on a base into one multi-stage Dockerfile and one specification per component.

Pure: the same YAML and lock give the same bytes on any machine. The rendered files are committed; `check` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from cleanroom.arch import torch_arch_list
from cleanroom.base import Base
from cleanroom.component import Component
from cleanroom.envs import Envs
from cleanroom.errors import LockError, RenderDrift
from cleanroom.files import write_atomically
from cleanroom.lock import Entry, Lock
from cleanroom.project import IN_CONTAINER, TEMPLATES
from cleanroom.target import Target

TRIPLES = {"linux/amd64": "x86_64-linux", "linux/arm64": "sbsa-linux"}
BUILD_SCRIPTS = ("build_component.py", "compile_launcher.py", "file_times.py")


@dataclass(frozen=True)
class Rendered:
    """The files of one rendered target, by path relative to its folder."""

    name: str
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        """sha256 over all rendered files and the scripts they mount: what a finished build is a build of."""
        digest = hashlib.sha256()
        for path, text in sorted(self.files.items()):
            digest.update(f"{path}\0{text}\0".encode())
        for script in sorted(IN_CONTAINER.glob("*.py")):
            digest.update(f"{script.name}\0".encode() + script.read_bytes())
        return f"sha256:{digest.hexdigest()}"


def render(envs: Envs, target: Target, base: Base, lock: Lock) -> Rendered:
    """The Dockerfile and component specifications of `target` on `base`."""
    specifications = [specification(envs.component(s.component), target, lock) for s in target.components]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a Dockerfile is not HTML; every value is validated on load
    )
    dockerfile = environment.get_template("Dockerfile.j2").render(
        target=target,
        base=base,
        lock=lock,
        triple=TRIPLES[target.platform],
        components=[for_template(s) for s in specifications],
        torch_arch_list=torch_arch_list(target.architectures),
        architectures=[a.sm for a in target.architectures],
        image_name=image_name(target, base),
    )
    files = {"Dockerfile": squeeze(dockerfile)}
    files |= {f"components/{s['name']}.json": json.dumps(s, indent=2) + "\n" for s in specifications}
    return Rendered(lock.name, files)


def image_name(target: Target, base: Base) -> str:
    """The name an image carries; what an experimental target yields says so in its name."""
    experimental = "" if target.status == "supported" else f"-{target.status}"
    return f"cleanroom-{target.name}-{base.name}{experimental}"


def specification(component: Component, target: Target, lock: Lock) -> dict[str, Any]:
    """What a clean container needs to know to build one component, as plain data."""
    asked = target.architectures_of(component.name)
    source = source_of(component, lock)
    rule = component.architecture
    changed = rule.decided == "build" and rule.default and set(asked) != set(rule.default)
    placeholders = {
        "{version}": component.source.version,
        "{torch_arch_list}": torch_arch_list(asked),
        "{sm_list}": ", ".join(json.dumps(arch.sm) for arch in asked),
    }
    variables = [*component.environment, *rule.environment]
    body: dict[str, Any] = {
        "name": component.name,
        "title": component.title,
        "version": component.source.version,
        "distribution": component.distribution,
        "modules": list(component.modules),
        "source": {"file": source.file_name, "sha256": source.sha256},
        "architectures": [] if rule.decided == "nowhere" else [str(arch) for arch in asked],
        "environment": [
            # Set for every build, so that a list inherited from a base image can never decide.
            {"name": "TORCH_CUDA_ARCH_LIST", "value": torch_arch_list(asked)},
            *({"name": v.name, "value": fill(v.value, placeholders)} for v in variables),
        ],
        "substitute": [
            {"file": s.file, "match": s.match, "replace": fill(s.replace, placeholders), "count": s.count, "reason": s.reason}
            for s in (*component.substitute, *(rule.substitute if changed else ()))
        ],
        "provides": [{"file": p.file, "origin": p.origin, "reason": p.reason} for p in component.provides],
        "extensions": list(component.extensions),
        "contains": list(component.contains),
    }
    return {**body, "resume_key": resume_key(body, lock)}


def resume_key(body: Mapping[str, Any], lock: Lock) -> str:
    """Names the folder of objects that an interrupted build may take up again: one for one exact set of inputs."""
    inputs = [e.sha256 for e in lock.group("base", "build", "toolkit", "python")]
    scripts = [(IN_CONTAINER / name).read_text() for name in BUILD_SCRIPTS]  # they set flags, paths and times
    return hashlib.sha256(json.dumps([body, inputs, lock.epoch, scripts], sort_keys=True).encode()).hexdigest()[:32]


def source_of(component: Component, lock: Lock) -> Entry:
    for entry in lock.group("source"):
        if entry.name == component.source.name:
            return entry
    raise LockError(
        f"{lock.name}.lock has no source archive for {component.name} ({component.source.name} {component.source.version}).",
        means="The component was added after locking.",
        next_step=f"nox -s lock -- {lock.target}",
    )


def fill(text: str, placeholders: Mapping[str, str]) -> str:
    for name, value in placeholders.items():
        text = text.replace(name, value)
    return text


def for_template(spec: dict[str, Any]) -> dict[str, Any]:
    scripts = sorted({*BUILD_SCRIPTS, *(p["origin"] for p in spec["provides"])})
    return {**spec, "scripts": scripts}


def squeeze(text: str) -> str:
    """At most one blank line between stages, none at the end."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip() or (lines and lines[-1].strip()):
            lines.append(line.rstrip())
    return "\n".join(lines).rstrip() + "\n"


def write(rendered: Rendered, folder: Path) -> list[str]:
    """Write the rendered files under `folder`; returns the paths that changed. Files no longer rendered are removed."""
    changed = []
    for path, text in rendered.files.items():
        if not same(folder / path, text):
            write_atomically(folder / path, text.encode())
            changed.append(path)
    for path in leftovers(rendered, folder):
        (folder / path).unlink()
        changed.append(path)
    return changed


def check(rendered: Rendered, folder: Path) -> None:
    """Raise RenderDrift naming the files under `folder` that are not what they render to."""
    drifted = [path for path, text in rendered.files.items() if not same(folder / path, text)] + leftovers(rendered, folder)
    if drifted:
        raise RenderDrift(
            f"dockerfiles/{rendered.name} is not what envs/ and the lock render to: {', '.join(sorted(drifted))}.",
            means="It was edited by hand, or its YAML, lock or template changed without rendering.",
            next_step=f"nox -s render -- {rendered.name.split('-')[0]}",
        )


def same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def leftovers(rendered: Rendered, folder: Path) -> list[str]:
    present = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    return sorted(set(present) - set(rendered.files))
