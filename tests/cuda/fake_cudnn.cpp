// A cuDNN (and the few calls of cuBLAS and cuBLASLt) that writes each call as a JSON line to the file FAKE_LOG. With FAKE_COMPUTES set
// they also compute, slowly (slow_cudnn.hpp).
//
// Pointers are written as numbers. FAKE_FAIL holds statuses to return instead, "cudnnBackendExecute=3000,cudnnBackendFinalize
// plan=5000,...". Prototypes are written down again here, from NVIDIA's documentation and not from minicaffe/cuda/cudnn.hpp, so that a
// slip in one of the two shows. Convolutions: fake_graph.hpp, cuBLASLt: fake_cublaslt.hpp.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include "slow_cudnn.hpp"

namespace {

struct Descriptor {
  bool is_double;
  slow::Shape shape;     // of a tensor
  int number = 1;        // size of an LRN
  double reals[3] = {};  // alpha, beta, k of an LRN

  slow::Tensor tensor() const { return {shape, is_double}; }
};
using D = Descriptor*;

std::string quoted(const std::string& text) { return "\"" + text + "\""; }
std::string show(const void* p) { return std::to_string(reinterpret_cast<size_t>(p)); }
std::string show(int i) { return std::to_string(i); }
std::string show(size_t i) { return std::to_string(i); }
std::string show(double x) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", x);
  return text;
}
double value(D d, const void* p) { return d->is_double ? *(const double*)p : double(*(const float*)p); }

/// The status that FAKE_FAIL has for a call.
int failing(const std::string& name) {
  std::string all = std::string(",") + (std::getenv("FAKE_FAIL") ? std::getenv("FAKE_FAIL") : ""), key = "," + name + "=";
  size_t at = all.find(key);
  return at == std::string::npos ? 0 : std::atoi(all.c_str() + at + key.size());
}
template <class... Pairs> int call(const char* name, Pairs... pairs) {
  std::string parts[] = {pairs...};
  std::string line = "{\"call\": " + quoted(name);
  for (size_t i = 0; i + 1 < sizeof...(pairs); i += 2) line += ", " + quoted(parts[i]) + ": " + parts[i + 1];
  if (const char* path = std::getenv("FAKE_LOG"))
    if (FILE* file = std::fopen(path, "a")) {
      std::fprintf(file, "%s}\n", line.c_str());
      std::fclose(file);
    }
  return failing(name);
}
void require(bool holds, const std::string& text) {
  if (!holds) throw std::runtime_error(text);
}
/// work(), or `status` where it throws, with a line on standard error.
template <class Work> int checked(const char* name, int status, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the slow cuDNN: %s: %s\n", name, error.what());
    return status;
  }
}
/// The status of a call that was noted; what it computes follows only if it succeeds. `work` holds all it needs: it may run later, often.
template <class Work> int computed(int status, const Work& work) {
  if (status || !std::getenv("FAKE_COMPUTES")) return status;
  if (int code = slow::launch([work] { checked("a kernel", 0, [&] { return work(), 0; }); })) return std::fprintf(stderr, "the slow cuDNN: the launch fails, %d\n", code), 5000;
  return 0;
}
int create(const char* name, D* made) {
  *made = new Descriptor{false};
  return call(name);
}

/// c = alpha op(a) op(b) + beta c, column-major
template <class T>
void multiply(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, double alpha, const T* a, size_t lda, const T* b, size_t ldb, double beta,
              T* c, size_t ldc) {
  for (size_t j = 0; j < n; ++j)
    for (size_t i = 0; i < m; ++i) {
      double sum = 0;
      for (size_t l = 0; l < k; ++l) sum += double(a[trans_a ? l + i * lda : i + l * lda]) * double(b[trans_b ? j + l * ldb : l + j * ldb]);
      c[i + j * ldc] = T(alpha * sum + (beta ? beta * double(c[i + j * ldc]) : 0));
    }
}

}  // namespace

#include "fake_cublaslt.hpp"
#include "fake_graph.hpp"

extern "C" {

size_t cudnnGetVersion() { return std::getenv("FAKE_VERSION") ? std::atoi(std::getenv("FAKE_VERSION")) : 92800; }
const char* cudnnGetErrorString(int status) {
  return status == 2000 ? "CUDNN_STATUS_BAD_PARAM" : status == 3000 ? "CUDNN_STATUS_NOT_SUPPORTED" : status == 3002 ? "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"
         : status == 5000 ? "CUDNN_STATUS_EXECUTION_FAILED" : status == 1001 ? "CUDNN_STATUS_NOT_INITIALIZED" : "CUDNN_STATUS_OTHER";
}
void cudnnGetLastErrorString(char* text, size_t size) { std::snprintf(text, size, "said the fake"); }
int cudnnCreate(void** handle) { *handle = (void*)0x1234; return call("cudnnCreate"); }
int cudnnSetStream(void* handle, void* stream) {
  slow::stream = stream;
  return call("cudnnSetStream", "handle", show((const void*)handle), "stream", show((const void*)stream));
}

int cudnnCreateTensorDescriptor(D* d) { return create("cudnnCreateTensorDescriptor", d); }
int cudnnSetTensorNdDescriptorEx(D d, int format, int type, int n, const int* dims) {
  *d = {type == 1, slow::Shape(dims, dims + n)};
  return format ? 2000 : call("cudnnSetTensorNdDescriptorEx");
}
int cudnnCreateLRNDescriptor(D* d) { return create("cudnnCreateLRNDescriptor", d); }
int cudnnSetLRNDescriptor(D d, unsigned n, double alpha, double beta, double k) {
  d->number = int(n), d->reals[0] = alpha, d->reals[1] = beta, d->reals[2] = k;
  return call("cudnnSetLRNDescriptor");
}
int cudnnLRNCrossChannelForward(void*, D lrn, int mode, const void* alpha, D x, const void* px, const void* beta, D y, void* py) {
  return computed(mode ? 2000 : call("cudnnLRNCrossChannelForward"), [px, py, a = value(y, alpha), b = value(y, beta), lrn = *lrn, x = *x, y = *y] {
    const slow::Values from = x.tensor().read(px);
    slow::Values to(from.size());
    slow::each_place(x.shape, [&](const std::vector<size_t>& at) {
      for (int c = 0; c < int(at.size()); ++c)
        to[at[c]] = from[at[c]] * std::pow(slow::lrn_scale(from, at, c, lrn.number, lrn.reals[0], lrn.reals[2]), -lrn.reals[1]);
    });
    y.tensor().blend(py, a, to, b);
  });
}
int cudnnLRNCrossChannelBackward(void*, D lrn, int mode, const void* alpha, D y, const void* py, D dy, const void* pdy, D x,
                                 const void* px, const void* beta, D dx, void* pdx) {
  return computed(mode ? 2000 : call("cudnnLRNCrossChannelBackward"), [px, py, pdy, pdx, a = value(dx, alpha), b = value(dx, beta), lrn = *lrn, x = *x, y = *y, dy = *dy, dx = *dx] {
    const slow::Values vx = x.tensor().read(px), vy = y.tensor().read(py), vdy = dy.tensor().read(pdy);
    slow::Values to(vx.size());
    const int n = lrn.number;
    slow::each_place(x.shape, [&](const std::vector<size_t>& at) {
      for (int c = 0; c < int(at.size()); ++c) {
        double sum = 0;
        for (int j = std::max(0, c - n / 2); j <= std::min(int(at.size()) - 1, c + n / 2); ++j)
          sum += vdy[at[j]] * vy[at[j]] / slow::lrn_scale(vx, at, j, n, lrn.reals[0], lrn.reals[2]);
        to[at[c]] = vdy[at[c]] * std::pow(slow::lrn_scale(vx, at, c, n, lrn.reals[0], lrn.reals[2]), -lrn.reals[1]) -
                    2 * lrn.reals[0] * lrn.reals[1] / n * vx[at[c]] * sum;
      }
    });
    dx.tensor().blend(pdx, a, to, b);
  });
}

// ---- cuBLAS

const char* cublasGetStatusString(int status) { return status == 13 ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_STATUS_OTHER"; }
int cublasCreate_v2(void** handle) { *handle = (void*)0x77; return call("cublasCreate_v2"); }
int cublasGetVersion_v2(void* handle, int* version) {
  *version = 130100;
  return handle == (void*)0x77 ? 0 : 1;
}
int cublasSetStream_v2(void* handle, void* stream) {
  slow::stream = stream;
  return call("cublasSetStream_v2", "handle", show((const void*)handle), "stream", show((const void*)stream));
}
int cublasSetMathMode(void* handle, int mode) { return call("cublasSetMathMode", "handle", show((const void*)handle), "mode", show(mode)); }
int cublasSetWorkspace_v2(void* handle, void* memory, size_t bytes) {
  return call("cublasSetWorkspace_v2", "handle", show((const void*)handle), "memory", show((const void*)memory), "bytes", show(bytes));
}
#define GEMM(name, T)                                                                                                               \
  int name(void* handle, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, long long sa, const T* b, int ldb, \
           long long sb, const T* beta, T* c, int ldc, long long sc, int batches) {                                                 \
    return computed(handle == (void*)0x77 ? call(#name) : 2000, [=, one = double(*alpha), two = double(*beta)] {                      \
      for (int batch = 0; batch < batches; ++batch)                                                                                 \
        multiply(ta, tb, m, n, k, one, a + batch * sa, lda, b + batch * sb, ldb, two, c + batch * sc, ldc);                          \
    });                                                                                                                             \
  }
GEMM(cublasSgemmStridedBatched, float)
GEMM(cublasDgemmStridedBatched, double)
}
