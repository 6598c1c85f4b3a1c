"""Hygiene of a whole image, told on small images of real libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from binaries import binary
from images import image, layer

from cleanroom.errors import IntegrityError
from cleanroom.evidence import Finding
from cleanroom.hygiene import Optional, Place, Rules, read_rules
from cleanroom.image_contents import contents
from cleanroom.image_hygiene import examine_image
from cleanroom.project import REPOSITORY

PLACE = Place(platform="linux/amd64", glibc="2.41", packages=frozenset(), libraries=frozenset())


@pytest.fixture(scope="module")
def rules() -> Rules:
    return read_rules(REPOSITORY / "envs")


def found(tmp_path: Path, files: Mapping[str, bytes], rules: Rules, place: Place = PLACE) -> list[Finding]:
    return list(examine_image(image(tmp_path / "image.tar", layer(files)), place, rules))


def told(findings: list[Finding], kind: str) -> list[tuple[str, str]]:
    return [(f.severity, f.message) for f in findings if f.kind == kind]


def test_a_needed_library_that_is_nowhere_in_the_image_is_named_once_with_all_that_need_it(tmp_path: Path, rules: Rules) -> None:
    files = {f"opt/venv/lib/{n}.so": binary("needy.so") for n in "abcde"} | {"opt/venv/lib/liboffers.so": binary("liboffers.so")}
    assert told(found(tmp_path, files, rules), "missing library") == [
        ("degrades", "libc.so.6 is nowhere in it; needed by opt/venv/lib/a.so, opt/venv/lib/b.so, opt/venv/lib/c.so and 2 more"),
        (
            "degrades",
            "libnvrtc.so.12 is nowhere in it; needed by opt/venv/lib/a.so, opt/venv/lib/b.so, opt/venv/lib/c.so and 2 more",
        ),
    ]


def test_a_library_that_the_driver_brings_is_not_looked_for(tmp_path: Path, rules: Rules) -> None:
    messages = [m for _, m in told(found(tmp_path, {"a.so": binary("needy.so")}, rules), "missing library")]
    assert not any("libcuda" in message for message in messages)


def test_a_library_that_an_image_may_lack_is_a_note_that_says_what_does_not_work(tmp_path: Path, rules: Rules) -> None:
    lenient = replace(rules, optional=(Optional(("libnvrtc.so*",), "a package", "kernels are not compiled"),))
    (told_as,) = told(found(tmp_path, {"a.so": binary("needy.so")}, lenient), "optional library")
    assert told_as == ("note", "a package is not in it: kernels are not compiled; looked for by a.so")


def test_a_library_is_found_by_a_link_to_it(tmp_path: Path, rules: Rules) -> None:
    base = layer(
        {"a.so": binary("needy.so"), "x.so": binary("liboffers.so")},
        links={"libc.so.6": "c", "c": "x.so", "libnvrtc.so.12": "gone"},
    )
    findings = list(examine_image(image(tmp_path / "image.tar", base), PLACE, rules))
    assert [m.split()[0] for _, m in told(findings, "missing library")] == ["libnvrtc.so.12"]


def test_of_two_links_with_one_name_one_that_leads_somewhere_is_enough(tmp_path: Path, rules: Rules) -> None:
    base = layer(
        {"lib/a.so": binary("needy.so"), "lib/x.so": binary("liboffers.so")},
        links={"lib/libc.so.6": "x.so", "zz/libc.so.6": "gone"},
    )
    messages = [m for _, m in told(list(examine_image(image(tmp_path / "i.tar", base), PLACE, rules)), "missing library")]
    assert not any("libc.so.6" in message for message in messages)


def test_a_stub_and_a_library_for_another_machine_bring_nothing(tmp_path: Path, rules: Rules) -> None:
    files = {"a.so": binary("needy.so"), "lib/stubs/liboffers.so": binary("liboffers.so")}
    messages = [m for _, m in told(found(tmp_path, files, rules), "missing library")]
    assert any("liboffers.so is nowhere in it" in message for message in messages)


def test_a_folder_is_found_through_links_and_by_the_files_in_it(tmp_path: Path) -> None:
    there = contents(
        image(tmp_path / "i.tar", layer({"usr/lib/x/a": b""}, links={"lib": "usr/lib", "opt/now": "../lib/x", "loop": "loop"}))
    )
    assert all(there.has_folder(path) for path in ("/usr/lib", "/lib/x", "/opt/now", "/opt/../lib//x/"))
    assert not any(there.has_folder(path) for path in ("/lib/y", "/loop", "/usr/lib/x/a"))


def test_a_folder_in_a_later_layer_replaces_a_file(tmp_path: Path) -> None:
    archive = image(tmp_path / "i.tar", layer({"opt/a.so": binary("needy.so")}), layer({"opt/a.so/x": b"1"}, folders=["opt/a.so"]))
    there = contents(archive)
    assert sorted(there.files) == ["opt/a.so/x"]


def test_what_a_package_holds_is_no_trace_of_this_machine_and_what_a_step_wrote_is(tmp_path: Path, rules: Rules) -> None:
    place = replace(PLACE, traces={"/home/runner": "a folder of this machine"})
    site = "opt/venv/lib/python3.13/site-packages"
    files = {
        "var/lib/dpkg/info/base-files.list": b"/.\n/lib/os-release\n",
        "usr/lib/os-release": b"/home/runner",
        f"{site}/x-1.dist-info/RECORD": b'"x/a,b.so",sha256=ab,12\n../../../bin/x,,\n',
        f"{site}/x/a,b.so": b"/home/runner/work",
        "opt/venv/bin/x": b"#!/home/runner/python",
        "opt/venv/pyvenv.cfg": b"home = /home/runner/bin",
    }
    assert told(found(tmp_path, files, rules, place), "trace of a machine") == [
        ("fails", "files that hold '/home/runner', a folder of this machine: opt/venv/pyvenv.cfg")
    ]


def test_a_later_layer_takes_away_what_it_marks(tmp_path: Path) -> None:
    first = layer({"lib/gone.so": b"1", "lib/kept.so": b"1", "old/a": b"1", "old/b": b"1", "all/c": b"1", "all/sub/d": b"1"})
    second = layer({"lib/.wh.gone.so": b"", ".wh.old": b"", "all/.wh..wh..opq": b"", "all/e": b"2"})
    assert sorted(contents(image(tmp_path / "image.tar", first, second)).files) == ["all/e", "lib/kept.so"]


def test_a_later_layer_replaces_a_library(tmp_path: Path, rules: Rules) -> None:
    archive = image(tmp_path / "image.tar", layer({"a.so": binary("needy.so")}), layer({"a.so": b"text"}), pack="zstd")
    assert examine_image(archive, PLACE, rules) == ()


def test_a_library_for_another_machine_costs_and_among_stubs_is_a_note(tmp_path: Path, rules: Rules) -> None:
    files = {"lib/a.so": binary("needy.so"), "lib/stubs/b.so": binary("needy.so")}
    findings = found(tmp_path, files, rules, replace(PLACE, platform="linux/arm64"))
    assert told(findings, "machine type") == [
        ("degrades", "ELF files for EM_X86_64 in an image for linux/arm64: lib/a.so"),
        ("note", "ELF files for EM_X86_64 in an image for linux/arm64: lib/stubs/b.so"),
    ]
    assert told(findings, "missing library") == [], "what cannot be loaded needs nothing"


def test_a_driver_library_fails_and_among_stubs_is_a_note(tmp_path: Path, rules: Rules) -> None:
    files = {"usr/lib/libcuda.so.1": binary("libcuda.so.1"), "cuda/stubs/libcuda.so.1": binary("libcuda.so.1")}
    assert [s for s, _ in told(found(tmp_path, files, rules), "packaged driver library")] == ["fails", "note"]


def test_search_paths_that_lead_into_stubs_or_the_current_folder_cost(tmp_path: Path, rules: Rules) -> None:
    findings = found(tmp_path, {"opt/venv/lib/a.so": binary("needy.so")}, rules)
    assert told(findings, "stubs searched") == [
        ("degrades", "libraries that search /usr/local/cuda/lib64/stubs, where stubs are: opt/venv/lib/a.so"),
    ]
    assert told(findings, "current folder searched") == [
        ("degrades", "libraries that search lib, which depends on the current folder: opt/venv/lib/a.so"),
        ("degrades", "libraries that search the current folder: opt/venv/lib/a.so"),
    ]
    assert told(findings, "library search path") == [
        ("note", "libraries that search /srv/old/lib, which the image lacks: opt/venv/lib/a.so"),
    ]


def test_a_trace_of_this_machine_in_any_file_fails(tmp_path: Path, rules: Rules) -> None:
    place = replace(PLACE, traces={"builder-7": "this machine's host name"})
    files = {"etc/motd": b"made on builder-7.", "etc/other": b"builder-77", "etc/more": b"xbuilder-7"}
    (told_as,) = told(found(tmp_path, files, rules, place), "trace of a machine")
    assert told_as == ("fails", "files that hold 'builder-7', this machine's host name: etc/motd")


def test_a_library_of_a_newer_system_fails(tmp_path: Path, rules: Rules) -> None:
    kind = told(found(tmp_path, {"a.so": binary("needy.so")}, rules, replace(PLACE, glibc="2.1")), "symbol version")
    assert [severity for severity, _ in kind] == ["fails"]
    assert "where the image has GLIBC_2.1 at most: a.so" in kind[0][1]


def test_a_damaged_elf_file_costs_and_hides_nothing(tmp_path: Path, rules: Rules) -> None:
    files = {"a.so": binary("needy.so")[:200], "b.so": binary("needy.so")}
    findings = found(tmp_path, files, rules)
    assert told(findings, "unreadable") == [("degrades", "ELF files that cannot be read: a.so")]
    assert told(findings, "missing library")


def test_what_is_no_image_is_an_error(tmp_path: Path, rules: Rules) -> None:
    (tmp_path / "image.tar").write_bytes(b"not a tar")
    with pytest.raises(IntegrityError, match="cannot be read as an image"):
        examine_image(tmp_path / "image.tar", PLACE, rules)
