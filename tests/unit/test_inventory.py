"""Inventories of small sources: what is found, what is not, and what a person is asked to decide."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pytest

from cleanroom.component import MissingModule
from cleanroom.console import Console
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import IntegrityError, LockError
from cleanroom.inventory import Inventory, Occurrence, inventory, to_json
from cleanroom.inventory_view import show
from cleanroom.lock import Entry, Lock, read_lock
from cleanroom.project import REPOSITORY, Project
from cleanroom.sensitivity import FILE
from cleanroom.store import Store
from cleanroom.strict_json import from_json

GOLDEN = Path(__file__).parent / "data" / "inventory.txt"

FACTS = """
  vectors:
    vendored: [csrc/vendored/]
    macros: {ONLY_103: '__CUDA_ARCH__ >= 1030'}
    generated: [vectors.written]
    families:
      - vendor: nvidia
        compiled: build
        files: '^csrc/(?P<family>\\w+)\\.cu$'
        containing: __global__
        source: the fixture
        known:
          - {needs: [sm_75], families: [copy]}
          - {needs: [sm_100f], families: [multiply]}
      - vendor: ascend
        compiled: build
        files: '^csrc/(?P<family>\\w+)\\.asc$'
        source: the fixture
        known:
          - {families: [not_for_nvidia]}
"""

SOURCES = {
    "setup.py": 'import os\nimport setuptools\nCUDA_ARCHS = ["sm_90a", "sm_100f"]\nthreads = os.getenv("NVCC_THREADS")\nx = os.getenv("NEW_ONE")\n',
    "csrc/copy.cu": '#include "ptx.cuh"\n__global__ void copy() {\n#if __CUDA_ARCH__ >= 900\n  load();\n#endif\n}\n',
    "csrc/multiply.cu": "#ifdef ONLY_103\n__global__ void multiply(SM100_MMA_F16BF16_SS) {}\n#endif\n// SM100_MMA_COMMENT\n",
    "csrc/helper.cu": "// no __global__ here\n",
    "csrc/ptx.cuh": (
        'asm volatile("cp.async.bulk.commit_group;");\n'
        'asm("tcgen05.fence::before_thread_sync;");\n'
        'asm("cvt.rs.bf16x2.f32 %0, %1, %2, %3;" : "=r"(a));\n'
        'asm("mov.u32 %0, %1;" : "=r"(a));\n'
        '// asm("wgmma.fence.sync.aligned;");\n'
    ),
    "csrc/vendored/cute.cuh": 'asm("wgmma.fence.sync.aligned;");\n',
    "csrc/host.cpp": "if (device.get_arch_major() == 10) run();\n",
    "tests/test_it.py": "import nowhere_to_be_found\n",
    "vectors/__init__.py": '"""Kernels."""\nimport json\nimport provided.part\nfrom vectors import reference, _C, written\nfrom vectors._C import sub\n',
    "vectors/reference.py": "@tilelang.jit(target='cuda')\ndef kernel(): ...\n",
}


def archive(files: Mapping[str, str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"vectors-1.0.0/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


def wheel(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name in names:
            made.writestr(name, "")
    return stream.getvalue()


@dataclass(frozen=True)
class Case:
    """A project whose only component is made of the given files."""

    envs: Envs
    lock: Lock
    store: Store

    def inventory(self) -> Inventory:
        return inventory(self.envs, self.envs.target("fixture"), self.lock, self.store)

    def of(self, kind: str) -> list[Occurrence]:
        return [f for f in self.inventory().components[0].occurrences if f.kind == kind]


@pytest.fixture
def case(fixture_project: Project, tmp_path: Path) -> Case:
    return case_of(SOURCES, fixture_project, tmp_path)


def case_of(files: Mapping[str, str], project: Project, tmp_path: Path, *, data: bytes = b"") -> Case:
    head = (REPOSITORY / "envs" / FILE).read_text().split("\ncomponents:\n")[0]
    (project.envs_dir / FILE).write_text(f"{head}\ncomponents:{FACTS}")
    lock = read_lock(project.lockfiles_dir / "fixture-debian13.lock")
    store = Store(tmp_path / "store")
    stored = {
        "cleanroom-vectors": data or archive(files),
        "packaging": wheel("packaging/__init__.py", "provided/part.py", "packaging-1.dist-info/METADATA"),
        "setuptools": wheel("setuptools/__init__.py"),
        "wheel": wheel("wheel-1.data/purelib/wheel/__init__.py", "single.py"),
    }
    entries = tuple(replace(e, **kept(stored[e.name], store)) if e.name in stored else e for e in lock.entries)
    return Case(load_envs(project.envs_dir), replace(lock, entries=entries), store)


def kept(data: bytes, store: Store) -> dict[str, int | str]:
    """Put bytes into the store; size and hash as an entry has them."""
    digest = hashlib.sha256(data).hexdigest()
    place = store.path_of(digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return {"sha256": digest, "size": len(data)}


def with_missing(case: Case, *modules: str) -> Case:
    component = case.envs.component("vectors")
    accepted = tuple(MissingModule(m, f"{m} is somebody else's") for m in modules)
    components = {"vectors": replace(component, missing_modules=accepted)}
    return replace(case, envs=replace(case.envs, components=components))


def test_each_kind_of_place_is_found_with_its_line_and_architectures(case: Case) -> None:
    places = {(f.kind, f.file, f.line, f.text) for f in case.inventory().components[0].occurrences}
    assert places == {
        ("build flag", "setup.py", 3, 'CUDA_ARCHS = ["sm_90a", "sm_100f"]'),
        ("variable", "setup.py", 4, "NVCC_THREADS"),
        ("variable", "setup.py", 5, "NEW_ONE"),
        ("device guard", "csrc/copy.cu", 3, "__CUDA_ARCH__ >= 900"),
        ("device guard", "csrc/multiply.cu", 1, "defined(ONLY_103)"),
        ("inline PTX", "csrc/ptx.cuh", 1, "cp.async.bulk.commit_group"),
        ("inline PTX", "csrc/ptx.cuh", 2, "tcgen05.fence::before_thread_sync"),
        ("inline PTX", "csrc/ptx.cuh", 3, "cvt.rs.bf16x2.f32"),
        ("CuTe atom", "csrc/multiply.cu", 2, "SM100_MMA_F16BF16_SS"),
        ("run-time check", "csrc/host.cpp", 1, "if (device.get_arch_major() == 10) run();"),
        ("JIT entry point", "vectors/reference.py", 1, "kernel"),
    }


def test_architectures_are_those_that_accept_it_or_for_which_it_holds(case: Case) -> None:
    found = {f.text: f.architectures for f in case.inventory().components[0].occurrences}
    assert found["cvt.rs.bf16x2.f32"] == ("sm_100a", "sm_103a")
    assert found["tcgen05.fence::before_thread_sync"] == ("sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f")
    assert found["if (device.get_arch_major() == 10) run();"] == ("sm_100", "sm_100a", "sm_100f", "sm_103", "sm_103a", "sm_103f")
    assert found["defined(ONLY_103)"][0] == "sm_103"
    assert found['CUDA_ARCHS = ["sm_90a", "sm_100f"]'] == ("sm_90a", "sm_100f")
    assert found["NVCC_THREADS"] == ()


def test_instructions_are_counted_for_each_architecture(case: Case) -> None:
    component = case.inventory().components[0]
    assert component.instructions == 4
    counts = {form: component.accepted[form] for form in ("sm_89", "sm_90a", "sm_100a", "sm_100f", "sm_120a")}
    assert counts == {"sm_89": 0, "sm_90a": 1, "sm_100a": 4, "sm_100f": 3, "sm_120a": 1}


def test_vendored_folders_and_tests_are_not_read(case: Case) -> None:
    component = case.inventory().components[0]
    assert component.vendored == 1
    assert not [f for f in component.occurrences if f.file.startswith(("csrc/vendored", "tests"))]


def test_what_only_another_vendors_hardware_uses_is_not_looked_at(fixture_project: Project, tmp_path: Path) -> None:
    files = {**SOURCES, "csrc/kernel.asc": 'asm("tcgen05.ld.sync;");\n'}
    case = case_of(files, fixture_project, tmp_path)
    for_nvidia = case.inventory().components[0]
    target = replace(case.envs.target("fixture"), vendor="ascend")
    for_npu = inventory(case.envs, target, case.lock, case.store).components[0]
    assert not [f for f in for_nvidia.occurrences if f.file.endswith(".asc")]
    assert {f.file for f in for_npu.occurrences if f.kind == "inline PTX"} == {"csrc/kernel.asc"}
    assert for_npu.files < for_nvidia.files


def test_a_process_that_is_ended_while_it_reads_is_done_without(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = case.inventory()
    monkeypatch.setattr("cleanroom.inventory.LARGE", 0)
    assert case.inventory() == whole

    def ended(_reading: object) -> NoReturn:
        raise BrokenProcessPool

    monkeypatch.setattr("concurrent.futures.Future.result", ended)
    assert case.inventory() == whole


def test_a_source_with_nothing_new_leaves_nothing_to_decide(case: Case) -> None:
    assert case.inventory().problems == ()


def test_families_of_the_source_are_compared_with_the_list_both_ways(fixture_project: Project, tmp_path: Path) -> None:
    files = {**SOURCES, "csrc/divide.cu": "__global__ void divide();"}
    del files["csrc/multiply.cu"]
    found = case_of(files, fixture_project, tmp_path).inventory()
    families = {f.name: f.status for f in found.components[0].families}
    assert families == {"copy": "known", "divide": "new", "multiply": "gone"}
    assert [(p.severity, p.message.split(" is ")[0]) for p in found.problems] == [
        ("degrades", "the kernel family divide"),
        ("degrades", "the kernel family multiply of envs/sensitivity.yaml"),
    ]


def test_an_instruction_that_is_not_described_is_reported(fixture_project: Project, tmp_path: Path) -> None:
    files = {**SOURCES, "csrc/new.cuh": 'asm("tcgen06.mma.kind::f2 [%0];" :: "r"(x));'}
    found = case_of(files, fixture_project, tmp_path).inventory()
    (problem,) = found.problems
    assert problem.message == "inline PTX that envs/sensitivity.yaml does not describe: tcgen06.mma.kind::f2"


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("import deep_select", "fails"),
        ("def f():\n    from deep_select.interface import topk", "fails"),
        ("if x:\n    import deep_select", "note"),
        ("try:\n    import deep_select\nexcept ImportError:\n    pass", "note"),
    ],
)
def test_a_module_that_nothing_provides_is_found(fixture_project: Project, tmp_path: Path, line: str, severity: str) -> None:
    case = case_of({**SOURCES, "vectors/use.py": line}, fixture_project, tmp_path)
    (problem,) = case.inventory().problems
    assert (problem.severity, "deep_select" in problem.message, "vectors/use.py:" in problem.message) == (severity, True, True)
    (accepted,) = with_missing(case, "deep_select").inventory().problems
    assert accepted.severity == "note"
    assert accepted.message.endswith("deep_select is somebody else's")


def test_a_module_of_the_component_that_its_archive_lacks_is_found(fixture_project: Project, tmp_path: Path) -> None:
    case = case_of({**SOURCES, "setup.py": "from vectors.lost import thing\n"}, fixture_project, tmp_path)
    (problem,) = case.inventory().problems
    assert problem.message.startswith("nothing provides the module vectors.lost, which is imported always (setup.py:1)")


def test_what_only_another_vendors_hardware_imports_is_not_missing(fixture_project: Project, tmp_path: Path) -> None:
    files = {**SOURCES, "vectors/asc/ops.py": "import cann_things\n", "vectors/use.py": "import torch_npu\n"}
    assert case_of(files, fixture_project, tmp_path).inventory().problems == ()


def test_a_missing_module_that_is_accepted_in_vain_is_told(case: Case) -> None:
    (problem,) = with_missing(case, "json").inventory().problems
    assert problem.severity == "degrades"
    assert "missing_modules names json, but nothing imports it" in problem.message


def test_without_a_wheel_its_name_is_taken_for_its_module(case: Case) -> None:
    for entry in case.lock.group("python"):
        case.store.path_of(entry.sha256).unlink()
    found = case.inventory()
    assert found.unread == ("packaging", "setuptools", "wheel")
    assert [m.module for m in found.components[0].missing] == ["provided"]
    (problem,) = found.problems
    assert problem.severity == "note"
    assert problem.message.endswith("3 locked wheels are not there, so this is not decided")


def test_a_source_that_is_not_locked_names_the_command(case: Case) -> None:
    entries = tuple(e for e in case.lock.entries if e.group != "source")
    with pytest.raises(LockError) as caught:
        replace(case, lock=replace(case.lock, entries=entries)).inventory()
    assert "cleanroom-vectors" in caught.value.what
    assert caught.value.next_step == "nox -s lock -- fixture"


def source(lock: Lock) -> Entry:
    return lock.group("source")[0]


def test_a_source_that_is_not_in_the_store_or_damaged_there_is_an_error(case: Case) -> None:
    place = case.store.path_of(source(case.lock).sha256)
    place.write_bytes(b"x" * source(case.lock).size)
    with pytest.raises(IntegrityError, match="was altered"):
        case.inventory()
    with pytest.raises(IntegrityError, match="is not in the store"):
        case.inventory()


@pytest.mark.parametrize("data", [b"PK\x03\x04 no tar", archive(SOURCES)[:300], b"\x1f\x8b" + b"\0" * 40])
def test_an_archive_that_cannot_be_read_is_an_error_and_no_traceback(fixture_project: Project, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"cannot be read as a \.tar archive"):
        case_of({}, fixture_project, tmp_path, data=data).inventory()


def test_links_and_paths_that_lead_outside_are_harmless(fixture_project: Project, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        link = tarfile.TarInfo("vectors-1.0.0/setup.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        outside = tarfile.TarInfo("vectors-1.0.0/../../escape.py")
        outside.size = 9
        tar.addfile(outside, io.BytesIO(b"import x\n"))
    before = sorted(tmp_path.rglob("*"))
    found = case_of({}, fixture_project, tmp_path, data=stream.getvalue()).inventory()
    assert found.components[0].occurrences == ()
    assert not [path for path in tmp_path.rglob("escape*") if path not in before]


def shown(found: Inventory) -> str:
    stream = io.StringIO()
    show(found, Console(stream=stream))
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


def test_an_inventory_looks_as_it_did(fixture_project: Project, tmp_path: Path) -> None:
    files = {**SOURCES, "csrc/divide.cu": "__global__ void divide();", "vectors/use.py": "import deep_select"}
    found = shown(case_of(files, fixture_project, tmp_path).inventory())
    if os.environ.get("CLEANROOM_WRITE_GOLDENS"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_json_holds_everything_and_reads_back(case: Case) -> None:
    found = case.inventory()
    events = io.StringIO()
    show(found, Console(json=True, events=events))
    (line,) = events.getvalue().splitlines()
    result = json.loads(line)["result"]
    assert next(iter(result)) == "schema"
    assert from_json(Inventory, json.loads(json.dumps(to_json(found))), "") == found
