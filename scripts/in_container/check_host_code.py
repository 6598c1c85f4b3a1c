"""Let g++ check the host code of FlashMLA's and DeepJIT's Ascend backends against torch-npu's headers: syntax and types only.

Nothing is generated, nothing is linked, and device code (.asc) is not looked at: that needs CANN's own headers and compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

FLASHMLA = (
    "api.cpp",
    "sparse_prefill.cpp",
    "sparse_decode.cpp",
    "dense_fwd.cpp",
    "dense_bwd.cpp",
    "fused_norm_rope_attn_rope_cast_fwd.cpp",
)
"""API_SOURCES of FlashMLA's setup.py, which its Ascend build compiles too."""
DEEP_JIT = "#include <deep_jit/backend/ascend/backend.hpp>\nint main() { return sizeof(deep_jit::Ascend) == 0; }\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="the folder of locked source archives")
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    flash_mla = unpack(options.sources, "deepinfer_flashmla-")
    deep_jit = unpack(options.sources, "deepinfer_gemm-") / "third-party" / "deep_jit" / "include"
    probe = Path("/build/deep_jit.cpp")
    probe.write_text(DEEP_JIT)
    defines = ["-DFLASH_MLA_IS_BUILD_ON_ASCEND", "-DKERUTILS_IS_BUILD_ON_ASCEND"]
    folders = [flash_mla / "csrc", flash_mla / "csrc" / "3rdparty" / "kerutils" / "include"]
    results = [check("flashmla", flash_mla / "csrc" / "api" / name, folders, defines) for name in FLASHMLA]
    results.append(check("deepjit", probe, [deep_jit], []))
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    (options.into / "host-code.json").write_text(json.dumps({"gcc": version, "files": results}, indent=2) + "\n")
    print(f"{sum(not r['error'] for r in results)} of {len(results)} files pass g++ {version} -fsyntax-only")
    return 0


def unpack(sources: Path, prefix: str) -> Path:
    (archive,) = sources.glob(f"{prefix}*.tar.gz")
    place = Path("/build") / prefix.rstrip("-")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    (top,) = place.iterdir()
    return top


def check(component: str, file: Path, folders: list[Path], defines: list[str]) -> dict[str, object]:
    packages = Path(sysconfig.get_paths()["platlib"])
    torch, npu = packages / "torch" / "include", packages / "torch_npu" / "include"
    includes = [*folders, torch, torch / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"])]
    system = [npu, npu / "third_party" / "acl" / "inc", npu / "third_party" / "hccl" / "inc"]
    command = ["g++", "-fsyntax-only", "-std=c++20", "-Wno-deprecated-declarations", "-DTORCH_EXTENSION_NAME=npu", *defines]
    command += [f"-I{folder}" for folder in includes]
    command += [word for folder in system for word in ("-isystem", str(folder))]
    started = time.monotonic()
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, env=environment)
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    error = "" if done.returncode == 0 else (errors or done.stderr.splitlines() or [f"status {done.returncode}"])[0][:300]
    print(f"{component} {file.name}: {error or 'passes'}", flush=True)
    return {"component": component, "file": file.name, "seconds": round(time.monotonic() - started, 1), "error": error}


if __name__ == "__main__":
    sys.exit(main())
