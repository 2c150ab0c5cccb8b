// cuBLASLt as NVIDIA's header describes it, as far as minicaffe calls it: part of fake_cudnn.cpp. Numbers are written down again here.
//
// What is wrong is said on standard error and is status 7: an attribute of another type, a leading dimension that is too small, matrices
// that do not fit together, an epilogue without its bias, an algorithm for another product, addresses that are less aligned than was
// said to the heuristic, a bias that is not aligned to 16 bytes, too little workspace. FAKE_LT names what has no algorithm: epilogues "bias",
// "relu", "sums"; "bf16" or its products "forward", "data", "weights".
#pragma once
#include <map>
#include <mutex>
#include <set>
#include "minicaffe/kernels/types.hpp"

namespace lt {

std::mutex mutex;

struct Product {
  int compute, trans_a = 0, trans_b = 0;
  unsigned epilogue = 1;
  void* bias = nullptr;
};
struct Layout {
  int type;
  unsigned long long rows, columns;
  long long ld;
};
constexpr int kBf16 = 14;  // CUDA_R_16BF
enum { kRelu = 2, kBias = 4, kSumsA = 256, kSumsB = 512 };  // of epilogues
struct Preference {
  unsigned long long workspace = 0;
  unsigned reductions = 7, aligned[4] = {256, 256, 256, 256};
};
struct Algorithm { unsigned long long data[8]; };
struct Choice {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
std::map<void*, Product> products;
std::map<void*, Layout> layouts;
std::map<void*, Preference> preferences;
struct Made { std::string what; Preference preference; };
std::map<unsigned long long, Made> algorithms;  // those of the heuristic, by number

template <class T> T& at(std::map<void*, T>& of, void* handle, const char* what) {
  auto found = of.find(handle);
  require(found != of.end(), std::string("no ") + what);
  return found->second;
}
template <class T> T value(const void* from, size_t bytes, const char* what) {
  require(bytes == sizeof(T) && from, std::string("size of ") + what);
  T read;
  std::memcpy(&read, from, bytes);
  return read;
}
template <class T> void* put(std::map<void*, T>& into, T made) {
  void* handle = new char;
  into[handle] = made;
  return handle;
}
template <class Work> int guarded(const char* name, const Work& work) {
  std::lock_guard<std::mutex> lock(mutex);
  const int status = failing(name);
  return status ? status : checked(name, 7, work);
}

/// All that an algorithm is for.
std::string describe(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const auto m = p.trans_a ? a.columns : a.rows, k = p.trans_a ? a.rows : a.columns;
  const auto inner = p.trans_b ? b.columns : b.rows, n = p.trans_b ? b.rows : b.columns;
  require(k == inner && d.rows == m && d.columns == n && c.rows == m && c.columns == n, "matrices that do not fit together");
  require(std::set<unsigned>{1, kRelu, kBias, kBias | kRelu, kSumsA, kSumsB}.count(p.epilogue), "epilogue");
  require((p.epilogue & (kBias | kSumsA | kSumsB)) == 0 || p.bias, "no bias");
  require(a.type == b.type && c.type == d.type && (a.type == kBf16 || d.type == 0) && (a.type == 0 || p.compute == 68), "types");
  return "[" + show(size_t(m)) + "," + show(size_t(n)) + "," + show(size_t(k)) + "] trans [" + show(p.trans_a) + "," + show(p.trans_b) +
         "] ld [" + show(size_t(a.ld)) + "," + show(size_t(b.ld)) + "," + show(size_t(d.ld)) + "] epilogue " + show(int(p.epilogue)) +
         " compute " + show(p.compute) + (a.type ? d.type ? " bf16" : " bf16 to float" : "");
}
bool is_aligned(const void* p, unsigned to) { return reinterpret_cast<size_t>(p) % to == 0; }

}  // namespace lt

#ifndef WITHOUT_CUBLASLT
extern "C" {

int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  return lt::guarded("cublasLtMatmulDescCreate", [&] {
    require((compute == 68 || compute == 77) && scale == 0, "types");
    return *made = lt::put(lt::products, {compute}), 0;
  });
}
int cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* from, size_t bytes) {
  return lt::guarded("cublasLtMatmulDescSetAttribute", [&] {
    lt::Product& product = lt::at(lt::products, handle, "product");
    if (attribute == 3) product.trans_a = lt::value<int>(from, bytes, "trans a");
    else if (attribute == 4) product.trans_b = lt::value<int>(from, bytes, "trans b");
    else if (attribute == 7) product.epilogue = lt::value<unsigned>(from, bytes, "epilogue");
    else if (attribute == 8) product.bias = lt::value<void*>(from, bytes, "bias");
    else require(false, "attribute " + std::to_string(attribute));
    return 0;
  });
}
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  return lt::guarded("cublasLtMatrixLayoutCreate", [&] {
    require((type == 0 || type == lt::kBf16) && rows && columns && ld >= int64_t(rows), "layout");
    return *made = lt::put(lt::layouts, {type, rows, columns, ld}), 0;
  });
}
int cublasLtMatmulPreferenceCreate(void** made) {
  return lt::guarded("cublasLtMatmulPreferenceCreate", [&] { return *made = lt::put(lt::preferences, lt::Preference()), 0; });
}
int cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* from, size_t bytes) {
  return lt::guarded("cublasLtMatmulPreferenceSetAttribute", [&] {
    lt::Preference& preference = lt::at(lt::preferences, handle, "preference");
    if (attribute == 1) preference.workspace = lt::value<uint64_t>(from, bytes, "workspace");
    else if (attribute == 3) preference.reductions = lt::value<unsigned>(from, bytes, "reductions");
    else if (attribute >= 5 && attribute <= 8) preference.aligned[attribute - 5] = lt::value<unsigned>(from, bytes, "alignment");
    else require(false, "attribute " + std::to_string(attribute));
    return 0;
  });
}
int cublasLtMatmulPreferenceDestroy(void* handle) {
  return lt::guarded("cublasLtMatmulPreferenceDestroy", [&] {
    lt::at(lt::preferences, handle, "preference");
    return lt::preferences.erase(handle), delete static_cast<char*>(handle), 0;
  });
}
int cublasLtMatmulAlgoGetHeuristic(void* blas, void* product, void* a, void* b, void* c, void* d, void* preference, int most, lt::Choice* choices,
                                   int* found) {
  return lt::guarded("cublasLtMatmulAlgoGetHeuristic", [&] {
    const lt::Product& p = lt::at(lt::products, product, "product");
    const lt::Preference& prefer = lt::at(lt::preferences, preference, "preference");
    const std::string none = std::getenv("FAKE_LT") ? std::getenv("FAKE_LT") : "";
    const std::string what = lt::describe(p, lt::at(lt::layouts, a, "a"), lt::at(lt::layouts, b, "b"), lt::at(lt::layouts, c, "c"), lt::at(lt::layouts, d, "d"));
    require(blas == (void*)0x77 && most >= 1, "arguments");
    call("cublasLtMatmulAlgoGetHeuristic", "what", quoted(what), "workspace", show(size_t(prefer.workspace)), "reductions",
         show(int(prefer.reductions)), "aligned", show(int(prefer.aligned[0])));
    *found = 0;
    const auto lacks = [&](const char* name) { return none.find(name) != none.npos; };
    const bool sums = p.epilogue & (lt::kSumsA | lt::kSumsB), rounded = what.find("bf16") != what.npos;
    if ((p.epilogue & lt::kBias && lacks("bias")) || (p.epilogue & lt::kRelu && lacks("relu")) || (sums && lacks("sums"))) return 15;
    if (rounded && (lacks("bf16") || (p.trans_a ? lacks("forward") : p.trans_b ? lacks("weights") : lacks("data")))) return 15;
    const unsigned long long number = 100 + lt::algorithms.size();
    lt::algorithms[number] = {what, prefer};
    choices[0] = {{{number}}, size_t(prefer.reductions ? 4096 : 0), 0, 1, {}};
    return *found = 1, 0;
  });
}
int cublasLtMatmul(void* blas, void* product, const float* alpha, const void* a, void* la, const void* b, void* lb, const float* beta,
                   const void* c, void* lc, void* d, void* ld, const lt::Algorithm* algorithm, void* workspace, size_t bytes, void* stream) {
  return lt::guarded("cublasLtMatmul", [&] {
    const lt::Product p = lt::at(lt::products, product, "product");
    const lt::Layout A = lt::at(lt::layouts, la, "a"), B = lt::at(lt::layouts, lb, "b"), D = lt::at(lt::layouts, ld, "d");
    const std::string what = lt::describe(p, A, B, lt::at(lt::layouts, lc, "c"), D);
    auto made = lt::algorithms.find(algorithm->data[0]);
    require(made != lt::algorithms.end() && made->second.what == what, "an algorithm for another product");
    const lt::Preference& prefer = made->second.preference;
    require(bytes <= prefer.workspace && bytes >= (prefer.reductions ? 4096u : 0u) && (workspace || !bytes), "workspace");
    require(lt::is_aligned(a, prefer.aligned[0]) && lt::is_aligned(b, prefer.aligned[1]) && lt::is_aligned(c, prefer.aligned[2]) &&
                lt::is_aligned(d, prefer.aligned[3]), "alignment");
    require(p.epilogue == 1 || p.epilogue == lt::kRelu || lt::is_aligned(p.bias, 16), "a bias that is not aligned to 16 bytes");
    require(blas == (void*)0x77 && stream == slow::stream, "handle or stream");
    int status = call("cublasLtMatmul", "what", quoted(what), "a", show((const void*)a), "b", show((const void*)b), "d", show((const void*)d),
                      "bias", show((const void*)p.bias), "beta", show(double(*beta)), "bytes", show(bytes));
    require(c == d, "c apart from d");
    return computed(status, [=, one = double(*alpha), two = double(*beta)] {
      using mc::Bf16;
      auto run = [&](auto in, auto out) {
        using X = decltype(in);
        using Y = decltype(out);
        const size_t depth = p.trans_a ? A.rows : A.columns;
        auto left = [&](size_t i, size_t l) { return double(float(static_cast<const X*>(a)[p.trans_a ? l + i * A.ld : i + l * A.ld])); };
        auto right = [&](size_t l, size_t j) { return double(float(static_cast<const X*>(b)[p.trans_b ? j + l * B.ld : l + j * B.ld])); };
        Y *to = static_cast<Y*>(d), *bias = static_cast<Y*>(p.bias);
        for (size_t j = 0; j < D.columns; ++j)
          for (size_t i = 0; i < D.rows; ++i) {
            double sum = 0;
            for (size_t l = 0; l < depth; ++l) sum += left(i, l) * right(l, j);
            sum = one * sum + (two == 0 ? 0 : two * double(float(to[i + j * D.ld])));
            if (p.epilogue & lt::kBias) sum += double(float(bias[i]));
            to[i + j * D.ld] = Y(float(p.epilogue & lt::kRelu && sum < 0 ? 0 : sum));
          }
        // Of the gradient of a bias nothing is added to what is there, also with beta 1.
        const bool of_a = p.epilogue & lt::kSumsA, of_b = p.epilogue & lt::kSumsB;
        for (size_t i = 0; i < (of_a ? D.rows : of_b ? D.columns : 0); ++i) {
          double sum = 0;
          for (size_t l = 0; l < depth; ++l) sum += of_a ? left(i, l) : right(l, i);
          bias[i] = Y(float(sum));
        }
      };
      A.type == 0 ? run(0.f, 0.f) : D.type == 0 ? run(Bf16(), 0.f) : run(Bf16(), Bf16());
    });
  });
}
}
#endif
