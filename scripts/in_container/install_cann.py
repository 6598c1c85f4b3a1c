"""Install CANN inside a clean container from installers that an operator brought, into exactly one tree.

The quiet installation agrees to the vendor's licence in somebody's name: without a file that says that a person did, nothing
is installed. Each installer checks itself first; afterwards what is on disk decides, not an exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from file_times import settle

PREFIX = Path("/usr/local/Ascend")
ORDER = ("toolkit", "-ops", "nnal")
"""Each needs what the one before it installed (the vendor's own Dockerfiles install in this order)."""
MACHINE_CODES = {"x86_64": 62, "aarch64": 183}
"""e_machine of the ELF format."""
TREE = re.compile(r"(?:cann-)?\d+\.\d+.*")


class Refused(Exception):
    """What was installed, or should have been, is not what the target needs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--installers", type=Path, required=True)
    parser.add_argument("--release", required=True, help="the release that must come out, such as 9.2")
    parser.add_argument("--machine", choices=MACHINE_CODES, required=True)
    parser.add_argument("--into", type=Path, required=True, help="the link that will lead to the tree")
    parser.add_argument("--eula", type=Path, required=True, help='a file that holds {"accepted": true}')
    parser.add_argument("--prefix", type=Path, default=PREFIX)
    options = parser.parse_args()
    try:
        installers = in_order(options.installers)
        require_acceptance(options.eula)
        for installer in installers:
            install(installer, options.prefix)
        tree = the_tree(options.prefix, options.release)
        require_machine(tree, options.machine)
        options.into.symlink_to(tree)
        settle(tree)
    except Refused as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    print(f"CANN {version_of(tree)} is installed: {options.into} leads to {tree}")
    return 0


def in_order(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.run"))
    kinds = [next((i for i, word in enumerate(ORDER) if word in path.name), len(ORDER)) for path in found]
    if 0 not in kinds or 1 not in kinds:
        raise Refused(
            "CANN was not supplied: the lock names no toolkit and ops installer. "
            "Bring them, then: nox -s lock -- TARGET --cann DIR (docs/ascend.md)"
        )
    return [path for _, path in sorted(zip(kinds, found, strict=True))]


def require_acceptance(eula: Path) -> None:
    try:
        accepted = json.loads(eula.read_text()).get("accepted") is True
    except (OSError, ValueError, AttributeError):
        accepted = False
    if not accepted:
        raise Refused("CANN's licence was not accepted by a person (--accept-cann-eula), so its quiet installation is not run")


def install(installer: Path, prefix: Path) -> None:
    """The installer checks its own archive, then installs itself; `--install-for-all` lets every user read the tree."""
    run([installer, "--check"], f"{installer.name} does not pass its own check: it was altered or is incomplete")
    environment = set_env(prefix)
    command: list[str | Path] = [installer, "--quiet", "--install", "--install-for-all", f"--install-path={prefix}"]
    run(command, f"{installer.name} could not be installed", environment)


def set_env(prefix: Path) -> dict[str, str]:
    """The variables of set_env.sh, where an earlier installer left one: later installers ask for them."""
    for script in (prefix / "cann" / "set_env.sh", prefix / "ascend-toolkit" / "set_env.sh"):
        if script.is_file():
            done = subprocess.run(
                ["bash", "-c", '. "$1" >/dev/null 2>&1; env -0', "bash", script], capture_output=True, text=True, check=True
            )
            return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if "=" in pair)
    return dict(os.environ)


def run(command: Sequence[str | Path], failed: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        ["bash", *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise Refused(f"{failed} (status {done.returncode})\n{last}")


def the_tree(prefix: Path, release: str) -> Path:
    """The one folder of this release; two of them would shadow one another's libraries and headers."""
    folders = sorted({p.resolve() for p in prefix.glob("*") if p.is_dir() and not p.is_symlink() and TREE.fullmatch(p.name)})
    folders += sorted(
        {p.resolve() for p in prefix.glob("ascend-toolkit/*") if p.is_dir() and not p.is_symlink() and TREE.fullmatch(p.name)}
    )
    trees = [p for p in folders if (p / "bin" / "bisheng").exists() or list(p.glob("*-linux"))]
    if len(trees) != 1:
        names = ", ".join(str(p) for p in trees) or f"nothing like it under {prefix}"
        raise Refused(f"{'two CANN trees' if trees else 'no CANN tree'} after installation: {names}; there must be exactly one")
    (tree,) = trees
    if not re.match(rf"{re.escape(release)}(?!\d)", version_of(tree)):
        raise Refused(f"the installed CANN is {version_of(tree)}, this target is for {release}")
    return tree


def version_of(tree: Path) -> str:
    """From the tree's name: /usr/local/Ascend/cann-9.2.0."""
    return tree.name.removeprefix("cann-")


def require_machine(tree: Path, machine: str) -> None:
    """The compiler is an ELF file of this machine: an installer may be named for one and hold another."""
    bisheng = next((p for p in (tree / "bin" / "bisheng", *tree.glob("tools/*/bin/bisheng")) if p.exists()), None)
    if bisheng is None:
        raise Refused(f"{tree} has no bisheng, the compiler; the toolkit was not installed whole")
    head = bisheng.resolve().read_bytes()[:20]
    if head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") != MACHINE_CODES[machine]:
        other = {code: name for name, code in MACHINE_CODES.items()}.get(int.from_bytes(head[18:20], "little"), "another machine")
        raise Refused(f"{bisheng} is for {other}, this target is for {machine}")


if __name__ == "__main__":
    sys.exit(main())
