"""Resolving: what is asked of the index, what replaces what, and what is refused; no network here."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from locks import lock

from cleanroom import resolve as resolving
from cleanroom.component import Component
from cleanroom.envs import load_envs
from cleanroom.errors import ResolveError
from cleanroom.lock import write_lock
from cleanroom.project import REPOSITORY
from cleanroom.resolve import gather, read_requirements, read_solution, text_files, uv_platform
from cleanroom.target import Override

FILES = {
    "requirements-nvidia.txt": "-r requirements-dev.txt\n--find-links https://wheels.example/cu132\ntorch==2.13.0+cu132\n",
    "requirements-dev.txt": "--requirement=./requirements.txt  # all\npytest==8.4.2 ; python_version > '3'\n\n# nothing\n",
    "requirements.txt": (
        "numpy == 2.3.5 \\\n    --hash=sha256:00\ntile_kernels==2.1.0\nposix_ipc==1.3.2 # why\n-r requirements-dev.txt\n"
    ),
}
ENVS = load_envs(REPOSITORY / "envs")
TORCH = Override("torch==2.13.0", "torch==2.13.0+cu132", "not on the index", "requirements")
NCCL = Override("nvidia-nccl-cu13==2.32.3", "nvidia-nccl-cu13==2.29.7", "DeepEP", "README")
CUTLASS = Override("nvidia-cutlass-dsl[cu13]", "nvidia-cutlass-dsl", "CUDA 13", "pull request")


def test_requirements_are_followed_inside_the_archive_and_places_are_dropped() -> None:
    requirements, dropped = read_requirements(FILES, "requirements-nvidia.txt", "deepinfer 0.1.0")
    own = ("numpy==2.3.5", "tile_kernels==2.1.0", "posix_ipc==1.3.2")
    assert requirements == (*own, 'pytest==8.4.2; python_version > "3"', "torch==2.13.0+cu132")
    assert dropped == ("requirements-nvidia.txt: option --find-links",)


@pytest.mark.parametrize("outside", ["-r ../s.txt", "-r /etc/passwd", "-r https://elsewhere.example/r.txt", "-r a/../../b.txt"])
def test_an_include_that_leaves_the_archive_is_refused(outside: str) -> None:
    with pytest.raises(ResolveError, match="outside of the archive"):
        read_requirements({"r.txt": outside}, "r.txt", "thing 1.0")


def test_a_missing_include_a_place_and_nonsense_are_refused_with_their_file() -> None:
    with pytest.raises(ResolveError, match=r"thing 1.0 has no absent.txt, which r.txt includes"):
        read_requirements({"r.txt": "-r absent.txt"}, "r.txt", "thing 1.0")
    with pytest.raises(ResolveError, match=r"r.txt of thing 1.0: x is asked for from a place of its own"):
        read_requirements({"r.txt": "x @ git+https://host.example/x.git"}, "r.txt", "thing 1.0")
    with pytest.raises(ResolveError, match=r"r.txt of thing 1.0: '\./local' is not a requirement"):
        read_requirements({"r.txt": "./local"}, "r.txt", "thing 1.0")


def test_requirements_are_read_out_of_an_archive_without_unpacking_it(tmp_path: Path) -> None:
    path = tmp_path / "thing-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {"thing-1.0/r.txt": b"numpy", "thing-1.0/sub/s.txt": b"x", "thing-1.0/a.py": b"", "top.txt": b""}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("thing-1.0/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert text_files(path, "thing 1.0") == {"r.txt": "numpy", "sub/s.txt": "x"}
    path.write_bytes(b"not an archive")
    with pytest.raises(ResolveError, match="cannot be read as a source archive"):
        text_files(path, "thing 1.0")


def components(*names: str) -> list[Component]:
    return [ENVS.component(name) for name in names]


def test_an_override_replaces_the_requirement_it_names_and_components_are_left_out() -> None:
    asked = gather(components("tilekernels", "deepinfer"), (TORCH, NCCL, CUTLASS), {"deepinfer": FILES})
    assert "torch==2.13.0" in asked.requirements
    assert not [r for r in asked.requirements if "cu132" in r or "kernels" in r or "cutlass" in r]
    assert asked.replaced == (TORCH,)
    assert [n for n in asked.notes if "--find-links dropped" in n]
    assert not [n for n in asked.notes if "://" in n]


def test_a_component_of_another_version_than_asked_for_is_noted() -> None:
    (tilekernels,) = components("tilekernels")
    newer = replace(tilekernels, source=replace(tilekernels.source, version="9.9"))
    asked = gather([newer, *components("deepinfer")], (), {"deepinfer": FILES})
    assert "deepinfer asks for tile_kernels==2.1.0, compiled here is 9.9" in asked.notes


def test_a_solution_is_read_with_its_hashes() -> None:
    one, two = "1" * 64, "2" * 64
    text = f"Some.Name==1.0 \\\n    --hash=sha256:{one} \\\n    --hash=sha256:{two}\n"
    text += f"other[extra]==2.0+local \\\n    --hash=sha256:{one}\n"
    solution = read_solution(text)
    assert solution.versions == {"some-name": "1.0", "other": "2.0+local"}
    assert solution.hashes["some-name"] == {one, two}
    with pytest.raises(ResolveError, match="no released version"):
        read_solution("x @ https://host.example/x.whl\n")


def test_uv_is_told_the_newest_platform_it_knows_that_the_base_can_run() -> None:
    assert uv_platform("2.41", "linux/amd64") == "x86_64-manylinux_2_40"
    assert uv_platform("2.36", "linux/amd64") == "x86_64-manylinux_2_36"
    assert uv_platform("2.30", "linux/arm64") == "aarch64-manylinux_2_28"


def test_a_lock_that_resolves_to_the_same_again_keeps_its_time(tmp_path: Path) -> None:
    there = lock()
    path = tmp_path / f"{there.name}.lock"
    again = replace(there, epoch=there.epoch + 1000)
    assert resolving._same_or_new(again, path) == again
    write_lock(path, there)
    assert resolving._same_or_new(again, path) == there
    assert resolving._same_or_new(replace(again, entries=there.entries[1:]), path).epoch == again.epoch
    path.write_text("damaged")
    assert resolving._same_or_new(again, path) == again
