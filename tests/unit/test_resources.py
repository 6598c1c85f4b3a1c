"""How much of the machine a build uses: the rule, with numbers a reader can check."""

from __future__ import annotations

import os

import pytest

from cleanroom.resources import MIB, RESERVE_MIB, cores_here, memory_here, needs_of, plan

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("cores", "memory_gib", "needs", "jobs"),
    [
        (2, 24, (2600,), 2),  # cores bound
        (64, 24, (2600,), 8),  # memory bounds
        (64, 512, (2600,), 64),
        (8, 1, (2600,), 1),  # never less than one job, however little memory there is
        (1, 1, (10_000,), 1),
        (8, 24, (8800, 7000, 2300), 4),  # 8800 + 7000 + 2 x 2300, and the reserve
        (8, 16, (8800, 7000, 2300), 1),  # the two largest do not fit side by side
        (8, 32, (8800, 7000, 2300), 8),
    ],
)
def test_cores_and_memory_decide_how_many_compile_at_once(cores: int, memory_gib: int, needs: tuple[int, ...], jobs: int) -> None:
    found = plan(cores, memory_gib * GIB, needs)
    assert (found.jobs, found.nvcc_threads) == (jobs, 1)
    together = sum(needs[min(n, len(needs) - 1)] for n in range(jobs))
    assert jobs == 1 or together + RESERVE_MIB <= memory_gib * 1024


def test_one_more_job_starts_exactly_where_its_memory_is_there() -> None:
    enough = (RESERVE_MIB + 3000 + 1000) * MIB
    assert plan(8, enough, (3000, 1000)).jobs == 2
    assert plan(8, enough - 1, (3000, 1000)).jobs == 1


@pytest.mark.parametrize(
    ("cores", "memory_gib", "jobs", "threads"),
    [(8, 64, 2, 4), (8, 12, 2, 1), (8, 64, 3, 2), (4, 4, 16, 1)],  # threads take as much again, so memory bounds them too
)
def test_of_fewer_jobs_than_fit_each_has_more_threads(cores: int, memory_gib: int, jobs: int, threads: int) -> None:
    found = plan(cores, memory_gib * GIB, (2600,), jobs=jobs)
    assert (found.jobs, found.nvcc_threads) == (jobs, threads)
    assert "chosen with --jobs" in found.rule


def test_side_by_side_the_largest_of_all_may_meet() -> None:
    assert needs_of([(8800, 7000, 2300), (3100,), (2900, 500)]) == (8800, 7000, 3100)
    assert needs_of([(500,)]) == (500,)


def test_the_rule_says_its_numbers() -> None:
    assert plan(64, 24 * GIB, (8800, 7000, 2300)).rule == (
        "4 compile jobs at once, 1 nvcc threads each (64 cores, memory for 4 at 8800, 7000, then 2300 MiB each, 24576 MiB available)"
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
