"""envs/sensitivity.yaml is complete, agrees with itself, and a mistake in it is told with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cleanroom.arch import Arch, parse_arch
from cleanroom.envs import Envs, load_envs
from cleanroom.errors import EnvsError
from cleanroom.project import REPOSITORY, Project
from cleanroom.sensitivity import FILE, accepts, current_forms, load_sensitivity

TEXT = (REPOSITORY / "envs" / FILE).read_text()


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(REPOSITORY / "envs")


def arch(text: str) -> Arch:
    return parse_arch(text, where="test")


@pytest.mark.parametrize(
    ("form", "needs", "accepted"),
    [
        ("sm_90", ["sm_90"], True),
        ("sm_89", ["sm_90"], False),
        ("sm_120f", ["sm_90"], True),
        ("sm_90a", ["sm_90a"], True),
        ("sm_90", ["sm_90a"], False),
        ("sm_100a", ["sm_90a"], False),
        ("sm_100", ["sm_100f"], False),
        ("sm_100a", ["sm_100f"], True),
        ("sm_103f", ["sm_100f"], True),
        ("sm_100f", ["sm_103f"], False),
        ("sm_110a", ["sm_100f"], False),
        ("sm_110a", ["sm_100f", "sm_110f"], True),
        ("sm_100f", ["sm_100a", "sm_103a"], False),
        ("sm_121a", ["sm_120f"], True),
    ],
)
def test_an_instruction_is_accepted_as_the_ptx_manual_says(envs: Envs, form: str, needs: list[str], accepted: bool) -> None:
    assert accepts(arch(form), [arch(n) for n in needs], envs.table) is accepted


def test_forms_that_toolkits_no_longer_compile_do_not_count(envs: Envs) -> None:
    forms = [form.sm for form in current_forms(envs.table)]
    assert forms[0] == "sm_75"
    assert "sm_101a" not in forms
    assert {"sm_90a", "sm_100f", "sm_121a"} <= set(forms)


def test_every_instruction_matches_its_own_example(envs: Envs) -> None:
    for fact in load_sensitivity(envs).instructions:
        opcodes = re.findall(r"[a-z][\w.:]*\.[\w.:]+", fact.example)
        assert any(fact.pattern.search(opcode) for opcode in opcodes), fact.name


def test_names_are_unique_and_every_fact_has_a_source(envs: Envs) -> None:
    facts = load_sensitivity(envs)
    names = [fact.name for fact in (*facts.instructions, *facts.atoms)]
    assert sorted(set(names)) == sorted(names)
    assert all(fact.source for fact in (*facts.instructions, *facts.atoms))
    assert all(rule.source for c in facts.components.values() for rule in c.families)


def test_every_component_is_described(envs: Envs) -> None:
    assert set(load_sensitivity(envs).components) == set(envs.components)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("needs: [sm_90a]\n    example: 'wgmma", "needs: [sm_90f]\n    example: 'wgmma", "capability 9.0 has no family form"),
        ("pattern: '^wgmma\\.'", "pattern: '^wgmma('", "is not a regular expression"),
        ("kind: build flag", "kind: build flags", "'build flags' is not known; did you mean 'build flag'?"),
        ("'__CUDA_ARCH__ >= 800'", "'__CUDA_ARCH__ >='", "is not a condition that can be evaluated"),
        ("(?P<family>\\w+/\\w+)_cuda", "(\\w+/\\w+)_cuda", "has no group (?P<family>...)"),
        ("    source: PTX ISA, elect.sync; measured\n", "", "the key 'source' is missing"),
        ("  deepgemm:\n", "  deepgem:\n", "there is no component 'deepgem'; did you mean 'deepgemm'?"),
        ("[smxx_layout]", "[sm90_bf16_gemm]", "the family 'sm90_bf16_gemm' is already listed"),
        ("name: ascend\n", "name: cann\n", "'cann' is not known"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_what_would_be_right(
    envs: Envs, tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in TEXT
    (tmp_path / FILE).write_text(TEXT.replace(old, new))
    changed = Envs(tmp_path, envs.targets, envs.components, envs.bases, envs.table, envs.files)
    with pytest.raises(EnvsError) as caught:
        load_sensitivity(changed)
    assert said in caught.value.what
    assert re.search(r"envs/sensitivity\.yaml:\d+: ", caught.value.what)


def test_a_project_without_facts_of_its_own_uses_the_repositorys(fixture_project: Project) -> None:
    facts = load_sensitivity(load_envs(fixture_project.envs_dir))
    assert facts.decided_by("TORCH_CUDA_ARCH_LIST") == "the architecture"
    assert facts.of("vectors").families == ()
