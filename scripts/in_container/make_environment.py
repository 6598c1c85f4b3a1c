"""Create the Python environment from locked wheels: exactly those, nothing resolved, nothing compiled to bytecode."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from file_times import settle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, action="append", required=True, help="a folder of wheels; may be repeated")
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    if not (options.into / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", options.into], check=True)
    wheels = sorted(wheel for folder in options.wheels for wheel in folder.glob("*.whl"))
    if wheels:
        install(options.into, wheels, options.wheels)
    remove_bytecode(options.into)
    settle(options.into)
    print(f"{len(wheels)} wheels installed into {options.into}")
    return 0


def install(environment: Path, wheels: list[Path], folders: list[Path]) -> None:
    """Install by name and version: installing by path would write that path into every direct_url.json."""
    requirements = ["==".join(wheel.name.split("-")[:2]) for wheel in wheels]
    command: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--quiet", "--root-user-action", "ignore"]
    for folder in folders:
        command += ["--find-links", folder]
    variables = {**os.environ, "PYTHONHASHSEED": "0", "PIP_CONFIG_FILE": os.devnull}
    subprocess.run([*command, *requirements], check=True, env=variables)


def remove_bytecode(environment: Path) -> None:
    """Bytecode holds the time its source was written; Python makes it again where it may."""
    for folder in sorted(environment.rglob("__pycache__")):
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
