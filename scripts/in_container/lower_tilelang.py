"""Lower kernels of TileKernels and DeepInfer to AscendC source with TileLang, and compile them where CANN is installed.

The kernels are upstream's own: unpacked from the locked archives, or as installed in the image. Arguments are those of a small,
plausible call; the number of cores is a launch parameter that a device would be asked for. Compiling is what TileLang does at
run time, with its own flags, and needs no device.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORES = 32
"""AI cores that kernels are lowered for; with a device present its own number would be used."""
DEVICE_FILE = Path("/dev/davinci_manager")
"""What TileKernels looks for to know an Ascend machine; /dev of a build step is the step's own."""
TILE_KERNELS, DEEPINFER = "tile_kernels", "deepinfer.model_executor.layers.tilelang_ops.asc"
KERNELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        f"{TILE_KERNELS}.transform.rope_asc",
        "get_rope_kernel_asc",
        {
            "dtype": "T.bfloat16",
            "positions_dtype": "T.int64",
            "nheads": 8,
            "rotary_dim": 64,
            "has_position_tensor": True,
            "interleaved": True,
            "conjugate": False,
            "cos_sin_stride": 64,
            "x_stride_0": 512,
            "x_stride_1": 64,
        },
    ),
    (f"{TILE_KERNELS}.engram.engram_fused_weight_asc", "get_engram_fused_weight_kernel_asc", {"hidden_size": 4096, "hc_mult": 4}),
    (
        f"{TILE_KERNELS}.engram.engram_hash_asc",
        "get_engram_hash_kernel_asc",
        {"max_ngram_size": 3, "num_ngram_layers": 2, "num_embed_table_per_ngram": 4, "has_image_token_mask": False},
    ),
    (f"{TILE_KERNELS}.moe.normalize_weight_asc", "get_normalize_weight_kernel_asc", {"num_topk": 8}),
    (f"{TILE_KERNELS}.moe.topk_gate_asc", "get_topk_gate_kernel_asc", {"num_experts": 256, "num_topk": 8}),
    (
        f"{TILE_KERNELS}.moe.moe_topk_gate_backward_asc",
        "get_moe_topk_gate_backward_kernel_asc",
        {"num_topk": 8, "num_routed_experts": 256, "aux_exists": True},
    ),
    (
        f"{TILE_KERNELS}.quant.cast_asc",
        "get_cast_kernel_asc",
        {"in_dtype": "T.float32", "out_dtype": "T.bfloat16", "stochastic_rounding": False, "n_hint": 4096},
    ),
    (f"{DEEPINFER}.gather", "gather_tl", {"D": 7168, "dtype": "torch.int8", "index_dtype": "torch.int32", "x_stride": 7168}),
    (f"{DEEPINFER}.compute_seqlens_k_zos", "compute_seqlens_k_zos_tl", {"nextn": 2}),
    (f"{DEEPINFER}.gather_input_ids_zos", "gather_input_ids_zos_tl", {"max_seqlen_q": 4}),
    (f"{DEEPINFER}.swa_index", "expand_swa_index_tl", {"width": 128}),
    (f"{DEEPINFER}.sum_smaller_probs", "sum_smaller_probs_tl", {"vocab_size": 129280}),
    (f"{DEEPINFER}.random_sampling", "random_sampling_tl", {"vocab_size": 129280, "is_nextn_predict": False}),
    (f"{DEEPINFER}.candidate_blocks", "get_candidate_compact_lens_tl", {"topk_blocks": 64, "block_size": 16}),
    (f"{DEEPINFER}.compress", "compress_and_update_state_decode_tl", {"DIM": 512, "COMPRESS_RATIO": 2}),
    (
        f"{DEEPINFER}.sampler",
        "finalize_verification_tl",
        {
            "has_sum_smaller_probs": True,
            "has_confidence": False,
            "num_steps": 3,
            "num_stop_tokens": 4,
        },
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sources", type=Path, help="the folder of locked source archives, of which kernels are only lowered")
    what.add_argument("--compile", action="store_true", help="take what is installed, and compile it too")
    parser.add_argument("--npu-arch", required=True)
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    os.environ |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "ASCEND_NPU_ARCH": options.npu_arch, "DEEPINFER_ACCELERATOR": "ascend"}
    DEVICE_FILE.touch()
    if options.sources:
        sys.path[:0] = [str(unpack(options.sources, prefix)) for prefix in ("tile_kernels-", "deepinfer-")]
    results = list(lower_all(options.npu_arch, options.into, compiles=options.compile))
    name = "npu_kernels.json" if options.compile else "lowering.json"
    (options.into / name).write_text(json.dumps({"npu_arch": options.npu_arch, "kernels": results}, indent=2) + "\n")
    failed = [r["kernel"] for r in results if r["error"]]
    done = "compiled" if options.compile else "lowered"
    print(f"{len(results) - len(failed)} of {len(results)} kernels {done} for {options.npu_arch}")
    return 0


def unpack(sources: Path, prefix: str) -> Path:
    (archive,) = sources.glob(f"{prefix}*.tar.gz")
    place = Path("/build") / prefix.rstrip("-")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    (top,) = place.iterdir()
    return top


def lower_all(npu_arch: str, into: Path, *, compiles: bool) -> Iterator[dict[str, Any]]:
    vars(importlib.import_module("tile_kernels.config"))["_num_sms"] = CORES  # a device would be asked, and there is none
    for module, function, arguments in KERNELS:
        began = time.monotonic()
        result: dict[str, Any] = {"kernel": f"{module}.{function}", "arguments": json.dumps(arguments), "stage": "lower"}
        result |= {"file": "", "sha256": "", "lines": 0, "binary": "", "error": ""}
        try:
            text, *how = lower(module, function, arguments, npu_arch)
            (into / f"{function}.asc").write_text(text)
            result |= {"file": f"{function}.asc", "sha256": sha256(text.encode()), "lines": len(text.splitlines())}
            if compiles:
                result["stage"] = "compile"
                binary = bytes(importlib.import_module("tilelang.ascend.backend").tilelang_callback_ascend_compile(text, *how))
                (into / f"{function}.aibin").write_bytes(binary)
                result |= {"binary": f"{function}.aibin", "sha256": sha256(binary)}
        except Exception as error:  # noqa: BLE001 - whatever one kernel raises is its result
            traceback.print_exc()
            result["error"] = first_error(f"{type(error).__name__}: {error}")
        print(f"{module}.{function}: {result['error'] or 'done'}")
        yield {**result, "seconds": round(time.monotonic() - began, 1)}


def first_error(text: str) -> str:
    """The line that says what is wrong: the compiler's first error, else its first line, else the first of all.

    TileLang's own text ends with the source, which may say anything.
    """
    said = text.partition("\nSource:\n")[0].splitlines()
    output = said[said.index("Compiler output:") + 1 :] if "Compiler output:" in said else []
    return next((line for line in said if "error:" in line), (output or said)[0]).strip()[:300]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def lower(module: str, function: str, arguments: dict[str, Any], npu_arch: str) -> tuple[str, Any, Any]:
    """The AscendC source of one kernel, with the target and the options that its compiler gets.

    Raises what TileLang raises, and ValueError for text without a kernel.
    """
    tilelang, torch = importlib.import_module("tilelang"), importlib.import_module("torch")
    language = importlib.import_module("tilelang.ascend.language")
    kernel = getattr(importlib.import_module(module), function)
    names = {"T": language, "torch": torch}
    values = {k: getattr(names[v.split(".")[0]], v.split(".")[1]) if is_dtype(v) else v for k, v in arguments.items()}
    if "num_vec_cores" in kernel.signature.parameters:
        values["num_vec_cores"] = 2 * CORES
    target = tilelang.tvm.target.Target({"kind": "ascend", "arch": npu_arch})
    with tilelang.tvm.transform.PassContext(opt_level=3, config=kernel.pass_configs or {}), target:
        artifact = tilelang.lower(kernel.get_tir(**values), target=target, enable_device_compile=False)
    text = str(artifact.kernel_source)
    if "__global__" not in text and "__aicore__" not in text:
        raise ValueError("TileLang gave no AscendC kernel")
    return text, target, kernel.pass_configs


def is_dtype(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("T.", "torch."))


if __name__ == "__main__":
    sys.exit(main())
