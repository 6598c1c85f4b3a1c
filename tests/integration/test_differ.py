"""The comparison on real CUDA libraries: each known kind of difference, planted by real compilers in a clean container."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from cleanroom.binary.cubin import kernels
from cleanroom.binary.fatbin import device_code
from cleanroom.console import Console
from cleanroom.contexts import contexts
from cleanroom.differ import compare_wheels
from cleanroom.engine import BuildRequest, LocalOutput, open_engine
from cleanroom.fetch import fetch
from cleanroom.lock import lock_path, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.record import Level
from cleanroom.store import Store
from cleanroom.verification import Difference

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="the embedded engine needs Linux and root"),
]

DOCKERFILE = """
FROM base AS toolkit
ENV LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 SOURCE_DATE_EPOCH=1764000000
RUN --network=none \\
    --mount=type=bind,from=locked-toolkit,target=/wheels \\
    --mount=type=bind,from=scripts,target=/opt/cleanroom \\
    ["python3", "/opt/cleanroom/assemble_toolkit.py", "--wheels", "/wheels", "--into", "/usr/local/cuda", "--triple", "x86_64-linux"]
FROM toolkit AS variants
ENV PATH=/usr/local/cuda/bin:/usr/bin:/bin
RUN --network=none --mount=type=bind,target=/in ["python3", "/in/variants.py"]
FROM scratch AS libraries
COPY --from=variants /out/ /
"""
HARMLESS = "identical after named normalisations"
FOLDER = "hash of the source's folder"
Compare = Callable[[str, str], tuple[Level, tuple[Difference, ...]]]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every variant of the library, compiled in one container with the fixture's locked toolkit."""
    project, store, console = Project(REPOSITORY / "tests" / "fixture"), Store.default(), Console()
    lock = read_lock(lock_path(project.root, "fixture-debian13"))
    fetch(lock, store, console, project=project)
    folder = tmp_path_factory.mktemp("differ")
    sources = Path(shutil.copytree(Path(__file__).parent / "differ", folder / "context"))
    (folder / "Dockerfile").write_text(DOCKERFILE)
    request = BuildRequest(
        dockerfile=folder / "Dockerfile",
        context=sources,
        target="libraries",
        epoch=lock.epoch,
        contexts=contexts(lock, "linux/amd64", store, console, bootstrapped=True),
        output=LocalOutput(folder / "out"),
    )
    with open_engine(store, project, console) as engine:
        engine.build(request, lambda _event: None)
    return folder / "out"


@pytest.fixture(scope="module")
def compare(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Compare two variants as the only library of two wheels."""
    folder = tmp_path_factory.mktemp("wheels")

    def compared(first: str, second: str) -> tuple[Level, tuple[Difference, ...]]:
        wheels = [wheel(folder / f"{name}.whl", (libraries / name / "library.so").read_bytes()) for name in (first, second)]
        level, differences = compare_wheels("vectors", *wheels)
        for difference in differences:
            assert (difference.component, difference.file) == ("vectors", "vectors/library.so")
            assert difference.part
            assert difference.remedy
            assert difference.detail
        return level, differences

    return compared


def wheel(path: Path, library: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("vectors/library.so"), library)
    return path


def parts(differences: Collection[Difference], cause: str) -> set[str]:
    return {d.part for d in differences if d.cause.startswith(cause)}


def test_two_builds_of_the_same_are_identical(compare: Compare) -> None:
    assert compare("plain", "again") == ("identical artifacts", ())


def test_a_change_in_one_kernel_of_one_architecture_is_reported_as_exactly_that(compare: Compare) -> None:
    level, differences = compare("plain", "kernel")
    assert level == "same architectures"
    weakest = {d.part: d.cause for d in differences if d.level != HARMLESS}
    assert weakest == {"sm_103a kernel _Z12scale_kernelPfi": "unknown", "sm_103a PTX": "unknown"}
    assert differences[0].part == "sm_103a kernel _Z12scale_kernelPfi"
    assert parts(differences, "hash") == set()


def test_one_bit_of_one_kernel_is_found(libraries: Path, tmp_path: Path) -> None:
    library = (libraries / "plain" / "library.so").read_bytes()
    cubin = next(code.data for code in device_code(library) if code.kind == "cubin" and code.arch.sm == "sm_100a")
    at = library.find(cubin)  # small cubins are stored as they are
    assert at > 0
    kernel = next(k for k in kernels(cubin) if k.name == "_Z12scale_kernelPfi")
    place = at + cubin.find(kernel.code) + 16
    planted = library[:place] + bytes([library[place] ^ 1]) + library[place + 1 :]
    level, differences = compare_wheels("vectors", wheel(tmp_path / "1.whl", library), wheel(tmp_path / "2.whl", planted))
    assert level == "same architectures"
    assert [d.part for d in differences] == ["sm_100a kernel _Z12scale_kernelPfi"]
    assert "0010" in " ".join(differences[0].detail)  # the second instruction, in whichever way it is shown


def test_a_lost_architecture_and_a_lost_kernel_only_build(compare: Compare) -> None:
    level, differences = compare("plain", "lost-architecture")
    assert level == "builds"
    assert parts(differences, "only one build has this device code") == {"sm_103a", "sm_103a PTX"}
    level, differences = compare("plain", "lost-kernel")
    assert level == "builds"
    (name,) = {d.part.split(" kernel ")[1] for d in differences if d.level == "builds"}
    assert "sum_kernel" in name


def test_another_compression_is_told_from_other_code(compare: Compare) -> None:
    level, differences = compare("plain", "compression")
    assert level == HARMLESS
    assert parts(differences, "compression only") == {".nv_fatbin"}
    assert len(parts(differences, "addresses that moved")) == 1


def test_temporary_names_are_named(compare: Compare) -> None:
    level, differences = compare("temporary-1", "temporary-2")
    assert level == HARMLESS
    assert parts(differences, "temporary file name") == {".strtab"}


def test_the_folder_in_names_of_kernels_is_named(compare: Compare) -> None:
    level, differences = compare("plain", "folder")
    assert level == HARMLESS
    assert parts(differences, FOLDER) >= {
        ".rodata",
        "sm_100a names of symbols and sections",
        "sm_103a names of symbols and sections",
        "sm_103a PTX",
    }


def test_modification_times_of_sources_in_line_tables_are_named(compare: Compare) -> None:
    level, differences = compare("lines", "lines-touched")
    assert level == HARMLESS
    assert parts(differences, "modification time of a source file") == {"sm_100a .debug_line", "sm_103a .debug_line"}
    assert any("1764000000 | 1764012345" in line for d in differences for line in d.detail)


def test_a_longer_folder_in_line_tables_is_named(compare: Compare) -> None:
    level, differences = compare("lines", "lines-longer-folder")
    assert level == HARMLESS
    assert parts(differences, "path of a source file") >= {
        "sm_100a .debug_line",
        "sm_103a .debug_line",
        ".nv_fatbin name of images",
    }


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [("stamped-1", "stamped-2", "embedded date or time"), ("user-1", "user-2", "user or host name")],
)
def test_stamps_in_host_code_are_named(compare: Compare, first: str, second: str, cause: str) -> None:
    level, differences = compare(first, second)
    assert level == HARMLESS
    assert parts(differences, cause) == {".rodata"}


def test_a_build_id_alone_is_named(compare: Compare) -> None:
    level, differences = compare("plain", "build-id")
    assert level == HARMLESS
    assert parts(differences, "build id") == {".note.gnu.build-id"}


def test_the_order_of_objects_at_link_leaves_the_device_code_identical(compare: Compare) -> None:
    level, differences = compare("order-1", "order-2")
    assert level == "identical device code"
    assert {"sm_100a", "sm_103a"} <= parts(differences, "order of objects at link")
