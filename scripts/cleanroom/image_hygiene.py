"""Hygiene of a whole image: every ELF file in it, of our wheels, of others and of the system.

A wheel of ours that breaks a rule was made by this build, and fails it (hygiene.py). Most of an image was made by others. What
keeps a library there from being loaded, or a driver from being found, counts as much; an odd search path or a library of the
network that is not there is a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from cleanroom.binary.dynamic import Library
from cleanroom.envs import IMAGE
from cleanroom.evidence import Finding, Severity, some
from cleanroom.hygiene import Place, Rules, leads, too_new
from cleanroom.image_contents import Contents, contents

_SHOWN = 3

_Objection = tuple[str, Severity, str]
"""Kind, severity, and a message with {} where the files are named."""


def examine_image(image: Path, place: Place, rules: Rules) -> tuple[Finding, ...]:
    """All findings about an image, each kind of thing told once with how many files it is in. Raises IntegrityError."""
    there = contents(image, place.traces)
    grouped: dict[_Objection, dict[str, None]] = defaultdict(dict)
    for objection, file in _objections(there, place, rules):
        grouped[objection][file] = None
    return tuple(
        Finding(IMAGE, kind, severity, message.replace("{}", some(list(files), _SHOWN)))
        for (kind, severity, message), files in sorted(grouped.items(), key=lambda each: each[0])
    )


def _objections(there: Contents, place: Place, rules: Rules) -> Iterator[tuple[_Objection, str]]:
    for file in sorted(there.broken):
        yield ("unreadable", "degrades", "ELF files that cannot be read: {}"), file
    for text, files in there.traced.items():
        # What packages hold was made elsewhere, and their own words may be a machine's name; our wheels were examined.
        for file in sorted(file for file in files if not there.is_owned(file)):
            yield ("trace of a machine", "fails", f"files that hold {text!r}, {place.traces[text]}: {{}}"), file
    machine = rules.machines.get(place.platform, "")
    libraries = [library for library in there.libraries if library.machine not in rules.device_machines]
    found = there.names_of(each for each in libraries if each.machine == machine and not rules.is_stub(each.file))
    for library in libraries:
        for objection in _of_library(library, machine, there, found, place, rules):
            yield objection, library.file


def _of_library(
    library: Library, machine: str, there: Contents, found: Iterable[str], place: Place, rules: Rules
) -> Iterator[_Objection]:
    if library.machine != machine:
        message = f"ELF files for {library.machine} in an image for {place.platform}: {{}}"
        yield "machine type", "note" if rules.is_stub(library.file) else "degrades", message
        return
    if drivers := [driver for name in library.names if (driver := rules.driver_of(name))]:
        message = f"files that the {drivers[0].by} brings, and that a copy or stub may hide: {{}}"
        yield "packaged driver library", "note" if rules.is_stub(library.file) else "fails", message
    for name in library.needed:
        if name not in found and not rules.driver_of(name):
            yield _missing(name, rules)
    for entry in library.search_path:
        match leads(entry, rules):
            case "into stubs":
                yield "stubs searched", "degrades", f"libraries that search {entry}, where stubs are: {{}}"
            case "to the current folder":
                where = f"{entry}, which depends on the current folder" if entry else "the current folder"
                yield "current folder searched", "degrades", f"libraries that search {where}: {{}}"
            case "to a fixed folder" if not there.has_folder(entry):
                yield "library search path", "note", f"libraries that search {entry}, which the image lacks: {{}}"
    for needed, newest in too_new(library, place.glibc, rules):
        yield "symbol version", "fails", f"libraries that need {needed} where the image has {newest} at most: {{}}"


def _missing(name: str, rules: Rules) -> _Objection:
    if optional := rules.optional_of(name):
        return "optional library", "note", f"{optional.by} is not in it: {optional.without}; looked for by {{}}"
    return "missing library", "degrades", f"{name} is nowhere in it; needed by {{}}"
