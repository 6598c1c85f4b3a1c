// What guards in a source become, and honest small kernels that must not be taken for them.
#include <cstdio>
#define SUPPORTED (__CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200)

extern "C" __global__ void adds(const int *a, int *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] += a[i];
}
extern "C" __global__ void empty() {}
extern "C" __global__ void stores_one(int *a) { *a = 1; }
extern "C" __global__ void checks_then_stores(int *a) {
    if (a[0] < 0) { printf("waited too long: %d\n", a[0]); asm volatile("trap;"); }
    a[0] = 1;
}
extern "C" __global__ void calls_a_pointer(void (*f)()) { f(); }
extern "C" __global__ void guard_trap(int *a) {
#if SUPPORTED
    a[threadIdx.x] *= 3;
#else
    asm volatile("trap;");
#endif
}
extern "C" __global__ void guard_message(int *a) {
#if SUPPORTED
    a[threadIdx.x] *= 5;
#else
    if (threadIdx.x == 0 && blockIdx.x == 0) { printf("needs sm100, block %d\n", blockIdx.x); __brkpt(); }
#endif
}
__device__ __noinline__ void complain(int x) { printf("unsupported %d\n", x); asm volatile("trap;"); }
extern "C" __global__ void guard_in_function(int *a) {
#if SUPPORTED
    a[threadIdx.x] *= 6;
#else
    complain(threadIdx.x);
#endif
}
extern "C" __global__ void guard_silent(int *a) {
#if SUPPORTED
    a[threadIdx.x] *= 7;
#endif
}
