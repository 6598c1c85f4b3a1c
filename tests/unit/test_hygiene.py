"""Hygiene: what a wheel's libraries need, promise and give away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from binaries import binary, library, wheel

from cleanroom import hygiene
from cleanroom.binary.fatbin import device_code
from cleanroom.errors import EnvsError, IntegrityError
from cleanroom.evidence import Finding
from cleanroom.hygiene import Place, Rules, examine, libraries_in, overlaps, read_rules, unresolved
from cleanroom.project import REPOSITORY

PLACE = Place(
    platform="linux/amd64",
    glibc="2.41",
    packages=frozenset({"libc6"}),
    libraries=frozenset({"libnvrtc.so.12", "liboffers.so"}),
)


@pytest.fixture(scope="module")
def rules() -> Rules:
    return read_rules(REPOSITORY / "envs")


def told(findings: Iterable[Finding], kind: str) -> list[str]:
    return [f.message for f in findings if f.kind == kind and f.severity == "fails"]


def examined(tmp_path: Path, files: Mapping[str, bytes], rules: Rules, place: Place = PLACE, **named: str) -> tuple[Finding, ...]:
    return examine({"things": wheel(tmp_path, files, **named)}, {}, place, rules)


def test_libraries_of_the_system_the_driver_and_other_wheels_are_no_finding(tmp_path: Path, rules: Rules) -> None:
    assert told(examined(tmp_path, {"a.so": binary("needy.so")}, rules), "missing library") == []


def test_a_library_of_another_release_that_nothing_brings_is_named(tmp_path: Path, rules: Rules) -> None:
    place = replace(PLACE, libraries=frozenset({"libnvrtc.so.13", "liboffers.so"}))
    (message,) = told(examined(tmp_path, {"a.so": binary("needy.so")}, rules, place), "missing library")
    assert message == "a.so needs libnvrtc.so.12, which is in no wheel, no system package, no toolkit and no driver"


def test_a_library_of_a_package_that_the_image_lacks_names_the_package(tmp_path: Path, rules: Rules) -> None:
    place = replace(PLACE, packages=frozenset())
    (message,) = told(examined(tmp_path, {"a.so": binary("needy.so")}, rules, place), "missing library")
    assert message == "a.so needs libc.so.6, and the image lacks the package libc6"


def test_a_wheel_may_bring_its_own_libraries(tmp_path: Path, rules: Rules) -> None:
    place = replace(PLACE, libraries=frozenset({"libnvrtc.so.12"}))
    files = {"a.so": binary("needy.so"), "lib/liboffers.so": binary("liboffers.so")}
    assert told(examined(tmp_path, files, rules, place), "missing library") == []


@pytest.mark.parametrize("path", ["lib/libcuda.so.1", "lib/other.so", "lib/libcuda.so"])
def test_a_driver_library_in_a_wheel_is_found_by_its_file_name_or_its_soname(tmp_path: Path, rules: Rules, path: str) -> None:
    (message, *_) = told(examined(tmp_path, {path: binary("libcuda.so.1")}, rules), "packaged driver library")
    assert "NVIDIA driver brings" in message


def test_library_search_paths_stay_inside_the_image_and_out_of_stubs(tmp_path: Path, rules: Rules) -> None:
    findings = examined(tmp_path, {"pkg/a.so": binary("needy.so")}, rules)
    messages = told(findings, "library search path")
    assert [m.removeprefix("pkg/a.so searches ").split(":")[0].split(",")[0] for m in messages] == [
        "/srv/old/lib",
        "/usr/local/cuda/lib64/stubs",
        "$ORIGIN/../../lib",
        "the current folder for libraries (an empty entry in its RUNPATH)",
        "lib",
    ]
    notes = [f.message for f in findings if f.kind == "library search path" and f.severity == "note"]
    assert [n.split()[2] for n in notes] == ["/opt/venv/lib:"]


def test_a_library_for_another_machine_fails(tmp_path: Path, rules: Rules) -> None:
    (message,) = told(
        examined(tmp_path, {"a.so": binary("needy.so")}, rules, replace(PLACE, platform="linux/arm64")), "machine type"
    )
    assert message == "a.so is for EM_X86_64, and linux/arm64 needs EM_AARCH64"


def test_a_cubin_beside_the_libraries_is_for_the_gpu(tmp_path: Path, rules: Rules) -> None:
    cubin = device_code(binary("speed.o"))[0].data
    assert examined(tmp_path, {"kernels/a.cubin": cubin}, rules) == ()


@pytest.mark.parametrize("tag", ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64.manylinux_2_28_x86_64"])
def test_a_wheel_whose_tag_promises_an_older_glibc_fails(tmp_path: Path, rules: Rules, tag: str) -> None:
    findings = examined(tmp_path, {"a.so": binary("needy.so")}, rules, name=f"things-1.0-cp313-cp313-{tag}.whl")
    (message,) = told(findings, "symbol version")
    assert message == "a.so needs GLIBC_2.36, and the wheel's tag promises glibc 2.17, which has GLIBC_2.17 at most"


def test_a_tag_that_promises_nothing_is_held_against_the_image(tmp_path: Path, rules: Rules) -> None:
    (message,) = told(examined(tmp_path, {"a.so": binary("needy.so")}, rules, replace(PLACE, glibc="2.35")), "symbol version")
    assert "the image has glibc 2.35" in message
    assert told(examined(tmp_path, {"a.so": binary("needy.so")}, rules, replace(PLACE, glibc="2.36")), "symbol version") == []


def test_a_wheel_for_any_platform_holds_no_machine_code(tmp_path: Path, rules: Rules) -> None:
    findings = examined(tmp_path, {"a.so": binary("liboffers.so")}, rules, name="things-1.0-py3-none-any.whl")
    assert [f.kind for f in findings] == ["wheel tag"]
    assert examined(tmp_path, {"a.py": b""}, rules, name="things-1.0-py3-none-any.whl") == ()


def test_a_build_path_is_noted_and_a_trace_of_the_machine_fails(tmp_path: Path, rules: Rules) -> None:
    files = {"a.py": b"built in /build/things/a.c on builder-7", "b.txt": b"builder-77 /rebuild/"}
    place = replace(PLACE, traces={"builder-7": "this machine's host name"})
    findings = examined(tmp_path, files, rules, place)
    assert [(f.kind, f.severity) for f in findings] == [("build path", "note"), ("trace of a machine", "fails")]
    assert all(f.message.startswith("a.py ") for f in findings)


def test_the_traces_of_this_machine_are_long_enough_to_mean_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hygiene.socket, "gethostname", lambda: "vm")
    assert "vm" not in hygiene.machine_traces()
    monkeypatch.setattr(hygiene.socket, "gethostname", lambda: "builder-7")
    assert "builder-7" in hygiene.machine_traces()
    monkeypatch.setattr(hygiene.socket, "gethostname", lambda: "debian")
    assert "debian" not in hygiene.machine_traces()


def test_a_path_that_two_wheels_install_with_different_bytes_fails(tmp_path: Path) -> None:
    first = wheel(tmp_path / "1", {"shared/a.py": b"1", "same.py": b"0"})
    second = wheel(tmp_path / "2", {"shared/a.py": b"2", "same.py": b"0"})
    (finding,) = overlaps({"one": first, "two": second}, {})
    assert (finding.kind, finding.severity) == ("shared path", "fails")
    assert finding.message == "shared/a.py is installed by one and by two, with different bytes"


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("a.py", True),
        ("x-1.data/purelib/a.py", True),
        ("x-1.data/scripts/a.py", False),
        ("scripts/a.py", False),
        ("x-1.data/headers/a.py", False),
    ],
)
def test_a_wheel_of_others_that_installs_our_path_is_told_of_our_component(tmp_path: Path, path: str, same: bool) -> None:
    ours, theirs = wheel(tmp_path / "1", {"a.py": b"1"}), wheel(tmp_path / "2", {path: b"2"})
    found = overlaps({"zone": ours}, {"alien": theirs})
    assert [f.component for f in found] == (["zone"] if same else [])


def test_two_wheels_of_others_that_install_one_path_are_told_of_the_image(tmp_path: Path) -> None:
    first, second = wheel(tmp_path / "1", {"a.py": b"1"}), wheel(tmp_path / "2", {"a.py": b"2"})
    assert [f.component for f in overlaps({}, {"one": first, "two": second})] == ["image"]


def test_an_empty_search_path_is_none(tmp_path: Path, rules: Rules) -> None:
    """The loader ignores an empty RUNPATH, as cuSPARSELt has; an empty entry in one is the current folder."""
    path = b"/opt/venv/lib:/srv/old/lib:/usr/local/cuda/lib64/stubs:$ORIGIN/../lib:$ORIGIN/../../lib::lib"
    data = binary("needy.so")
    assert path in data
    findings = examined(tmp_path, {"pkg/a.so": data.replace(path, bytes(len(path)))}, rules)
    assert told(findings, "library search path") == []


def test_a_function_that_no_library_has_any_more_is_named(tmp_path: Path, rules: Rules) -> None:
    ours = {"things": wheel(tmp_path / "ours", {"a.so": binary("needy.so")})}
    right = wheel(tmp_path / "right", {"lib/liboffers.so": binary("liboffers.so")})
    wrong = wheel(tmp_path / "wrong", {"lib/liboffers.so": binary("liboffers.so").replace(b"_of_another_", b"_of_some_new_")})
    assert unresolved(ours, [right], rules, "") == ()
    (finding,) = unresolved(ours, [wrong], rules, "")
    assert (finding.component, finding.severity) == ("things", "fails")
    assert finding.message == "a.so needs library_of_another_release, which none of the libraries that it names has"


def test_functions_of_the_driver_resolve_only_where_a_library_names_the_drivers(tmp_path: Path, rules: Rules) -> None:
    """A stub without symbols is dropped by a linker that keeps only what is needed, and import fails on the GPU's machine."""
    offers = {"lib/liboffers.so": binary("liboffers.so")}
    dropped = binary("needy.so").replace(b"libcuda.so.1", b"libdate.so.1")
    (finding,) = unresolved({"things": wheel(tmp_path / "1", {"a.so": dropped, **offers})}, [], rules, "")
    assert finding.message == "a.so needs cuInit, which none of the libraries that it names has"


def test_a_dependency_that_names_the_driver_is_enough(tmp_path: Path, rules: Rules) -> None:
    dropped = binary("needy.so").replace(b"libcuda.so.1", b"libdate.so.1")
    environment = {"lib/liboffers.so": binary("liboffers.so"), "lib/libdate.so.1": binary("needy.so")}
    provider = wheel(tmp_path / "2", environment)
    assert unresolved({"things": wheel(tmp_path / "1", {"a.so": dropped})}, [provider], rules, "") == ()


def test_libraries_are_known_by_their_file_names(tmp_path: Path) -> None:
    made = wheel(tmp_path, {"x/lib/liba.so.1.2": b"", "b.cpython-313-x86_64-linux-gnu.so": b"", "c.so.txt": b"", "d.py": b""})
    assert libraries_in([made]) == {"liba.so.1.2", "b.cpython-313-x86_64-linux-gnu.so"}


def test_a_damaged_wheel_or_library_is_an_error(tmp_path: Path, rules: Rules) -> None:
    (tmp_path / "a.whl").write_text("text")
    for damaged in (tmp_path / "a.whl", wheel(tmp_path, {"a.so": binary("needy.so")[:1500]})):
        with pytest.raises(IntegrityError):
            examine({"things": damaged}, {}, PLACE, rules)


def test_a_library_with_device_code_is_read_like_any_other(tmp_path: Path, rules: Rules) -> None:
    cubin = device_code(binary("speed.o"))[0].data
    assert told(examined(tmp_path, {"a.so": library(cubin)}, rules), "machine type") == []


def test_code_for_an_npu_is_no_library_of_another_machine(tmp_path: Path, rules: Rules) -> None:
    assert examined(tmp_path, {"a.so": binary("npu.so"), "kernel.o": binary("aicore.o")}, rules) == ()


def test_what_the_toolkit_brings_is_looked_for_in_the_image_and_not_in_wheels(tmp_path: Path, rules: Rules) -> None:
    place = replace(PLACE, libraries=frozenset({"liboffers.so"}), toolkit="cann-installers")
    ours = binary("needy.so").replace(b"libnvrtc.so.12", b"libascendcl.so").replace(b"cuInit", b"aclGet")
    assert told(examined(tmp_path, {"a.so": ours}, rules, place), "missing library") == []
    offers = wheel(tmp_path / "offers", {"liboffers.so": binary("liboffers.so")})
    things = {"things": wheel(tmp_path, {"a.so": ours})}
    assert unresolved(things, [offers], rules, "cann-installers") == ()
    (finding,) = unresolved(things, [offers], rules, "cuda-wheels")
    assert "needs aclGet, which none" in finding.message
    elsewhere = replace(place, toolkit="cuda-wheels")
    assert len(told(examined(tmp_path / "2", {"a.so": ours}, rules, elsewhere), "missing library")) == 1


def test_libraries_of_cann_for_linking_are_stubs(rules: Rules) -> None:
    assert rules.is_stub("opt/cann/aarch64-linux/devlib/libascend_hal.so")
    assert not rules.is_stub("opt/cann/aarch64-linux/lib64/libascendcl.so")


def test_every_mistake_in_the_rules_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "libraries.yaml").write_text(
        "system: {libc.so.6: 6}\ndriver:\n  - {names: [], symbols: '(', by: x}\ntoolkit: []\noptional: []\nstub_folders: [stubs]\nmachines: {}\ndevice_machines: [EM_CUDA]\nversions: {\"2.17\": {GLIBC: new}}\n"
    )
    with pytest.raises(EnvsError) as raised:
        read_rules(tmp_path)
    assert all(text in raised.value.what for text in ("libraries.yaml:1", "libraries.yaml:3", "libraries.yaml:9", "4 mistakes"))
    with pytest.raises(EnvsError, match="cannot be read"):
        read_rules(tmp_path / "nowhere")


def test_a_gap_in_the_table_is_filled_from_the_nearest_older_system(rules: Rules) -> None:
    assert rules.newest("2.30")["GLIBCXX"] == rules.versions["2.28"]["GLIBCXX"]
    assert rules.newest("2.50") == {"GLIBC": "2.50", **rules.versions["2.41"]}
    assert rules.newest("2.4") == {"GLIBC": "2.4"}
