"""What is read from binaries, held against NVIDIA's own tools and against builds that went wrong in clean containers."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from cleanroom.binary import cubin
from cleanroom.binary.cubin import kernels
from cleanroom.binary.fatbin import device_code
from cleanroom.binary.wheel import is_elf, members
from cleanroom.envs import load_envs
from cleanroom.evidence import Evidence, gather, readable
from cleanroom.lock import read_lock
from cleanroom.store import Store
from projects import FIXTURE, cleanroom, lock_and_render, project_copy

pytestmark = pytest.mark.integration

SETUP = Path("sources/vectors/setup.py")
UNIT = Path("sources/vectors/csrc/reduce.cu")


@pytest.fixture(scope="session")
def tools(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tools cuobjdump and nvdisasm, from the wheels that the fixture's lock names."""
    folder = tmp_path_factory.mktemp("tools")
    for entry in read_lock(built / "lockfiles" / "fixture-debian13.lock").group("toolkit"):
        if entry.name in ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"):
            with zipfile.ZipFile(Store.default().path_of(entry.sha256)) as archive:
                for name in archive.namelist():
                    if name.endswith(("/bin/cuobjdump", "/bin/nvdisasm")):
                        (folder / Path(name).name).write_bytes(archive.read(name))
                        (folder / Path(name).name).chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def extension(built: Path) -> bytes:
    """The library in the fixture's wheel."""
    (wheel,) = (built / "out" / "fixture").glob("*.whl")
    (data,) = [data for _, data in members(wheel) if is_elf(data)]
    return data


def evidence_of(project: Path) -> Evidence:
    envs = load_envs(project / "envs")
    asked = {"vectors": tuple(map(str, envs.target("fixture").architectures_of("vectors")))}
    return gather(asked, project / "out" / "fixture" / "components", envs.components, envs.table)


def with_added(place: Path, *additions: tuple[Path, str, str], status: int) -> Evidence:
    """The evidence of a fixture with lines added to its sources, each behind a line that is there once; all of it compiles."""
    project = project_copy(FIXTURE, place)
    for file, line, added in additions:
        text = (project / file).read_text()
        assert text.count(line) == 1
        (project / file).write_text(text.replace(line, line + added))
    lock_and_render(project)
    done = cleanroom(project, "build", "fixture", "--no-image")
    assert done.returncode == status, done.stderr
    return evidence_of(project)


def test_asked_compiled_and_found_agree_for_the_fixture(built: Path) -> None:
    evidence = evidence_of(built)
    (vectors,) = evidence.components
    assert (vectors.asked, vectors.compiled, vectors.found) == (("sm_100a",), ("sm_100a",), ("sm_100a",))
    assert (vectors.runs_on["10.0"], vectors.runs_on["10.3"]) == ("runs", "does not run")
    assert vectors.libraries[0].kernels >= 3
    assert evidence.findings == ()


def test_images_are_the_very_bytes_that_cuobjdump_extracts(extension: bytes, tools: Path, tmp_path: Path) -> None:
    (tmp_path / "extension.so").write_bytes(extension)
    command = [tools / "cuobjdump", "-xelf", "all", "-xptx", "all", "extension.so"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    theirs = Counter(path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".cubin", ".ptx"))
    assert Counter(image.data for image in device_code(extension)) == theirs


def test_operation_codes_are_what_nvdisasm_calls_them(extension: bytes, tools: Path, tmp_path: Path) -> None:
    """Of what a stub may hold, nothing is a memory access but for the stack, parameters and constants."""
    line = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*).*/\* 0x([0-9a-f]{16}) \*/")
    names: dict[int, set[str]] = {}
    for image in device_code(extension):
        (tmp_path / "image.cubin").write_bytes(image.data)
        command = [tools / "nvdisasm", "-hex", tmp_path / "image.cubin"]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name, code in line.findall(listing):
            names.setdefault(int(code, 16) & 0x1FF, set()).add(name)
        counted = sum(kernel.instructions for kernel in kernels(image.data))
        assert counted <= len(line.findall(listing))
    assert len(names) > 20
    allowed = {"LDC", "LDL", "LDCU", "STL", "STACK"}
    accesses = {
        n for code in names if code in cubin.HARMLESS for n in names[code] if n.startswith(("LD", "ST", "AT", "RED", "UTM"))
    }
    assert accesses <= allowed
    assert names[cubin.NOP] == {"NOP"}


GUARDED = """
#include <cstdio>
extern "C" __global__ void only_on_103(int *out) {
#if __CUDA_ARCH__ == 1030
  *out = 1;
#else
  if (threadIdx.x == 0) { printf("needs sm_103\\n"); asm volatile("trap;"); }
#endif
}
"""
SURPLUS = """
    options.append("-gencode=arch=compute_103a,code=sm_103a")
"""
LINKED_FOR_NOTHING = """
        device = str(objects / "device.o")
        self.call([*nvcc, "-dlink", "-Xcompiler", "-fPIC", *made_objects[1:], "-o", device])
        made_objects.append(device)
"""


def test_an_architecture_that_was_not_asked_for_is_surplus_and_a_guarded_kernel_a_stub(tmp_path: Path) -> None:
    evidence = with_added(
        tmp_path,
        (SETUP, "    options: list[str] = []\n", SURPLUS),
        (UNIT, '#include "vectors.h"\n', GUARDED),
        status=0,
    )
    (vectors,) = evidence.components
    assert vectors.found == ("sm_100a", "sm_103a")
    assert vectors.libraries[0].stubs == {"sm_100a": ("only_on_103",)}
    assert [(f.kind, f.severity) for f in evidence.findings] == [("stub kernels", "degrades"), ("surplus architecture", "note")]
    assert (vectors.runs_on["10.0"], vectors.runs_on["10.3"]) == ("runs in part", "runs")


def test_a_device_link_that_loses_the_architecture_fails_although_all_was_compiled(tmp_path: Path) -> None:
    evidence = with_added(
        tmp_path,
        (SETUP, "        made_objects = [call[-1] for call in calls]\n", LINKED_FOR_NOTHING),
        (SETUP, "    options: list[str] = []\n", '    options.append("-rdc=true")\n'),
        status=21,
    )
    assert evidence.components[0].compiled == ("sm_100a",)
    assert evidence.components[0].found == ()
    (finding,) = [f for f in evidence.findings if f.severity == "fails"]
    assert finding.kind == "missing architecture"
    assert "sm_75" in finding.message
    assert "lost when the device code was linked" in finding.message


def test_a_list_that_a_build_script_drops_in_silence_fails(tmp_path: Path) -> None:
    evidence = with_added(tmp_path, (SETUP, "    options: list[str] = []\n", "    return options\n"), status=21)
    assert (evidence.components[0].compiled, evidence.components[0].found) == ((), ("sm_75",))
    assert [f.kind for f in evidence.findings if f.severity != "note"] == ["missing architecture"]
    assert [f.message.split()[2] for f in evidence.findings if f.kind == "surplus architecture"] == ["compute_75,", "sm_75,"]
    # The fixture's convert_kernel is guarded for SM100, so what would run elsewhere, even through PTX, only traps.
    assert {a: [readable(n) for n in names] for a, names in evidence.components[0].libraries[0].stubs.items()} == {
        "compute_75": ["vectors::convert_kernel"],
        "sm_75": ["vectors::convert_kernel"],
    }
    assert evidence.components[0].runs_on["10.0"] == "runs in part"
