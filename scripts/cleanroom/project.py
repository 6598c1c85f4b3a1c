"""Where things are: the repository's own parts, and a project's data (the repository itself, or a fixture)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TEMPLATES = REPOSITORY / "dockerfiles" / "templates"
IN_CONTAINER = REPOSITORY / "scripts" / "in_container"


@dataclass(frozen=True)
class Project:
    """A folder with envs/, dockerfiles/, lockfiles/ and, once something was built, out/."""

    root: Path = REPOSITORY

    @property
    def envs_dir(self) -> Path:
        return self.root / "envs"

    @property
    def dockerfiles_dir(self) -> Path:
        return self.root / "dockerfiles"

    @property
    def lockfiles_dir(self) -> Path:
        return self.root / "lockfiles"

    @property
    def out_dir(self) -> Path:
        return self.root / "out"
