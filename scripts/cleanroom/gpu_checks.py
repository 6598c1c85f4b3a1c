"""Upstream's own tests that need a GPU, as data: what a report names because no build can answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cleanroom.strict_yaml import Item, listed, read_file

FILE = "gpu-checks.yaml"


@dataclass(frozen=True)
class GpuCheck:
    """Commands that would check one component on a GPU, what they need, and which document says so. Never run here.

    `cuda_only`: those of the commands that test nothing there is for an NPU.
    """

    commands: tuple[str, ...]
    needs: str
    source: str
    cuda_only: tuple[str, ...] = ()

    def commands_for(self, vendor: str) -> tuple[str, ...]:
        """Those that test what there is for one vendor's hardware."""
        return tuple(c for c in self.commands if vendor == "nvidia" or c not in self.cuda_only)


def read_gpu_checks(envs_dir: Path) -> Mapping[str, GpuCheck]:
    """The checks by component name. Raises EnvsError with every mistake of the file."""
    label = f"{envs_dir.name}/{FILE}"
    return read_file(envs_dir / FILE, label, lambda item: {name: _check(each) for name, each in item.entries()})


def _check(item: Item) -> GpuCheck:
    fields = item.fields(["commands", "needs", "source"], ["cuda_only"])
    commands = fields.texts("commands", least=1)
    return GpuCheck(
        commands, fields.text("needs"), fields.text("source"), fields.texts("cuda_only", listed(commands), lambda t: t in commands)
    )
