"""Loading envs/: what is there is read exactly, and every mistake is named with file, line, key, value and what is allowed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cleanroom.arch import Arch, parse_arch
from cleanroom.arch_table import release
from cleanroom.envs import NOT_RESOLVED, Envs, load_envs
from cleanroom.errors import ArchError, CleanroomError, EnvsError, UnknownName
from cleanroom.target import Expectation

REPOSITORY = Path(__file__).resolve().parents[2]
ENVS = REPOSITORY / "envs"
FIXTURE = REPOSITORY / "tests" / "fixture" / "envs"

EXPECTED = "{outcome: partly, compiles: 7, of: 28, reason: guarded, source: measured here}"
BASE = """\
name: plain
title: A base
kind: debian
suite: trixie
suites: [trixie, trixie-security]
python: "3.13"
gcc: "14"
glibc: "2.41"
packages: [g++, make]
"""
IMAGE = """\
name: official
title: An official image
kind: image
image: python:3.12-trixie
digests:
  linux/amd64: sha256:3d361d7fea344d55ac7a0f51ed7faa99213808ccc96fc9b9170adb95b6570b96
digest_source: a file
suite: trixie
suites: [trixie]
python: "3.12"
gcc: "14.2"
glibc: "2.41"
packages: []
"""
COMPONENT = """\
name: kernels
title: Kernels
source: {kind: pypi, name: some-kernels, version: 2.5.0}
distribution: some-kernels
modules: [kernels, kernels.extra]
architecture:
  decided: build
  by: CUDA_ARCHS in setup.py
  default: [sm_100a, sm_103a]
  environment:
    ARCHS: {value: "{sm_list}", reason: chosen here}
  substitute:
    - {file: setup.py, match: OLD, replace: "{sm_list}", count: 1, reason: there is no switch}
system: {build: [libdw-dev], run: [libdw1t64]}
python: {build: [ninja, "setuptools>=77"], requirements: [tilelang==0.1.15], requirements_file: requirements.txt}
environment:
  NVCC_THREADS: {value: "{nvcc_threads}", reason: memory}
  VERSION: {value: "v{version}", reason: no git}
  EMPTY: {value: "", reason: unset}
substitute:
  - {file: a/b.py, match: x, replace: "", count: 2, reason: why}
provides:
  - {file: tests/x.py, from: x.py, reason: missing}
yields: {extensions: ["kernels/_C.*.so"], contains: ["kernels/*"]}
missing_modules:
  - {module: deep_select, reason: not public}
cost: {memory_mib: [8800, 2600], minutes: 70}
"""
TARGET = """\
name: sm100
title: SM100
status: supported
status_source: README
platform: linux/amd64
vendor: nvidia
architectures: [sm_100a]
bases: [plain]
toolkit:
  kind: cuda-wheels
  version: "13.3"
  packages: [nvidia-cuda-nvcc==13.3.73, nvidia-nvvm==13.3.73]
components:
  kernels:
    architectures: [sm_100a, sm_103a]
    reason: kept as released
    substitute: [{file: setup.py, match: ARCHS, replace: "[{sm_list}]", count: 1, reason: there is no switch}]
expected:
  kernels: {outcome: partly, compiles: 7, of: 28, reason: guarded, source: measured here}
accepts:
  - {component: kernels, kind: stub kernels, reason: known upstream}
  - {component: image, kind: missing module, reason: not public}
not_built:
  - {part: DeepSelect, reason: no pinned source}
overrides:
  - {requirement: torch==2.13.0, instead_of: torch==2.13.0+cu132, reason: not there, source: README}
prerequisites:
  - {name: GCC, requires: ">=13", kind: gcc, source: README}
  - {name: NCCL, requires: ">=2.32.3", kind: "distribution:nvidia-nccl-cu13", source: README}
  - {name: checkpoint, requires: some/model, kind: outside, source: README}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small envs folder without mistakes."""
    envs = tmp_path / "envs"
    for path, text in (
        ("bases/plain.yaml", BASE),
        ("bases/official.yaml", IMAGE),
        ("components/kernels.yaml", COMPONENT),
        ("targets/sm100.yaml", TARGET),
    ):
        (envs / path).parent.mkdir(parents=True, exist_ok=True)
        (envs / path).write_text(text)
    shutil.copy(ENVS / "architectures.yaml", envs)
    return envs


def change(folder: Path, path: str, old: str, new: str) -> None:
    text = (folder / path).read_text()
    assert old in text
    (folder / path).write_text(text.replace(old, new, 1))


def mistakes(folder: Path, kind: type[CleanroomError] = EnvsError) -> list[str]:
    with pytest.raises(kind) as caught:
        load_envs(folder)
    assert type(caught.value) is kind
    assert caught.value.means
    assert caught.value.next_step
    lines = caught.value.what.splitlines()
    assert f"{len(lines) - 1} mistake" in lines[0]
    return [line.strip() for line in lines[1:]]


# --- what is there -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [ENVS, FIXTURE])
def test_the_repositorys_own_files_load_without_mistakes(path: Path) -> None:
    envs = load_envs(path)
    assert envs.targets
    assert {s.component for t in envs.targets.values() for s in t.components} <= envs.components.keys()


@pytest.mark.parametrize("path", [*sorted(ENVS.rglob("*.yaml")), *sorted(FIXTURE.glob("*/*.yaml"))], ids=lambda p: p.name)
def test_no_file_names_a_machine_path_or_a_registry(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert not re.search(r"(?m)(^|[\s:=\"'\[{(,])/[A-Za-z]", text), "an absolute path"


def test_a_target_is_read_exactly(folder: Path) -> None:
    target = load_envs(folder).target("sm100")
    assert (target.title, target.status, target.platform, target.vendor) == ("SM100", "supported", "linux/amd64", "nvidia")
    assert target.architectures == (Arch(10, 0, "a"),)
    assert target.toolkit.version == "13.3"
    assert target.toolkit.packages[0] == "nvidia-cuda-nvcc==13.3.73"
    assert target.components[0].architectures == (Arch(10, 0, "a"), Arch(10, 3, "a"))
    assert target.components[0].reason == "kept as released"
    assert [s.replace for s in target.components[0].substitute] == ["[{sm_list}]"]
    assert target.selection("kernels") == target.components[0]
    assert target.selection("other") is None
    assert target.architectures_of("kernels") == (Arch(10, 0, "a"), Arch(10, 3, "a"))
    assert target.overrides[0].instead_of == "torch==2.13.0+cu132"
    assert [p.kind for p in target.prerequisites] == ["gcc", "distribution:nvidia-nccl-cu13", "outside"]


def test_a_component_is_read_exactly(folder: Path) -> None:
    component = load_envs(folder).component("kernels")
    assert (component.source.kind, component.source.name, component.source.version) == ("pypi", "some-kernels", "2.5.0")
    assert component.modules == ("kernels", "kernels.extra")
    assert component.architecture.decided == "build"
    assert component.architecture.default == (Arch(10, 0, "a"), Arch(10, 3, "a"))
    assert component.architecture.environment[0].value == "{sm_list}"
    assert component.architecture.substitute[0].count == 1
    assert component.system_build == ("libdw-dev",)
    assert component.system_run == ("libdw1t64",)
    assert component.python_build == ("ninja", "setuptools>=77")
    assert component.python_requirements == ("tilelang==0.1.15",)
    assert component.requirements_file == "requirements.txt"
    values = {v.name: v.value for v in component.environment}
    assert values == {"NVCC_THREADS": "{nvcc_threads}", "VERSION": "v{version}", "EMPTY": ""}
    assert component.substitute[0].replace == ""
    assert component.provides[0].origin == "x.py"
    assert component.extensions == ("kernels/_C.*.so",)
    assert component.missing_modules[0].module == "deep_select"
    assert (component.memory_mib, component.minutes) == ((8800, 2600), 70)


def test_a_base_of_each_kind_is_read_exactly(folder: Path) -> None:
    envs = load_envs(folder)
    assert envs.base("plain").kind == "debian"
    assert envs.base("plain").packages == ("g++", "make")
    assert envs.base("official").digests["linux/amd64"].startswith("sha256:3d361d7f")
    assert envs.base("official").gcc == "14.2"


def test_what_is_expected_and_accepted_is_read_exactly(folder: Path) -> None:
    target = load_envs(folder).target("sm100")
    expectation = target.expectation("kernels")
    assert expectation == Expectation("kernels", "partly", 7, 28, "guarded", "measured here")
    assert str(expectation) == "partly: 7 of 28"
    assert target.expectation("other") is None
    accepted = target.acceptance("kernels", "stub kernels")
    assert accepted is not None
    assert accepted.reason == "known upstream"
    assert target.acceptance("image", "stub kernels") is None


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("{outcome: compiles, source: README}", "compiles"),
        ("{outcome: refuses, reason: static assertion, source: measured here}", "refuses"),
    ],
)
def test_an_outcome_without_counts_is_said_in_one_word(folder: Path, outcome: str, said: str) -> None:
    change(folder, "targets/sm100.yaml", EXPECTED, outcome)
    assert str(load_envs(folder).target("sm100").expectation("kernels")) == said


def test_an_experimental_target_says_what_to_expect_and_a_supported_one_need_not(folder: Path) -> None:
    change(folder, "targets/sm100.yaml", f"expected:\n  kernels: {EXPECTED}\n", "")
    assert load_envs(folder).target("sm100").expected == ()
    change(folder, "targets/sm100.yaml", "status: supported", "status: experimental")
    assert mistakes(folder) == [
        f"{folder}/targets/sm100.yaml:1: nothing is expected of kernels; an experimental target says it of every component"
    ]


@pytest.mark.parametrize("status", ["supported", "experimental", "fixture"])
def test_every_status_is_accepted(folder: Path, status: str) -> None:
    change(folder, "targets/sm100.yaml", "status: supported", f"status: {status}")
    assert load_envs(folder).target("sm100").status == status


def test_a_source_in_this_repository_is_read(folder: Path) -> None:
    change(folder, "components/kernels.yaml", "{kind: pypi,", "{kind: folder, path: sources/x,")
    assert load_envs(folder).component("kernels").source.path == "sources/x"


def test_an_ascend_target_has_no_compute_capabilities() -> None:
    assert load_envs(ENVS).target("ascend950").architectures == ()


def test_optional_keys_may_be_absent(folder: Path) -> None:
    text = TARGET[: TARGET.index("  kernels:")] + "  kernels: {}\n"
    (folder / "targets/sm100.yaml").write_text(text)
    target = load_envs(folder).target("sm100")
    assert target.overrides == ()
    assert target.prerequisites == ()
    assert target.architectures_of("kernels") == target.architectures


# --- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "kind", "near"),
    [
        (lambda e: e.target("sm101"), "target", "sm100"),
        (lambda e: e.component("kernel"), "component", "kernels"),
        (lambda e: e.base("plane"), "base", "plain"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one_and_the_known_ones(
    folder: Path, ask: Callable[[Envs], object], kind: str, near: str
) -> None:
    with pytest.raises(UnknownName) as caught:
        ask(load_envs(folder))
    assert f"no {kind}" in caught.value.what
    assert f"did you mean '{near}'" in caught.value.what
    assert near in caught.value.means


@pytest.mark.parametrize("name", ["../sm100", "", "sm100.yaml", "nothing like it", "sm100-debian13"])
def test_a_senseless_name_gets_no_suggestion_to_create_such_a_file(folder: Path, name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        load_envs(folder).target(name)
    assert "add envs" not in caught.value.next_step


# --- mistakes in one value ---------------------------------------------------------------------------------------------

T, C, A = "targets/sm100.yaml", "components/kernels.yaml", "architectures.yaml"
B, IMG = "bases/plain.yaml", "bases/official.yaml"


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        # unknown, missing, repeated keys
        (T, "vendor: nvidia", "vendour: nvidia", ["targets/sm100.yaml:6: vendour", "did you mean 'vendor'", "known here:"]),
        (T, "title: SM100\n", "", ["the key 'title' is missing"]),
        (T, "title: SM100\n", "title: SM100\ntitle: again\n", ["sm100.yaml:3: title", "already given on line 2"]),
        (T, "  kernels:", "  kernels: {}\n  kernels:", ["components.kernels", "already given on line 14"]),
        (C, "  VERSION:", "  NVCC_THREADS:", ["environment.NVCC_THREADS", "already given"]),
        (C, "memory_mib: [8800, 2600]", "memory: 2600", ["cost.memory: unknown key", "'memory_mib' is missing"]),
        (B, 'gcc: "14"\n', "", ["bases/plain.yaml", "the key 'gcc' is missing"]),
        (T, "  kind: cuda-wheels\n", "", ["toolkit: the key 'kind' is missing"]),
        # words with few choices
        (T, "status: supported", "status: suported", ["sm100.yaml:3: status: 'suported'", "mean 'supported'", "experimental"]),
        (T, "vendor: nvidia", "vendor: amd", ["vendor: 'amd' is not known", "ascend, nvidia"]),
        (T, "platform: linux/amd64", "platform: linux/x86_64", ["platform: 'linux/x86_64'", "linux/amd64"]),
        (T, "kind: cuda-wheels", "kind: runfile", ["toolkit.kind: 'runfile'", "cuda-wheels"]),
        (C, "decided: build", "decided: runtime", ["architecture.decided: 'runtime'", "run-time"]),
        (C, "kind: pypi", "kind: git", ["source.kind: 'git'", "folder, pypi"]),
        (B, "kind: debian", "kind: ubuntu", ["kind: 'ubuntu'", "debian, image"]),
        # wrong types, with what YAML made of them
        (B, 'python: "3.13"', "python: 3.13", ["python: 3.13 is a number to YAML", "quote it"]),
        (B, 'python: "3.13"', "python: 3.10", ["python: 3.10 is a number to YAML"]),
        (B, 'gcc: "14"', "gcc: 14", ["gcc: 14 is a whole number to YAML", "quote it"]),
        (T, 'version: "13.3"', "version: 13.3", ["toolkit.version: 13.3 is a number to YAML"]),
        (T, "title: SM100", "title: yes", ["title: yes is true or false to YAML", "quote it"]),
        (T, "title: SM100", "title:", ["title: is empty, text is needed"]),
        (T, "title: SM100", "title: ''", ["title: is empty"]),
        (T, "title: SM100", "title: 2026-01-01", ["title: 2026-01-01 is a date to YAML"]),
        (T, "title: SM100", "title: [a]", ["title: is a list, text is needed"]),
        (T, "title: SM100", "title: {a: b}", ["title: is a mapping, text is needed"]),
        (T, "bases: [plain]", "bases: plain", ["bases: is text ('plain'), a list is needed"]),
        (T, "bases: [plain]", "bases: []", ["bases: the list is empty"]),
        (T, "bases: [plain]", "bases: [plain, plain]", ["bases[1]: 'plain' is listed twice"]),
        (C, "minutes: 70", 'minutes: "70"', ["cost.minutes: is text ('70'), a whole number is needed"]),
        (C, "minutes: 70", "minutes: 1.5", ["cost.minutes", "a whole number"]),
        (C, "minutes: 70", "minutes: -1", ["cost.minutes: -1 is too small; allowed: 0 or more"]),
        (C, "memory_mib: [8800, 2600]", "memory_mib: [0]", ["memory_mib[0]: 0 is too small; allowed: 1 or more"]),
        (C, "memory_mib: [8800, 2600]", "memory_mib: [2600, 8800]", ["memory_mib", "the largest first"]),
        (C, "memory_mib: [8800, 2600]", "memory_mib: []", ["memory_mib", "at least one number"]),
        (C, "minutes: 70", "minutes: 0x10", ["cost.minutes"]),
        (C, "minutes: 70", "minutes: 1_0", ["cost.minutes"]),
        (C, "minutes: 70", "minutes: 010", ["cost.minutes"]),
        (C, "count: 2", "count: 0", ["substitute[0].count: 0 is too small"]),
        (C, "system: {build", "system: [", ["not valid YAML"]),
        (C, "  VERSION:", "  1: {value: a, reason: b}\n  VERSION:", ["the key 1 is a whole number"]),
        (C, "  VERSION:", "  NO: {value: a, reason: b}\n  VERSION:", ["the key NO is true or false"]),
        # names that refer to something else
        (T, "bases: [plain]", "bases: [plan]", ["there is no base 'plan'", "did you mean 'plain'", "known: official, plain"]),
        (T, "  kernels:", "  kernel:", ["components.kernel: there is no component 'kernel'", "did you mean 'kernels'"]),
        (T, "name: sm100", "name: sm103", ["sm100.yaml:1: name: 'sm103' is not the file's name 'sm100'"]),
        (C, "name: kernels", "name: kernel", ["'kernel' is not the file's name 'kernels'"]),
        (B, "name: plain", "name: debian", ["'debian' is not the file's name 'plain'"]),
        # toolkit
        (T, 'version: "13.3"', 'version: "13.9"', ["the toolkit release 13.9 is not known", "13.5"]),
        (T, 'version: "13.3"', 'version: "13"', ["toolkit.version: '13' is not acceptable", '"13.3"']),
        (T, 'version: "13.3"', 'version: "13.2"', ["nvidia-cuda-nvcc==13.3.73 is not of the toolkit release 13.2"]),
        (T, "nvidia-nvvm==13.3.73", "nvidia-nvvm", ["toolkit.packages[1]: 'nvidia-nvvm' is not acceptable", "an exact pin"]),
        (T, "nvidia-nvvm==13.3.73", "nvidia-nvvm>=13.3", ["toolkit.packages[1]", "an exact pin"]),
        (T, "nvidia-nvvm==13.3.73", "nvidia-nvvm==13.3.*", ["toolkit.packages[1]", "an exact pin"]),
        (T, "nvidia-nvvm==13.3.73", "nvidia_cuda_nvcc==13.3.33", ["nvidia-cuda-nvcc is pinned 2 times"]),
        (T, "[nvidia-cuda-nvcc==13.3.73, nvidia-nvvm==13.3.73]", "[]", ["toolkit.packages: the list is empty"]),
        # reasons are not optional
        (T, "    reason: kept as released\n", "", ["components.kernels: has architectures of its own without a reason"]),
        (
            T,
            TARGET[TARGET.index("    architectures: [sm_100a") : TARGET.index("expected:")],
            "    reason: kept as released\n",
            ["has a reason and nothing that it is for"],
        ),
        (T, ", reason: not there", "", ["overrides[0]: the key 'reason' is missing"]),
        (T, "reason: not there", "reason: ''", ["overrides[0].reason: is empty"]),
        (C, ", reason: memory", "", ["environment.NVCC_THREADS: the key 'reason' is missing"]),
        (C, ", reason: missing", "", ["provides[0]: the key 'reason' is missing"]),
        (C, ", reason: why", "", ["substitute[0]: the key 'reason' is missing"]),
        (T, ", reason: there is no switch", "", ["components.kernels.substitute[0]: the key 'reason' is missing"]),
        (T, ", reason: known upstream", "", ["accepts[0]: the key 'reason' is missing"]),
        (T, "reason: guarded", "reason: ''", ["expected.kernels.reason: is empty"]),
        (T, ", reason: guarded", "", ["expected.kernels: partly without a reason"]),
        (T, ", source: measured here", "", ["expected.kernels: the key 'source' is missing"]),
        # what is expected and accepted
        (T, "outcome: partly", "outcome: maybe", ["expected.kernels.outcome: 'maybe'", "compiles, partly, refuses"]),
        (T, "outcome: partly", "outcome: compiles", ["expected.kernels: has counts, which belong to partly and refuses"]),
        (T, ", compiles: 7, of: 28", "", ["expected.kernels: is partly without its counts"]),
        (T, "compiles: 7", "compiles: 28", ["expected.kernels: compiles 28 of 28 is not a part"]),
        (T, "of: 28", "of: 28, stubs: 0", ["expected.kernels.stubs: 0 is too small"]),
        (T, "compiles: 7", "compiles: 0", ["expected.kernels.compiles: 0 is too small"]),
        (T, f"  kernels: {EXPECTED}", f"  kernel: {EXPECTED}", ["expected.kernel: 'kernel' is no component of this target"]),
        (T, "- {component: kernels", "- {component: kernel", ["accepts[0].component: 'kernel'", "image, kernels"]),
        (T, "component: image, kind: missing module", "component: kernels, kind: stub kernels", ["accepted twice"]),
        (T, "file: setup.py", "file: ../setup.py", ["components.kernels.substitute[0].file", "without .."]),
        # requirements and specifiers
        (T, "requirement: torch==2.13.0,", "requirement: torch=2.13.0,", ["overrides[0].requirement: 'torch=2.13.0'"]),
        (T, 'requires: ">=13"', 'requires: "13 or newer"', ["prerequisites[0].requires: '13 or newer'", "version specifier"]),
        (T, "kind: gcc", "kind: gccc", ["prerequisites[0].kind: 'gccc'", "distribution:<name>"]),
        (T, '"distribution:nvidia-nccl-cu13"', '"distribution:"', ["prerequisites[1].kind"]),
        (C, "version: 2.5.0", "version: latest", ["source.version: 'latest' is not acceptable", "an exact version"]),
        (C, "version: 2.5.0", "version: 2.5", ["source.version: 2.5 is a number to YAML"]),
        (C, "tilelang==0.1.15", "tilelang = 0.1.15", ["python.requirements[0]"]),
        (C, "libdw-dev", "libdw dev", ["system.build[0]: 'libdw dev'", "a Debian package name"]),
        (C, "libdw-dev", "--option", ["system.build[0]: '--option'"]),
        (C, "modules: [kernels, kernels.extra]", "modules: [kernels-extra]", ["modules[0]: 'kernels-extra'"]),
        (C, "modules: [kernels, kernels.extra]", "modules: []", ["modules: the list is empty"]),
        # placeholders
        (C, "{nvcc_threads}", "{nvcc_thread}", ["NVCC_THREADS.value: the placeholder {nvcc_thread}", "'nvcc_threads'"]),
        (C, "v{version}", "{python}", ["the placeholder {python} is not known", "{sm_list}, {torch_arch_list}, {venv}, {version}"]),
        (C, '"v{version}"', '"a\\nb"', ["VERSION.value: has more than one line"]),
        (C, "  VERSION:", "  A-B:", ["'A-B' is not the name of an environment variable"]),
        (C, "  VERSION:", "  ARCHS:", ["ARCHS is also set under architecture.environment"]),
        # paths stay inside
        (C, "file: a/b.py", "file: ../b.py", ["substitute[0].file: '../b.py'", "without .."]),
        (C, "file: a/b.py", "file: /etc/passwd", ["substitute[0].file: '/etc/passwd'"]),
        (C, "from: x.py", "from: a/../../x.py", ["provides[0].from"]),
        (C, '"kernels/_C.*.so"', '"../_C.so"', ["yields.extensions[0]"]),
        (C, "requirements_file: requirements.txt", "requirements_file: ~/r.txt", ["python.requirements_file"]),
        # things that belong together
        (C, "{kind: pypi,", "{kind: folder,", ["source: the key 'path' is missing"]),
        (C, "{kind: pypi,", "{kind: pypi, path: x,", ["source.path: belongs to a source of kind folder"]),
        (C, "decided: build", "decided: run-time", ["architecture.default: has no meaning", "decided run-time"]),
        (B, "kind: debian", "kind: image", ["the key 'image' is missing", "the key 'digests' is missing"]),
        (IMG, "kind: image", "kind: debian", ["image: belongs to a base of kind image"]),
        (IMG, "sha256:3d361d7f", "sha256:3D361D7F", ["digests.linux/amd64", "64 hexadecimal digits"]),
        (IMG, "linux/amd64:", "linux/arm:", ["the platform 'linux/arm' is not known"]),
        (B, "suites: [trixie, trixie-security]", "suites: [trixie-security]", ["suites: lacks the base's own suite 'trixie'"]),
        (B, 'glibc: "2.41"', 'glibc: "new"', ["glibc: 'new' is not acceptable"]),
        (T, "bases: [plain]", "bases: [official]\nplatform: linux/arm64", ["already given on line 5"]),
        # a second override of the same distribution
        (
            T,
            "prerequisites:",
            "  - {requirement: Torch==2.14.0, instead_of: torch, reason: r, source: s}\nprerequisites:",
            ["overrides[1]: torch is overridden more than once"],
        ),
        # the table itself
        (A, 'sm_100f: {first: "12.9"}', 'sm_103f: {first: "12.9"}', ["sm_103f is not a form of 10.0"]),
        (A, 'sm_100f: {first: "12.9"}', "sm_100f: {first: 12.9}", ["sm_100f.first: 12.9 is a number to YAML"]),
        (A, 'sm_70: {first: "9.0", last: "12.9"}', 'sm_70: {first: "12.9", last: "9.0"}', ["last 9.0 is before first 12.9"]),
        (A, '- members: ["10.0", "10.3"]', '- members: ["10.0"]', ["10.3 is in 0 families"]),
        (A, '- members: ["10.0", "10.3"]', '- members: ["10.0", "10.3", "12.0"]', ["12.0 is in 2 families"]),
        (A, '- members: ["10.0", "10.3"]', '- members: ["10.0", "10.3", "10.9"]', ["members[2]: '10.9'"]),
        (A, 'renamed_to: "11.0"', 'renamed_to: "11.5"', ["'11.5' is not in the table"]),
        (A, "gcc: {oldest: 6, newest: 13}", "gcc: {oldest: 16, newest: 13}", ["newest 13 is before oldest 16"]),
        (A, '  "12.6":', "  12.6:", ["the key 12.6 is a number; keys are text, quote it"]),
        (A, 'cuda: "13.0"', 'cuda: "thirteen"', ["torch.2.13.cuda: 'thirteen'"]),
        (A, "driver: 525", "driver: 525.60", ["driver"]),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(
    folder: Path, path: str, old: str, new: str, expected: list[str]
) -> None:
    change(folder, path, old, new)
    found = mistakes(folder)
    assert all(f"envs/{path}" in line for line in found), found
    for fragment in expected:
        assert any(fragment in line for line in found), (fragment, found)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        # D06 and D08: the inputs of those cases
        ("[10.0]", ["architectures[0]", "the number 10.0", "Quote it", "sm_100"]),
        ("[12.10]", ["the number 12.10", "12.10 as 12.1"]),
        ('["10.0.a"]', ["'10.0.a'", "sm_100a"]),
        ('["100a"]', ["'100a'", "sm_100a or 10.0a"]),
        ("[]", ["the list of architectures is empty"]),
        ("", ["the list of architectures is empty"]),
        ("native", ["'native' is refused", "sm_75"]),
        ("All", ["'All' is refused"]),
        ("[native]", ["architectures[0]", "'native' is refused"]),
        ("sm_100a", ["is one value, a list is needed: [sm_100a]"]),
        ("[sm_100a, 10.0a]", ["architectures[1]: sm_100a is listed twice"]),
        ("[sm_100, compute_100]", ["write sm_100+PTX"]),
        ("[[sm_100a]]", ["a list inside the list"]),
        ("[{a: b}]", ["not text"]),
        ("[null]", ["the architecture is empty"]),
        ("[yes]", ["the architecture is yes, which YAML reads as true"]),
        ("[sm_90f]", ["capability 9.0 has no family form sm_90f", "sm_90, sm_90a"]),
        ("[sm_89a]", ["capability 8.9 has no architecture-specific form sm_89a"]),
        ("[sm_107a]", ["unknown compute capability 10.7", "10.0, 10.1, 10.3"]),
        ("[sm_130]", ["unknown compute capability 13.0"]),
    ],
)
def test_a_wrong_architecture_is_an_architecture_error(folder: Path, new: str, expected: list[str]) -> None:
    change(folder, T, "architectures: [sm_100a]", f"architectures: {new}")
    found = mistakes(folder, ArchError)
    assert all("envs/targets/sm100.yaml:7: architectures" in line for line in found), found
    for fragment in expected:
        assert any(fragment in line for line in found), (fragment, found)


def test_a_missing_architecture_list_is_refused(folder: Path) -> None:  # D08
    change(folder, T, "architectures: [sm_100a]\n", "")
    assert mistakes(folder) == [f"{folder}/targets/sm100.yaml:1: the key 'architectures' is missing"]


@pytest.mark.parametrize("text", ["12.0f+PTX", "sm_100a", '"10.0a"', "10.0a", '"10.0"', "compute_90", "10.1a"])
def test_every_documented_spelling_loads(folder: Path, text: str) -> None:
    change(folder, T, "architectures: [sm_100a]", f"architectures: [{text}]")
    assert load_envs(folder).target("sm100").architectures == (parse_arch(text.strip('"'), where=""),)


def test_an_unknown_architecture_of_a_component_is_named_in_the_components_file(folder: Path) -> None:
    change(folder, C, "default: [sm_100a, sm_103a]", "default: [sm_100a, sm_102a]")
    assert "components/kernels.yaml:9: architecture.default: sm_102a" in mistakes(folder, ArchError)[0]


def test_compute_capabilities_have_no_place_in_an_ascend_target(folder: Path) -> None:
    change(folder, T, "vendor: nvidia", "vendor: ascend")
    found = "\n".join(mistakes(folder))
    assert "for ascend the list is empty" in found
    assert "toolkit.kind: 'cuda-wheels' is not known" in found


# --- whole files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ["is empty"]),
        (b"# only a comment\n", ["is empty"]),
        (b"just text", ["is text ('just text'), a mapping is needed"]),
        (b"- a\n- b\n", ["is a list (a list), a mapping is needed"]),
        (b"name: [unclosed\n", ["not valid YAML"]),
        (b"name: sm100\n\ttitle: tab\n", ["sm100.yaml:2:", "not valid YAML"]),
        (b"name: a\n---\nname: b\n", ["not valid YAML"]),
        (b"name: a: b\n", ["sm100.yaml:1:", "not valid YAML"]),
        (b"name: \xff\xfe\n", ["is not UTF-8 text (byte 6)"]),
        (b"name: \x00\n", ["not valid YAML"]),
        (b"name: &x sm100\ntitle: *x\n", ["sm100.yaml:1:", "anchors and aliases"]),
        (b"a: &x [*x]\n", ["anchors and aliases"]),
        (b"<<: {name: sm100}\n", ["merge key"]),
        (b"name: !!python/object:os.system sm100\n", ["text is needed"]),
        (b"[" * 1500, ["not valid YAML"]),
        (b"? [a, b]\n: c\n", ["the key a list or mapping is not text"]),
    ],
)
def test_a_file_that_is_not_a_target_at_all_is_one_clear_mistake(folder: Path, content: bytes, expected: list[str]) -> None:
    (folder / T).write_bytes(content)
    found = mistakes(folder)
    assert all("envs/targets/sm100.yaml" in line for line in found)
    for fragment in expected:
        assert any(fragment in line for line in found), (fragment, found)


def test_all_mistakes_of_all_files_are_reported_at_once(folder: Path) -> None:
    change(folder, T, "status: supported", "status: suported")
    change(folder, T, "vendor: nvidia", "vendour: nvidia")
    change(folder, T, "architectures: [sm_100a]", "architectures: [native]")
    change(folder, B, 'python: "3.13"', "python: 3.13")
    change(folder, C, "{nvcc_threads}", "{threads}")
    found = mistakes(folder)
    for fragment in ("'suported'", "vendour", "'vendor' is missing", "'native'", "3.13 is a number", "{threads}"):
        assert any(fragment in line for line in found), (fragment, found)
    assert len(found) == 6


def test_a_mistake_in_a_component_is_not_repeated_for_the_targets_that_use_it(folder: Path) -> None:
    change(folder, C, "title: Kernels\n", "")
    assert mistakes(folder) == [f"{folder}/components/kernels.yaml:1: the key 'title' is missing"]


def test_a_damaged_table_is_not_repeated_for_every_architecture(folder: Path) -> None:
    (folder / A).write_text("capabilities: {\n")
    assert len(mistakes(folder)) == 1


def test_a_missing_table_is_one_mistake(folder: Path) -> None:
    (folder / A).unlink()
    assert mistakes(folder) == [f"{folder}/architectures.yaml: cannot be read: No such file or directory"]


def test_a_missing_folder_says_where_to_start(tmp_path: Path) -> None:
    with pytest.raises(EnvsError, match="no folder") as caught:
        load_envs(tmp_path / "envs")
    assert "--project" in caught.value.next_step


@pytest.mark.parametrize("kind", ["targets", "components", "bases"])
def test_a_missing_subfolder_is_a_mistake(folder: Path, kind: str) -> None:
    shutil.rmtree(folder / kind)
    assert any(f"envs/{kind}: cannot be read" in line for line in mistakes(folder))


@pytest.mark.parametrize("kind", ["targets", "components", "bases"])
def test_an_empty_subfolder_is_a_mistake(folder: Path, kind: str) -> None:
    for path in (folder / kind).iterdir():
        path.unlink()
    assert any(f"envs/{kind}: holds no .yaml file" in line for line in mistakes(folder))


def test_a_file_that_would_be_overlooked_is_a_mistake(folder: Path) -> None:
    (folder / "targets/sm90.yml").write_text(TARGET)
    assert "sm90.yml: the file name must end in .yaml" in mistakes(folder)[0]


def test_a_target_in_a_subfolder_would_be_overlooked_and_is_a_mistake(folder: Path) -> None:
    (folder / "targets/experimental").mkdir()
    (folder / "targets/experimental/sm90.yaml").write_text(TARGET)
    assert "a field such as status" in mistakes(folder)[0]


@pytest.mark.parametrize("name", ["README.md", ".hidden.yaml", "sm90.yaml~", ".sm90.yaml.swp"])
def test_other_files_are_left_alone(folder: Path, name: str) -> None:
    (folder / "targets" / name).write_text("not: [a target")
    assert list(load_envs(folder).targets) == ["sm100"]


@pytest.mark.parametrize("name", ["sm-90", "Sm90", "sm 90", "9sm", "sm90.old"])
def test_a_file_name_that_cannot_name_a_lock_is_a_mistake(folder: Path, name: str) -> None:
    (folder / f"targets/{name}.yaml").write_text(TARGET.replace("name: sm100", f"name: {name}"))
    assert any("is not acceptable; allowed: lower-case letters" in line for line in mistakes(folder))


def test_engine_is_no_name_for_a_target(folder: Path) -> None:
    (folder / "targets/engine.yaml").write_text(TARGET.replace("name: sm100", "name: engine"))
    assert any("not engine" in line for line in mistakes(folder))


def test_a_directory_called_like_a_file_is_not_read(folder: Path) -> None:
    (folder / "targets/sm90.yaml").mkdir()
    assert list(load_envs(folder).targets) == ["sm100"]


def test_files_are_named_as_typed_in_the_current_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    change(folder, T, "title: SM100\n", "")
    assert mistakes(folder)[0].startswith("envs/targets/sm100.yaml:1: ")


# --- the checksum of a lock's inputs -----------------------------------------------------------------------------------


def checksum(folder: Path, base: str = "plain") -> str:
    return load_envs(folder).inputs_checksum("sm100", base)


def test_the_checksum_has_the_documented_form_and_is_stable(folder: Path) -> None:
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", checksum(folder))
    assert checksum(folder) == checksum(folder)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (T, "nvidia-nvvm==13.3.73", "nvidia-nvvm==13.3.74"),
        (T, "requirement: torch==2.13.0,", "requirement: torch==2.13.1,"),
        (T, "reason: not there", "reason: gone"),  # reasons of overrides stand in the lock's notes
        (T, "linux/amd64", "linux/arm64"),
        (C, "version: 2.5.0", "version: 2.5.1"),
        (C, "libdw-dev", "libelf-dev"),
        (C, "libdw1t64", "libelf1t64"),
        (C, "ninja", "cmake"),
        (C, "tilelang==0.1.15", "tilelang==0.1.16"),
        (C, "requirements_file: requirements.txt", "requirements_file: other.txt"),
        (C, "distribution: some-kernels", "distribution: kernels"),
        (B, "packages: [g++, make]", "packages: [g++]"),
        (B, 'python: "3.13"', 'python: "3.12"'),
        (B, 'glibc: "2.41"', 'glibc: "2.40"'),
        (B, "trixie-security", "trixie-updates"),
    ],
)
def test_whatever_resolving_reads_changes_the_checksum(folder: Path, path: str, old: str, new: str) -> None:
    before = checksum(folder)
    change(folder, path, old, new)
    assert checksum(folder) != before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (T, "title: SM100", "title: another"),
        (T, "status_source: README", "status_source: issue"),
        (T, "status: supported", "status: fixture"),
        (T, "architectures: [sm_100a]", "architectures: [sm_103a]"),
        (T, "reason: kept as released", "reason: kept"),
        (T, "match: ARCHS", "match: ARCH"),
        (T, "compiles: 7", "compiles: 8"),
        (T, "reason: known upstream", "reason: known"),
        (T, 'requires: ">=13"', 'requires: ">=14"'),
        (C, "title: Kernels", "title: Kernel"),
        (C, "minutes: 70", "minutes: 71"),
        (C, "reason: memory", "reason: less memory"),
        (C, "count: 2", "count: 3"),
        (B, "title: A base", "title: Base"),
        (A, "driver: 525", "driver: 526"),
        (T, "vendor: nvidia\n", "vendor: nvidia # a remark\n"),
        (B, 'glibc: "2.41"', "glibc: '2.41'"),
    ],
)
def test_what_only_describes_or_is_only_rendered_does_not(folder: Path, path: str, old: str, new: str) -> None:
    before = checksum(folder)
    change(folder, path, old, new)
    assert checksum(folder) == before


def test_every_key_that_does_not_count_is_a_key(folder: Path) -> None:
    known = {kind: set(yaml.safe_load((folder / path).read_text())) for kind, path in (("targets", T), ("components", C))}
    known["bases"] = {*yaml.safe_load((folder / B).read_text()), *yaml.safe_load((folder / IMG).read_text())}
    assert {kind: set(keys) - known[kind] for kind, keys in NOT_RESOLVED.items()} == {
        "targets": set(),
        "components": set(),
        "bases": set(),
    }


def test_unrelated_files_do_not_change_the_checksum(folder: Path) -> None:
    before = checksum(folder)
    (folder / "components/other.yaml").write_text(COMPONENT.replace("name: kernels", "name: other"))
    (folder / "targets/sm90.yaml").write_text(TARGET.replace("name: sm100", "name: sm90"))
    (folder / IMG).write_text(IMAGE + "# a remark\n")
    (folder / "targets/notes.txt").write_text("x")
    assert checksum(folder) == before


def test_the_checksum_differs_from_base_to_base(folder: Path) -> None:
    change(folder, T, "bases: [plain]", "bases: [plain, official]")
    assert checksum(folder) != checksum(folder, "official")


def test_the_checksum_does_not_depend_on_where_the_folder_lies(folder: Path, tmp_path: Path) -> None:
    (folder / "components/a.yaml").write_text(COMPONENT.replace("name: kernels", "name: a"))
    change(folder, T, "components:\n", "components:\n  a: {}\n")
    elsewhere = tmp_path / "elsewhere" / "configuration"
    shutil.copytree(folder, elsewhere)
    assert checksum(folder) == checksum(elsewhere)


def test_the_checksum_is_over_what_was_read_not_over_what_lies_there_later(folder: Path) -> None:
    envs = load_envs(folder)
    before = envs.inputs_checksum("sm100", "plain")
    (folder / T).write_text("changed")
    assert envs.inputs_checksum("sm100", "plain") == before


def test_the_checksum_of_an_unknown_name_is_refused(folder: Path) -> None:
    with pytest.raises(UnknownName):
        load_envs(folder).inputs_checksum("sm100", "none")


# --- the table ---------------------------------------------------------------------------------------------------------

# What ptxas of each release accepted when it was run: the oracle for the table.
MEASURED = {
    "12.8": "75 89 90a 100 100a 101a 120 120a",
    "12.9": "75 89 90 90a 100 100a 100f 101 101a 101f 103 103a 103f 120 120a 120f 121 121a 121f",
    "13.0": "75 80 86 87 88 89 90 90a 100 100a 100f 103 103a 103f 110 110a 110f 120 120a 120f 121 121a 121f",
    "13.3": "75 80 86 87 88 89 90 90a 100 100a 100f 103 103a 103f 110 110a 110f 120 120a 120f 121 121a 121f",
    "13.5": "75 80 86 87 88 89 90 90a 100 100a 100f 103 103a 103f 110 110a 110f 120 120a 120f 121 121a 121f",
}
REFUSED = {
    "12.8": "88 90f 100f 103 103a 110 120f 121",
    "12.9": "88 90f 110 110a 110f",
    "13.0": "70 75a 80f 90f 101 101a 101f",
    "13.3": "70 75a 80f 90f 101 101a 101f",
    "13.5": "70 90f 101",
}


@pytest.fixture(scope="module")
def own() -> Envs:
    """The repository's own envs."""
    return load_envs(ENVS)


def compiles(envs: Envs, sm: str, toolkit: str) -> bool:
    arch = parse_arch(f"sm_{sm}", where="")
    capability = envs.architectures.get(arch.capability)
    form = capability.form(arch) if capability else None
    return form is not None and form.compiles_with(toolkit)


@pytest.mark.parametrize(("toolkit", "sm"), [(t, sm) for t, text in MEASURED.items() for sm in text.split()])
def test_the_table_says_what_ptxas_accepted(own: Envs, toolkit: str, sm: str) -> None:
    assert compiles(own, sm, toolkit)


@pytest.mark.parametrize(("toolkit", "sm"), [(t, sm) for t, text in REFUSED.items() for sm in text.split()])
def test_the_table_says_what_ptxas_refused(own: Envs, toolkit: str, sm: str) -> None:
    assert not compiles(own, sm, toolkit)


@pytest.mark.parametrize(
    ("card", "capability"),
    [
        ("H100", "9.0"),
        ("H200", "9.0"),
        ("RTX 4090", "8.9"),
        ("L40S", "8.9"),
        ("B200", "10.0"),
        ("GB200", "10.0"),
        ("B300", "10.3"),
        ("GB300", "10.3"),
        ("RTX 5090", "12.0"),
        ("RTX PRO 6000 Blackwell", "12.0"),
        ("DGX Spark (GB10)", "12.1"),
        ("Jetson Thor T5000", "11.0"),
    ],
)
def test_every_card_that_matters_is_in_the_table(own: Envs, card: str, capability: str) -> None:
    assert card in own.architectures[capability].cards


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (["sm_100a"], "10.3", "does not run"),
        (["sm_100a", "sm_103a"], "10.3", "runs"),
        (["sm_100f"], "10.3", "runs"),
        (["sm_103f"], "10.0", "does not run"),
        (["sm_120f"], "12.1", "runs"),
        (["sm_100f"], "11.0", "does not run"),
        (["sm_110f"], "10.0", "does not run"),
        (["sm_100f"], "12.0", "does not run"),
        (["sm_90a", "compute_90"], "10.0", "runs by PTX"),
        (["sm_90a", "sm_100a", "compute_90"], "10.0", "runs"),
        ([], "10.0", "does not run"),
    ],
)
def test_the_best_of_several_architectures_counts_with_families_from_the_table(
    own: Envs, archs: list[str], capability: str, expected: str
) -> None:
    assert own.table.support([parse_arch(a, where="") for a in archs], capability) == expected


def test_every_fact_of_the_table_has_a_source(own: Envs) -> None:
    table = own.table
    facts = [*table.capabilities.values(), *table.families, *table.toolkits.values(), *table.torch.values()]
    assert all(len(fact.source) > 10 for fact in facts)


def test_the_table_is_sorted_by_number() -> None:
    raw = yaml.safe_load((ENVS / A).read_text())
    for part in ("capabilities", "toolkits", "torch"):
        assert list(raw[part]) == sorted(raw[part], key=release), part


def test_a_base_is_one_that_the_target_is_defined_on() -> None:
    envs = load_envs(REPOSITORY / "envs")
    sm90 = envs.target("sm90")
    assert envs.base_of(sm90, None).name == "debian13"
    with pytest.raises(UnknownName, match="not defined on base 'python312'"):
        envs.base_of(sm90, "python312")
    with pytest.raises(UnknownName, match="'debian12'"):
        envs.base_of(sm90, "debian12")


def test_what_refuses_may_say_how_much_compiles_all_the_same() -> None:
    expectation = load_envs(REPOSITORY / "envs").target("sm89").expectation("flashmla")
    assert expectation is not None
    assert (expectation.outcome, str(expectation)) == ("refuses", "refuses: 2 of 29")
