"""How much of the machine a build uses: one rule, printed, and overridden with --jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
RESERVE_MIB = 2048
"""Left for the engine, the linker and everything else on the machine."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Resources:
    """What compiles at once. `jobs` is the number of compilers running at any time, over all components together."""

    cores: int
    memory_bytes: int
    jobs: int
    nvcc_threads: int
    rule: str


def plan(cores: int, memory_bytes: int, needs: Sequence[int], jobs: int | None = None) -> Resources:
    """The rule: as many compilers as cores and memory allow; what both leave over goes to nvcc, whose threads need as much again.

    `needs`: MiB, see `needs_of`.
    """
    by_memory = jobs_in(memory_bytes, needs)
    chosen = jobs if jobs is not None else min(cores, by_memory)
    threads = max(1, min(cores, by_memory) // chosen)
    largest = ", ".join(map(str, needs[:-1]))
    each = f"{largest}, then {needs[-1]} MiB each" if largest else f"{needs[-1]} MiB each"
    why = "chosen with --jobs" if jobs is not None else f"{cores} cores, memory for {by_memory} at {each}"
    rule = f"{chosen} compile jobs at once, {threads} nvcc threads each ({why}, {memory_bytes // MIB} MiB available)"
    return Resources(cores, memory_bytes, chosen, threads, rule)


def needs_of(components: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """What compilers of these components take when they run side by side, in MiB.

    Each lists its few largest, then what any other of its compilers takes; so does the result, over all of them.
    """
    listed = list(components)
    rest = max(each[-1] for each in listed)
    return (*sorted((largest for each in listed for largest in each[:-1] if largest > rest), reverse=True), rest)


def jobs_in(memory_bytes: int, needs: Sequence[int]) -> int:
    """How many compilers this much memory holds if the largest meet, at least one."""
    left, jobs = memory_bytes // MIB - RESERVE_MIB, 0
    while (left := left - needs[min(jobs, len(needs) - 1)]) >= 0:
        jobs += 1
    return max(1, jobs)


def cores_here() -> int:
    """The CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def memory_here() -> int:
    """Bytes of memory available now, or the control group's limit where that is lower."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    for path in _CGROUP_LIMITS:
        text = path.read_text().strip() if path.is_file() else "max"
        if text.isdigit():
            available = min(available, int(text))
    return available
