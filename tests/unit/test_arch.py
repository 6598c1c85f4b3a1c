"""The architecture model: parsing, rendering for each tool, and which code runs where."""

from __future__ import annotations

import itertools

import pytest

from cleanroom.arch import Arch, Support, parse_arch, torch_arch_list
from cleanroom.errors import ArchError

CAPABILITIES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]
BLACKWELL = ("10.0", "10.3")


def parse(text: object) -> Arch:
    return parse_arch(text, where="here")


def refusal(text: object) -> ArchError:
    with pytest.raises(ArchError) as caught:
        parse(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("10.0", Arch(10, 0)),
        ("10.0a", Arch(10, 0, "a")),
        ("10.3a", Arch(10, 3, "a")),
        ("12.0f+PTX", Arch(12, 0, "f", ptx=True)),
        ("9.0+PTX", Arch(9, 0, ptx=True)),
        ("7.5", Arch(7, 5)),
        ("sm_75", Arch(7, 5)),
        ("sm_100", Arch(10, 0)),
        ("sm_100a", Arch(10, 0, "a")),
        ("sm_121f", Arch(12, 1, "f")),
        ("sm_90a+PTX", Arch(9, 0, "a", ptx=True)),
        ("compute_90", Arch(9, 0, ptx=True, cubin=False)),
        ("compute_100f", Arch(10, 0, "f", ptx=True, cubin=False)),
    ],
)
def test_every_documented_spelling_is_read(text: str, arch: Arch) -> None:
    assert parse(text) == arch


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("suffix", ["", "a", "f"])
@pytest.mark.parametrize("kind", ["{c}{s}", "{c}{s}+PTX", "sm_{n}{s}", "sm_{n}{s}+PTX", "compute_{n}{s}"])
def test_what_is_written_in_yaml_reads_back_as_itself(capability: str, suffix: str, kind: str) -> None:
    arch = parse(kind.format(c=capability, n=capability.replace(".", ""), s=suffix))
    assert arch.capability == capability
    assert arch.suffix == suffix
    assert parse(str(arch)) == arch


@pytest.mark.parametrize("text", ["native", "Native", "NATIVE", "All", "all", "all-major"])
def test_what_depends_on_the_machine_or_the_toolkit_is_refused(text: str) -> None:
    error = refusal(text)
    assert text in error.what
    assert error.means
    assert "sm_100a" in error.next_step


def test_native_says_that_nvcc_would_silently_take_sm_75() -> None:
    assert "sm_75" in refusal("native").means


@pytest.mark.parametrize("text", ["", " ", "\t", None])
def test_an_empty_architecture_is_refused(text: object) -> None:
    assert "empty" in refusal(text).what


@pytest.mark.parametrize(
    ("value", "shown", "write"),
    [
        (10.0, "10.0", "sm_100"),
        (12.1, "12.1", "sm_121"),
        (9.0, "9.0", "sm_90"),
        (8.9, "8.9", "sm_89"),
        (9, "9", "sm_90"),
        (10, "10", "sm_100"),
        (90, "90", "sm_90"),
        (100, "100", "sm_100"),
    ],
)
def test_an_unquoted_number_is_refused_with_the_reason_and_the_quoted_form(value: object, shown: str, write: str) -> None:
    error = refusal(value)
    assert f"the number {shown}" in error.what
    assert "12.10 as 12.1" in error.what
    assert write in error.next_step
    assert "Quote it" in error.next_step


def test_the_number_is_shown_as_it_was_written() -> None:
    with pytest.raises(ArchError, match=r"the number 12\.10:"):
        parse_arch(12.1, where="here", written="12.10")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, -10.0, 0, 0.5])
def test_a_senseless_number_is_refused_without_a_senseless_suggestion(value: object) -> None:
    assert "sm_100a" in refusal(value).next_step


@pytest.mark.parametrize("value", [True, False, [], ["10.0a"], {}, {"a": 1}, b"10.0", object()])
def test_anything_that_is_not_text_is_refused(value: object) -> None:
    assert refusal(value).next_step


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("10.0.a", "sm_100a or 10.0a"),
        ("100a", "sm_100a or 10.0a"),
        ("100", "sm_100 or 10.0"),
        ("90a", "sm_90a or 9.0a"),
        ("120f+PTX", "sm_120f+PTX or 12.0f+PTX"),
        ("SM_100A", "sm_100a or 10.0a"),
        ("sm100a", "sm_100a or 10.0a"),
        ("sm-100a", "sm_100a or 10.0a"),
        ("sm_10.0a", "sm_100a or 10.0a"),
        ("10.0A", "sm_100a or 10.0a"),
        ("10.0-a", "sm_100a or 10.0a"),
        ("10.0+ptx", "sm_100+PTX or 10.0+PTX"),
        (" 10.0a ", "sm_100a or 10.0a"),
        ("COMPUTE_100", "compute_100"),
        ("compute100f", "compute_100f"),
        ("10", "sm_100 or 10.0"),
        ("9", "sm_90 or 9.0"),
        ("90", "sm_90 or 9.0"),
        ("sm_10.3", "sm_103 or 10.3"),
        ("12.0f +PTX", None),
    ],
)
def test_a_near_miss_is_refused_with_the_right_spelling(text: str, suggestion: str | None) -> None:
    error = refusal(text)
    assert text in error.what
    if suggestion:
        assert suggestion in error.next_step


@pytest.mark.parametrize(
    ("text", "suffix"), [("10.0b", "b"), ("10.0af", "af"), ("sm_100x", "x"), ("compute_90c", "c"), ("sm_100fa", "fa")]
)
def test_an_unknown_suffix_is_named(text: str, suffix: str) -> None:
    error = refusal(text)
    assert f"suffix {suffix!r}" in error.what
    assert "a (exactly this capability)" in error.means


@pytest.mark.parametrize("text", ["9.0 10.0a", "9.0;10.0a", "9.0, 10.0a", "sm_90a sm_100a"])
def test_several_architectures_in_one_string_are_refused(text: str) -> None:
    assert "list" in refusal(text).means


def test_compute_with_ptx_says_the_same_twice() -> None:
    error = refusal("compute_100+PTX")
    assert "twice" in error.what
    assert "sm_100+PTX" in error.next_step


@pytest.mark.parametrize(
    "text",
    ["Hopper", "Blackwell", "gfx942", "lto_100", "10.", ".5", "1000", "0.5", "sm_", "sm_1", "12.10", "010.0", "-10.0"],
)
def test_everything_else_is_refused_with_an_example(text: str) -> None:
    error = refusal(text)
    assert text in error.what
    assert error.next_step


@pytest.mark.parametrize("text", ["\uff11\uff10.0", "10.0\n", "10.0a\n", "sm_\uff11\uff10\uff10"])
def test_look_alike_digits_and_line_ends_are_refused(text: str) -> None:
    refusal(text)


def test_the_place_is_named_first() -> None:
    with pytest.raises(ArchError) as caught:
        parse_arch("x", where="envs/targets/a.yaml:3: architectures[0]")
    assert caught.value.what.startswith("envs/targets/a.yaml:3: architectures[0]: ")


@pytest.mark.parametrize(
    ("text", "sm", "compute", "torch", "cmake"),
    [
        ("10.0", "sm_100", "compute_100", "10.0", "100-real"),
        ("sm_100a", "sm_100a", "compute_100a", "10.0a", "100a-real"),
        ("12.0f+PTX", "sm_120f", "compute_120f", "12.0f+PTX", "120f"),
        ("9.0+PTX", "sm_90", "compute_90", "9.0+PTX", "90"),
        ("sm_75", "sm_75", "compute_75", "7.5", "75-real"),
    ],
)
def test_each_tool_gets_its_own_spelling(text: str, sm: str, compute: str, torch: str, cmake: str) -> None:
    arch = parse(text)
    assert (arch.sm, arch.compute, arch.torch, arch.cmake) == (sm, compute, torch, cmake)


def test_ptx_only_is_virtual_for_cmake_and_inexpressible_for_torch() -> None:
    arch = parse("compute_100")
    assert arch.cmake == "100-virtual"
    with pytest.raises(ArchError, match="PTX only") as caught:
        _ = arch.torch
    assert "sm_100+PTX" in caught.value.next_step


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("sm_100a", ("-gencode", "arch=compute_100a,code=sm_100a")),
        ("compute_90", ("-gencode", "arch=compute_90,code=compute_90")),
        (
            "12.0f+PTX",
            ("-gencode", "arch=compute_120f,code=sm_120f", "-gencode", "arch=compute_120f,code=compute_120f"),
        ),
    ],
)
def test_nvcc_gets_one_gencode_for_each_kind_of_code(text: str, arguments: tuple[str, ...]) -> None:
    assert parse(text).gencode == arguments


def test_an_architecture_without_any_code_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="nothing"):
        Arch(10, 0, cubin=False)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["sm_100a"], "10.0a"),
        (["sm_100a", "sm_103a"], "10.0a;10.3a"),
        (["10.3a", "10.0a"], "10.3a;10.0a"),
        (["10.0a", "sm_100a"], "10.0a"),
        (["9.0", "12.0f+PTX"], "9.0;12.0f+PTX"),
        (["sm_100", "compute_100"], "10.0+PTX"),
        (["compute_100", "sm_100"], "10.0+PTX"),
        (["sm_100a", "sm_100"], "10.0a;10.0"),
    ],
)
def test_torch_gets_a_semicolon_list_in_the_order_given(texts: list[str], expected: str) -> None:
    assert torch_arch_list(map(parse, texts)) == expected


def test_an_empty_list_never_reaches_torch() -> None:  # D08
    with pytest.raises(ArchError, match="empty"):
        torch_arch_list(())


def test_a_list_of_ptx_alone_never_reaches_torch() -> None:
    with pytest.raises(ArchError, match="PTX only"):
        torch_arch_list([parse("compute_100"), parse("sm_90")])


@pytest.mark.parametrize(
    ("text", "capability", "expected"),
    [
        # D02: machine code for 10.0 alone, in the three forms, on B200, B300 and RTX 5090
        ("sm_100a", "10.0", "runs"),
        ("sm_100a", "10.3", "does not run"),
        ("sm_100a", "12.0", "does not run"),
        ("sm_100f", "10.0", "runs"),
        ("sm_100f", "10.3", "runs"),
        ("sm_100f", "12.0", "does not run"),
        ("sm_100+PTX", "10.0", "runs"),
        ("sm_100+PTX", "10.3", "runs"),
        ("sm_100+PTX", "12.0", "runs by PTX"),
        ("sm_100+PTX", "9.0", "does not run"),
        # machine code never goes back to an older minor
        ("sm_103", "10.0", "does not run"),
        ("sm_103f", "10.0", "does not run"),
        ("sm_89", "8.6", "does not run"),
        ("sm_80", "8.9", "runs"),
        ("sm_86", "9.0", "does not run"),
        # PTX of an architecture-specific form is as specific as its machine code
        ("sm_100a+PTX", "10.3", "does not run"),
        ("compute_90a", "9.0", "runs by PTX"),
        ("compute_90a", "10.0", "does not run"),
        ("compute_100f", "10.3", "runs by PTX"),
        ("compute_100f", "12.0", "does not run"),
        ("compute_75", "12.1", "runs by PTX"),
        ("compute_75", "7.0", "does not run"),
        # 11.0 is later than 10.3 and 9.0 is earlier than 10.0: numbers, not text
        ("compute_90", "10.0", "runs by PTX"),
        ("compute_100", "9.0", "does not run"),
    ],
)
def test_which_code_runs_on_which_capability(text: str, capability: str, expected: Support) -> None:
    assert parse(text).runs_on(capability, family=BLACKWELL) == expected


def test_a_family_form_is_claimed_for_its_own_capability_only_where_the_family_is_not_given() -> None:
    assert parse("sm_100f").runs_on("10.0") == "runs"
    assert parse("sm_100f").runs_on("10.3") == "does not run"


@pytest.mark.parametrize(("own", "other"), list(itertools.product(CAPABILITIES, CAPABILITIES)))
def test_an_architecture_specific_form_runs_on_exactly_its_capability(own: str, other: str) -> None:
    outcome = parse(f"{own}a+PTX").runs_on(other, family=CAPABILITIES)
    assert outcome == ("runs" if own == other else "does not run")


@pytest.mark.parametrize(("own", "other"), list(itertools.product(CAPABILITIES, CAPABILITIES)))
def test_portable_ptx_runs_on_every_later_capability_and_no_earlier_one(own: str, other: str) -> None:
    numbers = [tuple(map(int, c.split("."))) for c in (own, other)]
    outcome = parse("compute_" + own.replace(".", "")).runs_on(other)
    assert outcome == ("runs by PTX" if numbers[0] <= numbers[1] else "does not run")


@pytest.mark.parametrize("suffix", ["a", "f", ""])
@pytest.mark.parametrize(("own", "other"), list(itertools.product(CAPABILITIES, CAPABILITIES)))
def test_adding_ptx_never_makes_anything_worse(suffix: str, own: str, other: str) -> None:
    order = ["does not run", "runs by PTX", "runs"]
    without = parse(own + suffix).runs_on(other, family=[own, other])
    with_ptx = parse(f"{own}{suffix}+PTX").runs_on(other, family=[own, other])
    assert order.index(with_ptx) >= order.index(without)


def test_architectures_sort_by_number_and_not_by_text() -> None:
    ordered = ["7.5", "9.0a", "10.0", "10.0a", "10.0f", "10.3", "12.0"]
    assert sorted(map(parse, sorted(ordered))) == [parse(text) for text in ordered]
