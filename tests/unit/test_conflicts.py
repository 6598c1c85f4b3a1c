"""What is known not to work together is refused by name, whatever a solver or an override said."""

from __future__ import annotations

from pathlib import Path

import pytest
from locks import entry, lock

from cleanroom.conflicts import read_conflicts, refuse_conflicts
from cleanroom.errors import EnvsError, ToolchainError
from cleanroom.lock import Entry, Lock, lock_path, read_lock
from cleanroom.project import REPOSITORY

KNOWN = read_conflicts(REPOSITORY / "envs")


def holding(*distributions: str) -> Lock:
    entries: list[Entry] = []
    for text in distributions:
        name, version = text.split("==")
        entries.append(entry("python", "pypi", name, version, f"{name}-{version}-py3-none-any.whl"))
    return lock(target="sm100", entries=tuple(entries))


@pytest.mark.parametrize(
    ("distributions", "says"),
    [
        (("deepinfer-ep==2.5.0", "nvidia-nccl-cu13==2.28.9"), "deepinfer-ep 2.5.0 with nvidia-nccl-cu13 2.28.9"),  # D21
        (("deepinfer-ep==2.5.0", "nvidia-nccl-cu13==2.29.7"), "device API"),  # D21: what torch 2.13 itself pins
        (("deep-ep==1.2.1", "nvidia-nvshmem-cu12==3.5.19"), "state symbol"),  # D22
        (("deep_ep==1.2.1", "nvidia-nvshmem-cu13==3.6.0"), "deep-ep 1.2.1 with nvidia-nvshmem-cu13 3.6.0"),  # D22
        (("nvidia-cutlass-dsl==4.8.1", "nvidia-cuda-nvcc==13.3.73"), "without nvidia-cutlass-dsl-libs-cu13"),  # D24
        (("tile-kernels==1.0.0", "tilelang==0.1.12"), "a module that tilelang 0.1.12 moved"),  # D25
        (("torch-npu==2.13.0rc1", "torch==2.10.0"), "torch-npu 2.13.0rc1 with torch 2.10.0"),  # D46
        (("torch-npu==2.13.0rc1", "torch==2.14.0"), "loads no other"),  # D46
    ],
)
def test_a_lock_with_a_known_bad_pair_is_refused_with_the_reason(distributions: tuple[str, ...], says: str) -> None:
    with pytest.raises(ToolchainError, match="not to work together") as refused:
        refuse_conflicts(KNOWN, holding(*distributions))
    assert says in refused.value.what
    assert refused.value.next_step.endswith("nox -s lock -- sm100")


@pytest.mark.parametrize(
    "distributions",
    [
        ("deepinfer-ep==2.5.0", "nvidia-nccl-cu13==2.32.3"),
        ("deepinfer-ep==2.5.0", "nvidia-nvshmem-cu13==3.5.19"),
        ("deep-ep==1.2.1", "nvidia-nvshmem-cu12==3.4.5"),
        ("nvidia-cutlass-dsl==4.8.1", "nvidia-cuda-nvcc==13.3.73", "nvidia-cutlass-dsl-libs-cu13==4.8.1"),
        ("nvidia-cutlass-dsl==4.8.1", "nvidia-cuda-nvcc==12.9.86"),
        ("torch-npu==2.13.0rc1", "torch==2.13.0"),
        ("torch-npu==2.13.0rc1", "torch==2.13.0+cpu"),
        ("deep-ep==of-yesterday", "nvidia-nvshmem-cu12==3.5.19"),
    ],
)
def test_what_works_together_passes(distributions: tuple[str, ...]) -> None:
    refuse_conflicts(KNOWN, holding(*distributions))


def test_every_conflict_is_told_at_once() -> None:
    with pytest.raises(ToolchainError) as refused:
        refuse_conflicts(
            KNOWN, holding("deepinfer-ep==2.5.0", "nvidia-nccl-cu13==2.29.7", "tile-kernels==1.0.0", "tilelang==0.1.12")
        )
    assert len(refused.value.what.splitlines()) == 3


@pytest.mark.parametrize("path", sorted((REPOSITORY / "lockfiles").glob("*-*.lock")), ids=lambda p: p.stem)
def test_no_lock_of_this_repository_holds_a_known_conflict(path: Path) -> None:
    refuse_conflicts(KNOWN, read_lock(lock_path(REPOSITORY, path.stem)))


def test_every_mistake_in_the_table_is_named_with_its_line(tmp_path: Path) -> None:
    text = "conflicts:\n  - {together: ['a <'], reason: r, source: s}\n  - {together: [], reason: r}\n"
    (tmp_path / "conflicts.yaml").write_text(text)
    with pytest.raises(EnvsError) as raised:
        read_conflicts(tmp_path)
    assert all(part in raised.value.what for part in ("conflicts.yaml:2", "conflicts.yaml:3", "3 mistakes"))
