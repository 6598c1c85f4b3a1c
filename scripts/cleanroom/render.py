"""Render a target on a base into one multi-stage Dockerfile and one specification per component.

Pure: the same YAML and lock give the same bytes on any machine. The rendered files are committed; `check` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2

from cleanroom import jit
from cleanroom.arch import Arch, torch_arch_list
from cleanroom.base import Base
from cleanroom.component import Component, Variable
from cleanroom.envs import Envs
from cleanroom.errors import LockError, RenderDrift
from cleanroom.files import write_atomically
from cleanroom.lock import COMPILED_WITH, Entry, Lock
from cleanroom.project import IN_CONTAINER, TEMPLATES
from cleanroom.target import MACHINES, Target, ToolkitKind

TRIPLES = {"linux/amd64": "x86_64-linux", "linux/arm64": "sbsa-linux"}
PLACES = {
    "{cann}": "/opt/cann",
    "{launchers}": "/build/launchers",
    "{path}": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "{venv}": "/opt/venv",
}
"""Where things are in the container, for what is written in YAML."""
SDK = "/opt/torch-npu-sdk"
SDK_IS_ENOUGH = ("deepinfer",)
"""Components of which torch-npu's headers and libraries are enough to compile and link, without CANN."""
BUILD_SCRIPTS = ("build_component.py", "compile_launcher.py", "file_times.py")
SURVEY_SCRIPTS = ("keep_going.py", "survey.py")


@dataclass(frozen=True)
class Stages:
    """What differs between the Dockerfiles of two kinds of toolkit, so that no template asks which one it is for.

    `layers`: the templates between base and builds, in their order. `below`: which stage each of them, and the builds,
    start from. `beside`: templates of stages that lead to no image. `path`: the toolkit's part of the environment's PATH.
    The rest are words.
    """

    layers: tuple[str, ...]
    below: Mapping[str, str]
    beside: tuple[str, ...]
    path: str
    inputs: str
    kind: str
    compilers: str
    device: str


STAGES: Mapping[ToolkitKind, Stages] = {
    "cuda-wheels": Stages(
        layers=("toolkit.j2", "environment.j2"),
        below={"toolkit": "system", "environment": "toolkit", "builds": "environment"},
        beside=(),
        path=":/usr/local/cuda/bin",
        inputs="wheels of the CUDA",
        kind="toolkit",
        compilers="nvcc",
        device="a GPU",
    ),
    "cann-installers": Stages(
        layers=("environment.j2", "cann.j2"),  # CANN comes late: all before it can be built without it
        below={"environment": "system", "toolkit": "environment", "builds": "toolkit"},
        beside=("npu_kernels.j2", "tiers.j2"),
        path="",
        inputs="installers of CANN",
        kind="(licensed; an operator brings them)",
        compilers="bisheng, ld.lld",
        device="an NPU",
    ),
}


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
        mounted = "".join(self.files.values())
        for script in (s for s in sorted(IN_CONTAINER.glob("*.py")) if f"source={s.name}," in mounted):
            digest.update(f"{script.name}\0".encode() + script.read_bytes())
        return f"sha256:{digest.hexdigest()}"


def render(envs: Envs, target: Target, base: Base, lock: Lock) -> Rendered:
    """The Dockerfile and component specifications of `target` on `base`."""
    specifications = [specification(s.of(envs.component(s.component)), target, lock) for s in target.components]
    stages = STAGES[target.toolkit.kind]
    tiers = [for_sdk(s, lock) for s in specifications if stages.beside and s["name"] in SDK_IS_ENOUGH]
    tag, probed = build_tag(target), _with_probes(envs, target)
    tried = probed if is_trial(target) else ()
    components = [for_template(s, surveyed=surveyed(envs.component(s["name"]), target), build_tag=tag) for s in specifications]
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
        stages=stages,
        tiers={"extension": [for_template(s) for s in tiers]},
        triple=TRIPLES[target.platform],
        machine=MACHINES[target.platform],
        toolkit_environment=in_container(target.toolkit.environment),
        probe_environment=[v for v in in_container(target.toolkit.build_environment) if v.name != "PATH"],
        components=components,
        torch_arch_list=torch_list(target.architectures),
        architectures=target.architecture_names,
        image_name=image_name(target, base),
        jit={
            "components": [for_template(s) for s in specifications if s["name"] in probed and not tried],
            "apart": not image_expected(target),
            "tried": [
                {**for_template(s), "wheels": wheels_beside(envs, target, s["name"])} for s in specifications if s["name"] in tried
            ],
        },
    )
    files = {"Dockerfile": squeeze(dockerfile)}
    if tried:
        files |= {f"jit/{c.component}.json": jit.request((c,), target) for c in envs.jit if c.component in tried}
    elif probed:
        files["jit.json"] = jit.request(envs.jit, target)
    files |= {f"components/{s['name']}.json": json.dumps(s, indent=2) + "\n" for s in specifications}
    files |= {f"tiers/{s['name']}.json": json.dumps(s, indent=2) + "\n" for s in tiers}
    return Rendered(lock.name, files)


def build_tag(target: Target) -> str:
    """The build tag of the target's wheels: that of an experiment says so. It sorts below a wheel that has none."""
    return "0_experimental" if target.status == "experimental" else ""


def surveyed(component: Component, target: Target) -> bool:
    """Whether a component that does not build is then tried unit by unit: in an experiment, to know which of them refuse."""
    return target.status != "supported" and component.architecture.decided == "build"


def is_trial(target: Target) -> bool:
    """Whether nothing is expected of an experiment, as of a trial's target. Its kernels are tried component by component."""
    return target.status == "experimental" and not target.expected


def wheels_beside(envs: Envs, target: Target, component: str) -> list[str]:
    """The components of the target whose wheels one's kernels need: its own, and those that it imports."""
    beside = next((c.beside for c in envs.jit if c.component == component), ())
    return [s.component for s in target.components if s.component == component or s.component in beside]


def image_expected(target: Target) -> bool:
    """Whether every component is expected to build, so that there can be an image; of a trial nothing is expected."""
    if is_trial(target):
        return False
    return all(expectation.outcome != "refuses" for expectation in target.expected)


def probed_with(envs: Envs, target: Target) -> tuple[str, ...]:
    """The components that kernels compiled at run time are compiled with: all of the image, else those they belong to."""
    in_image = "npu_kernels.j2" in STAGES[target.toolkit.kind].beside
    return tuple(s.component for s in target.components) if in_image else _with_probes(envs, target)


def _with_probes(envs: Envs, target: Target) -> tuple[str, ...]:
    """The same where envs/jit/ says which kernels."""
    used = dict.fromkeys(probe.component for probe in jit.probes(envs.jit, target))
    return tuple(s.component for s in target.components) if used and image_expected(target) else tuple(used)


def torch_list(archs: Sequence[Arch]) -> str:
    """What TORCH_CUDA_ARCH_LIST must hold; empty for a target without compute capabilities."""
    return torch_arch_list(archs) if archs else ""


def image_name(target: Target, base: Base) -> str:
    """The name an image carries; what an experimental target yields says so in its name."""
    experimental = "" if target.status == "supported" else f"-{target.status}"
    return f"cleanroom-{target.name}-{base.name}{experimental}"


def specification(component: Component, target: Target, lock: Lock) -> dict[str, Any]:
    """What a clean container needs to know to build one component, as the target has it (Selection.of), as plain data."""
    asked = target.architectures_of(component.name)
    source = source_of(component, lock)
    rule = component.architecture
    changed = rule.decided == "build" and asked and rule.default and set(asked) != set(rule.default)
    placeholders = {
        "{version}": component.source.version,
        "{torch_arch_list}": torch_list(asked),
        "{npu_arch}": target.toolkit.npu_arch,
        "{sm_list}": ", ".join(json.dumps(arch.sm) for arch in asked),
    }
    toolkit = {v.name: v for v in in_container((*target.toolkit.environment, *target.toolkit.build_environment))}
    variables = [*toolkit.values(), *component.environment, *rule.environment]
    body: dict[str, Any] = {
        "name": component.name,
        "title": component.title,
        "version": component.source.version,
        "distribution": component.distribution,
        "modules": list(component.modules),
        "source": {"file": source.file_name, "sha256": source.sha256},
        "architectures": [] if rule.decided == "nowhere" else list(target.names_asked_of(component.name)),
        "environment": [
            # Set for every build, so that a list inherited from a base image can never decide.
            *([{"name": "TORCH_CUDA_ARCH_LIST", "value": torch_list(asked)}] if asked else []),
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


def for_sdk(spec: Mapping[str, Any], lock: Lock) -> dict[str, Any]:
    """The same build without CANN: torch_npu is headers and libraries only (torch_npu_sdk.py), and nothing of CANN is on a path."""
    named = {"PYTHONPATH": SDK, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    kept = [v for v in spec["environment"] if "/opt/cann" not in v["value"] and v["name"] not in named]
    variables = [*kept, *({"name": name, "value": value} for name, value in named.items())]
    body = {**{k: v for k, v in spec.items() if k != "resume_key"}, "environment": variables}
    return {**body, "resume_key": resume_key(body, lock)}


def in_container(variables: Sequence[Variable]) -> list[Variable]:
    """Variables of a toolkit with the places that the scripts in the container use filled in."""
    return [replace(v, value=fill(v.value, PLACES)) for v in variables]


def resume_key(body: Mapping[str, Any], lock: Lock) -> str:
    """Names the folder of objects that an interrupted build may take up again: one for one exact set of inputs."""
    inputs = [e.sha256 for e in lock.group(*COMPILED_WITH)]
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


def for_template(spec: dict[str, Any], *, surveyed: bool = False, build_tag: str = "") -> dict[str, Any]:
    """What a template needs of a component. `surveyed`: with a stage that goes on where a build stops; `build_tag`: the wheel's."""
    name, scripts = spec["name"], {*BUILD_SCRIPTS, *(p["origin"] for p in spec["provides"])}
    build = {"makes": f"build-{name}", "brings": f"artifacts-{name}", "script": "build_component.py", "build_tag": build_tag}
    survey = {"makes": f"made-survey-{name}", "brings": f"survey-{name}", "script": "survey.py", "build_tag": ""}
    stages = [{**build, "scripts": sorted(scripts)}, {**survey, "scripts": sorted({*scripts, *SURVEY_SCRIPTS})}]
    return {**spec, "scripts": sorted(scripts), "stages": stages if surveyed else stages[:1]}


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
