"""Locks for tests: a few entries of each group, with hashes as long as real ones."""

from __future__ import annotations

import hashlib

from cleanroom.lock import Entry, Group, Kind, Lock

EPOCH = 1_796_000_000


def entry(group: Group, kind: Kind, name: str, version: str, file: str) -> Entry:
    """An entry whose hash is that of its file name."""
    return Entry(group, kind, name, version, file, 1000 + len(file), hashlib.sha256(file.encode()).hexdigest())


ENTRIES = (
    entry("base", "debian", "libc6", "2.41-12+deb13u3", "pool/main/g/glibc/libc6_2.41-12+deb13u3_amd64.deb"),
    entry("build", "debian", "libdw-dev", "0.192-4", "pool/main/e/elfutils/libdw-dev_0.192-4_amd64.deb"),
    entry("toolkit", "pypi", "nvidia-cuda-nvcc", "13.3.73", "nvidia_cuda_nvcc-13.3.73-py3-none-manylinux_2_17_x86_64.whl"),
    entry("python", "pypi", "setuptools", "80.9.0", "setuptools-80.9.0-py3-none-any.whl"),
    entry("source", "folder", "cleanroom-vectors", "1.0.0", "cleanroom_vectors-1.0.0.tar.gz"),
    entry("source", "pypi", "deepinfer-ep", "2.5.0", "deepinfer_ep-2.5.0.tar.gz"),
    entry("source", "pypi", "deepinfer-flashmla", "1.0.0", "deepinfer_flashmla-1.0.0.tar.gz"),
    entry("source", "pypi", "deepinfer-gemm", "1.0.0", "deepinfer_gemm-1.0.0.tar.gz"),
)


def lock(
    target: str = "fixture",
    base: str = "debian13",
    inputs: str = "sha256:" + "1e" * 32,
    notes: tuple[str, ...] = (),
    entries: tuple[Entry, ...] = ENTRIES,
) -> Lock:
    """A lock of these entries."""
    return Lock(target, base, inputs, EPOCH, notes, entries)
