"""Verify a build: build it again on a clean slate, compare, and say how much is the same and why the rest is not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cleanroom import __version__
from cleanroom import build as building
from cleanroom import render as rendering
from cleanroom.build import Job
from cleanroom.console import Console
from cleanroom.differ import compare_images, compare_wheels
from cleanroom.embedded import USUAL, Surroundings
from cleanroom.errors import RecordError, UnknownName, VerifyFailed
from cleanroom.lock import lock_path
from cleanroom.published import compare, digests_of, published_path, read_published, write_published
from cleanroom.record import ComponentResult, Level, Record, read_record
from cleanroom.resources import cores_here, jobs_in, memory_here
from cleanroom.store import Store
from cleanroom.verification import (
    ComponentVerification,
    Condition,
    Difference,
    Variation,
    Verification,
    reaches,
    weakest,
    write_verification,
)

FOLDER = "verify"
"""In the target's output folder: what the second build made, and verification.json."""

ELSEWHERE = Surroundings("another-machine", "Pacific/Chatham", "C", 0o027, "somebody")
"""What a second builder gives its build; no output may depend on any of it."""


@dataclass(frozen=True)
class Options:
    """What the person who types `verify` may choose. `record`: the build to check, by default the one in out/."""

    record: Path | None = None
    components: tuple[str, ...] = ()
    jobs: int | None = None
    image: bool = True
    publish: bool = False
    vary: bool = False


def verify(job: Job, options: Options, store: Store, console: Console) -> Verification:
    """Build the same lock again with nothing shared but lock and store, compare with a record, and write the result.

    Raises RecordError if there is no record of this very lock and Dockerfile, and whatever a build raises. A low level
    does not raise here: see `raise_for`.
    """
    place = options.record or job.out / "record.json"
    first = read_record(place)
    refuse_other_inputs(job, first)
    started, clock = datetime.now(UTC), time.monotonic()
    names = components_to_build(first, options.components)
    image = options.image and first.image is not None and not options.components
    again = building.Options(names, keep_going=True, image=image, jit=False)
    jobs = options.jobs or other_jobs(job, names, first)
    for warning in job.warnings:
        console.warn(warning)
    second = build_elsewhere(job, again, jobs, ELSEWHERE, store, console)
    pair = compare_builds(first, second, place.parent, job.out / FOLDER, names, image=again.image)
    variations = tuple(
        one_variation(job, first, place.parent, again, each, store, console)
        for each in (varied(job, first) if options.vary else ())
    )
    verification = Verification(
        tool_version=__version__,
        target=second.target,
        base=second.base,
        lock=second.lock,
        engine=second.engine,
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - clock, 1),
        conditions=conditions(first, second, ELSEWHERE),
        level=weakest((pair.level, *(v.level for v in variations))),
        components=pair.components,
        image_first=first.image,
        image_second=second.image,
        image_level=pair.image_level,
        image_differences=pair.image_differences,
        variations=variations,
    )
    write_verification(job.out / FOLDER / "verification.json", verification)
    publish(job, second, verification, console, replace_published=options.publish)
    return verification


@dataclass(frozen=True)
class Pair:
    """Two builds compared."""

    level: Level
    components: tuple[ComponentVerification, ...]
    image_level: Level
    image_differences: tuple[Difference, ...]

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Of all components and the image."""
        return (*(d for c in self.components for d in c.differences), *self.image_differences)


@dataclass(frozen=True)
class Varied:
    """One condition of a further build, changed by itself."""

    condition: str
    value: str
    surroundings: Surroundings
    jobs: int


def varied(job: Job, first: Record) -> tuple[Varied, ...]:
    """Every condition that can be changed here, one at a time. Time passes and the folder is new in each of them."""
    jobs = first.resources.jobs
    other = other_jobs(job, [c.name for c in first.components], first)
    few = max(1, cores_here() // 2)
    return (
        Varied("start time and working folder", "later, another one", USUAL, jobs),
        Varied("compile jobs", str(other), USUAL, other),
        Varied("host name", ELSEWHERE.host_name, replace(USUAL, host_name=ELSEWHERE.host_name), jobs),
        Varied("time zone", ELSEWHERE.time_zone, replace(USUAL, time_zone=ELSEWHERE.time_zone), jobs),
        Varied("locale", ELSEWHERE.locale, replace(USUAL, locale=ELSEWHERE.locale), jobs),
        Varied("umask", f"{ELSEWHERE.umask:03o}", replace(USUAL, umask=ELSEWHERE.umask), jobs),
        Varied("user name", ELSEWHERE.user, replace(USUAL, user=ELSEWHERE.user), jobs),
        Varied("CPU count", str(few), replace(USUAL, cpus=few), jobs),
    )


def one_variation(
    job: Job, first: Record, folder: Path, options: building.Options, change: Varied, store: Store, console: Console
) -> Variation:
    """Build with one condition changed and compare with the first record. What it made is not kept."""
    console.info(f"Changing only: {change.condition} ({change.value})")
    with store.scratch("variation") as scratch:
        there = replace(job, out=scratch)
        record = build_elsewhere(there, options, change.jobs, change.surroundings, store, console)
        pair = compare_builds(first, record, folder, scratch / FOLDER, options.components, image=options.image)
    places = tuple(f"{d.component}: {d.file} {d.part}".rstrip() for d in pair.differences)
    return Variation(change.condition, change.value, pair.level, places)


def compare_builds(
    first: Record, second: Record, first_folder: Path, second_folder: Path, names: Sequence[str], *, image: bool
) -> Pair:
    """The level that two builds reach, part by part."""
    components = tuple(compare_component(name, first, second, first_folder, second_folder) for name in names)
    if not image:
        return Pair(weakest(c.level for c in components), components, "incomplete", ())
    image_level, differences = compare_image(first, second, first_folder, second_folder)
    return Pair(level_of(components, image_level), components, image_level, differences)


def refuse_other_inputs(job: Job, first: Record) -> None:
    """Raise RecordError unless the record is of exactly what would be built now."""
    for what, theirs, ours in (
        ("target", f"{first.target.name} on {first.base}", f"{job.target.name} on {job.base.name}"),
        ("lock", first.lock.content, job.lock.content),
        ("Dockerfile", first.dockerfile_sha256, job.rendered.digest.removeprefix("sha256:")),
    ):
        if theirs != ours:
            raise RecordError(
                f"The record is of another {what}: {theirs}, here it is {ours}.",
                means="Only two builds of the same inputs can be compared byte by byte.",
                next_step="check out the revision that the record was made from (git log lockfiles dockerfiles), "
                f"or build this one: nox -s build-{job.target.name}",
            )


def components_to_build(first: Record, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those asked for, else all that the first build attempted. Raises UnknownName, and RecordError if there are none."""
    attempted = tuple(c.name for c in first.components if c.status != "not attempted")
    if unknown := [name for name in wanted if name not in attempted]:
        raise UnknownName(
            f"The record holds no build of {unknown[0]!r}.", means=f"It holds {', '.join(attempted) or 'no build at all'}."
        )
    if not attempted:
        raise RecordError(
            "The record holds no build of any component.",
            means="There is nothing to compare with.",
            next_step=f"nox -s build-{first.target.name}",
        )
    return tuple(name for name in attempted if not wanted or name in wanted)


def other_jobs(job: Job, names: Sequence[str], first: Record) -> int:
    """One compile job more than the first build had, or one less where memory does not allow it."""
    most = min(first.resources.jobs + 1, jobs_in(memory_here(), building.memory_needs(job, names)))
    return most if most != first.resources.jobs else max(1, most - 1)


def build_elsewhere(
    job: Job, options: building.Options, jobs: int, surroundings: Surroundings, store: Store, console: Console
) -> Record:
    """The clean build, its Dockerfile rendered anew in another folder, its results in a folder of their own."""
    out = job.out / FOLDER
    if out.exists():
        shutil.rmtree(out)
    resources = building.resources_for(job, options.components, jobs)
    console.info(f"Building {job.rendered.name} again, sharing only lock and store: {resources.rule}")
    with store.scratch("verify") as scratch:
        rendering.write(job.rendered, scratch / "dockerfile")
        there = replace(job, folder=scratch / "dockerfile", out=out)
        return building.clean_build(there, options, resources, surroundings, store, console)


def compare_component(name: str, first: Record, second: Record, first_folder: Path, second_folder: Path) -> ComponentVerification:
    """The level that the two wheels of one component reach."""
    ours, theirs = second.component(name), first.component(name)
    if ours.wheel is None or theirs.wheel is None:
        return ComponentVerification(name, "fails", theirs.wheel, ours.wheel, lost(name, theirs, ours))
    if ours.wheel.sha256 == theirs.wheel.sha256:
        return ComponentVerification(name, "identical artifacts", theirs.wheel, ours.wheel, ())
    place = first_folder / theirs.wheel.file
    if not building.intact(place, theirs.wheel.size, theirs.wheel.sha256):
        return ComponentVerification(name, "builds", theirs.wheel, ours.wheel, (cannot_compare(name, theirs.wheel.file),))
    level, differences = compare_wheels(name, place, second_folder / ours.wheel.file)
    return ComponentVerification(name, level, theirs.wheel, ours.wheel, differences)


def lost(name: str, first: ComponentResult, second: ComponentResult) -> tuple[Difference, ...]:
    """Where only one of the two builds gave a wheel, that is the difference."""
    if first.status == second.status == "failed":
        return ()
    failed = first if first.wheel is None else second
    message = failed.failure.message if failed.failure else failed.status
    return (Difference(name, "", "", "fails", f"only one of the two builds gave a wheel: {message}", "read its log", ()),)


def cannot_compare(component: str, file: str) -> Difference:
    return Difference(
        component,
        file,
        "",
        "builds",
        "the digests differ, and the first build's file is not beside its record",
        f"put {file} beside the record that it belongs to, to see where the two differ",
        (),
    )


def compare_image(first: Record, second: Record, first_folder: Path, second_folder: Path) -> tuple[Level, tuple[Difference, ...]]:
    """The level that the two images reach; `incomplete` where either build made none."""
    if first.image is None or second.image is None:
        return "incomplete", ()
    if first.image.manifest == second.image.manifest:
        return "identical image", ()
    place = first_folder / first.image.file
    if building.manifest_digest(place) != first.image.manifest:
        return "builds", (cannot_compare("image", first.image.file),)
    return compare_images(place, second_folder / second.image.file)


def level_of(components: Sequence[ComponentVerification], image: Level) -> Level:
    """The weakest of all parts; an identical image is more than the identical wheels in it."""
    wheels = weakest(c.level for c in components)
    return image if wheels == "identical artifacts" else weakest((wheels, image))


def conditions(first: Record, second: Record, surroundings: Surroundings) -> tuple[Condition, ...]:
    """What was different about the second build on purpose, as far as it is known of the first."""
    common = (
        Condition("start", first.started, second.started),
        Condition("compile jobs", str(first.resources.jobs), str(second.resources.jobs)),
        Condition("base, layers and compiled objects", "may come from earlier builds", "made anew"),
        Condition("working folder", "the project's", "a new one"),
    )
    if second.engine.kind != "embedded":
        return common
    return (
        *common,
        Condition("host name", USUAL.host_name, surroundings.host_name),
        Condition("time zone", USUAL.time_zone, surroundings.time_zone),
        Condition("locale", USUAL.locale, surroundings.locale),
        Condition("umask", f"{USUAL.umask:03o}", f"{surroundings.umask:03o}"),
        Condition("user name", USUAL.user, surroundings.user),
    )


def publish(job: Job, second: Record, verification: Verification, console: Console, *, replace_published: bool) -> None:
    """Write what two whole, equal builds agree on beside the lock; never over something else unless told to."""
    path = published_path(lock_path(job.project.root, job.lock.name))
    published = read_published(path)
    same, line = compare(second, published)
    console.info(line) if same is not False else console.warn(line)
    if verification.level != "identical image":
        return
    if same is None or (same is False and replace_published):
        write_published(path, digests_of(second), job.target.name)
        console.info(f"Both builds agree: {path.name} was written, to be committed.")
    elif same is False:
        console.warn(f"Two builds here agree, but not with {path.name}; to replace it: verify again with --publish")


def raise_for(verification: Verification, at_least: Level) -> None:
    """Raise VerifyFailed where two builds are less alike than was asked for."""
    if reaches(verification.level, at_least):
        return
    weak = [c.name for c in verification.components if not reaches(c.level, at_least)] or ["the image"]
    differences = [d for c in verification.components for d in c.differences] or list(verification.image_differences)
    first = f" First difference: {differences[0].file} {differences[0].part}: {differences[0].cause}." if differences else ""
    raise VerifyFailed(
        f"{verification.target.name}: two clean builds reach {verification.level!r}, asked was {at_least!r}.",
        means=f"{', '.join(weak)} differ.{first}",
        next_step="read report.md in the output folder",
    )
