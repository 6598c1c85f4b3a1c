// A second unit, to be linked before or after the first.
#include <cuda_runtime.h>

__global__ void fill_kernel(float *values, float value) { values[threadIdx.x] = value; }

extern "C" int fill(float *values, float value) {
  fill_kernel<<<1, 32>>>(values, value);
  return static_cast<int>(cudaGetLastError());
}
