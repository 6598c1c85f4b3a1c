"""The gate behind CANN's installation: everything the components' builds will look for, named in one message if it is missing."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

OLDEST_GCC = 13
"""DeepInfer's README."""
LIBRARIES = ("libascendcl.so", "libge_runner.so", "libgraph.so", "libacl_op_compiler.so", "libhccl.so")
"""What torch_npu's libtorch_npu.so is linked to and does not bring (its DT_NEEDED entries)."""
KERNEL = '#include "kernel_operator.h"\nextern "C" __global__ __aicore__ void empty_kernel() {}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cann", type=Path, required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--npu-arch", required=True)
    options = parser.parse_args()
    wrong = [*missing_tools(), *missing_files(options.cann, options.machine), *unset(options.cann), *old_gcc()]
    if not wrong:
        wrong = list(small_kernel(options.npu_arch))
    if wrong:
        print(f"error: {len(wrong)} prerequisites of a build for {options.npu_arch} are not met:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in wrong), file=sys.stderr)
        return 1
    print(f"CANN at {options.cann} has what builds for {options.npu_arch} need")
    return 0


def missing_tools() -> Iterator[str]:
    for tool in ("bisheng", "ld.lld", "g++"):
        if shutil.which(tool) is None:
            yield f"{tool} is not on PATH ({os.environ.get('PATH', '')})"


def missing_files(cann: Path, machine: str) -> Iterator[str]:
    """Where setup.py files and DeepJIT look; a name with | stands for either."""
    host = f"{machine}-linux"
    for name in (
        f"{host}/include/acl/acl.h",
        f"{host}/asc/include/kernel_operator.h|{host}/asc/include/basic_api/kernel_operator.h",
        f"{host}/asc/include/adv_api",
        f"{host}/lib64/libascendc_runtime.a",
        *(f"lib64/{library}" for library in LIBRARIES),
    ):
        if not any((cann / each).exists() for each in name.split("|")):
            yield f"{name.replace('|', ' or ')} is not in {cann}"
    if not (cann / host / "devlib" / "libascend_hal.so").exists():
        yield (
            f"{host}/devlib/libascend_hal.so is not in {cann}: it stands for the driver's library, which no build machine has, "
            "and without it torch_npu cannot be imported"
        )


def unset(cann: Path) -> Iterator[str]:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        value = os.environ.get(name, "")
        if Path(value) != cann:
            yield f"{name} is {value!r}, not {cann}: a script that was sourced in another step has no effect in this one"


def old_gcc() -> Iterator[str]:
    version = output(["g++", "-dumpfullversion"]).strip()
    major = version.split(".")[0]
    if not major.isdigit() or int(major) < OLDEST_GCC:
        yield f"g++ is {version or 'absent'}, DeepInfer needs {OLDEST_GCC} or newer"


def small_kernel(npu_arch: str) -> Iterator[str]:
    """One empty AscendC kernel through the whole compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.asc"
        source.write_text(KERNEL)
        command = ["bisheng", "-c", "-std=c++17", f"--npu-arch={npu_arch}", "-o", f"{folder}/empty.o", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (Path(folder) / "empty.o").exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            yield f"bisheng does not compile an empty kernel for {npu_arch}: {said[0] if said else f'status {done.returncode}'}"


def output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
