#include "device.hpp"
#include "minicaffe/ops/gemm/caffe.hpp"

using namespace test;

template <class T>
void naive(int order, int trans_a, int trans_b, int m, int n, int k, T alpha, const T* a, int lda, const T* b, int ldb, T beta,
           T* c, int ldc) {
  if (order != 101) fail("not row-major");
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int p = 0; p < k; ++p)
        sum += double(trans_a == 112 ? a[index_t(p) * lda + i] : a[index_t(i) * lda + p]) *
               (trans_b == 112 ? b[index_t(j) * ldb + p] : b[index_t(p) * ldb + j]);
      T& to = c[index_t(i) * ldc + j];
      to = T(alpha * sum + (beta == T(0) ? 0.0 : double(beta) * to));
    }
}

/// What cuBLAS does: all matrices column-major, each batch with strides.
template <class T>
int column_major(void*, int trans_a, int trans_b, int m, int n, int k, const T* alpha, const T* a, int lda, long long stride_a,
                 const T* b, int ldb, long long stride_b, const T* beta, T* c, int ldc, long long stride_c, int batches) {
  for (int batch = 0; batch < batches; ++batch, a += stride_a, b += stride_b, c += stride_c)
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int p = 0; p < k; ++p)
          sum += double(trans_a ? a[p + index_t(i) * lda] : a[i + index_t(p) * lda]) *
                 (trans_b ? b[j + index_t(p) * ldb] : b[p + index_t(j) * ldb]);
        T& to = c[i + index_t(j) * ldc];
        to = T(*alpha * sum + (*beta == T(0) ? 0.0 : double(*beta) * to));
      }
  return 0;
}

struct Size {
  int m, n, k, pad, count, terms;
};

template <class T> void gemm_case(Size z, bool trans_a, bool trans_b, T alpha, T beta, const char* what) {
  static const mc::cpu::Blas blas{naive<float>, naive<double>};
  index_t lda = (trans_a ? z.m : z.k) + z.pad, ldb = (trans_b ? z.k : z.n) + z.pad, ldc = z.n + z.pad;
  index_t size_a = (trans_a ? z.k : z.m) * lda, size_b = (trans_b ? z.n : z.k) * ldb, size_c = z.m * ldc;
  mc::GemmBatches batches;
  batches.count = z.count, batches.terms = z.terms;
  batches.term_a = size_a, batches.term_b = size_b;
  batches.a = size_a * z.terms, batches.b = size_b * z.terms, batches.c = size_c;
  size_t all = size_t(z.count) * size_t(z.terms);
  // Not a word more than a matrix has: the last row of each operand ends with the matrix, not with its leading dimension.
  size_t cut = size_t(z.pad);
  auto room = [&](index_t size, size_t n) { return n && size ? size_t(size) * n - cut : 0; };
  Array<T> a(room(size_a, all), 1), b(room(size_b, all), 2), start(room(size_c, size_t(z.count)), 3);
  std::vector<double> want(start.data, start.data + start.count);
  for (int i = 0; i < z.count; ++i)
    for (int r = 0; r < z.m; ++r)
      for (int s = 0; s < z.n; ++s) {
        double sum = 0;
        for (int t = 0; t < z.terms; ++t) {
          const T *x = a.data + i * batches.a + t * size_a, *y = b.data + i * batches.b + t * size_b;
          for (int p = 0; p < z.k; ++p)
            sum += double(x[trans_a ? p * lda + r : r * lda + p]) * y[trans_b ? s * ldb + p : p * ldb + s];
        }
        double& to = want[size_t(i * size_c + r * ldc + s)];
        to = alpha * sum + (beta == T(0) ? 0.0 : beta * to);
      }
  on_both(text("%s %d x %d x %d + %d, %d batches of %d terms, %d%d, alpha %g beta %g, %zu bytes", what, z.m, z.n, z.k, z.pad,
               z.count, z.terms, trans_a, trans_b, double(alpha), double(beta), sizeof(T)),
          [&](const mc::Context& on) {
            Array<T> c(start);
            if (beta == T(0))  // what is there must not be read; but what lies between the rows must stay
              for (int i = 0; i < z.count; ++i)
                for (int r = 0; r < z.m; ++r)
                  for (int s = 0; s < z.n; ++s) c[size_t(i * size_c + r * ldc + s)] = T(NAN);
            mc::gemm(on, blas, trans_a, trans_b, z.m, z.n, z.k, alpha, a.data, lda, b.data, ldb, beta, c.data, ldc, batches);
            expect("C", c.data, want, (sizeof(T) == 4 ? 1e-6 : 1e-12) * std::sqrt(100.0 + z.k * z.terms));
          });
}

template <class T> void gemm_cases(const std::vector<Size>& sizes, const char* what) {
  for (Size z : sizes)
    for (int trans = 0; trans < 4; ++trans) {
      gemm_case<T>(z, trans & 1, trans & 2, T(1), T(0), what);
      gemm_case<T>(z, trans & 1, trans & 2, T(-0.5), T(2), what);
    }
}

// m, n, k, padding of rows, batches, terms
static const std::vector<Size> kSizes = {
    {1, 1, 1, 0, 1, 1},  {2, 3, 4, 0, 1, 1},    {32, 32, 16, 0, 1, 1}, {33, 31, 17, 0, 1, 1}, {64, 64, 64, 4, 1, 1},
    {40, 50, 8, 1, 1, 1}, {5, 70, 100, 3, 1, 1}, {3, 4, 0, 0, 1, 1},    {0, 4, 3, 0, 1, 1},    {10, 12, 20, 0, 3, 1},
    {7, 9, 11, 0, 2, 5}, {20, 25, 64, 0, 1, 6}, {20, 25, 60, 0, 1, 5}, {20, 24, 300, 0, 2, 1}, {16, 16, 33, 2, 1, 4}};

CASE(gemm_small) {
  stream().multiprocessors = 64;
  for_both_types([](auto type) { gemm_cases<decltype(type)>(kSizes, "small tiles"); });
  gemm_case<float>({1, 2, 1, 0, 65537, 1}, false, false, 1, 0, "more batches than a grid has");
  stream().multiprocessors = 2;
}

CASE(gemm_large) {
  stream().multiprocessors = 1;
  for_both_types([](auto type) {
    gemm_cases<decltype(type)>({{128, 128, 8, 0, 1, 1}, {130, 140, 20, 0, 1, 1}, {128, 256, 24, 4, 1, 1}, {129, 127, 9, 1, 1, 1},
                                {120, 100, 12, 0, 2, 3}, {200, 150, 0, 0, 1, 1}}, "large tiles");
  });
  stream().multiprocessors = 2;
}

CASE(gemm_library) {
  static mc::cuda::Libraries libraries = {&libraries, column_major<float>, column_major<double>, nullptr};
  stream().libraries = &libraries;
  long long launches = stream().launches;
  for_both_types([](auto type) {
    gemm_cases<decltype(type)>({{2, 3, 4, 0, 1, 1}, {10, 12, 20, 3, 3, 1}, {7, 9, 11, 0, 2, 5}}, "library");
  });
  if (stream().launches != launches) fail("our kernel ran");
  stream().libraries = nullptr;
}
