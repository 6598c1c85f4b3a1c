#!/bin/sh
# How the binaries beside this file were made: nvcc 13.3.73, gcc 12.2 with glibc 2.36, xz. Needs nvcc in PATH.
# old.cubin is of an older compiler: see old.ptx.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
code() { for a in "$@"; do printf -- '-gencode arch=compute_%s,code=sm_%s ' "$a" "$a"; done; }
small="-shared -nostdlib -Wl,--build-id=none,-z,noseparate-code,-z,max-page-size=64 -s"

# zstd, and four images whose names cuobjdump would give as sm_100a, sm_100, sm_120a, sm_100
nvcc -c -Xcompiler -fPIC --compress-mode=size $(code 100a 100f 120a) -gencode arch=compute_100,code=compute_100 \
    guards.cu -o "$work/guards.o"
g++ $small -o "$work/guards.so" "$work/guards.o"
# LZ4
nvcc -c -Xcompiler -fPIC --compress-mode=speed -gencode "arch=compute_100a,code=[sm_100a,compute_100a]" helper.cu -o "$work/speed.o"
# One library whose device link was told the architecture, and one where it was not and silently took sm_75
for unit in calls helper; do
    nvcc -rdc=true -c -Xcompiler -fPIC --compress-mode=size $(code 100a) "$unit.cu" -o "$work/$unit.o"
done
nvcc -dlink -Xcompiler -fPIC --compress-mode=size $(code 100a) "$work/calls.o" "$work/helper.o" -o "$work/device.o"
g++ $small -o "$work/linked.so" "$work/calls.o" "$work/helper.o" "$work/device.o"
nvcc -dlink -Xcompiler -fPIC --compress-mode=size "$work/calls.o" "$work/helper.o" -o "$work/device.o"
g++ $small -o "$work/lost.so" "$work/calls.o" "$work/helper.o" "$work/device.o"
# Host code only
gcc $small -fPIC -Wl,-soname,libcuda.so.1 -o "$work/libcuda.so.1" -xc /dev/null
gcc $small -fPIC -Wl,-soname,libnvrtc.so.12 -o "$work/libnvrtc.so.12" -xc /dev/null
gcc $small -fPIC -Wl,-soname,liboffers.so -o "$work/liboffers.so" offers.c
gcc $small -fPIC -Wl,--no-as-needed -Wl,-rpath,'/opt/venv/lib:/srv/old/lib:/usr/local/cuda/lib64/stubs:$ORIGIN/../lib:$ORIGIN/../../lib::lib' \
    -o "$work/needy.so" needy.c "$work/libcuda.so.1" "$work/libnvrtc.so.12" "$work/liboffers.so" -lc

# ELF with AI Core's machine number (no compiler for it is at hand): by itself, two of it in a host library as bisheng puts it
# there, and one as CANN's CMake files do, behind a few numbers
gcc -c -O2 -fno-asynchronous-unwind-tables -o "$work/aicore.o" aicore.c
printf '\051\020' | dd of="$work/aicore.o" bs=1 seek=18 conv=notrunc status=none
cat "$work/aicore.o" "$work/aicore.o" > "$work/two"
objcopy --add-section ".aicore_binary=$work/two" "$work/liboffers.so" "$work/npu.so"
{ head -c 20 /dev/zero; cat "$work/aicore.o"; } > "$work/one"
objcopy --add-section ".ascend.kernel.ascend950.things=$work/one" "$work/liboffers.so" "$work/packed.so"

for made in aicore.o npu.so packed.so guards.so speed.o linked.so lost.so libcuda.so.1 liboffers.so needy.so; do
    xz -9e --check=crc32 -c "$work/$made" > "$made.xz"
done
