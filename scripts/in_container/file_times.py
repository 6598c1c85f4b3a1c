"""Give files one fixed time: with -lineinfo, nvcc writes the modification time of every source and header into the cubin."""

from __future__ import annotations

import os
from pathlib import Path


def settle(root: Path) -> None:
    """Set the times of everything under `root`, links included, to SOURCE_DATE_EPOCH."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            os.utime(os.path.join(folder, name), (epoch, epoch), follow_symlinks=False)
    os.utime(root, (epoch, epoch))
