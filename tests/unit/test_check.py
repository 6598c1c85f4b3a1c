"""Preflight: what cannot work is refused before anything runs, saying who objects and what to write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cleanroom.arch import parse_arch
from cleanroom.base import Base
from cleanroom.check import follows_request, preflight, reads_torch_list
from cleanroom.component import ArchitectureRule, Component, Source, Substitution, Variable
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import ArchError, CleanroomError, ToolchainError
from cleanroom.target import Prerequisite, Selection, Target, Toolkit

ENVS = Path(__file__).resolve().parents[2] / "envs"

READER = ArchitectureRule("build", "TORCH_CUDA_ARCH_LIST")
FIXED = ArchitectureRule("build", "CUDA_ARCHS in setup.py", (parse_arch("sm_100a", where=""), parse_arch("sm_103a", where="")))
RUN_TIME = ArchitectureRule("run-time", "DeepJIT")
HOST = ArchitectureRule("nowhere", "host C++ only")
LIST_VARIABLE = Variable("ARCHS", "{torch_arch_list}", "why")
SWITCH = Substitution("setup.py", "OLD", "{sm_list}", 1, "why")


def component(name: str, rule: ArchitectureRule) -> Component:
    return Component(
        name=name,
        title=name.title(),
        source=Source("pypi", name, "1.0"),
        distribution=name,
        modules=(name,),
        architecture=rule,
        system_build=(),
        system_run=(),
        python_build=(),
        python_requirements=(),
        requirements_file="",
        environment=(),
        substitute=(),
        provides=(),
        extensions=(),
        contains=(),
        missing_modules=(),
        memory_mib=(100,),
        minutes=1,
    )


@pytest.fixture(scope="module")
def envs() -> Envs:
    """The repository's table with a component of each kind."""
    rules = {"reader": READER, "fixed": FIXED, "jit": RUN_TIME, "host": HOST, "switch": replace(FIXED, substitute=(SWITCH,))}
    return replace(load_envs(ENVS), components={name: component(name, rule) for name, rule in rules.items()})


def base(gcc: str = "14", glibc: str = "2.41", python: str = "3.13") -> Base:
    return Base("somebase", "A base", "debian", "trixie", ("trixie",), python, gcc, glibc, ())


def target(*archs: str, toolkit: str = "13.3", components: tuple[Selection, ...] = (Selection("reader"),)) -> Target:
    return Target(
        name="smx",
        title="A target",
        status="experimental",
        status_source="",
        platform="linux/amd64",
        vendor="nvidia",
        architectures=tuple(parse_arch(a, where="") for a in archs),
        bases=("somebase",),
        toolkit=Toolkit("cuda-wheels", toolkit, ()),
        components=components,
        overrides=(),
        prerequisites=(),
    )


def refusal(envs: Envs, wanted: Target, torch: str | None = None, on: Base | None = None) -> CleanroomError:
    with pytest.raises((ArchError, ToolchainError)) as caught:
        preflight(envs, wanted, on or base(), torch_version=torch)
    error = caught.value
    assert error.means
    assert error.next_step
    assert "allow-unsupported" not in str(error)
    return error


# --- the repository's own targets --------------------------------------------------------------------------------------


def test_every_target_of_the_repository_passes_on_every_base_it_names() -> None:
    own = load_envs(ENVS)
    for each in own.targets.values():
        for name in each.bases:
            preflight(own, each, own.base(name), torch_version="2.13.0")


def test_the_supported_target_warns_of_its_two_known_deviations() -> None:
    own = load_envs(ENVS)
    warnings = preflight(own, own.target("sm100"), own.base("debian13"), torch_version="2.13.0")
    assert len(warnings) == 2
    assert "CUDA 13.3" in warnings[0]
    assert "CUDA 13.0" in warnings[0]
    assert "Python ==3.12.*" in warnings[1]
    assert "3.13" in warnings[1]


# --- D01, D10: architecture and toolkit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "toolkit", "needs"),
    [
        ("10.0f", "12.8", "12.9"),
        ("10.0a", "12.6", "12.8"),
        ("10.3a", "12.8", "12.9"),
        ("12.1a", "12.8", "12.9"),
        ("12.0f", "12.8", "12.9"),
        ("11.0", "12.9", "13.0"),
        ("11.0a", "12.8", "13.0"),
        ("8.8", "12.9", "13.0"),
        ("10.0f+PTX", "12.8", "12.9"),
        ("compute_100f", "12.8", "12.9"),
    ],
)
def test_a_toolkit_that_is_too_old_is_refused_with_both_releases(envs: Envs, arch: str, toolkit: str, needs: str) -> None:
    error = refusal(envs, target(arch, toolkit=toolkit))
    assert isinstance(error, ArchError)
    assert f"needs CUDA >= {needs}, the target pins {toolkit}" in error.what
    assert str(parse_arch(arch, where="")) in error.what
    assert f"pin toolkit {needs} or newer" in error.next_step
    assert error.means == f"CUDA {toolkit} objects."


@pytest.mark.parametrize(
    ("arch", "toolkit"),
    [
        ("10.0f", "13.0"),
        ("10.0f", "12.9"),
        ("10.0a", "12.8"),
        ("9.0a", "12.8"),
        ("7.5", "13.5"),
        ("12.1a", "13.0"),
        ("11.0a", "13.0"),
        ("10.1a", "12.9"),
        ("7.0", "12.9"),
        ("12.0f+PTX", "13.3"),
    ],
)
def test_a_toolkit_that_knows_the_architecture_passes(envs: Envs, arch: str, toolkit: str) -> None:
    preflight(envs, target(arch, toolkit=toolkit), base(gcc="13"), torch_version=None)


def test_the_nearest_form_that_the_toolkit_does_know_is_offered(envs: Envs) -> None:
    assert "or write sm_100a or sm_100" in refusal(envs, target("10.0f", toolkit="12.8")).next_step


@pytest.mark.parametrize("toolkit", ["13.0", "13.3", "13.5"])
@pytest.mark.parametrize("arch", ["7.0", "7.2"])
def test_an_architecture_that_the_toolkit_dropped_is_refused_with_the_supported_range(envs: Envs, arch: str, toolkit: str) -> None:
    error = refusal(envs, target(arch, "10.0f", toolkit=toolkit))
    assert "12.9 was the last" in error.what
    assert f"CUDA {toolkit} compiles 7.5 to 12.1" in error.what
    assert "sm_100f" not in error.what
    assert f"remove {parse_arch(arch, where='')}" in error.next_step


# --- D06: the toolkit, torch, and a rename -----------------------------------------------------------------------------


def test_torch_objects_to_the_old_name_where_the_toolkit_does_not(envs: Envs) -> None:
    error = refusal(envs, target("10.1", toolkit="12.9"), torch="2.9.0")
    assert error.means == "torch 2.9 objects; CUDA 12.9 has no objection."
    assert "sm_101 is not accepted by torch 2.9" in error.what
    assert "It knows this hardware as 11.0, the name since CUDA 13.0" in error.what
    assert "write sm_110 with toolkit 13.0 or newer" in error.next_step


def test_the_toolkit_objects_to_the_new_name_where_torch_does_not(envs: Envs) -> None:
    error = refusal(envs, target("11.0", toolkit="12.9"), torch="2.9.0")
    assert error.means == "CUDA 12.9 objects; torch 2.9 has no objection."
    assert "sm_110 needs CUDA >= 13.0" in error.what
    assert "sm_101 (what CUDA 12.9 calls the same hardware)" in error.next_step


def test_the_old_name_with_a_new_toolkit_gets_the_new_name(envs: Envs) -> None:
    error = refusal(envs, target("10.1a", toolkit="13.3"))
    assert "From CUDA 13.0 on, 10.1 is called 11.0" in error.what
    assert "write sm_110a" in error.next_step


def test_both_objecting_is_said_as_both(envs: Envs) -> None:
    error = refusal(envs, target("12.0f", toolkit="12.8"), torch="2.9.0")
    assert error.means == "CUDA 12.8 and torch 2.9 object."
    assert len(error.what.splitlines()) == 3


@pytest.mark.parametrize("arch", ["10.0f", "12.0f", "12.0f+PTX", "10.3f", "12.1f", "11.0f"])
def test_torch_2_13_knows_no_family_form_and_the_specific_one_is_offered(envs: Envs, arch: str) -> None:
    error = refusal(envs, target(arch), torch="2.13.0")
    assert "It knows no family form at all" in error.what
    assert "which reader reads" in error.what
    wanted = parse_arch(arch.replace("f", "a"), where="")
    assert f"write {wanted}" in error.next_step


@pytest.mark.parametrize(
    "arch",
    ["7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "9.0a", "10.0", "10.0a", "10.3", "10.3a", "11.0a", "12.0", "12.0a", "12.1a"],
)
@pytest.mark.parametrize("ptx", ["", "+PTX"])
def test_torch_2_13_accepts_what_its_own_list_holds(envs: Envs, arch: str, ptx: str) -> None:
    assert preflight(envs, target(arch + ptx, toolkit="13.0"), base(), torch_version="2.13.0") == ()


@pytest.mark.parametrize("name", ["jit", "host", "switch"])
def test_what_no_component_takes_from_torchs_list_is_a_warning(envs: Envs, name: str) -> None:
    warnings = preflight(envs, target("10.0f", components=(Selection(name),)), base(), torch_version="2.13.0+cu133")
    assert len(warnings) == 1
    assert "torch 2.13 does not accept sm_100f" in warnings[0]
    assert "no component of this target compiles from it" in warnings[0]


def test_only_the_components_that_are_asked_for_it_count(envs: Envs) -> None:
    own = Selection("reader", (parse_arch("10.0a", where=""),), "torch has no family form")
    warnings = preflight(envs, target("10.0f", components=(own, Selection("jit"))), base(), torch_version="2.13.0+cu133")
    assert len(warnings) == 1
    asked = replace(own, architectures=(parse_arch("10.0f", where=""),))
    assert "sm_100f" in refusal(envs, target("10.0a", components=(asked,)), torch="2.13.0").what


def test_ptx_alone_is_refused_for_any_component_as_every_build_sets_torchs_list(envs: Envs) -> None:
    error = refusal(envs, target("compute_100", components=(Selection("jit"),)), torch="2.13.0")
    assert "PTX only" in error.what
    assert "write sm_100+PTX" in error.next_step


def test_ptx_alone_is_explained_to_a_component_that_reads_torchs_list(envs: Envs) -> None:
    error = refusal(envs, target("compute_100a"), torch="2.13.0")
    assert "It cannot ask for PTX alone" in error.what
    assert "write sm_100a+PTX" in error.next_step


def test_an_unknown_torch_is_a_warning_and_not_a_guess(envs: Envs) -> None:
    warnings = preflight(envs, target("10.0a"), base(), torch_version="2.99.0")
    assert len(warnings) == 2
    assert all("2.99.0" in w and "not known here" in w for w in warnings)


def test_an_unknown_torch_with_a_cuda_tag_is_still_compared(envs: Envs) -> None:
    assert isinstance(refusal(envs, target("10.0a"), torch="2.99.0+cu129"), ToolchainError)


def test_a_capability_that_does_not_exist_is_refused_by_the_table(envs: Envs) -> None:
    error = refusal(envs, target("10.7a"))
    assert "unknown compute capability 10.7" in error.what


def test_an_empty_list_is_refused(envs: Envs) -> None:  # D08
    error = refusal(envs, target())
    assert "has no architecture" in error.what
    assert "GPUs of the building machine" in error.means


def test_every_objection_is_reported_at_once(envs: Envs) -> None:
    error = refusal(envs, target("7.0", "10.7", "12.0f", toolkit="13.3"), torch="2.13.0")
    assert len(error.what.splitlines()) == 4 + 1  # sm_70 by CUDA, 10.7 by the table and torch, 12.0f by torch


# --- components with a list of their own -------------------------------------------------------------------------------


def test_a_component_with_a_fixed_list_asked_for_another_is_refused(envs: Envs) -> None:
    error = refusal(envs, target("9.0a", components=(Selection("fixed"),)))
    assert "Fixed compiles sm_100a, sm_103a whatever is asked (CUDA_ARCHS in setup.py); the target asks sm_90a" in error.what
    assert "fixed: {architectures: [sm_100a, sm_103a], reason: ...}" in error.next_step


def test_a_component_with_a_fixed_list_taken_as_it_is_passes(envs: Envs) -> None:
    selection = Selection("fixed", FIXED.default, "kept as released")
    preflight(envs, target("10.0a", components=(selection,)), base(), torch_version="2.13.0")
    preflight(envs, target("10.3a", "10.0a", components=(Selection("fixed"),)), base(), torch_version="2.13.0")


@pytest.mark.parametrize("name", ["switch", "reader", "jit", "host"])
def test_every_other_component_takes_what_is_asked(envs: Envs, name: str) -> None:
    preflight(envs, target("9.0a", components=(Selection(name),)), base(), torch_version="2.13.0")


@pytest.mark.parametrize(
    ("rule", "reads", "follows"),
    [
        (READER, True, False),
        (FIXED, False, False),
        (replace(FIXED, substitute=(SWITCH,)), False, True),
        (replace(FIXED, environment=(LIST_VARIABLE,)), True, True),
        (replace(FIXED, environment=(Variable("A", "{sm_list}", "why"),)), False, True),
        (ArchitectureRule("build", "its own way"), True, False),
        (RUN_TIME, False, False),
        (HOST, False, False),
        (replace(RUN_TIME, environment=(LIST_VARIABLE,)), False, True),
    ],
)
def test_where_a_component_takes_its_architectures_from(rule: ArchitectureRule, reads: bool, follows: bool) -> None:
    assert reads_torch_list(component("x", rule)) is reads
    assert follows_request(component("x", rule)) is follows


# --- D13: host compiler, glibc -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gcc", "toolkit", "span"),
    [
        ("16", "13.3", "6 to 15"),
        ("16", "13.0", "6 to 15"),
        ("17", "13.5", "6 to 16"),
        ("15", "12.9", "6 to 14"),
        ("14", "12.6", "6 to 13"),
        ("16.2", "13.3", "6 to 15"),
        ("99", "13.0", "6 to 15"),
        ("5", "13.3", "6 to 15"),
        ("4.8", "12.8", "6 to 14"),
    ],
)
def test_a_host_compiler_outside_the_toolkits_range_is_refused(envs: Envs, gcc: str, toolkit: str, span: str) -> None:
    error = refusal(envs, target("9.0a", toolkit=toolkit), on=base(gcc=gcc))
    assert isinstance(error, ToolchainError)
    assert f"CUDA {toolkit} accepts gcc {span}" in error.what
    assert f"somebase has gcc {gcc}" in error.what
    assert "NVCC_CCBIN" in error.next_step


@pytest.mark.parametrize(
    ("gcc", "toolkit", "compiler", "newer"),
    [
        ("16", "13.3", "g++-15", "13.4"),
        ("15", "12.8", "g++-14", "13.0"),
        ("17", "13.3", "g++-15", None),
        ("5", "13.0", "g++-6", None),
    ],
)
def test_a_refused_host_compiler_gets_a_fitting_one_or_a_fitting_toolkit(
    envs: Envs, gcc: str, toolkit: str, compiler: str, newer: str | None
) -> None:
    step = refusal(envs, target("9.0a", toolkit=toolkit), on=base(gcc=gcc)).next_step
    assert compiler in step
    assert (f"pin toolkit {newer}" in step) if newer else ("pin toolkit" not in step)


@pytest.mark.parametrize(
    ("gcc", "toolkit"),
    [("14", "13.3"), ("14.2", "12.8"), ("15", "13.0"), ("16", "13.4"), ("16", "13.5"), ("6", "13.3"), ("13", "12.6")],
)
def test_a_host_compiler_inside_the_range_passes(envs: Envs, gcc: str, toolkit: str) -> None:
    preflight(envs, target("9.0a", toolkit=toolkit), base(gcc=gcc), torch_version=None)


def test_a_toolkit_without_facts_is_refused_and_not_guessed(envs: Envs) -> None:
    error = refusal(envs, target("9.0a", toolkit="14.0"))
    assert "which the table does not know" in error.what
    assert "13.5" in error.what


@pytest.mark.parametrize("glibc", ["2.17", "2.27", "2.9"])
def test_a_base_with_a_c_library_older_than_torchs_wheels_is_refused(envs: Envs, glibc: str) -> None:
    error = refusal(envs, target("9.0a"), torch="2.13.0", on=base(glibc=glibc))
    assert f"need glibc 2.28; the base somebase has {glibc}" in error.what


@pytest.mark.parametrize("glibc", ["2.28", "2.41", "2.100"])
def test_a_base_with_a_c_library_new_enough_passes(envs: Envs, glibc: str) -> None:
    preflight(envs, target("9.0a", toolkit="13.0"), base(glibc=glibc), torch_version="2.13.0")


# --- D17: two CUDA majors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toolkit", "torch", "cuda"),
    [("13.0", "2.13.0+cu129", "12.9"), ("13.3", "2.13.0+cu126", "12.6"), ("12.9", "2.13.0", "13.0"), ("13.0", "2.9.1", "12.8")],
)
def test_two_cuda_majors_are_refused(envs: Envs, toolkit: str, torch: str, cuda: str) -> None:
    error = refusal(envs, target("9.0a", toolkit=toolkit), torch=torch)
    assert isinstance(error, ToolchainError)
    assert f"pins CUDA {toolkit}" in error.what
    assert f"torch {torch} is built for CUDA {cuda}" in error.what


@pytest.mark.parametrize(
    ("toolkit", "torch", "cuda"),
    [("13.0", "2.13.0+cu132", "13.2"), ("13.3", "2.13.0", "13.0"), ("13.3", "2.13.0+cu132", "13.2"), ("12.9", "2.9.0", "12.8")],
)
def test_two_cuda_minors_are_one_warning(envs: Envs, toolkit: str, torch: str, cuda: str) -> None:
    warnings = preflight(envs, target("9.0a", toolkit=toolkit), base(), torch_version=torch)
    assert len(warnings) == 1
    assert toolkit in warnings[0]
    assert f"built for CUDA {cuda}" in warnings[0]


@pytest.mark.parametrize(
    ("toolkit", "torch"), [("13.0", "2.13.0"), ("13.2", "2.13.0+cu132"), ("13.0", "2.13.0+cu130"), ("12.8", "2.9.0")]
)
def test_the_same_cuda_release_is_silent(envs: Envs, toolkit: str, torch: str) -> None:
    assert preflight(envs, target("9.0a", toolkit=toolkit), base(), torch_version=torch) == ()


@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.13.0+rocm7.0", "2.13.0+xpu"])
def test_a_torch_without_cuda_is_refused(envs: Envs, torch: str) -> None:
    error = refusal(envs, target("9.0a"), torch=torch)
    assert "built without CUDA" in error.what


def test_a_torch_version_that_is_none_is_refused(envs: Envs) -> None:
    assert "not a version" in refusal(envs, target("9.0a"), torch="newest").what


@pytest.mark.parametrize("torch", ["2.13", "2.13.1", "2.13.0rc1", "2.13.0.post1"])
def test_every_build_of_a_known_release_is_recognised(envs: Envs, torch: str) -> None:
    assert preflight(envs, target("9.0a", toolkit="13.0"), base(), torch_version=torch) == ()


# --- documented prerequisites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "requires", "warned"),
    [
        ("gcc", ">=13", False),
        ("gcc", ">=15", True),
        ("gcc", ">=14", False),
        ("python", "==3.12.*", True),
        ("python", ">=3.12", False),
        ("toolkit", ">=13.1", False),
        ("toolkit", ">=13.4", True),
        ("os", "Linux", False),
        ("outside", "a checkpoint", False),
        ("distribution:torch", "==2.13.0+cu132", False),
    ],
)
def test_an_unmet_prerequisite_of_base_or_toolkit_is_a_warning(envs: Envs, kind: str, requires: str, warned: bool) -> None:
    need = Prerequisite("Something", requires, kind, "its README")
    warnings = preflight(envs, replace(target("9.0a"), prerequisites=(need,)), base(), torch_version=None)
    assert len(warnings) == warned
    assert all(requires in w and "its README" in w for w in warnings)


def test_an_ascend_target_is_not_judged_by_nvidias_rules(envs: Envs) -> None:
    ascend = replace(target(toolkit="0.0"), vendor="ascend")
    assert preflight(envs, ascend, base(gcc="99", glibc="2.1"), torch_version="2.13.0+cpu") == ()
