"""Known causes: what varies is recognised, what merely looks alike is not, and names stay comparable."""

from __future__ import annotations

import pytest

from cleanroom.differ.causes import LINES, PATTERNS, UNKNOWN, Scope, explain, few, next_difference, plain_name

FOLDER = "hash of the source's folder in names of internal symbols (anonymous namespaces)"
NUMBER = "process number in internal symbol names"
# Names as nvcc 13.3 writes them; the form with a number is that of FlashMLA's objects compiled without --frandom-seed.
BEGIN = "_ZN{length}_INTERNAL_{hash}_10_v41_h64_cu_57e9f04c{number}4cuda3std3__45__cpo5beginE"
IGNORE = "_ZN41_INTERNAL_{hash}_10_v41_h64_cu_57e9f04c4cuda3std3__443_GLOBAL__N__{hash}_10_v41_h64_cu_57e9f04c6ignoreE"


def causes(first: str, second: str, scope: Scope) -> tuple[list[str], bool]:
    explanation = explain(first.encode(), second.encode(), scope)
    return [cause.name for cause, _ in explanation.causes], explanation.complete


def test_a_process_number_in_a_name_is_named_whatever_its_length() -> None:
    first = BEGIN.format(length=47, hash="ea36b110", number="_12345")
    second = BEGIN.format(length=45, hash="ea36b110", number="_999")
    assert causes(first, second, "names") == ([NUMBER], True)
    assert plain_name(first) == plain_name(second)


@pytest.mark.parametrize(
    "name", [BEGIN.format(length=41, hash="{hash}", number=""), IGNORE, "_ZN36_GLOBAL__N__{hash}_4_k_cu_bdc52b9f3sumEv"]
)
def test_the_folder_in_a_name_is_named_and_nothing_else_is(name: str) -> None:
    first, second = (name.format(hash=value) for value in ("ea36b110", "0b91e338"))
    assert causes(first, second, "names") == ([FOLDER], True)
    assert plain_name(first) == plain_name(second)


def test_names_of_other_functions_stay_apart() -> None:
    names = [BEGIN.format(length=41, hash="ea36b110", number="")]
    names += [
        names[0].replace("5begin", "3end"),
        names[0].replace("v41_h64", "v42_h64"),
        names[0].replace("57e9f04c", "57e9f04d"),
        "run",
    ]
    assert len({plain_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["_Z12scale_kernelPfi", "main", "", "accessor", "_ZN2cc6accessEv", "caf\udce9"])
def test_names_without_anything_that_varies_are_left_alone(name: str) -> None:
    assert plain_name(name) == name


def test_temporary_names_of_nvcc_name_the_same_unit() -> None:
    names = (
        "tmpxft_000013b5_00000000-6_k.compute_103a.cudafe1.cpp",
        "tmpxft_0001f001_00000000-6_k.compute_103a.cudafe1.cpp",
        "k.o.compute_103a.cudafe1.cpp",
    )
    assert {plain_name(name) for name in names} == {"k.compute_103a.cudafe1.cpp"}


def test_a_time_in_ptx_is_that_of_a_source_but_its_size_is_not() -> None:
    line = '\t.file 1 "/build/k.cu", {time}, {size}\n'
    first, touched = line.format(time=1764000000, size=662), line.format(time=1764012345, size=662)
    assert causes(first, touched, "debug") == (["modification time of a source file in the device line table (-lineinfo)"], True)
    assert not causes(first, line.format(time=1764000000, size=663), "debug")[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x = 1;", "x = 2;"),
        ("version 1.0.0", "version 1.0.1"),
        ("limit 1764000000", "limit 1764000001"),
        ("12:30 lunch", "12:31 lunch"),
        ("a/b", "a/c"),
        ("host = left", "host = right"),
        ("sm_100a", "sm_103a"),
        ("March 1", "March 2"),
    ],
)
def test_other_changes_are_not_explained_away(first: str, second: str) -> None:
    for scope in ("names", "debug", "data", "text"):
        assert causes(first, second, scope) == ([], False)  # type: ignore[arg-type]  # each is a Scope


def test_a_source_of_another_name_is_not_the_same_source() -> None:
    assert causes("/a/one.cu", "/b/one.cu", "data")[1]
    assert not causes("/a/one.cu", "/a/two.cu", "data")[1]


def test_every_cause_says_what_to_do() -> None:
    for cause in {UNKNOWN, *(known.cause for known in PATTERNS)}:
        assert cause.name
        assert cause.remedy


def test_detail_is_short_and_says_what_it_leaves_out() -> None:
    assert few(["one", "two"]) == ("one", "two")
    assert few(str(n) for n in range(LINES + 3)) == (*map(str, range(LINES)), "and 3 more")


def test_the_next_difference_is_found_across_blocks() -> None:
    first, second = bytes(10_000), bytes(9_000) + b"\x01" + bytes(999)
    assert next_difference(first, second) == 9_000
    assert next_difference(first, second, 9_001) == 10_000
    assert next_difference(first, first[:50]) == 50
