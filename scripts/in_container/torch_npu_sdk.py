"""Make torch_npu importable for a build where CANN is absent: its headers, its libraries and its extension helper, no more.

The real package loads its libraries when it is imported, and those need CANN's. Here the package is empty; what a setup.py
compiles and links against is the wheel's own, by links. What comes out cannot be imported, and nothing here pretends it can.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="the folder to put on PYTHONPATH")
    options = parser.parse_args()
    real = Path(sysconfig.get_paths()["platlib"]) / "torch_npu"
    missing = [str(real / part) for part in ("include", "lib", "utils/cpp_extension.py") if not (real / part).exists()]
    if missing:
        print(f"torch-npu is not as expected, it lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    package = options.into / "torch_npu"
    (package / "utils").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "utils" / "__init__.py").write_text("")
    for part in ("include", "lib", "utils/cpp_extension.py"):
        (package / part).symlink_to(real / part)
    print(f"{package}: headers and libraries of {real}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
