// A cuDNN (and the few calls of cuBLAS) that writes each call as a JSON line to the file FAKE_LOG. With FAKE_COMPUTES set cuDNN's
// calls also compute, slowly (slow_cudnn.hpp).
//
// Descriptors are written as what they were set to, pointers as numbers, factors as values of the tensors' type. FAKE_FAIL holds
// statuses to return instead, "cudnnConvolutionForward=3000,...". Prototypes are written down again here, from NVIDIA's documentation
// and not from minicaffe/cuda/cudnn.hpp, so that a slip in one of the two shows.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include "slow_cudnn.hpp"

namespace {

struct Descriptor {
  std::string text;
  bool is_double;
  slow::Shape shape, pad, stride, dilation;  // of a tensor; of a convolution
  int number = 1;                            // of groups; size of an LRN
  double reals[3] = {};                      // alpha, beta, k of an LRN

  slow::Tensor tensor() const { return {shape, is_double}; }
};
using D = Descriptor*;

std::string quoted(const std::string& text) { return "\"" + text + "\""; }
std::string list(int n, const int* values) {
  std::string text = "[";
  for (int i = 0; i < n; ++i) text += (i ? "," : "") + std::to_string(values[i]);
  return text + "]";
}
std::string show(D d) { return quoted(d ? d->text : "null"); }
std::string show(const void* p) { return std::to_string(reinterpret_cast<size_t>(p)); }
std::string show(int i) { return std::to_string(i); }
std::string show(size_t i) { return std::to_string(i); }
std::string show(double x) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", x);
  return text;
}
double value(D d, const void* p) { return d->is_double ? *(const double*)p : double(*(const float*)p); }
std::string factor(D d, const void* p) { return show(value(d, p)); }

template <class... Pairs> int call(const char* name, Pairs... pairs) {
  std::string parts[] = {pairs...};
  std::string line = "{\"call\": " + quoted(name);
  for (size_t i = 0; i + 1 < sizeof...(pairs); i += 2) line += ", " + quoted(parts[i]) + ": " + parts[i + 1];
  if (const char* path = std::getenv("FAKE_LOG"))
    if (FILE* file = std::fopen(path, "a")) {
      std::fprintf(file, "%s}\n", line.c_str());
      std::fclose(file);
    }
  std::string failing = std::string(",") + (std::getenv("FAKE_FAIL") ? std::getenv("FAKE_FAIL") : ""), key = "," + std::string(name) + "=";
  size_t at = failing.find(key);
  return at == std::string::npos ? 0 : std::atoi(failing.c_str() + at + key.size());
}
/// The status of a call that was noted; what it computes follows only if it succeeds.
template <class Work> int computed(int status, const Work& work) {
  if (status || !std::getenv("FAKE_COMPUTES")) return status;
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the slow cuDNN: %s\n", error.what());
    return 5000;
  }
  return 0;
}
int create(const char* name, D* made) {
  *made = new Descriptor{"unset", false};
  return call(name);
}

struct Perf {
  int algo, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};
// By advice algorithm 0 is the first, by measurement 4, which uses tensor cores whatever the descriptor says, then 1; 2 needs no
// memory; 3 needs more than a device has.
const Perf kOffers[] = {{0, 0, -1, 4096, 1, 0, {}}, {1, 0, -1, 1 << 20, 0, 3, {}}, {2, 0, -1, 0, 1, 3, {}},
                        {3, 0, -1, size_t(1) << 50, 1, 0, {}}, {4, 0, -1, 1 << 19, 1, 1, {}}, {6, 3000, -1, 0, 1, 0, {}}};
int offer(const int* order, int asked, int* count, Perf* out, size_t room) {
  *count = 0;
  for (int i = 0; i < 6 && *count < asked; ++i)
    if (kOffers[order[i]].memory <= room) out[(*count)++] = kOffers[order[i]];
  return 0;
}
int advise(const char* name, D a, D b, D conv, D c, int asked, int* count, Perf* out) {
  const int order[] = {0, 1, 3, 2, 4, 5};
  offer(order, asked, count, out, size_t(-1));
  return call(name, "a", show(a), "b", show(b), "conv", show(conv), "c", show(c), "asked", show(asked));
}
int measure(const char* name, D a, const void* pa, D b, const void* pb, D conv, D c, void* pc, int asked, int* count, Perf* out,
            void* workspace, size_t bytes) {
  const int order[] = {3, 4, 1, 0, 2, 5};
  offer(order, asked, count, out, bytes);
  return call(name, "a", show(a), "pa", show(pa), "b", show(b), "pb", show(pb), "conv", show(conv), "c", show(c), "pc", show((const void*)pc),
              "asked", show(asked), "workspace", show((const void*)workspace), "bytes", show(bytes));
}
int room(const char* name, D a, D b, D conv, D c, int algo, size_t* bytes) {
  *bytes = algo < 5 ? kOffers[algo].memory : 0;
  return call(name, "a", show(a), "b", show(b), "conv", show(conv), "c", show(c), "algo", show(algo));
}
int run(const char* name, const void* alpha, D a, const void* pa, D b, const void* pb, D conv, int algo, void* workspace, size_t bytes,
        const void* beta, D c, void* pc) {
  int status = call(name, "alpha", factor(c, alpha), "a", show(a), "pa", show(pa), "b", show(b), "pb", show(pb), "conv", show(conv),
                    "algo", show(algo), "workspace", show((const void*)workspace), "bytes", show(bytes), "beta", factor(c, beta), "c",
                    show(c), "pc", show((const void*)pc));
  return computed(status, [&] {
    // Each is the image, the weights or the columns, as the product has it.
    const bool forward = !std::strcmp(name, "cudnnConvolutionForward"), data = !std::strcmp(name, "cudnnConvolutionBackwardData");
    const slow::Values va = a->tensor().read(pa), vb = b->tensor().read(pb);
    slow::Values out(slow::count(c->shape));
    const D image = data ? c : a, weights = forward ? b : data ? a : c, columns = forward ? c : b;
    slow::convolve(image->shape, weights->shape, columns->shape, conv->pad, conv->stride, conv->dilation, conv->number,
                   [&](size_t i, size_t w, size_t o) {
                     if (forward) out[o] += va[i] * vb[w];
                     else if (data) out[i] += va[w] * vb[o];
                     else out[w] += va[i] * vb[o];
                   });
    c->tensor().blend(pc, value(c, alpha), out, value(c, beta));
  });
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return std::getenv("FAKE_VERSION") ? std::atoi(std::getenv("FAKE_VERSION")) : 92800; }
const char* cudnnGetErrorString(int status) {
  return status == 3000 ? "CUDNN_STATUS_NOT_SUPPORTED" : status == 3002 ? "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"
         : status == 5000 ? "CUDNN_STATUS_EXECUTION_FAILED" : status == 1001 ? "CUDNN_STATUS_NOT_INITIALIZED" : "CUDNN_STATUS_OTHER";
}
void cudnnGetLastErrorString(char* text, size_t size) { std::snprintf(text, size, "said the fake"); }
int cudnnCreate(void** handle) { *handle = (void*)0x1234; return call("cudnnCreate"); }
int cudnnSetStream(void* handle, void* stream) { return call("cudnnSetStream", "handle", show((const void*)handle), "stream", show((const void*)stream)); }

int cudnnCreateTensorDescriptor(D* d) { return create("cudnnCreateTensorDescriptor", d); }
int cudnnSetTensorNdDescriptorEx(D d, int format, int type, int n, const int* dims) {
  *d = {"tensor " + show(format) + " " + show(type) + " " + list(n, dims), type == 1, slow::Shape(dims, dims + n)};
  return call("cudnnSetTensorNdDescriptorEx");
}
int cudnnCreateFilterDescriptor(D* d) { return create("cudnnCreateFilterDescriptor", d); }
int cudnnSetFilterNdDescriptor(D d, int type, int format, int n, const int* dims) {
  *d = {"filter " + show(format) + " " + show(type) + " " + list(n, dims), type == 1, slow::Shape(dims, dims + n)};
  return call("cudnnSetFilterNdDescriptor");
}
int cudnnCreateConvolutionDescriptor(D* d) { return create("cudnnCreateConvolutionDescriptor", d); }
int cudnnSetConvolutionNdDescriptor(D d, int n, const int* pad, const int* stride, const int* dilation, int mode, int type) {
  d->pad.assign(pad, pad + n), d->stride.assign(stride, stride + n), d->dilation.assign(dilation, dilation + n);
  d->text = "pad " + list(n, pad) + " stride " + list(n, stride) + " dilation " + list(n, dilation) + " mode " + show(mode) + " type " + show(type);
  return call("cudnnSetConvolutionNdDescriptor");
}
int cudnnSetConvolutionGroupCount(D d, int groups) {
  d->number = groups;
  d->text += " groups " + show(groups);
  return call("cudnnSetConvolutionGroupCount");
}
int cudnnSetConvolutionMathType(D d, int math) {
  d->text = d->text.substr(0, d->text.find(" math")) + " math " + show(math);
  return call("cudnnSetConvolutionMathType");
}

#define PRODUCT(kind)                                                                                                             \
  int cudnnGetConvolution##kind##Algorithm_v7(void*, D a, D b, D conv, D c, int asked, int* count, Perf* out) {                    \
    return advise("cudnnGetConvolution" #kind "Algorithm_v7", a, b, conv, c, asked, count, out);                                   \
  }                                                                                                                               \
  int cudnnFindConvolution##kind##AlgorithmEx(void*, D a, const void* pa, D b, const void* pb, D conv, D c, void* pc, int asked,   \
                                              int* count, Perf* out, void* workspace, size_t bytes) {                             \
    return measure("cudnnFindConvolution" #kind "AlgorithmEx", a, pa, b, pb, conv, c, pc, asked, count, out, workspace, bytes);    \
  }                                                                                                                               \
  int cudnnGetConvolution##kind##WorkspaceSize(void*, D a, D b, D conv, D c, int algo, size_t* bytes) {                            \
    return room("cudnnGetConvolution" #kind "WorkspaceSize", a, b, conv, c, algo, bytes);                                          \
  }                                                                                                                               \
  int cudnnConvolution##kind(void*, const void* alpha, D a, const void* pa, D b, const void* pb, D conv, int algo,                 \
                             void* workspace, size_t bytes, const void* beta, D c, void* pc) {                                     \
    return run("cudnnConvolution" #kind, alpha, a, pa, b, pb, conv, algo, workspace, bytes, beta, c, pc);                          \
  }
PRODUCT(Forward)
PRODUCT(BackwardData)
PRODUCT(BackwardFilter)

int cudnnCreateLRNDescriptor(D* d) { return create("cudnnCreateLRNDescriptor", d); }
int cudnnSetLRNDescriptor(D d, unsigned n, double alpha, double beta, double k) {
  d->number = int(n), d->reals[0] = alpha, d->reals[1] = beta, d->reals[2] = k;
  d->text = "lrn " + show(int(n)) + " " + show(alpha) + " " + show(beta) + " " + show(k);
  return call("cudnnSetLRNDescriptor");
}
int cudnnLRNCrossChannelForward(void*, D lrn, int mode, const void* alpha, D x, const void* px, const void* beta, D y, void* py) {
  int status = call("cudnnLRNCrossChannelForward", "op", show(lrn), "mode", show(mode), "alpha", factor(y, alpha), "x", show(x), "px", show(px),
              "beta", factor(y, beta), "y", show(y), "py", show((const void*)py));
  return computed(status, [&] {
    const slow::Values from = x->tensor().read(px);
    slow::Values to(from.size());
    slow::each_place(x->shape, [&](const std::vector<size_t>& at) {
      for (int c = 0; c < int(at.size()); ++c)
        to[at[c]] = from[at[c]] * std::pow(slow::lrn_scale(from, at, c, lrn->number, lrn->reals[0], lrn->reals[2]), -lrn->reals[1]);
    });
    y->tensor().blend(py, value(y, alpha), to, value(y, beta));
  });
}
int cudnnLRNCrossChannelBackward(void*, D lrn, int mode, const void* alpha, D y, const void* py, D dy, const void* pdy, D x,
                                 const void* px, const void* beta, D dx, void* pdx) {
  int status = call("cudnnLRNCrossChannelBackward", "op", show(lrn), "mode", show(mode), "alpha", factor(dx, alpha), "y", show(y), "py", show(py),
              "dy", show(dy), "pdy", show(pdy), "x", show(x), "px", show(px), "beta", factor(dx, beta), "dx", show(dx), "pdx",
              show((const void*)pdx));
  return computed(status, [&] {
    const slow::Values vx = x->tensor().read(px), vy = y->tensor().read(py), vdy = dy->tensor().read(pdy);
    slow::Values to(vx.size());
    const int n = lrn->number;
    slow::each_place(x->shape, [&](const std::vector<size_t>& at) {
      for (int c = 0; c < int(at.size()); ++c) {
        double sum = 0;
        for (int j = std::max(0, c - n / 2); j <= std::min(int(at.size()) - 1, c + n / 2); ++j)
          sum += vdy[at[j]] * vy[at[j]] / slow::lrn_scale(vx, at, j, n, lrn->reals[0], lrn->reals[2]);
        to[at[c]] = vdy[at[c]] * std::pow(slow::lrn_scale(vx, at, c, n, lrn->reals[0], lrn->reals[2]), -lrn->reals[1]) -
                    2 * lrn->reals[0] * lrn->reals[1] / n * vx[at[c]] * sum;
      }
    });
    dx->tensor().blend(pdx, value(dx, alpha), to, value(dx, beta));
  });
}
int cudnnBatchNormalizationForwardTraining(void*, int mode, const void* alpha, const void* beta, D x, const void* px, D y, void* py,
                                           D numbers, const void* scale, const void* bias, double rate, void* running_mean,
                                           void* running_variance, double epsilon, void* saved_mean, void* saved_factor) {
  int status = call("cudnnBatchNormalizationForwardTraining", "mode", show(mode), "alpha", factor(y, alpha), "beta", factor(y, beta), "x",
              show(x), "px", show(px), "y", show(y), "py", show((const void*)py), "numbers", show(numbers), "scale", show(scale),
              "bias", show(bias), "rate", show(rate), "running", "[" + show((const void*)running_mean) + "," +
              show((const void*)running_variance) + "]", "epsilon", show(epsilon), "saved", "[" + show((const void*)saved_mean) +
              "," + show((const void*)saved_factor) + "]");
  return computed(status, [&] {
    const slow::Values from = x->tensor().read(px), scales = numbers->tensor().read(scale), shifts = numbers->tensor().read(bias);
    slow::Values to(from.size()), means(scales.size()), factors(means), unbiased(means);
    slow::each_channel(x->shape, [&](int c, const std::vector<size_t>& at) {
      double variance = 0;
      for (size_t i : at) means[c] += from[i] / at.size();
      for (size_t i : at) variance += (from[i] - means[c]) * (from[i] - means[c]) / at.size();
      factors[c] = 1 / std::sqrt(variance + epsilon), unbiased[c] = variance * at.size() / (at.size() - 1.0);
      for (size_t i : at) to[i] = (from[i] - means[c]) * factors[c] * scales[c] + shifts[c];
    });
    y->tensor().blend(py, value(y, alpha), to, value(y, beta));
    numbers->tensor().write(saved_mean, means);
    numbers->tensor().write(saved_factor, factors);
    numbers->tensor().blend(running_mean, rate, means, 1 - rate);
    numbers->tensor().blend(running_variance, rate, unbiased, 1 - rate);
  });
}
int cudnnBatchNormalizationBackward(void*, int mode, const void* alpha, const void* beta, const void* alpha_numbers,
                                    const void* beta_numbers, D x, const void* px, D dy, const void* pdy, D dx, void* pdx, D numbers,
                                    const void* scale, void* dscale, void* dbias, double epsilon, const void* saved_mean,
                                    const void* saved_factor) {
  int status = call("cudnnBatchNormalizationBackward", "mode", show(mode), "alpha", factor(dx, alpha), "beta", factor(dx, beta),
              "alpha_numbers", factor(numbers, alpha_numbers), "beta_numbers", factor(numbers, beta_numbers), "x", show(x), "px",
              show(px), "dy", show(dy), "pdy", show(pdy), "dx", show(dx), "pdx", show((const void*)pdx), "numbers", show(numbers),
              "scale", show(scale), "unused", "[" + show((const void*)dscale) + "," + show((const void*)dbias) + "]", "epsilon",
              show(epsilon), "saved", "[" + show(saved_mean) + "," + show(saved_factor) + "]");
  return computed(status, [&] {
    const slow::Values from = x->tensor().read(px), vdy = dy->tensor().read(pdy), scales = numbers->tensor().read(scale);
    const slow::Values means = numbers->tensor().read(saved_mean), factors = numbers->tensor().read(saved_factor);
    slow::Values to(from.size()), dscales(scales.size()), dshifts(scales.size());
    slow::each_channel(x->shape, [&](int c, const std::vector<size_t>& at) {
      for (size_t i : at) dshifts[c] += vdy[i], dscales[c] += vdy[i] * (from[i] - means[c]) * factors[c];
      for (size_t i : at)
        to[i] = scales[c] * factors[c] * (vdy[i] - dshifts[c] / at.size() - (from[i] - means[c]) * factors[c] * dscales[c] / at.size());
    });
    dx->tensor().blend(pdx, value(dx, alpha), to, value(dx, beta));
    numbers->tensor().blend(dscale, value(numbers, alpha_numbers), dscales, value(numbers, beta_numbers));
    numbers->tensor().blend(dbias, value(numbers, alpha_numbers), dshifts, value(numbers, beta_numbers));
  });
}

// ---- cuBLAS

const char* cublasGetStatusString(int status) { return status == 13 ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_STATUS_OTHER"; }
int cublasCreate_v2(void** handle) { *handle = (void*)0x77; return call("cublasCreate_v2"); }
int cublasGetVersion_v2(void* handle, int* version) {
  *version = 130100;
  return handle == (void*)0x77 ? 0 : 1;
}
int cublasSetStream_v2(void* handle, void* stream) { return call("cublasSetStream_v2", "handle", show((const void*)handle), "stream", show((const void*)stream)); }
int cublasSetMathMode(void* handle, int mode) { return call("cublasSetMathMode", "handle", show((const void*)handle), "mode", show(mode)); }
int cublasSetWorkspace_v2(void* handle, void* memory, size_t bytes) {
  return call("cublasSetWorkspace_v2", "handle", show((const void*)handle), "memory", show((const void*)memory), "bytes", show(bytes));
}
#define GEMM(name, T)                                                                                                             \
  int name(void* handle, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, long long sa, const T* b, int ldb, \
           long long sb, const T* beta, T* c, int ldc, long long sc, int batches) {                                               \
    return call(#name, "handle", show((const void*)handle), "trans", "[" + show(ta) + "," + show(tb) + "]", "mnk",                  \
                "[" + show(m) + "," + show(n) + "," + show(k) + "]", "alpha", show(double(*alpha)), "beta", show(double(*beta)),    \
                "a", show((const void*)a), "b", show((const void*)b), "c", show((const void*)c), "ld",                             \
                "[" + show(lda) + "," + show(ldb) + "," + show(ldc) + "]", "strides",                                              \
                "[" + show(size_t(sa)) + "," + show(size_t(sb)) + "," + show(size_t(sc)) + "]", "batches", show(batches));         \
  }
GEMM(cublasSgemmStridedBatched, float)
GEMM(cublasDgemmStridedBatched, double)
}
