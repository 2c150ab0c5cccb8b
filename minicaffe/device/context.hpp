// Where an operation runs: on threads of the CPU, or on a stream of a device (Caffe2's Context).
//
// The first argument of the operations in this folder is a Context; they run on CPU or device with the same functor. Pointers are
// to memory of the context.
#pragma once
#include "minicaffe/device/apply.hpp"
#include "minicaffe/device/stream.hpp"
#include "minicaffe/kernels/vector.hpp"

namespace mc {

struct Context {
  cpu::Threads threads;
  cuda::Stream* stream;  // null: the CPU
};

/// f(i) for 0 <= i < n; `cost` is the work of one index in units of one element-wise operation.
template <class F> void for_each(const Context& on, index_t n, const F& f, index_t cost = 1) {
  if (on.stream) return cuda::for_each(*on.stream, n, f);
  cpu::for_each(on.threads, n, f, cost);
}

/// y[i] = f(x[i], ...) of up to three inputs; `rest` are further inputs and, last, y.
template <class F, class T, class... Rest> void map(const Context& on, index_t n, const F& f, const T* x, Rest... rest) {
  if (on.stream)
    return cuda::launch(*on.stream, Vector<F, T, sizeof...(Rest)>{{f, x, rest...}, n},
                        cuda::blocks_for(*on.stream, (n + 1) / 2, kVectorThreads));
  cpu::map(on.threads, n, f, x, rest...);
}

template <class T> void fill(const Context& on, index_t n, T value, T* y) { for_each(on, n, Fill<T>{value, y}); }

}  // namespace mc
