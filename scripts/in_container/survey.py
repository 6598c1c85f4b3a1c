"""Survey a component that does not build: try every translation unit, and bring back what became of each.

The build itself is build_component.py's, with another compile launcher; that it fails is expected and no error here. What
is brought back is the log of units, the objects of those that compiled, and the log of the build.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import build_component


def main() -> int:
    build_component.LAUNCHER = Path(__file__).with_name("keep_going.py")
    status = build_component.main()
    units = build_component.BUILD / "units.jsonl"
    if units.is_file():
        shutil.copyfile(units, build_component.OUT / "units.jsonl")
    print(f"the build of the survey ended with {status}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
