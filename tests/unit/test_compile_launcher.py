"""The compile launcher, run as builds run it: through links named after compilers, in front of the real ones.

nvcc is a stand-in below CUDA_HOME that calls g++ through PATH, as the real one does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cleanroom.project import IN_CONTAINER

LIMIT = 60
NVCC = """#!/bin/sh
echo "$NVCC_APPEND_FLAGS" >> "$SEEDS"
for argument; do
  shift
  case $argument in
    -gencode*|--threads|-t) skip=1;;
    *) [ "${skip:-}" ] && case $argument in [0-9]*|arch*) skip=; continue;; esac; skip=; set -- "$@" "$argument";;
  esac
done
exec g++ -x c++ "$@"
"""
SLOW = """#!/bin/sh
echo "start $$" >> "$TRACE"
sleep 0.3
echo "end $$" >> "$TRACE"
exec /usr/bin/env PATH="$REAL_PATH" g++ "$@"
"""


@dataclass
class Place:
    """A build folder with launchers, a toolkit, a resume cache and slots."""

    root: Path
    environment: dict[str, str]

    def run(self, name: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        with self.start(name, *arguments, **changes) as process:
            out, _ = process.communicate(timeout=LIMIT)
            return subprocess.CompletedProcess([name], process.returncode, out)

    def start(self, name: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [name, *arguments], executable=self.root / "launchers" / name, cwd=self.root, text=True,
            env={**self.environment, **changes}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def bytes_of(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    @property
    def units(self) -> list[dict[str, Any]]:
        log = self.root / "units.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def kept(self) -> list[Path]:
        return sorted((self.root / "resume").iterdir())

    @property
    def seeds(self) -> list[str]:
        return (self.root / "seeds").read_text().splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for folder in ("launchers", "cuda/bin", "resume", "slots"):
        (tmp_path / folder).mkdir(parents=True)
    launcher = tmp_path / "compile_launcher.py"
    shutil.copyfile(IN_CONTAINER / "compile_launcher.py", launcher)
    launcher.chmod(0o755)
    for name in ("g++", "gcc", "nvcc"):
        (tmp_path / "launchers" / name).symlink_to(launcher)
    (tmp_path / "cuda" / "bin" / "nvcc").write_text(NVCC)
    (tmp_path / "cuda" / "bin" / "nvcc").chmod(0o755)
    (tmp_path / "a.cpp").write_text("int a() { return 1; }\n")
    (tmp_path / "a.cu").write_text("int a() { return 1; }\n")
    environment = {
        "PATH": os.pathsep.join([str(tmp_path / "launchers"), *os.environ["PATH"].split(os.pathsep)]),
        "LC_ALL": "C",
        "CUDA_HOME": str(tmp_path / "cuda"),
        "CLEANROOM_UNITS": str(tmp_path / "units.jsonl"),
        "CLEANROOM_RESUME": str(tmp_path / "resume"),
        "CLEANROOM_SLOTS": str(tmp_path / "slots"),
        "CLEANROOM_SLOT_COUNT": "1",
        "SEEDS": str(tmp_path / "seeds"),
    }
    return Place(tmp_path, environment)


# One unit


def test_a_compile_gives_the_object_and_one_line_on_record(place: Place) -> None:
    assert place.run("g++", "-c", "a.cpp", "-o", "a.o").returncode == 0
    assert place.bytes_of("a.o")[:4] == b"\x7fELF"
    (unit,) = place.units
    assert (unit["event"], unit["unit"], unit["output"], unit["compiler"]) == ("unit", "a.cpp", "a.o", "g++")
    assert (unit["exit_status"], unit["reused"], unit["architectures"]) == (0, False, [])
    assert unit["seconds"] >= 0
    assert unit["cpu_seconds"] >= 0
    assert 1_000_000 < unit["peak_memory_bytes"] < 2**34


def test_the_launcher_changes_no_byte_of_the_object(place: Place) -> None:
    place.run("g++", "-c", "a.cpp", "-o", "a.o")
    subprocess.run(["g++", "-c", "a.cpp", "-o", "plain.o"], cwd=place.root, check=True)
    assert place.bytes_of("a.o") == place.bytes_of("plain.o")


@pytest.mark.parametrize(
    ("arguments", "architectures"),
    [
        (["-gencode", "arch=compute_100a,code=sm_100a"], ["sm_100a"]),
        (["-gencode=arch=compute_100a,code=sm_100a", "-gencode=arch=compute_103a,code=sm_103a"], ["sm_100a", "sm_103a"]),
        (["-gencode=arch=compute_100,code=[sm_100,compute_100]"], ["sm_100", "compute_100"]),
    ],
)
def test_the_architectures_asked_of_nvcc_are_on_record(place: Place, arguments: list[str], architectures: list[str]) -> None:
    assert place.run("nvcc", *arguments, "-c", "a.cu", "-o", "a.o").returncode == 0
    assert place.units[0]["architectures"] == architectures
    assert place.units[0]["compiler"] == "nvcc"


def test_a_failed_compile_gives_its_status_and_message_and_is_not_kept(place: Place) -> None:
    place.write("a.cpp", "#error no such target\n")
    done = place.run("g++", "-c", "a.cpp", "-o", "a.o")
    assert done.returncode == 1
    assert "a.cpp:1:2: error: #error no such target" in done.stdout
    assert place.units[0]["exit_status"] == 1
    assert place.kept == []


def test_a_killed_compiler_gives_the_status_a_shell_would(place: Place) -> None:
    (place.root / "cuda/bin/nvcc").write_text("#!/bin/sh\nkill -9 $$\n")
    assert place.run("nvcc", "-c", "a.cu", "-o", "a.o").returncode == 137
    assert place.units[0]["exit_status"] == -9


def test_linking_and_asking_for_a_version_pass_through_without_a_line_on_record(place: Place) -> None:
    place.write("main.cpp", "int main() { return 0; }\n")
    assert "Free Software Foundation" in place.run("g++", "--version").stdout
    assert place.run("g++", "main.cpp", "-o", "program").returncode == 0
    assert place.run("g++", "-c", "missing.cpp").returncode != 0
    assert place.units == []
    assert place.kept == []


def test_without_resume_slots_and_log_it_only_compiles(place: Place) -> None:
    done = place.run("g++", "-c", "a.cpp", "-o", "a.o", CLEANROOM_RESUME="", CLEANROOM_SLOTS="", CLEANROOM_UNITS="")
    assert done.returncode == 0
    assert place.units == []


# Slots


def test_a_compiler_called_by_a_compiler_does_not_wait_for_a_slot_of_its_own(place: Place) -> None:
    assert place.run("nvcc", "-c", "a.cu", "-o", "a.o").returncode == 0
    assert [unit["compiler"] for unit in place.units] == ["nvcc"]


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2)])
def test_slots_bound_how_many_compile_at_once(place: Place, slots: int, most: int) -> None:
    (place.root / "bin").mkdir()
    (place.root / "bin" / "g++").write_text(SLOW)
    (place.root / "bin" / "g++").chmod(0o755)
    path = os.pathsep.join([str(place.root / "launchers"), str(place.root / "bin"), os.environ["PATH"]])
    changes = {"PATH": path, "REAL_PATH": os.environ["PATH"], "TRACE": str(place.root / "trace"), "CLEANROOM_RESUME": ""}
    running = [place.start("g++", "-c", "a.cpp", "-o", f"{n}.o", CLEANROOM_SLOT_COUNT=str(slots), **changes) for n in range(4)]
    assert [process.communicate(timeout=LIMIT) and process.returncode for process in running] == [0] * 4
    now = highest = 0
    for line in (place.root / "trace").read_text().splitlines():
        now += 1 if line.startswith("start") else -1
        highest = max(highest, now)
    assert highest == most


def test_a_slot_is_free_again_after_its_holder_was_killed(place: Place) -> None:
    (place.root / "cuda/bin/nvcc").write_text('#!/bin/sh\necho $$ > "$SEEDS"\nexec sleep 60\n')
    holder = place.start("nvcc", "-c", "a.cu", "-o", "a.o")
    end = time.monotonic() + LIMIT
    while not (place.root / "seeds").exists() or not (place.root / "seeds").read_text().strip():
        assert time.monotonic() < end
        time.sleep(0.02)
    holder.kill()
    os.kill(int((place.root / "seeds").read_text()), 9)
    holder.communicate(timeout=LIMIT)
    assert place.run("g++", "-c", "a.cpp", "-o", "b.o").returncode == 0


# Resuming


def test_a_finished_unit_is_taken_from_the_cache_with_the_same_bytes_and_warnings(place: Place) -> None:
    place.write("a.cpp", "int a() { int unused; return 1; }\n")
    arguments = ["-Wall", "-MMD", "-MF", "a.d", "-c", "a.cpp", "-o", "a.o"]
    first = place.run("g++", *arguments)
    made = place.bytes_of("a.o"), place.bytes_of("a.d")
    (place.root / "a.o").unlink()
    (place.root / "a.d").unlink()
    second = place.run("g++", *arguments, CUDA_HOME="/nowhere")
    assert (place.bytes_of("a.o"), place.bytes_of("a.d")) == made
    assert "unused variable" in first.stdout
    assert second.stdout == first.stdout
    assert [unit["reused"] for unit in place.units] == [False, True]
    assert place.units[1]["cpu_seconds"] == place.units[0]["cpu_seconds"], "the cost is what it took when it was compiled"
    assert place.units[1]["peak_memory_bytes"] == place.units[0]["peak_memory_bytes"]


def test_a_hit_needs_neither_compiler_nor_slot(place: Place) -> None:
    place.run("nvcc", "-c", "a.cu", "-o", "a.o")
    (place.root / "cuda/bin/nvcc").write_text("#!/bin/sh\nexit 9\n")
    assert place.run("nvcc", "-c", "a.cu", "-o", "a.o", CLEANROOM_SLOTS="/nowhere").returncode == 0


@pytest.mark.parametrize("option", ["-t", "--threads"])
def test_the_number_of_threads_is_no_part_of_the_key(place: Place, option: str) -> None:
    for threads in ("1", "8"):
        assert place.run("nvcc", option, threads, "-c", "a.cu", "-o", "a.o").returncode == 0
    assert [unit["reused"] for unit in place.units] == [False, True]
    assert len(place.kept) == 1


@pytest.mark.parametrize(
    "second",
    [["-O2", "-c", "a.cpp", "-o", "a.o"], ["-c", "a.cpp", "-o", "b.o"], ["-c", "b.cpp", "-o", "a.o"]],
)
def test_another_call_is_another_unit(place: Place, second: list[str]) -> None:
    place.write("b.cpp", "int a() { return 1; }\n")
    place.run("g++", "-c", "a.cpp", "-o", "a.o")
    assert place.run("g++", *second).returncode == 0
    assert [unit["reused"] for unit in place.units] == [False, False]


def test_a_changed_source_is_another_unit_and_its_first_form_is_still_there(place: Place) -> None:
    texts = ["int a() { return 1; }\n", "int a() { return 2; }\n", "int a() { return 1; }\n"]
    made = []
    for text in texts:
        place.write("a.cpp", text)
        place.run("g++", "-c", "a.cpp", "-o", "a.o")
        made.append(place.bytes_of("a.o"))
    assert [unit["reused"] for unit in place.units] == [False, False, True]
    assert made[0] == made[2] != made[1]


def test_the_same_call_by_another_compiler_is_another_unit(place: Place) -> None:
    place.run("g++", "-c", "a.cpp", "-o", "a.o")
    place.run("gcc", "-c", "a.cpp", "-o", "a.o")
    assert [unit["reused"] for unit in place.units] == [False, False]


def test_a_half_written_entry_is_never_used_and_does_not_stand_in_the_way(place: Place) -> None:
    place.run("g++", "-c", "a.cpp", "-o", "a.o")
    (entry,) = place.kept
    whole = place.bytes_of("a.o")
    entry.rename(entry.with_name(f"{entry.name}.4711"))
    (entry.with_name(f"{entry.name}.4711") / "0").write_bytes(b"\x7fELF half")
    (place.root / "a.o").unlink()
    assert place.run("g++", "-c", "a.cpp", "-o", "a.o").returncode == 0
    assert place.units[1]["reused"] is False
    assert place.bytes_of("a.o") == whole
    assert entry in place.kept


def test_two_jobs_of_the_same_unit_leave_one_whole_entry(place: Place) -> None:
    running = [place.start("g++", "-c", "a.cpp", "-o", "a.o", CLEANROOM_SLOT_COUNT="2") for _ in range(2)]
    assert [process.communicate(timeout=LIMIT) and process.returncode for process in running] == [0, 0]
    (entry,) = place.kept
    assert sorted(path.name for path in entry.iterdir()) == ["0", "cost", "text"]
    assert (entry / "0").read_bytes() == place.bytes_of("a.o")


# Seeds


def test_each_unit_has_a_seed_of_its_own_that_is_the_same_every_time(place: Place) -> None:
    place.write("b.cu", "int b() { return 1; }\n")
    for source in ("a.cu", "b.cu", "a.cu"):
        place.run("nvcc", "-c", source, "-o", f"{source}.o", CLEANROOM_RESUME="")
    first, other, again = place.seeds
    assert first == again != other
    expected = hashlib.sha256(b"a.cu\0a.cu.o").hexdigest()[:16]
    assert first == f"--objdir-as-tempdir --frandom-seed={expected}"


def test_options_appended_by_the_caller_do_not_reach_nvcc(place: Place) -> None:
    place.run("nvcc", "-c", "a.cu", "-o", "a.o", NVCC_APPEND_FLAGS="--keep")
    assert "--keep" not in place.seeds[0]


def test_a_compiler_that_is_not_there_is_named(place: Place) -> None:
    (place.root / "launchers" / "no-such-cc").symlink_to(place.root / "compile_launcher.py")
    done = place.run("no-such-cc", "-c", "a.cpp", "-o", "a.o")
    assert done.returncode == 1
    assert "no-such-cc: no such compiler" in done.stdout
