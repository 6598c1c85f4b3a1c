"""The digests published beside a lock: what two clean builds of it agreed on, for everybody else to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from cleanroom.errors import LockError
from cleanroom.files import write_atomically
from cleanroom.record import Record
from cleanroom.strict_json import from_json, to_json

HEAD = "# Written by `nox -s verify-{target}` when two clean builds agreed to the byte. Not edited by hand.\n"


@dataclass(frozen=True)
class Published:
    """Digests of one lock and Dockerfile: `wheels` maps component to sha256, `image` is the manifest's digest."""

    lock: str
    dockerfile: str
    image: str
    wheels: Mapping[str, str]


def published_path(lockfile: Path) -> Path:
    """Beside the lock: sm100-debian13.lock has sm100-debian13.expected.yaml."""
    return lockfile.with_suffix(".expected.yaml")


def digests_of(record: Record) -> Published:
    """What a whole record would be published as."""
    wheels = {c.name: c.wheel.sha256 for c in record.components if c.wheel}
    return Published(record.lock.content, record.dockerfile_sha256, record.image.manifest if record.image else "", wheels)


def read_published(path: Path) -> Published | None:
    """What is published, None if nothing is. Raises LockError for a damaged file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        published: Published = from_json(Published, yaml.safe_load(text), "")
    except (ValueError, yaml.YAMLError) as error:
        raise LockError(
            f"{path.name}: {error}.", means="It is only ever written by verify.", next_step=f"git checkout lockfiles/{path.name}"
        ) from None
    return published


def write_published(path: Path, published: Published, target: str) -> None:
    """Write it whole or not at all."""
    text = HEAD.format(target=target) + yaml.safe_dump(to_json(published), sort_keys=False)
    write_atomically(path, text.encode())


def compare(record: Record, published: Published | None) -> tuple[bool | None, str]:
    """Whether a record matches what is published, and one line that says so. None where there is nothing to compare.

    Equal bytes match whatever Dockerfile made them; different bytes are no contradiction if it was another one.
    """
    if published is None:
        return None, "Nothing is published for this lock yet."
    if published.lock != record.lock.content:
        return None, "What is published belongs to another lock."
    compared = [c for c in record.components if c.wheel]
    if not compared:
        return None, "Nothing was built that could be compared with what is published."
    difference = first_difference(record, published)
    if difference and published.dockerfile != record.dockerfile_sha256:
        return None, f"What is published belongs to another Dockerfile of this lock: {difference}"
    if difference:
        return False, f"Differs from what is published: {difference}"
    what = f"{len(compared)} of {len(record.components)} wheels" + (" and the image" if record.image else "")
    return True, f"Matches what is published in this repository, to the byte: {what}."


def first_difference(record: Record, published: Published) -> str:
    """The first digest that is not the published one, with both; empty if there is none."""
    for component in record.components:
        wheel, expected = component.wheel, published.wheels.get(component.name, "no wheel")
        if wheel and wheel.sha256 != expected:
            return f"{wheel.file} has sha256 {wheel.sha256}, published is {expected}."
    if record.image and record.image.manifest != published.image:
        return f"the image is {record.image.manifest}, published is {published.image}."
    return ""
