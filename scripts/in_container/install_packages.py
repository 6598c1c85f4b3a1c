"""Install the locked Debian packages of the build stage, all at once, and leave nothing behind that holds a clock."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

# Logs carry the time, the linker's auxiliary cache carries inode numbers.
VOLATILE = ("/var/log/dpkg.log", "/var/log/alternatives.log", "/var/cache/ldconfig/aux-cache", "/var/lib/dpkg/status-old")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True)
    options = parser.parse_args()
    packages = sorted(options.packages.glob("*.deb"))
    if packages:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["dpkg", "--install", "--skip-same-version", *packages], check=True, env=environment)
    for path in VOLATILE:
        Path(path).unlink(missing_ok=True)
    print(f"{len(packages)} packages installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
