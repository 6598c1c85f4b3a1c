"""Device code for an NPU compared: as a whole and by the names of its kernels, since no tool here looks into them."""

from __future__ import annotations

from cleanroom.binary import aicore
from cleanroom.differ.causes import DEVICE_DIFFERS, OTHER_KERNELS, UNKNOWN, Found, differing_bytes
from cleanroom.differ.device import NO_MACHINE_CODE
from cleanroom.errors import IntegrityError


def compare_aicore(part: str, first: bytes, second: bytes) -> Found:
    """One difference between two versions of AI Core code, empty where one build has none."""
    a, b = _kernels(first), _kernels(second)
    if a is None or b is None:
        return Found(part, OTHER_KERNELS, UNKNOWN, ("AI Core code that cannot be read", *differing_bytes(first, second)))
    if a != b:
        return Found(part, OTHER_KERNELS, NO_MACHINE_CODE, (f"{len(a)} | {len(b)} kernels of an NPU",))
    return Found(part, DEVICE_DIFFERS, UNKNOWN, differing_bytes(first, second))


def _kernels(data: bytes) -> tuple[str, ...] | None:
    try:
        return tuple(kernel for kernels in aicore.files_in(data) for kernel in kernels)
    except IntegrityError:
        return None
