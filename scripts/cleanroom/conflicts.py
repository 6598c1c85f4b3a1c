"""Distributions that are known not to work together: a lock that holds such a set is refused, whatever its solver said.

A solver sees what packages declare. What they break without declaring it is public knowledge, and data: envs/conflicts.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

from cleanroom.envs import is_requirement
from cleanroom.errors import ToolchainError
from cleanroom.lock import Lock
from cleanroom.project import Project
from cleanroom.strict_yaml import Fields, Item, read_file


@dataclass(frozen=True)
class Conflict:
    """What must not be `together`: requirements that all hold, in the absence of the distribution `lacks` if one is named."""

    together: tuple[Requirement, ...]
    lacks: str
    reason: str
    source: str

    def found_in(self, versions: Mapping[NormalizedName, str]) -> tuple[str, ...]:
        """The distributions, with their versions, that are in conflict; () if they are not all there."""
        if canonicalize_name(self.lacks) in versions:
            return ()
        names = [canonicalize_name(requirement.name) for requirement in self.together]
        held = all(n in versions and _meets(r, versions[n]) for n, r in zip(names, self.together, strict=True))
        return tuple(f"{name} {versions[name]}" for name in names) if held else ()


def read_conflicts(envs: Path) -> tuple[Conflict, ...]:
    """Read envs/conflicts.yaml. Raises EnvsError with every mistake in it."""
    return read_file(envs / "conflicts.yaml", f"{envs.name}/conflicts.yaml", _conflicts)


def refuse_known_conflicts(lock: Lock) -> None:
    """Raise ToolchainError with everything in a lock that is known not to work together."""
    refuse_conflicts(read_conflicts(Project().envs_dir), lock)  # about distributions, whatever project the lock is of


def refuse_conflicts(conflicts: Iterable[Conflict], lock: Lock) -> None:
    """As refuse_known_conflicts, for these conflicts."""
    versions = {canonicalize_name(entry.name): entry.version for entry in lock.entries if entry.kind == "pypi"}
    found = [(what, conflict) for conflict in conflicts if (what := conflict.found_in(versions))]
    if not found:
        return
    lines = [
        f"  {' with '.join(what)}{f', without {conflict.lacks}' if conflict.lacks else ''}: {conflict.reason} ({conflict.source})"
        for what, conflict in found
    ]
    raise ToolchainError(
        f"The lock {lock.name} holds what is known not to work together:\n" + "\n".join(lines),
        means="It would build, or even import, and fail later. Nothing was started.",
        next_step=f"change the version or the override in envs/targets/{lock.target}.yaml, then: nox -s lock -- {lock.target}",
    )


def _meets(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _conflicts(item: Item) -> tuple[Conflict, ...]:
    return tuple(
        _conflict(e.fields(["together", "reason", "source"], ["lacks"])) for e in item.fields(["conflicts"]).items("conflicts")
    )


def _conflict(fields: Fields) -> Conflict:
    texts = fields.texts("together", "a requirement, such as torch<2.14", is_requirement, least=1)
    together = tuple(Requirement(text) for text in texts if is_requirement(text))
    return Conflict(together, fields.text("lacks"), fields.text("reason"), fields.text("source"))
