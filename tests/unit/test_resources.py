"""How much of the machine a build uses: the rule, with numbers a reader can check."""

from __future__ import annotations

import os

import pytest

from cleanroom.resources import MIB, RESERVE_MIB, cores_here, memory_here, plan

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("cores", "memory_gib", "per_job_mib", "jobs", "threads"),
    [
        (2, 24, 2600, 2, 1),  # cores bound
        (64, 24, 2600, 8, 8),  # memory bounds; left-over cores go to nvcc
        (64, 512, 2600, 64, 1),
        (8, 1, 2600, 1, 8),  # never less than one job, however little memory there is
        (1, 1, 10_000, 1, 1),
        (6, 12, 2600, 3, 2),
        (7, 12, 2600, 3, 2),  # threads are rounded down: never more of them than cores
    ],
)
def test_cores_and_memory_decide_how_many_compile_at_once(
    cores: int, memory_gib: int, per_job_mib: int, jobs: int, threads: int
) -> None:
    found = plan(cores, memory_gib * GIB, per_job_mib)
    assert (found.jobs, found.nvcc_threads) == (jobs, threads)
    assert jobs * threads <= cores
    assert jobs == 1 or jobs * per_job_mib + RESERVE_MIB <= memory_gib * 1024


def test_one_more_job_starts_exactly_where_its_memory_is_there() -> None:
    enough = (RESERVE_MIB + 2 * 1000) * MIB
    assert plan(8, enough, 1000).jobs == 2
    assert plan(8, enough - 1, 1000).jobs == 1


def test_the_number_asked_for_is_taken_even_beyond_memory() -> None:
    found = plan(4, 4 * GIB, 2600, jobs=16)
    assert (found.jobs, found.nvcc_threads) == (16, 1)
    assert "chosen with --jobs" in found.rule


def test_the_rule_says_its_numbers() -> None:
    assert plan(64, 24 * GIB, 2600).rule == (
        "8 compile jobs at once, 8 nvcc threads each (64 cores, memory for 8 at 2600 MiB each, 24576 MiB available)"
    )


def test_this_machine_has_cores_and_memory() -> None:
    assert 1 <= cores_here() <= (os.cpu_count() or 1)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 64 * MIB < memory_here() <= total


def test_cores_are_those_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores_here() == 1
    finally:
        os.sched_setaffinity(0, allowed)
