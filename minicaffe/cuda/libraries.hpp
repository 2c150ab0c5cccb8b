// Pointers to the functions of NVIDIA's libraries that operations call: none of their headers is included, nothing is linked, and
// if a library is missing our own kernels run. Filled by cuda/libraries.pyx.
#pragma once

namespace mc {
namespace cuda {

struct Stream;
struct Cudnn;  // cuda/cudnn.hpp
struct CublasLt;  // cuda/cublaslt.hpp

/// cublasSgemmStridedBatched and cublasDgemmStridedBatched: a status. Matrices are column-major; trans is 0 (no) or 1 (yes).
template <class T>
using CublasGemm = int (*)(void* handle, int trans_a, int trans_b, int m, int n, int k, const T* alpha, const T* a, int lda,
                           long long stride_a, const T* b, int ldb, long long stride_b, const T* beta, T* c, int ldc,
                           long long stride_c, int batches);

/// The libraries of one device, for its computing stream (mc::cuda::Stream::libraries).
struct Libraries {
  void* cublas;  // cublasHandle_t, set to the stream; null: none
  CublasGemm<float> sgemm;
  CublasGemm<double> dgemm;
  CublasLt* cublaslt;  // null: none; never without cuBLAS
  void (*fail)(Stream*, const char* call, int status);  // stores the error of a call of cuBLAS in the stream; acquires the GIL
  Cudnn* cudnn;                   // null before the first operation that uses it, and if it is missing
  const char* no_cudnn;           // why it is missing, once that is known; else null
  void (*open_cudnn)(Stream*);    // sets one of the two, or marks the stream as failed; acquires the GIL
  // For recorded launches: call with null before a library call that computes, with its name after it. Acquires the GIL, waits.
  void (*watch)(Stream*, const char* call);
  // gemm_of(T()) is the product of elements of type T.
  const CublasGemm<float>& gemm_of(float) const { return sgemm; }
  const CublasGemm<double>& gemm_of(double) const { return dgemm; }
};

}  // namespace cuda
}  // namespace mc
