// With helper.cu: device code that only the device linker makes whole.
extern __device__ int helper(int);
extern "C" __global__ void calls_helper(int *a) { a[threadIdx.x] = helper(a[threadIdx.x]); }
