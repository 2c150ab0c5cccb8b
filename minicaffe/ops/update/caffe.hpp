// The fused update of all parameters of a net (ops/update/kernel.hpp), for an element type known only at run time.
//
// On the CPU each parameter is one pass; on a device up to kTensors parameters are one launch.
#pragma once
#include "minicaffe/ops/update/kernel_all.hpp"
#include "minicaffe/device/typed.hpp"

namespace mc {

/// One parameter of `count` elements. `rate` has the learning rate in it (in a graph capture it is lr_mult alone), `l2` or `l1` is
/// the weight decay of this parameter.
struct Parameter {
  void *w, *g, *h, *h2;  // weight, gradient, histories; h2 is h for rules with one history
  index_t count;
  double rate, l2, l1;
};

/// Zeros in n pieces of memory of a device, whose sizes are multiples of 4 bytes: the gradients before a backward.
inline void zero_all(const Context& on, int n, void* const* at, const index_t* nbytes) {
  for (int first = 0; first < n; first += kZeroTensors) {
    ZeroAll all = {};
    all.tensors = std::min(kZeroTensors, n - first);
    index_t chunks = 0;
    for (int i = 0; i < all.tensors; ++i) {
      all.at[i] = static_cast<unsigned*>(at[first + i]), all.words[i] = nbytes[first + i] / 4;
      all.first_chunk[i] = int(chunks);
      chunks += (all.words[i] + kZeroChunk - 1) / kZeroChunk;
    }
    all.first_chunk[all.tensors] = int(chunks);
    cuda::launch(*on.stream, all, unsigned(chunks));
  }
}

/// The update of all parameters by a rule whose members after `rate`, that of each parameter, are these: momentum, delta and so on.
template <template <class> class Rule, class T, class... P>
void update_as(const Context& on, int n, const Parameter* params, double scale, P... members) {
  if (!on.stream) {
    for (int i = 0; i < n; ++i) {
      const Parameter& p = params[i];
      cpu::for_each(on.threads, p.count,
                    Update<Rule<T>, T>{{T(scale), T(p.l2), T(p.l1)}, make<Rule<T>>(T(p.rate), T(members)...), static_cast<T*>(p.w),
                                       static_cast<T*>(p.g), static_cast<T*>(p.h), static_cast<T*>(p.h2)});
    }
    return;
  }
  for (int first = 0; first < n; first += kTensors) {
    UpdateAll<Rule<T>, T> all = {};
    all.rule = make<Rule<T>>(T(1), T(members)...);
    all.scale = T(scale);
    all.rate = on.stream->rate;
    all.tensors = std::min(kTensors, n - first);
    index_t chunks = 0;
    for (int i = 0; i < all.tensors; ++i) {
      const Parameter& p = params[first + i];
      all.tensor[i] = {static_cast<T*>(p.w), static_cast<T*>(p.g), static_cast<T*>(p.h), static_cast<T*>(p.h2),
                       p.count,              T(p.rate),            T(p.l2),              T(p.l1)};
      all.first_chunk[i] = int(chunks);
      chunks += (p.count + kUpdateChunk - 1) / kUpdateChunk;
    }
    all.first_chunk[all.tensors] = int(chunks);
    cuda::launch(*on.stream, all, unsigned(chunks));
  }
}

template <template <class> class Rule, class... P>
void update(const Context& on, int dtype, int n, const Parameter* params, double scale, P... members) {
  dispatch(dtype, [&](auto type) { update_as<Rule, decltype(type)>(on, n, params, scale, members...); });
}

}  // namespace mc
