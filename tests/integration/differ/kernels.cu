// One kernel with a name of its own, one in an anonymous namespace, and host code that can carry stamps.
#include <cuda_runtime.h>

#ifndef BUILDER
#define BUILDER "nobody"
#endif

namespace {

template <typename Value>
__global__ void sum_kernel(const Value *values, int count, Value *total) {
  Value sum = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    sum += values[i];
  }
  atomicAdd(total, sum);
}

}  // namespace

__global__ void scale_kernel(float *values, int count) {
#if defined(CHANGED_FOR_103) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1030
  const float factor = 3.0f;
#else
  const float factor = 2.5f;
#endif
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    values[i] *= factor;
  }
}

extern "C" const char *built_by() { return BUILDER; }

#ifdef STAMPED
extern "C" const char *built_at() { return __DATE__ " " __TIME__; }
#endif

extern "C" int run(float *values, int count, float *total) {
  scale_kernel<<<(count + 255) / 256, 256>>>(values, count);
#ifndef WITHOUT_SUM
  sum_kernel<float><<<1, 128>>>(values, count, total);
#endif
  return static_cast<int>(cudaGetLastError());
}
