"""Give the wheel of an experiment a build tag, so that its very name says what it is. What is in it stays as it was built."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", required=True, help="begins with a digit, as the wheel format asks for")
    parser.add_argument("--folder", type=Path, required=True, help="holds the wheel, and the result.json that names it")
    options = parser.parse_args()
    result = json.loads((options.folder / "result.json").read_text())
    command = [sys.executable, "-m", "wheel", "tags", "--build", options.tag, "--remove", options.folder / result["wheel"]]
    name = subprocess.run(command, check=True, capture_output=True, text=True, cwd=options.folder).stdout.split()[-1]
    wheel = options.folder / Path(name).name
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    result |= {"wheel": wheel.name, "wheel_sha256": digest, "wheel_size": wheel.stat().st_size}
    (options.folder / "result.json").write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    print(f"::cleanroom:: {json.dumps({'event': 'result', **result})}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
