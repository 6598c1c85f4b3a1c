"""Assembling a toolkit tree from wheels, as the container does it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from assemble_toolkit import driver_functions

from cleanroom.project import IN_CONTAINER

EPOCH = 1_796_000_000


HEADER = """
#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpy __CUDA_API_PTDS(cuMemcpy)
#define CUDA_VERSION 13030
CUresult CUDAAPI cuDriverGetVersion(int *driverVersion);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
"""


def wheel(folder: Path, name: str, *files: str) -> None:
    with zipfile.ZipFile(folder / f"{name}-13.3.73-py3-none-manylinux_2_17_x86_64.whl", "w") as made:
        for file in files:
            made.writestr(zipfile.ZipInfo(file), HEADER if file.endswith("cuda.h") else f"{file} of {name}")


def assemble(folder: Path, triple: str = "x86_64-linux") -> subprocess.CompletedProcess[str]:
    return call(folder, "--wheels", folder / "wheels", "--triple", triple)


def call(folder: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, IN_CONTAINER / "assemble_toolkit.py", "--into", folder / "cuda", *options]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "nvidia_cuda_nvcc", "nvidia/cu13/bin/nvcc", "nvidia/cu13/bin/nvcc.profile", "nvidia/__init__.py",
          "nvidia/cu13/nvvm/bin/cicc", "nvidia_cuda_nvcc-13.3.73.dist-info/METADATA")  # fmt: skip
    wheel(wheels, "nvidia_cuda_runtime", "nvidia/cu13/include/cuda.h", "nvidia/cu13/lib/libcudart.so.13", "nvidia/__init__.py")
    return tmp_path


def test_only_the_toolkit_s_own_files_are_unpacked_and_every_program_can_be_run(place: Path) -> None:
    done = assemble(place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 files of 2 wheels in ")
    files = {str(p.relative_to(place / "cuda")): p.stat().st_mode & 0o777 for p in (place / "cuda").rglob("*")
             if p.is_file() and not p.is_symlink() and "targets" not in p.parts}  # fmt: skip
    assert {name: mode for name, mode in files.items() if "stubs" not in name} == {
        "bin/nvcc": 0o755, "bin/nvcc.profile": 0o644, "nvvm/bin/cicc": 0o755, "include/cuda.h": 0o644,
        "lib/libcudart.so.13": 0o644,
    }  # fmt: skip
    assert (place / "cuda/bin/nvcc").read_text() == "nvidia/cu13/bin/nvcc of nvidia_cuda_nvcc"


def test_the_links_that_build_scripts_look_for_are_there(place: Path) -> None:
    assemble(place, "sbsa-linux")
    links = {"lib64": "lib", "lib/libcudart.so": "libcudart.so.13", "targets/sbsa-linux/include": "../../include",
             "targets/sbsa-linux/lib": "../../lib"}  # fmt: skip
    assert {name: os.readlink(place / "cuda" / name) for name in links} == links
    assert all((place / "cuda" / name).exists() for name in links)


def test_the_driver_stub_has_the_driver_s_name_and_is_the_same_every_time(place: Path) -> None:
    assemble(place)
    stub = place / "cuda/lib/stubs/libcuda.so"
    environment = {**os.environ, "LC_ALL": "C"}
    dynamic = subprocess.run(["readelf", "-dn", stub], check=True, capture_output=True, text=True, env=environment)
    assert "Library soname: [libcuda.so.1]" in dynamic.stdout
    assert "Build ID" not in dynamic.stdout
    first = stub.read_bytes()
    (place / "cuda").rename(place / "before")
    assemble(place)
    assert stub.read_bytes() == first


def test_the_functions_of_the_driver_are_those_declared_and_those_that_macros_put_in_their_place() -> None:
    assert driver_functions(HEADER) == ["cuDriverGetVersion", "cuMemAlloc", "cuMemAlloc_v2", "cuMemcpy"]


def test_a_library_that_calls_the_driver_lists_it_as_needed_although_the_linker_drops_what_is_not(place: Path) -> None:
    assemble(place)
    source = "int cuMemAlloc_v2(void); int f(void) { return cuMemAlloc_v2(); }"
    made = place / "f.so"
    link = [
        "gcc",
        "-shared",
        "-fPIC",
        "-Wl,--as-needed",
        "-o",
        made,
        "-xc",
        "-",
        f"-L{place / 'cuda/lib/stubs'}",
        "-xnone",
        "-lcuda",
    ]
    subprocess.run(link, input=source, text=True, check=True)
    dynamic = subprocess.run(["readelf", "-d", made], check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert "Shared library: [libcuda.so.1]" in dynamic.stdout


def test_without_a_device_every_function_says_so(place: Path) -> None:
    assemble(place)
    assert ctypes.CDLL(str(place / "cuda/lib/stubs/libcuda.so")).cuDriverGetVersion() == 100


def test_two_wheels_with_one_path_are_refused(place: Path) -> None:
    wheel(place / "wheels", "nvidia_other", "nvidia/cu13/include/cuda.h")
    done = assemble(place)
    assert done.returncode != 0
    assert "include/cuda.h is brought by nvidia_cuda_runtime-" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["nvidia/cu13/../../../outside", "nvidia/cu13/lib/../../../../outside"])
def test_a_path_that_leaves_its_folder_is_refused(place: Path, name: str) -> None:
    wheel(place / "wheels", "evil", name)
    done = assemble(place)
    assert done.returncode != 0
    assert "leaves its folder" in done.stderr
    assert list(place.rglob("outside")) == []


def test_wheels_without_a_toolkit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "numpy", "numpy/__init__.py")
    done = assemble(tmp_path)
    assert done.returncode == 1
    assert "No toolkit files" in done.stderr


def test_every_time_is_the_epoch(place: Path) -> None:
    assemble(place)
    root = place / "cuda"
    assert {os.lstat(path).st_mtime_ns for path in [root, *root.rglob("*")]} == {EPOCH * 10**9}


def test_headers_that_are_added_bring_nothing_else_and_touch_nothing_else(place: Path) -> None:
    assert assemble(place).returncode == 0
    before = {path: path.lstat().st_ctime_ns for path in (place / "cuda").rglob("*") if not path.is_dir()}
    (place / "headers").mkdir()
    wheel(place / "headers", "nvidia_curand", "nvidia/cu13/include/curand_kernel.h", "nvidia/cu13/lib/libcurand.so.10")
    done = call(place, "--headers", place / "headers")
    assert done.returncode == 0, done.stderr
    after = {path: path.lstat().st_ctime_ns for path in (place / "cuda").rglob("*") if not path.is_dir()}
    assert set(after) - set(before) == {place / "cuda/include/curand_kernel.h"}
    assert {path: after[path] for path in before} == before
    assert {path.stat().st_mtime for path in (place / "cuda/include/curand_kernel.h", place / "cuda/include", place / "cuda")} == {
        EPOCH
    }


def test_a_header_that_the_toolkit_has_already_is_not_overwritten(place: Path) -> None:
    assert assemble(place).returncode == 0
    (place / "headers").mkdir()
    wheel(place / "headers", "nvidia_other", "nvidia/cu13/include/cuda.h")
    done = call(place, "--headers", place / "headers")
    assert done.returncode == 1
    assert "include/cuda.h of nvidia_other-13.3.73" in done.stderr
