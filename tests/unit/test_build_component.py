"""What happens inside a building container, with its fixed folders moved below a temporary one."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import build_component
import pytest
from build_component import (
    Refused,
    build_environment,
    check_wheel,
    inside,
    memory_watch,
    provide,
    substitute,
    unit_reports,
    unpack,
)

from cleanroom.project import IN_CONTAINER

WHEEL = "cleanroom_vectors-1.0.0-cp313-cp313-linux_x86_64.whl"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, place in (("BUILD", "build"), ("OUT", "out"), ("ENVIRONMENT", "venv"), ("TOOLKIT", "cuda")):
        monkeypatch.setattr(build_component, name, tmp_path / place)
    monkeypatch.setattr(build_component, "LAUNCHER", IN_CONTAINER / "compile_launcher.py")
    monkeypatch.setattr(build_component, "SAMPLE_SECONDS", 0.02)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796000000")
    for name in ("out", "source"):
        (tmp_path / name).mkdir()
    return tmp_path


def archive(folder: Path, *members: tuple[str, str]) -> Path:
    path = folder / "vectors-1.0.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members:
            item = tarfile.TarInfo(name)
            item.size = len(text)
            tar.addfile(item, io.BytesIO(text.encode()))
    return path


def component(**changes: Any) -> dict[str, Any]:
    whole = {"name": "vectors", "version": "1.0.0", "distribution": "cleanroom-vectors", "substitute": [], "provides": [],
             "extensions": ["vectors/_C.*.so"], "contains": ["vectors/__init__.py"], "environment": []}  # fmt: skip
    return {**whole, **changes}


def of(path: Path) -> dict[str, Any]:
    return component(source={"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})


# Unpacking


def test_an_archive_is_unpacked_to_a_path_named_after_the_component_whatever_its_own_folder(folders: Path) -> None:
    path = archive(folders, ("deepinfer_vectors-1.0.0/setup.py", "text"))
    source = unpack(of(path), path)
    assert source == folders / "build" / "vectors"
    assert (source / "setup.py").read_text() == "text"


def test_an_archive_with_another_hash_is_refused_before_anything_is_unpacked(folders: Path) -> None:
    path = archive(folders, ("vectors/setup.py", "text"))
    specification = of(path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(Refused, match="the lock says"):
        unpack(specification, path)
    assert not (folders / "build").exists()


@pytest.mark.parametrize("name", ["../outside", "vectors/../../outside", "vectors/../../../outside"])
def test_a_member_that_leaves_the_folder_is_refused(folders: Path, name: str) -> None:
    path = archive(folders, ("vectors/setup.py", "text"), (name, "text"))
    with pytest.raises((Refused, tarfile.FilterError)):
        unpack(of(path), path)
    assert list(folders.rglob("outside")) == []


def test_a_link_that_leaves_the_folder_is_refused(folders: Path) -> None:
    path = folders / "vectors.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("vectors/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises((Refused, tarfile.FilterError)):
        unpack(of(path), path)


@pytest.mark.parametrize("members", [[], ["setup.py"], ["a/setup.py", "b/setup.py"]])
def test_an_archive_without_exactly_one_folder_is_refused(folders: Path, members: list[str]) -> None:
    path = archive(folders, *((name, "text") for name in members))
    with pytest.raises(Refused):
        unpack(of(path), path)


# Changes to the source


def change(**changes: Any) -> dict[str, Any]:
    one = {"file": "setup.py", "match": "old", "replace": "new", "count": 1, "reason": "why"}
    return component(substitute=[{**one, **changes}])


def test_a_declared_substitution_is_applied_and_told_with_its_reason(folders: Path) -> None:
    source = folders / "source"
    (source / "setup.py").write_text("old\nold\nolder")
    assert substitute(change(count=3), source) == ["substituted in setup.py: why"]
    assert (source / "setup.py").read_text() == "new\nnew\nnewer"


@pytest.mark.parametrize(("text", "found"), [("", 0), ("old old", 2), ("OLD", 0)])
def test_a_substitution_that_does_not_occur_as_often_as_declared_is_refused(folders: Path, text: str, found: int) -> None:
    (folders / "source" / "setup.py").write_text(text)
    with pytest.raises(Refused, match=f"setup.py: 'old' occurs {found} times, declared 1"):
        substitute(change(), folders / "source")
    assert (folders / "source" / "setup.py").read_text() == text


def test_a_substitution_in_a_file_that_is_not_there_is_refused(folders: Path) -> None:
    with pytest.raises(Refused, match=r"setup\.py"):
        substitute(change(), folders / "source")


@pytest.mark.parametrize("name", ["../setup.py", "/etc/passwd", "a/../../x"])
def test_a_change_outside_the_source_is_refused(folders: Path, name: str) -> None:
    with pytest.raises(Refused, match="leaves the source tree"):
        inside(folders / "source", name)
    with pytest.raises(Refused, match="leaves the source tree"):
        substitute(change(file=name), folders / "source")


def test_a_link_that_leads_out_of_the_source_is_not_followed(folders: Path) -> None:
    (folders / "source" / "link").symlink_to(folders)
    with pytest.raises(Refused, match="leaves the source tree"):
        inside(folders / "source", "link/setup.py")


PROVIDED = component(provides=[{"file": "tests/kernelkit/__init__.py", "origin": "kernelkit.py", "reason": "it is missing"}])


def test_a_file_that_the_archive_lacks_is_provided_and_told_with_its_reason(folders: Path) -> None:
    assert provide(PROVIDED, folders / "source") == ["provided tests/kernelkit/__init__.py: it is missing"]
    placed = folders / "source" / "tests" / "kernelkit" / "__init__.py"
    assert placed.read_bytes() == (IN_CONTAINER / "kernelkit.py").read_bytes()


def test_a_file_of_upstream_is_never_replaced(folders: Path) -> None:
    placed = folders / "source" / "tests" / "kernelkit" / "__init__.py"
    placed.parent.mkdir(parents=True)
    placed.write_text("upstream's own")
    with pytest.raises(Refused, match="would replace upstream's own"):
        provide(PROVIDED, folders / "source")
    assert placed.read_text() == "upstream's own"


# The environment of the build


def environment_for(folders: Path, **changes: Any) -> dict[str, str]:
    (folders / "build").mkdir()
    options = argparse.Namespace(resume=folders / "resume", slots=folders / "slots")
    return build_environment(component(**changes), {"jobs": 3, "nvcc_threads": 4}, options, folders / "units.jsonl")


def test_nothing_is_inherited_from_the_machine(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0")
    monkeypatch.setenv("PIP_INDEX_URL", "somewhere")
    environment = environment_for(folders)
    assert not {"TORCH_CUDA_ARCH_LIST", "PIP_INDEX_URL", "PYTHONPATH", "CPATH"} & set(environment)
    assert environment["TZ"] == "UTC"
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["SOURCE_DATE_EPOCH"] == "1796000000"


def test_launchers_come_first_in_the_path(folders: Path) -> None:
    first = Path(environment_for(folders)["PATH"].split(":")[0])
    assert {"g++", "gcc", "nvcc", "c++", "cc"} <= {path.name for path in first.iterdir()}
    assert all(path.resolve() == IN_CONTAINER / "compile_launcher.py" for path in first.iterdir())


def test_the_specification_s_variables_are_set_last_and_get_this_machine_s_threads(folders: Path) -> None:
    variables = [{"name": "TORCH_CUDA_ARCH_LIST", "value": "10.0a"}, {"name": "NVCC_THREADS", "value": "{nvcc_threads}"},
                 {"name": "MAX_JOBS", "value": "1"}]  # fmt: skip
    environment = environment_for(folders, environment=variables)
    assert [environment[name] for name in ("TORCH_CUDA_ARCH_LIST", "NVCC_THREADS", "MAX_JOBS")] == ["10.0a", "4", "1"]
    assert environment["CLEANROOM_SLOT_COUNT"] == "3"


def test_headers_of_cuda_libraries_in_the_environment_are_found(folders: Path) -> None:
    include = folders / "venv" / "lib" / "python3.13" / "site-packages" / "nvidia" / "cu13" / "include"
    include.mkdir(parents=True)
    assert environment_for(folders)["CPATH"] == str(include)


# The wheel


def wheel(folders: Path, name: str = WHEEL, *, files: tuple[str, ...] = ("vectors/__init__.py", "vectors/_C.abi3.so")) -> Path:
    path = folders / "out" / name
    with zipfile.ZipFile(path, "w") as made:
        for file in files:
            made.writestr(file, "")
    return path


def test_a_wheel_with_all_its_parts_is_taken(folders: Path) -> None:
    made = wheel(folders)
    assert check_wheel(component()) == made


def test_no_wheel_is_refused(folders: Path) -> None:
    with pytest.raises(Refused, match=r"expected one wheel, found \[\]"):
        check_wheel(component())


def test_two_wheels_are_refused(folders: Path) -> None:
    wheel(folders)
    wheel(folders, "other-1.0-py3-none-any.whl")
    with pytest.raises(Refused, match=r"expected one wheel, found .*other"):
        check_wheel(component())


@pytest.mark.parametrize("name", ["cleanroom_vectors-1.0.1", "vectors-1.0.0", "cleanroom_vectors-1.0.0+gitabc"])
def test_a_wheel_of_another_name_or_version_is_refused(folders: Path, name: str) -> None:
    wheel(folders, f"{name}-cp313-cp313-linux_x86_64.whl")
    with pytest.raises(Refused, match=r"expected cleanroom-vectors 1\.0\.0"):
        check_wheel(component())


def test_spelling_of_a_distribution_s_name_does_not_matter(folders: Path) -> None:
    wheel(folders, "Cleanroom.Vectors-1.0.0-cp313-cp313-linux_x86_64.whl")
    assert check_wheel(component())


@pytest.mark.parametrize("files", [("vectors/__init__.py",), ("vectors/_C.abi3.so",), ("other/_C.abi3.so", "vectors/__init__.py")])
def test_a_wheel_without_a_part_of_itself_is_refused(folders: Path, files: tuple[str, ...]) -> None:
    wheel(folders, files=files)
    with pytest.raises(Refused, match="built without a part of itself"):
        check_wheel(component())


def test_a_wheel_tagged_pure_that_must_hold_an_extension_is_refused(folders: Path) -> None:
    wheel(folders, "cleanroom_vectors-1.0.0-py3-none-any.whl")
    with pytest.raises(Refused, match="tagged as pure Python"):
        check_wheel(component())


# Watching


def test_memory_of_other_processes_is_seen() -> None:
    with memory_watch() as seen:
        program = "import time; held = bytearray(200 * 1024 * 1024); time.sleep(0.5)"
        subprocess.run([sys.executable, "-c", program], check=True)
    assert 200 * 1024 * 1024 < seen["peak"] < 2**45


def test_each_finished_unit_is_told_once_including_the_last(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    units = folders / "units.jsonl"
    units.write_text("")
    with unit_reports(units), units.open("a") as stream:
        for number in range(3):
            stream.write(json.dumps({"event": "unit", "unit": f"{number}.cu"}) + "\n")
            stream.flush()
            time.sleep(0.03)
    told = [json.loads(line.removeprefix("::cleanroom:: "))["unit"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["0.cu", "1.cu", "2.cu"]


def test_a_refusal_is_one_machine_line_and_exit_status_1(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = archive(folders, ("vectors/setup.py", "text"))
    (folders / "component.json").write_text(json.dumps({**of(path), "source": {"file": path.name, "sha256": "0" * 64}}))
    arguments = ["--component", "component.json", "--source", path.name, "--resources", "none", "--resume", "r", "--slots", "s"]
    monkeypatch.chdir(folders)
    monkeypatch.setattr(sys, "argv", ["build_component.py", *arguments])
    assert build_component.main() == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("::cleanroom:: "))
    assert (last["event"], last["component"]) == ("error", "vectors")
    assert os.listdir(folders / "out") == []
