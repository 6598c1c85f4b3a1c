"""Host libraries compared: real ones, compiled here with the host's compiler, each with one planted difference."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cleanroom.differ.causes import Found
from cleanroom.differ.elf import compare_elf
from cleanroom.differ.sections import read_binary

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

HARMLESS = "identical after named normalisations"
HOST = "identical device code"
MAIN = r"""
#include <stdio.h>
static int table[5] = {1, 2, 3, 4, 5};
static int *pointer = &table[3];
const char *where(void) { return __FILE__; }
const char *when(void) { return __DATE__ " " __TIME__; }
const char *who(void) { return BUILDER; }
int choose(int x) {
  switch (x) {
    case 0: return 7;
    case 1: return 1300;
    case 2: return table[1] + *pointer;
    case 3: printf("three in %s\n", "a string that is used here only"); return 11;
    case 4: return 99;
    case 5: return 17;
  }
  return x * LIMIT;
}
"""
OTHER = 'const char *other(void) { return "other"; }\nint twice(int x) { return 2 * x + (other()[0] == 0); }\n'


def library(
    folder: Path, *options: str, epoch: int = 1_764_000_000, limit: int = 3, builder: str = "built", first: str = "main"
) -> bytes:
    """A library of two units, compiled in this folder; `first` is linked first."""
    folder.mkdir(parents=True, exist_ok=True)
    objects = []
    for name, text in (("main", MAIN), ("other", OTHER)):
        (folder / f"{name}.c").write_text(text)
        command = ["gcc", "-O1", "-fPIC", "-c", f"-DLIMIT={limit}", f'-DBUILDER="{builder}"', *options]
        environment: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": str(epoch)}
        subprocess.run([*command, folder / f"{name}.c", "-o", folder / f"{name}.o"], check=True, env=dict(environment))
        objects.append(folder / f"{name}.o")
    objects.sort(key=lambda path: path.stem != first)
    linking = [option for option in options if option.startswith("-Wl")]
    subprocess.run(["gcc", "-shared", *linking, *objects, "-o", folder / "library.so"], check=True)
    return (folder / "library.so").read_bytes()


def compared(first: bytes, second: bytes) -> list[Found]:
    assert first != second
    found = compare_elf(first, second)
    assert found
    return found


def parts(found: list[Found]) -> dict[str, str]:
    return {f.part: f.cause.name.split(":")[0] for f in found if f.part != ".note.gnu.build-id"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf")


@pytest.fixture(scope="module")
def plain(base: Path) -> bytes:
    return library(base / "aaaa")


def test_the_same_inputs_in_the_same_folder_give_the_same_bytes(base: Path, plain: bytes) -> None:
    assert library(base / "aaaa") == plain


def test_a_random_build_id_is_named(base: Path) -> None:
    ids = ("-Wl,--build-id=0x1111", "-Wl,--build-id=0x2222")
    (found,) = compared(*(library(base / "aaaa", option) for option in ids))
    assert (found.part, found.level) == (".note.gnu.build-id", HARMLESS)
    assert found.detail == ("1111 | 2222",)


def test_an_absent_build_id_is_named(base: Path, plain: bytes) -> None:
    found = compared(plain, library(base / "aaaa", "-Wl,--build-id=none"))
    assert {f.part for f in found if f.level == HARMLESS} >= {".note.gnu.build-id"}


def test_a_folder_of_another_name_is_found_in_the_strings(base: Path, plain: bytes) -> None:
    found = compared(plain, library(base / "bbbb"))
    assert {f.level for f in found} == {HARMLESS}
    assert parts(found) == {".rodata": "path of a source file (line table, __FILE__, debug information)"}
    assert any("aaaa/main.c | " in line for f in found for line in f.detail)


def test_debug_information_of_another_folder_is_named(base: Path) -> None:
    found = compared(library(base / "aaaa", "-g"), library(base / "bbbb", "-g"))
    assert {f.level for f in found} == {HARMLESS}
    assert "path of a source file (line table, __FILE__, debug information)" in parts(found).values()


def test_addresses_that_a_longer_string_moves_are_told_from_changes(base: Path) -> None:
    # Without jump tables, which would have to move within the section that grows.
    short, long = (library(base / name, "-fno-jump-tables") for name in ("aaaa", "b" * 200))
    found = compared(short, long)
    assert {f.level for f in found} == {HARMLESS}, found
    moved = next(f for f in found if f.cause.name.startswith("addresses that moved"))
    assert ".text" in moved.part.split(", ")
    assert any(line.startswith(".rodata: ") for line in moved.detail)


def test_a_change_of_code_is_found_among_addresses_that_moved(base: Path) -> None:
    short, long = (library(base / n, "-fno-jump-tables", limit=limit) for n, limit in (("aaaa", 3), ("b" * 200, 5)))
    code = next(f for f in compared(short, long) if f.part == ".text")
    assert (code.level, code.cause.name) == (HOST, "unknown")
    assert "in choose" in code.detail


def test_a_changed_constant_in_code_is_located(base: Path, plain: bytes) -> None:
    found = compared(plain, library(base / "aaaa", limit=5))
    assert parts(found) == {".text": "unknown"}
    code = next(f for f in found if f.part == ".text")
    assert (code.level, code.detail[0]) == (HOST, "in choose")


def test_an_embedded_date_and_time_are_named(base: Path, plain: bytes) -> None:
    found = compared(plain, library(base / "aaaa", epoch=1_770_000_001))
    assert {f.level for f in found} == {HARMLESS}
    assert parts(found) == {".rodata": "embedded date or time (__DATE__, __TIME__, a generator's stamp)"}


def test_user_and_host_are_named(base: Path) -> None:
    names = ("alice@one", "bobby@two")
    found = compared(*(library(base / "aaaa", builder=name) for name in names))
    assert {f.level for f in found} == {HARMLESS}
    assert parts(found) == {".rodata": "user or host name"}


def test_another_text_is_unknown(base: Path, plain: bytes) -> None:
    found = compared(plain, library(base / "aaaa", builder="thing"))
    assert parts(found) == {".rodata": "unknown"}
    assert {f.level for f in found} == {HARMLESS, HOST}


def test_the_order_of_objects_at_link_is_named(base: Path, plain: bytes) -> None:
    found = compared(plain, library(base / "aaaa", first="other"))
    assert "order of objects at link" in parts(found).values()
    order = next(f for f in found if f.cause.name == "order of objects at link")
    assert order.level == HOST


def test_another_run_path_is_not_harmless(base: Path) -> None:
    found = compared(*(library(base / "aaaa", f"-Wl,-rpath,/opt/{name}/lib") for name in ("a", "b")))
    assert parts(found) == {".dynstr": "unknown"}
    assert HOST in {f.level for f in found}


def test_a_library_that_only_one_side_needs_is_found(base: Path, plain: bytes) -> None:
    found = compared(plain, library(base / "aaaa", "-Wl,--no-as-needed,-lm"))
    assert HOST in {f.level for f in found}


def test_temporary_names_of_nvcc_are_named_in_symbol_tables(base: Path) -> None:
    folder = base / "tmpxft"
    names = [f"tmpxft_0000{number}_00000000-6_main.cudafe1.c" for number in ("12ab", "13cd")]
    libraries = []
    for name in names:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(OTHER)
        subprocess.run(["gcc", "-O1", "-fPIC", "-shared", name, "-o", "library.so"], check=True, cwd=folder)
        libraries.append((folder / "library.so").read_bytes())
    found = compared(*libraries)
    assert parts(found) == {".strtab": "temporary file name"}
    assert {f.level for f in found} == {HARMLESS}


def test_no_single_changed_bit_goes_unreported(plain: bytes) -> None:
    places = random.Random(0)
    binary = read_binary(plain)
    assert binary is not None
    note = binary.sections[".note.gnu.build-id"]
    for _ in range(120):
        at = places.randrange(len(plain))
        changed = bytearray(plain)
        changed[at] ^= 1 << places.randrange(8)
        found = compare_elf(plain, bytes(changed))
        if found is None:
            continue  # no longer such a file: compared as other data
        assert found, f"byte {at:#x}"
        named = all(f.cause.harmless for f in found)
        varying = note.offset <= at < note.offset + note.size or any(
            f.cause.name.startswith(("path of", "embedded date")) for f in found
        )
        assert varying or not named, f"byte {at:#x}: {found}"


def test_a_file_that_is_cut_off_is_not_compared_by_section(plain: bytes) -> None:
    assert compare_elf(plain, plain[: len(plain) // 2]) is None
    assert compare_elf(plain[:64], plain[:63]) is None
