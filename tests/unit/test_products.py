"""Products by the names people use, the targets that are for them, and what others document."""

from __future__ import annotations

from pathlib import Path

import pytest

from cleanroom.envs import Envs, load_envs
from cleanroom.errors import EnvsError, UnknownName
from cleanroom.products import Products, read_products
from cleanroom.project import REPOSITORY

ENVS = REPOSITORY / "envs"


@pytest.fixture(scope="module")
def envs() -> Envs:
    return load_envs(ENVS)


@pytest.fixture(scope="module")
def products(envs: Envs) -> Products:
    return read_products(ENVS, envs)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H20", "H20"),
        ("NVIDIA H200 NVL", "H200"),
        ("rtx4090", "RTX 4090"),
        ("RTX-4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("GB200 NVL72", "GB200"),
        ("B200", "B200"),
        ("GB300", "GB300"),
        ("NVIDIA GB10", "DGX Spark"),
        ("Jetson AGX Thor", "Jetson Thor"),
        ("Atlas 950DT", "Ascend 950"),
        ("A100-SXM4-80GB", "A100"),
    ],
)
def test_a_product_is_found_by_what_people_and_drivers_call_it(products: Products, question: str, name: str) -> None:
    assert products.find(question).name == name


@pytest.mark.parametrize(
    ("question", "close"),
    [("H1000", "H100"), ("L40", "L40S"), ("RTX 6000 Ada", "RTX"), ("Spark", "DGX Spark")],
)
def test_a_name_that_only_comes_close_is_not_taken_for_a_product(products: Products, question: str, close: str) -> None:
    with pytest.raises(UnknownName) as caught:
        products.find(question)
    assert f"No product called {question!r} is known here; close are " in caught.value.what
    assert close in caught.value.what


@pytest.mark.parametrize("question", ["", "   ", "\u00e9", "TPU v5", "[H", "MI-nothing-like-it"])
def test_nothing_like_a_product_is_refused_with_what_is_known(products: Products, question: str) -> None:
    with pytest.raises(UnknownName) as caught:
        products.find(question)
    assert "H100" in caught.value.means
    assert "envs/products.yaml" in caught.value.next_step


def test_two_products_in_one_question_are_not_guessed_between(products: Products) -> None:
    with pytest.raises(UnknownName, match="names several products: H100, B200"):
        products.find("H100 or B200")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("H100", "sm90"),
        ("H20", "sm90"),
        ("RTX 4090", "sm89"),
        ("L40S", "sm89"),
        ("RTX 5090", "sm120"),
        ("RTX PRO 6000", "sm120"),
        ("B200", "sm100"),
        ("GB200", "sm100"),
        ("B300", "sm103"),
        ("DGX Spark", None),  # sm_120a is for 12.0 alone
        ("Jetson Thor", None),
        ("A100", None),
    ],
)
def test_a_capability_leads_to_the_target_whose_code_runs_on_it(
    products: Products, envs: Envs, name: str, target: str | None
) -> None:
    assert [t.name for t in products.by_name[name].targets(envs)] == ([target] if target else [])


def test_every_product_that_the_table_names_has_the_tables_capability(products: Products, envs: Envs) -> None:
    table = {card: c.name for c in envs.architectures.values() if not c.renamed_to for card in c.cards}
    named = [p for p in products.by_name.values() if p.name in table]
    assert len(named) > 8
    assert [p.name for p in named if table[p.name] != p.capability] == []


def test_what_names_the_product_comes_before_what_only_covers_it(products: Products) -> None:
    documented = products.documented(products.by_name["H100"])
    assert [e.engine for e in documented] == ["TensorRT-LLM", "vLLM", "vLLM"]
    assert documented[-1].from_capability == "7.0"
    assert products.documented(products.by_name["H20"]) == documented[-1:]


def test_a_project_without_products_knows_none(tmp_path: Path, envs: Envs) -> None:
    assert read_products(tmp_path, envs) == Products({}, ())


WHOLE = """\
products:
  X1: {vendor: nvidia, aliases: [X One], capability: "9.0", source: a list}
elsewhere:
  - {engine: E, says: yes it does, products: [X1], source: a page}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"9.0"', '"9.7"', "capability: '9.7' is not acceptable"),
        ('"9.0"', "9.0", "capability: 9.0 is a number to YAML"),
        (', capability: "9.0"', "", "an NVIDIA product has a capability"),
        ("source: a list", "source: a list, target: t", "and no target"),
        ("vendor: nvidia", "vendor: ascend", "any other no capability"),
        ("vendor: nvidia", "vendor: amd", "vendor: 'amd' is not known"),
        (", source: a list", "", "the key 'source' is missing"),
        ("products: [X1]", "products: [X11]", "there is no product 'X11'; did you mean 'X1'"),
        ("products: [X1], ", "", "in one of two ways"),
        ("products: [X1]", 'products: [X1], from_capability: "7.0"', "in one of two ways"),
        ("products: [X1]", 'from_capability: "seven"', "from_capability: 'seven'"),
        ("  X1:", "  X1: {}\n  X1:", "already given"),
    ],
)
def test_a_mistake_in_the_products_is_named(tmp_path: Path, envs: Envs, old: str, new: str, expected: str) -> None:
    path = tmp_path / "products.yaml"
    path.write_text(WHOLE)
    assert list(read_products(tmp_path, envs).by_name) == ["X1"]
    path.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(EnvsError) as caught:
        read_products(tmp_path, envs)
    assert expected in caught.value.what


@pytest.mark.parametrize(
    ("alias", "says"), [('"--"', "without a letter or digit"), ("H100", "means two products"), ("RTX-5090", "means two products")]
)
def test_an_alias_that_would_mean_something_else_is_refused(envs: Envs, tmp_path: Path, alias: str, says: str) -> None:
    text = (ENVS / "products.yaml").read_text()
    (tmp_path / "products.yaml").write_text(text.replace('aliases: ["4090"]', f'aliases: ["4090", {alias}]'))
    with pytest.raises(EnvsError, match=says):
        read_products(tmp_path, envs)


def test_every_product_that_names_a_target_names_one_that_is_there(envs: Envs) -> None:
    named = [p.target for p in read_products(ENVS, envs).by_name.values() if p.target]
    assert named
    assert set(named) <= set(envs.targets)
