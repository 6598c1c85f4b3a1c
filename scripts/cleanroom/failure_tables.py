"""What build tools write when they fail, and what helps: the tables that failures.py reads logs by.

Formats are those of gcc 12 to 14, nvcc/cudafe++/cicc/ptxas/nvlink 13, GNU ld, ninja 1.13, pip 26, setuptools 84 and
torch 2.13, from the logs kept under tests/unit/data/logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "missing header",
    "architecture refused",
    "static assertion",
    "compile error",
    "killed for memory",
    "disk full",
    "link error",
    "unsupported host compiler",
    "missing tool",
    "network refused",
    "python error in setup",
    "substitution refused",
    "refused by a check",
    "register spill",
    "timeout",
    "other",
]

Weight = Literal[0, 1, 2, 3]
"""0: the machine gave out; explains whatever else the same step printed. 1: a compiler's or linker's own diagnosis, or a
check of ours. 2: an error that a script may have caught and gone on from. 3: a trace that something failed, no more."""


@dataclass(frozen=True)
class Rule:
    """A line that begins with `pattern` is an error of this kind. Groups: message; file, line, subject where there are."""

    kind: Kind
    weight: Weight
    pattern: re.Pattern[str]


_FILE = r"(?P<file>[^\s:(][^:(]*?)"
_GCC = _FILE + r":(?P<line>\d+):(?:\d+:)? (?:fatal |internal compiler )?error: "
_NVCC = _FILE + r"\((?P<line>\d+)\): (?:catastrophic |fatal |internal )?error(?: #\S+)?: "
_PTXAS = r"ptxas (?:(?P<file>\S+?), line (?P<line>\d+); |)(?:error|fatal) *: "
_LD = r"(?:\S*\bld(?:\.\w+)?: |collect2: )"
_OBJECT = _LD + r"?(?:[^\s:(]+\.o:(?!\())?(?:(?P<file>[^\s:(]+):(?:(?P<line>\d+):)?)?(?:\(\S+\): )?\s*"


def _any(*texts: str) -> str:
    """The whole line as message, if one of these is anywhere in it."""
    return f"(?P<message>.*(?:{'|'.join(texts)}).*)"


_PATTERNS: tuple[tuple[Kind, Weight, tuple[str, ...]], ...] = (
    ("disk full", 0, (_any("No space left on device", r"\[Errno 28\]", r"\bENOSPC\b", "Disk quota exceeded"),)),
    (
        "killed for memory",
        0,
        (
            _NVCC + r"(?P<message>out of memory.*)",
            _any("Killed signal terminated program", "internal compiler error: Killed", r"Killed \(program"),
            _any("died due to signal 9", "terminated with signal 9"),
            _any("out of memory allocating", "memory exhausted", r"\bstd::bad_alloc\b", "LLVM ERROR: out of memory"),
            _any("Cannot allocate memory"),
            r"(?P<message>MemoryError\b.*)",
            r"(?:\S*sh: (?:line )?\d+: +)?(?:\d+ )?(?P<message>Killed)(?: +\S.*)?$",
        ),
    ),
    (
        "unsupported host compiler",
        1,
        (
            _GCC + r"(?P<message>#error -- unsupported .*)",
            r"(?:RuntimeError: )?(?P<message>The current installed version of \S+ .* required version.*)",
        ),
    ),
    (
        "architecture refused",
        1,
        (
            r"nvcc fatal +: (?P<message>Unsupported gpu architecture .*)",
            r"nvcc fatal +: (?P<message>.*\bgpu-(?:architecture|code|name)\b.*)",
            _PTXAS + _any(r"not supported on \.target", r"requires \.target", "is not defined for option 'gpu-name'"),
            _PTXAS + _any("cannot be compiled for architecture", "cannot be compiled to future architecture"),
        ),
    ),
    ("architecture refused", 2, (r"(?:ValueError: )?(?P<message>Unknown CUDA arch .*)",)),
    ("register spill", 1, (_PTXAS + r"(?P<message>Registers are spilled .*)",)),
    ("register spill", 2, (r"(?P<message>Register spilling detected.*)",)),
    (
        "missing header",
        1,
        (
            _GCC + r"(?P<message>(?P<subject>\S+): No such file or directory)",
            _GCC + r"(?P<message>'(?P<subject>\S+)' file not found)",
            _NVCC + r"(?P<message>cannot open source file \"(?P<subject>.+?)\".*)",
        ),
    ),
    ("static assertion", 1, (_GCC + r"(?P<message>static(?:_| )assert.*)", _NVCC + r"(?P<message>static assertion failed.*)")),
    (
        "compile error",
        1,
        (
            _GCC + r"(?P<message>.*)",
            _NVCC + r"(?P<message>.*)",
            r"(?:cc1(?:plus)?|g\+\+|gcc|c\+\+|cc|clang(?:\+\+)?): (?:fatal |internal compiler )?error: (?P<message>(?!ld ).*)",
            r"(?P<file>\S+\.[sS]):(?P<line>\d+): Error: (?P<message>.*)",
            _PTXAS + r"(?P<message>(?!Ptx assembly aborted).*)",
            r"(?:nvcc|cicc|cudafe\+\+|fatbinary|nvvm) (?:error|fatal) *: (?P<message>.*)",
        ),
    ),
    (
        "link error",
        1,
        (
            r"nvlink (?:error|fatal) *: (?P<message>.*)",
            _LD + r"(?:error: )?(?P<message>cannot find (?P<subject>-l\S+?|\S+?)(?:: .*)?)$",
            _OBJECT + r"(?P<message>(?:undefined (?:reference to|symbol:)|multiple definition of) .*)",
            _LD + r"(?P<file>[^\s:]+): (?P<message>relocation .* can not be used .*|file not recognized.*)",
            r"ld\.lld: error: (?P<message>.*)",
        ),
    ),
    (
        "timeout",
        2,
        (
            r"(?:subprocess\.)?(?:TimeoutExpired: )?" + _any(r"timed out after [\d.]+ seconds", "context deadline exceeded"),
            r"(?P<message>timeout: sending signal .*)",
        ),
    ),
    (
        "network refused",
        2,
        (
            r"(?:ERROR: )?(?P<message>Could not find a version that satisfies the requirement .*)",
            r"(?:ERROR: )?(?P<message>No matching distribution found .*)",
            _any("Temporary failure in name resolution", "Network is unreachable", "Could not resolve host"),
        ),
    ),
    (
        "missing tool",
        2,
        (
            r"\S*sh: (?:line )?(?:\d+: )?(?P<message>(?P<subject>[\w.+/-]+): (?:command )?not found)",
            r"(?:error|FileNotFoundError): (?P<message>\[Errno 2\] No such file or directory: '(?P<subject>[^'/.]+)')",
            r"error: (?P<message>command '(?P<subject>\S+)' failed: No such file or directory)",
            r"(?:RuntimeError: )?(?P<message>(?P<subject>Ninja) is required to load C\+\+ extensions.*)",
            r"(?:OSError: )?(?P<message>(?P<subject>CUDA_HOME) environment variable is not set.*)",
        ),
    ),
    (
        "python error in setup",
        2,
        (
            r"(?:╰─> )?(?P<message>(?:ModuleNotFoundError|ImportError): .*)",
            r"ERROR: (?P<message>Package '\S+' requires a different Python: .*)",
            r"error: (?P<message>(?!subprocess-exited|metadata-generation|backend-unav|[Cc]ommand |legacy-|\[).*)",
        ),
    ),
    (
        "other",
        2,
        (
            r"CMake Error(?: at (?P<file>[^:]+):(?P<line>\d+))?(?: \(\w+\))?:(?P<message>.*)",
            r"ninja: error: (?P<message>.*)",
        ),
    ),
    (
        "killed for memory",
        3,
        (
            r"FAILED: (?P<message>\[code=(?:137|9|-9)\]).*",
            _any("SIGKILL", r"exit (?:code|status):? -?(?:137|9)\b", r"\bError 137\b"),
            r"(?P<message>Compilation terminated\.)$",
        ),
    ),
    ("timeout", 3, (r"(?P<message>.*exit (?:code|status):? 124\b.*)",)),
)

RULES = tuple(Rule(kind, weight, re.compile(pattern)) for kind, weight, patterns in _PATTERNS for pattern in patterns)
"""Searched in this order for each line; the first that fits says what the line is. Upper case matters: gcc closes every
fatal error with `compilation terminated.`, nvcc writes `Compilation terminated.` when a compiler left without a word."""

HEADERS: tuple[tuple[str, str], ...] = (
    (
        r"elfutils/|dwarf\.h|libelf\.h|gelf\.h",
        "the Debian package libdw-dev has it (DeepJIT, inside DeepGEMM and DeepEP, wants it)",
    ),
    (r"Python\.h|pyconfig\.h|patchlevel\.h", "the Debian package python3-dev (or libpython3-dev) has it"),
    (r"nccl", "the wheel nvidia-nccl-cu13 has it: is it in the lock, and its include folder on CPATH?"),
    (
        r"cuda/(?:std|ptx|barrier|atomic|pipeline|functional)|cub/|thrust/|nv/target",
        "since CUDA 13, CCCL is under include/cccl: add that folder, or the wheel nvidia-cuda-cccl",
    ),
    (r"crt/", "the wheel nvidia-cuda-crt, part of the toolkit, has it"),
    (r"cuda_profiler_api\.h|cudaProfiler\.h", "the wheel nvidia-cuda-profiler-api, part of the toolkit, has it"),
    (r"nvrtc", "the wheel nvidia-cuda-nvrtc, part of the toolkit, has it"),
    (r"nvtx3?/|nvToolsExt", "the wheel nvidia-nvtx, which torch requires, has it: its include folder must be on CPATH"),
    (
        r"(?:cublas|cusparse|cusolver|cufft|curand|cudnn)\w*\.h",
        "torch's headers want it and torch's own dependencies bring it: their include folders must be on CPATH",
    ),
    (
        r"cuda\w*\.h|driver_types\.h",
        "the wheel nvidia-cuda-runtime has the toolkit's headers: they are not on the include path",
    ),
    (r"cutlass/|cute/", "CUTLASS is a submodule upstream: the source archive lacks it, or its include folder was not given"),
    (r"nvshmem", "the wheel nvidia-nvshmem-cu13 has it"),
    (
        r"kernel_operator|acl/|aclrt|aclnn|hccl/|tikicpulib|graph/|tiling/",
        "it comes with CANN, which only Huawei distributes: use the CANN base",
    ),
    (r"torch/|ATen/|c10/", "build against the locked torch, without build isolation"),
    (r"pybind11/", "torch's own headers bring it; otherwise add pybind11 to the component's python.build"),
    (
        r"(?:format|expected|print|generator|mdspan|stacktrace|flat_map|ranges|concepts|span|source_location)$",
        "a header of the C++ standard library: GCC is too old for it (std::format needs GCC 13)",
    ),
    (r"infiniband/|rdma/", "the Debian package libibverbs-dev has it"),
    (r"numa(?:if)?\.h", "the Debian package libnuma-dev has it"),
    (r"zlib\.h", "the Debian package zlib1g-dev has it"),
    (r"zstd\.h", "the Debian package libzstd-dev has it"),
    (r"bfd\.h", "the Debian package binutils-dev has it"),
    (r"libunwind\.h", "the Debian package libunwind-dev has it"),
    (r"(?:stdio|stdlib|string|unistd|features|math)\.h|sys/|bits/", "the Debian package libc6-dev (with g++) has it"),
)
"""The beginning of a header's name, and where the header comes from."""

_LEAVE_OUT = "leave the file or the architecture out for this target"

HINTS: tuple[tuple[Kind, str, str], ...] = (
    *(("missing header", rf"^(?:{beginning})", hint) for beginning, hint in HEADERS),
    ("missing header", "", "find what has it (`apt-file search`), and add it to the component's system.build or python.build"),
    (
        "architecture refused",
        "Unsupported gpu architecture",
        "the toolkit does not know it: see envs/architectures.yaml for its toolkits",
    ),
    (
        "architecture refused",
        "future architecture",
        "an architecture-specific target (…a) does not carry over to a later one: ask for the family form (…f), or for both",
    ),
    (
        "architecture refused",
        "Unknown CUDA arch",
        "torch's own list refuses it, whatever nvcc says: see envs/architectures.yaml for what this torch accepts",
    ),
    ("architecture refused", "", f"the kernel uses an instruction that this architecture lacks: {_LEAVE_OUT}"),
    ("static assertion", r"__CUDA_ARCH__|(?i:\bsm_?\d|\barch)", f"the source refuses this architecture: {_LEAVE_OUT}"),
    ("static assertion", "", "a condition of the source does not hold for this target's architecture or versions"),
    (
        "compile error",
        "internal compiler error|died due to signal",
        "the compiler itself failed: build again with --jobs 1; if it fails at the same place, try another compiler release",
    ),
    (
        "compile error",
        "Arguments mismatch for instruction",
        f"ptxas says so, too, where only other architectures have it: {_LEAVE_OUT}",
    ),
    (
        "compile error",
        r"Unsupported \.version",
        "the toolkit's parts are of different releases: nvcc, nvvm and ptxas must be of one",
    ),
    (
        "compile error",
        "has no member named|is not a member of|was not declared|is undefined",
        "often a header of another release than the source was written for: compare the documented versions with the lock",
    ),
    ("killed for memory", "", "too many compilers for this machine's memory: build again with fewer, for example --jobs 1"),
    ("disk full", "", "free space where the store and the engine keep their files, then build again; finished work is kept"),
    ("link error", r"-lcuda\b", "the driver library is absent on purpose: link against the toolkit's lib/stubs"),
    ("link error", "-lcudart|-lnvrtc", "the toolkit tree lacks the unversioned link to this library"),
    ("link error", r"-ldw\b|-lelf\b", "the Debian package libdw-dev has it"),
    ("link error", "-lnccl", "the wheel nvidia-nccl-cu13 has it: its lib folder must be on LIBRARY_PATH"),
    ("link error", "c10|at::|torch", "a symbol of torch: extension and torch disagree in release or C++ ABI"),
    (
        "unsupported host compiler",
        "",
        "choose a GCC within the toolkit's bounds; the override flag is never set, as it leads to further errors or wrong code",
    ),
    ("missing tool", "cuobjdump", "the wheel nvidia-cuda-cuobjdump, part of the toolkit, has it"),
    ("missing tool", "nvcc|CUDA_HOME", "the CUDA toolkit is not on PATH"),
    ("missing tool", "[Nn]inja", "add ninja to the component's python.build"),
    ("missing tool", r"\bg\+\+|\bgcc", "the Debian package g++ has it"),
    (
        "missing tool",
        r"\bgit\b",
        "a version asked of git: the archive has no history, so give the version through the environment",
    ),
    ("missing tool", "", "add the package that has it to the component's system.build or python.build"),
    (
        "network refused",
        "satisfies the requirement|No matching distribution",
        "builds have no network: add the requirement to the component's python.build, so that it is locked",
    ),
    ("network refused", "", "builds have no network: what this step wants must be locked, or switched off"),
    (
        "python error in setup",
        "No module named",
        "add the module's distribution to the component's python.build, or provide the file that the archive lacks",
    ),
    (
        "python error in setup",
        r"libascend_hal\S*: cannot open shared object",
        "the driver's library: a build machine has none, so the stub in CANN's devlib has to be on LD_LIBRARY_PATH of this step",
    ),
    (
        "python error in setup",
        r"lib(?:hccl|ascendcl|ge_runner|graph|acl_op_compiler|msprofiler)\S*: cannot open shared object",
        "a library of CANN: it is not installed here, or the step lacks the variables that CANN's set_env.sh sets",
    ),
    ("python error in setup", r"libcuda\.so\S*: cannot open shared object", "the GPU's driver: no step of a build may need it"),
    ("python error in setup", "requires a different Python", "the base has another Python than the component accepts"),
    ("python error in setup", "CXX11_ABI", "torch and the compiler disagree on the C++ ABI"),
    ("other", "missing and no known rule to make it", "the source archive lacks this file"),
    (
        "substitution refused",
        "",
        "the upstream file is not the one that the substitution was written for: look at it, then correct match or count",
    ),
    (
        "register spill",
        "",
        "kernels must be spill-free: another toolkit release may do better; never switch the check off silently",
    ),
    ("timeout", "", "give it more time, or fewer jobs; finished work is kept"),
)
"""Kind, a pattern searched in the message (or in the header or tool it names), and what helps. The first that fits."""

SILENT: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("device link", re.compile(r"nvlink warning *: (?P<message>SM Arch \([^)]*\) not found.*)")),
    ("architecture of the machine", re.compile(r"nvcc warning *: (?P<message>Cannot find valid GPU for '-arch=native'.*)")),
    ("architecture of the machine", re.compile(r".*(?P<message>TORCH_CUDA_ARCH_LIST is not set, all archs for visible cards.*)")),
    ("library not found", re.compile(r"\S*\bld(?:\.\w+)?: (?P<message>warning: \S+, needed by \S+, not found.*)")),
)
"""Kind of finding, and the line in the log of a build that succeeded without what it was asked for."""
