"""What can go wrong, one class and one exit code for each kind.

Every message answers three questions: what happened (with the value), what it means, and what to type next.
Exit codes are part of the interface: scripts may rely on them. 1 is left to bugs, 2 to argparse.
"""

from __future__ import annotations


class CleanroomError(Exception):
    """A failure a user can cause or meet. `exit_code` is the process's exit status."""

    exit_code = 10

    def __init__(self, what: str, *, means: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.means = means
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [self.what]
        if self.means:
            lines.append(self.means)
        if self.next_step:
            lines.append(f"Next: {self.next_step}")
        return "\n".join(lines)


class EnvsError(CleanroomError):
    """A YAML file under envs/ is malformed, incomplete or contradicts another."""

    exit_code = 11


class UnknownName(CleanroomError):
    """A target, component or base that envs/ does not define."""

    exit_code = 12


class ArchError(CleanroomError):
    """An architecture that cannot be parsed, or that toolkit or torch does not know."""

    exit_code = 13


class ToolchainError(CleanroomError):
    """Host compiler, toolkit and torch do not fit together, or a lock holds versions that are known not to."""

    exit_code = 14


class LockError(CleanroomError):
    """A lock is missing, stale, edited by hand, or lacks a hash."""

    exit_code = 15


class ResolveError(CleanroomError):
    """Requirements have no solution, or an index does not answer while resolving."""

    exit_code = 16


class FetchError(CleanroomError):
    """A locked file could not be had: no network, gone from the mirror, refused."""

    exit_code = 17


class IntegrityError(CleanroomError):
    """Bytes differ from the lock: a fetched file, or an entry of the store."""

    exit_code = 18


class RenderDrift(CleanroomError):
    """A committed Dockerfile is not what its YAML and lock render to."""

    exit_code = 19


class EngineError(CleanroomError):
    """No container engine can be used, or it stopped answering."""

    exit_code = 20


class BuildFailed(CleanroomError):
    """A component, or a step of the environment or image, did not build; the message carries the first root error."""

    exit_code = 21


class DiskFull(CleanroomError):
    """Not enough room, before a build (estimated) or during it (seen)."""

    exit_code = 22


class CannotBuildHere(CleanroomError):
    """Complete and correct, but this machine lacks something only an operator can bring (a registry, CANN)."""

    exit_code = 23


class VerifyFailed(CleanroomError):
    """A rebuild disagrees with the record it was compared with."""

    exit_code = 24


class RecordError(CleanroomError):
    """A record is missing, unreadable, or of another schema version."""

    exit_code = 25


class Interrupted(CleanroomError):
    """Ctrl-C or a termination signal; finished work is kept."""

    exit_code = 130
