// A user's CUDA C++ text as it would be given to NVRTC, between the shim and its lines.
#include "minicaffe/addons/thc/host_cuda.hpp"

#ifdef OTHER  // the same name with other arguments, in a text of its own
extern "C" __global__ void saxpy(double* y, double a) { y[threadIdx.x] *= a; }
MCSIM_KERNEL(saxpy)
#else

extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

__device__ __forceinline__ float square(float x) { return x * x; }

extern "C" __global__ void __launch_bounds__(256) sum_of_squares(const float* __restrict__ x, float* out, int n) {
  __shared__ float s[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = i < n ? square(__ldg(x + i)) : 0.0f;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half >>= 1) {
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, s[0]);
}

extern "C" __global__ void positions(int* out) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  __syncthreads();
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

extern "C" __global__ void dynamic_reverse(float* p) {
  MCSIM_DYNAMIC_SHARED(float, s);
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void fresh_shared(unsigned* out) {
  __shared__ unsigned s[4];
  out[blockIdx.x] = s[blockIdx.x];
  s[0] = s[1] = s[2] = s[3] = 1;
}

extern "C" __global__ void wild(float* p, long long i) {
  __syncthreads();
  if (blockIdx.x == 1 && threadIdx.x == 3 && threadIdx.y == 2) p[i] = 1.0f;
}

extern "C" __global__ void divergent() {
  if (threadIdx.x < 7) __syncthreads();
}

MCSIM_KERNEL(saxpy)
MCSIM_KERNEL(sum_of_squares)
MCSIM_KERNEL(positions)
MCSIM_KERNEL(dynamic_reverse)
MCSIM_KERNEL(fresh_shared)
MCSIM_KERNEL(wild)
MCSIM_KERNEL(divergent)
#endif
