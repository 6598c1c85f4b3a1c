"""Upstream's own tests that need a GPU, as data: what a report names because no build can answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cleanroom.strict_yaml import Item, Mistakes, read_bytes, read_item

FILE = "gpu-checks.yaml"


@dataclass(frozen=True)
class GpuCheck:
    """Commands that would check one component on a GPU, what they need, and which document says so. Never run here."""

    commands: tuple[str, ...]
    needs: str
    source: str


def read_gpu_checks(envs_dir: Path) -> Mapping[str, GpuCheck]:
    """The checks by component name. Raises EnvsError with every mistake of the file."""
    mistakes = Mistakes()
    label = f"{envs_dir.name}/{FILE}"
    content = read_bytes(envs_dir / FILE, label, mistakes)
    item = None if content is None else read_item(label, content, mistakes)
    checks = {name: _check(each) for name, each in item.entries()} if item else {}
    mistakes.raise_if_any(envs_dir.name)
    return checks


def _check(item: Item) -> GpuCheck:
    fields = item.fields(["commands", "needs", "source"])
    return GpuCheck(fields.texts("commands", least=1), fields.text("needs"), fields.text("source"))
