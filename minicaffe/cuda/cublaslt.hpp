// cuBLASLt by pointers and declarations of our own, as cuda/cudnn.hpp: a product whose result gets a bias, and a ReLU, in one call;
// a gradient of weights along with that of the bias; products of Bf16.
//
// It is a part of cuBLAS's package, and cuBLAS's handle serves it. Its heuristic names one algorithm for each shape, within the
// stream's workspace. Descriptors and algorithms are kept until the process ends.
// Numbers and types are those of cublasLt.h; tests/cuda/test_cublaslt.py compares them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include "minicaffe/cuda/libraries.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {
namespace cuda {

/// Numbers by NVIDIA's names; those of CUBLASLT_ without that.
#define MC_CUBLASLT_NUMBERS(X)                                                                                                  \
  X(MATMUL_DESC_TRANSA, 3) X(MATMUL_DESC_TRANSB, 4) X(MATMUL_DESC_EPILOGUE, 7) X(MATMUL_DESC_BIAS_POINTER, 8)                   \
  X(EPILOGUE_DEFAULT, 1) X(EPILOGUE_RELU, 2) X(EPILOGUE_BIAS, 4) X(EPILOGUE_RELU_BIAS, 6) X(EPILOGUE_BGRADA, 256)               \
  X(EPILOGUE_BGRADB, 512) X(MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                                                                 \
  X(MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) X(MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) X(MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)       \
  X(REDUCTION_SCHEME_NONE, 0)
namespace lt {
#define MC_CUBLASLT_NUMBER(name, number) name = number,
enum Number : int { MC_CUBLASLT_NUMBERS(MC_CUBLASLT_NUMBER) };
#undef MC_CUBLASLT_NUMBER
// CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_STATUS_NOT_SUPPORTED
constexpr int kReal32 = 0, kBf16 = 14, kCompute32 = 68, kComputeTf32 = 77, kNotSupported = 15;
constexpr size_t kMostAligned = 256;  // what the heuristic expects of addresses, in bytes, unless it gets another number
constexpr size_t kBiasAligned = 16;   // of a bias, in bytes: Marian (src/tensors/gpu/prod.cpp) had errors with 8 on an A100

struct Algorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};
/// cublasLtMatmulHeuristicResult_t
struct Choice {
  Algorithm algorithm;
  size_t workspace;  // bytes that it needs
  int state;         // a status: 0 if the algorithm can be used
  float waves;
  int reserved[4];
};
}  // namespace lt

/// The functions in use, with their arguments; all return a cublasStatus_t. Handles, descriptors and data are void*.
#define MC_CUBLASLT_CALLS(X)                                                                                                  \
  X(cublasLtMatmulDescCreate, void**, int, int)                                                                               \
  X(cublasLtMatmulDescSetAttribute, void*, int, const void*, size_t)                                                          \
  X(cublasLtMatrixLayoutCreate, void**, int, uint64_t, uint64_t, int64_t)                                                     \
  X(cublasLtMatmulPreferenceCreate, void**)                                                                                   \
  X(cublasLtMatmulPreferenceSetAttribute, void*, int, const void*, size_t)                                                    \
  X(cublasLtMatmulPreferenceDestroy, void*)                                                                                   \
  X(cublasLtMatmulAlgoGetHeuristic, void*, void*, void*, void*, void*, void*, void*, int, lt::Choice*, int*)                  \
  X(cublasLtMatmul, void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, \
    void*, const lt::Algorithm*, void*, size_t, void*)

struct CublasLtCalls {  // a pointer to each of them
#define MC_CUBLASLT_MEMBER(name, ...) int (*name)(__VA_ARGS__);
  MC_CUBLASLT_CALLS(MC_CUBLASLT_MEMBER)
#undef MC_CUBLASLT_MEMBER
};
/// The names of the calls, in the order of the pointers in CublasLtCalls.
constexpr const char* kCublasLtNames[] = {
#define MC_CUBLASLT_NAME(name, ...) #name,
    MC_CUBLASLT_CALLS(MC_CUBLASLT_NAME)
#undef MC_CUBLASLT_NAME
};
constexpr int kCublasLtCalls = sizeof(kCublasLtNames) / sizeof(*kCublasLtNames);
static_assert(sizeof(CublasLtCalls) == kCublasLtCalls * sizeof(void*), "a pointer for each name");

/// D = op(A) op(B) + beta D with the epilogue, one of lt::EPILOGUE_: column-major matrices, D of m x n, with elements of these
/// types; op transposes if `trans_a`, `trans_b`. `bias` has the type of D: m values that are added, or a gradient that is
/// overwritten: with BGRADA the m sums of op(A) along k, with BGRADB the n sums of op(B).
struct LtProduct {
  bool trans_a, trans_b;
  index_t m, n, k;
  const void *a, *b, *bias;
  int epilogue;
  void* d;
  int input = lt::kReal32, output = lt::kReal32;
  float beta = 0;
};
/// The product of one shape: descriptors of the product and of the matrices, and an algorithm, if there is one (`usable`).
struct LtPlan {
  void *product, *a, *b, *d;
  lt::Choice choice;
  bool usable;
};
using LtKey = std::array<index_t, 10>;  // all that a plan depends on

/// cuBLASLt for one device: made by cuda/libraries.pyx, never freed.
struct CublasLt {
  CublasLtCalls call;
  int tf32, deterministic;  // whether the precision is tf32; whether results must repeat
  std::mutex mutex;         // the bias is set in descriptors that threads share
  std::map<LtKey, LtPlan> plans;
};
struct LtFailure {  // thrown with the cublasStatus_t of `call`
  const char* call;
  int status;
};
#define MC_CUBLASLT(blas, name, ...) \
  if (int status = (blas).call.name(__VA_ARGS__)) throw ::mc::cuda::LtFailure{#name, status}

/// Make the plan of a product whose arrays are all aligned to `alignment` bytes; not usable if there is no algorithm for it.
inline LtPlan make_lt_plan(const Stream& stream, const CublasLt& blas, const LtProduct& p, uint32_t alignment) {
  LtPlan plan = {};
  const int trans_a = p.trans_a, trans_b = p.trans_b;
  const uint32_t epilogue = uint32_t(p.epilogue);
  const bool tf32 = blas.tf32 && p.input == lt::kReal32;
  MC_CUBLASLT(blas, cublasLtMatmulDescCreate, &plan.product, tf32 ? lt::kComputeTf32 : lt::kCompute32, lt::kReal32);
  auto set = [&](int attribute, const auto& value) {
    MC_CUBLASLT(blas, cublasLtMatmulDescSetAttribute, plan.product, attribute, &value, sizeof(value));
  };
  set(lt::MATMUL_DESC_TRANSA, trans_a), set(lt::MATMUL_DESC_TRANSB, trans_b), set(lt::MATMUL_DESC_EPILOGUE, epilogue);
  if (p.bias) set(lt::MATMUL_DESC_BIAS_POINTER, p.bias);  // the heuristic looks at its alignment
  auto matrix = [&](void*& made, int type, bool trans, index_t rows, index_t columns) {
    if (trans) std::swap(rows, columns);
    MC_CUBLASLT(blas, cublasLtMatrixLayoutCreate, &made, type, rows, columns, rows);
  };
  matrix(plan.a, p.input, p.trans_a, p.m, p.k), matrix(plan.b, p.input, p.trans_b, p.k, p.n);
  matrix(plan.d, p.output, false, p.m, p.n);
  void* preference = nullptr;
  const uint64_t workspace = stream.workspace_bytes;
  const uint32_t reductions = lt::REDUCTION_SCHEME_NONE;
  MC_CUBLASLT(blas, cublasLtMatmulPreferenceCreate, &preference);
  auto prefer = [&](int attribute, const auto& value) {
    MC_CUBLASLT(blas, cublasLtMatmulPreferenceSetAttribute, preference, attribute, &value, sizeof(value));
  };
  prefer(lt::MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  if (blas.deterministic) prefer(lt::MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  for (int which = lt::MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; which <= lt::MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; ++which)
    prefer(which, alignment);
  int found = 0;
  const int status = blas.call.cublasLtMatmulAlgoGetHeuristic(stream.libraries->cublas, plan.product, plan.a, plan.b, plan.d,
                                                              plan.d, preference, 1, &plan.choice, &found);
  if (status && status != lt::kNotSupported) throw LtFailure{"cublasLtMatmulAlgoGetHeuristic", status};
  plan.usable = !status && found > 0 && !plan.choice.state;
  MC_CUBLASLT(blas, cublasLtMatmulPreferenceDestroy, preference);
  return plan;
}

inline bool has_cublaslt(const Context& on) { return on.stream && on.stream->libraries && on.stream->libraries->cublaslt; }

/// Compute it on the stream; false if cuBLASLt is missing, has no algorithm for this product, or cannot use a bias at this address:
/// then the caller computes it in another way. True also after an error, which is stored in the stream. With `trial` nothing is
/// computed, and `d` may be null.
inline bool lt_product(const Context& on, const LtProduct& p, bool trial = false) {
  if (!has_cublaslt(on) || p.m <= 0 || p.n <= 0 || p.k <= 0 || size_t(p.bias) % lt::kBiasAligned) return false;
  Stream& stream = *on.stream;
  const Libraries& libraries = *stream.libraries;
  CublasLt& blas = *libraries.cublaslt;
  if (stream.failed) return true;
  // The lowest bit of all: the alignment that the arrays have in common, at most kMostAligned.
  const size_t all = size_t(p.a) | size_t(p.b) | size_t(p.bias) | size_t(p.d) | lt::kMostAligned, alignment = all & -all;
  std::lock_guard<std::mutex> lock(blas.mutex);
  try {
    const LtKey key = {p.trans_a, p.trans_b, p.m, p.n, p.k, p.epilogue, p.input, p.output, index_t(alignment), blas.tf32};
    auto at = blas.plans.find(key);
    if (at == blas.plans.end()) at = blas.plans.emplace(key, make_lt_plan(stream, blas, p, uint32_t(alignment))).first;
    LtPlan& plan = at->second;
    if (trial || !plan.usable) return plan.usable;
    const bool watched = stream.recording;
    const float one = 1;
    if (p.bias)
      MC_CUBLASLT(blas, cublasLtMatmulDescSetAttribute, plan.product, lt::MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof(p.bias));
    if (watched) libraries.watch(&stream, nullptr);
    MC_CUBLASLT(blas, cublasLtMatmul, libraries.cublas, plan.product, &one, p.a, plan.a, p.b, plan.b, &p.beta, p.d, plan.d, p.d,
                plan.d, &plan.choice.algorithm, stream.workspace, plan.choice.workspace, stream.handle);
    if (watched) libraries.watch(&stream, "cublasLtMatmul");
  } catch (const LtFailure& stop) {
    libraries.fail(&stream, stop.call, stop.status);
  }
  return true;
}

}  // namespace cuda
}  // namespace mc
