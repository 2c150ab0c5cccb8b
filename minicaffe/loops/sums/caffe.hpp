// Sums over contiguous data, of all elements or of each channel, on CPU or device. The result is written to memory of that side.
// A term is what an element adds to a sum, such as its square.
#pragma once
#include <vector>
#include "minicaffe/device/typed.hpp"
#include "minicaffe/loops/lanes/caffe.hpp"
#include "minicaffe/loops/sums/kernel.hpp"

namespace mc {
namespace cpu {

/// Return the sum of term(i) for 0 <= i < n, in blocks of kSumBlock, so that it does not depend on the number of threads.
template <class T, class Term> double sum_terms(Threads threads, index_t n, const Term& term) {
  index_t blocks = (n + kSumBlock - 1) / kSumBlock;
  double small[64], total = 0;
  std::vector<double> large(blocks > 64 ? size_t(blocks) : 0);
  double* partial = blocks > 64 ? large.data() : small;
  for_each(threads, blocks, BlockSums<T, Term>{term, n, partial}, kSumBlock);
  for (index_t i = 0; i < blocks; ++i) total += partial[i];
  return total;
}

/// out[k] = coeff times the sum of term(i) over the elements i of channel k of [outer, channels, inner], added if `add`.
template <class T, class Term> void channel_sums(Threads threads, index_t outer, index_t channels, index_t inner,
                                                 const Term& term, double coeff, bool add, T* out) {
  std::vector<double> sums(size_t(channels), 0.0);
  if (channels == 1)
    sums[0] = sum_terms<T>(threads, outer * inner, term);
  else if (inner == 1)
    parallel(threads, channels, std::max<index_t>(1, kGrain / std::max<index_t>(1, outer)), [&](int, index_t b, index_t e) {
      for (index_t o = 0; o < outer; ++o) range(AddRow<Term>{term, o * channels, sums.data()}, b, e);
    });
  else
    for_each(threads, channels, ChannelSums<T, Term>{term, outer, channels, inner, sums.data()},
             std::max<index_t>(1, outer * inner));
  for (index_t k = 0; k < channels; ++k) out[k] = T((add ? double(out[k]) : 0.0) + coeff * sums[size_t(k)]);
}

}  // namespace cpu
namespace cuda {

// Enough blocks of 256 threads for the largest devices; more partial sums would only make the second launch slower.
constexpr index_t kSumBlocks = 1024;
// Elements, or packs, for each thread: with fewer of them, starting one more thread costs more than it saves.
constexpr index_t kSumPerThread = 16, kSumPacksPerThread = 8;

/// Call done(k, sum) for each channel k of the N arrays `of` on the device. The functor f.at(k) computes the term of an element of
/// channel k; without arrays (N is 0) it gets the index of the element (loops/sums/kernel.hpp). Channels in lanes, without padding,
/// are images with channels last, where the channels of each image are channels of their own: outer is 1.
///
/// One block adds a channel. If that leaves the device idle, several blocks add parts of it, and a second launch adds the parts.
template <class F, class T, int N, class Done>
void channel_sums(Stream& stream, const Channels& c, const F& f, const Arrays<T, N>& of, const Done& done) {
  using Total = Wide<F, T, N>;
  const index_t channels = c.channels, count = c.outer * c.inner;    // count: elements of a channel
  index_t inner = c.inner;
  if (channels == 0) return;
  const index_t max_parts = kScratch * index_t(sizeof(double)) / index_t(sizeof(Total)) / channels;  // that fit into scratch
  // launch_with(parts, store) launches `parts` blocks for a channel; store(k * parts + part, sum) gets the sum of each.
  auto launch_in_parts = [&](index_t wanted_parts, index_t blocks, const auto& launch_with) {
    const index_t parts = std::max<index_t>(1, std::min({wanted_parts, kSumBlocks / blocks, max_parts}));
    if (parts == 1) return launch_with(1u, done);
    Total* partial = reinterpret_cast<Total*>(stream.scratch);
    launch_with(unsigned(parts), StorePart<Total>{partial});
    using Add = EveryChannel<Same<Total>>;
    launch(stream, SumChannels<Add, Total, 1, Done>{Add(), {partial}, channels, parts, parts, kSumThreads / parts,
                                                    kSumThreads % parts, 1, done}, unsigned(channels));
  };
  if constexpr (N > 0) {
    if ((inner == 1 || c.lanes > 1) && channels > 1) {
      const index_t packs = (channels + Pack<T>::kSize - 1) / Pack<T>::kSize;
      unsigned columns = 1;
      while (columns < kSumColumns && columns < packs) columns *= 2;
      const index_t blocks = (packs + columns - 1) / columns;
      return launch_in_parts(count * columns / (kSumThreads * kSumPacksPerThread), blocks, [&](unsigned parts, const auto& store) {
        launch(stream, SumColumns<F, T, N, std::decay_t<decltype(store)>>{
                   f, of, channels, c.lanes > 1 ? c.lanes : channels, count, parts, columns, store}, unsigned(blocks), parts);
      });
    }
  }
  if (count == 0 || channels == 1) inner = std::max<index_t>(1, count);   // one row: not 0, as SumChannels divides by it
  launch_in_parts(count / (kSumThreads * kSumPerThread), channels, [&](unsigned parts, const auto& store) {
    const index_t stride = index_t(parts) * kSumThreads;
    launch(stream, SumChannels<F, T, N, std::decay_t<decltype(store)>>{
                       f, of, channels, inner, count, stride / inner, stride % inner, parts, store}, unsigned(channels), parts);
  });
}

/// out[k] = coeff times the sum of term(i) over the elements i of channel k, added if `add`.
template <class F, class T, int N, class Out>
void channel_sums(Stream& stream, const Channels& c, const TermOf<F, T, N>& term, double coeff, bool add, Out* out) {
  channel_sums(stream, c, EveryChannel<F>(), term.of, StoreSum<Out>{coeff, add, out});
}

}  // namespace cuda

/// out[0] = coeff times the sum of term(i) for 0 <= i < n, added to what is there if `add`.
template <class Term, class Out> void sum_to(const Context& on, index_t n, const Term& term, double coeff, bool add, Out* out) {
  using T = decltype(term(index_t(0)));
  if (on.stream)
    cuda::channel_sums(*on.stream, Channels(1, 1, n), EveryChannel<Term>{term}, Arrays<T, 0>(), StoreSum<Out>{coeff, add, out});
  else
    out[0] = Out((add ? double(out[0]) : 0.0) + coeff * cpu::sum_terms<T>(on.threads, n, term));
}

/// out[k] = coeff times the sum of term(i) over the elements i of channel k, added if `add`.
template <class T, class Term>
void channel_sums(const Context& on, const Channels& c, const Term& term, double coeff, bool add, T* out) {
  if (on.stream)
    cuda::channel_sums(*on.stream, c, term, coeff, add, out);
  else if (c.lanes > 1)
    cpu::sum_lanes(on.threads, c, term, coeff, add, out);
  else
    cpu::channel_sums(on.threads, c.outer, c.channels, c.inner, term, coeff, add, out);
}

// ---- for callers that know the element type only at run time: `members` are the members of the functor Term

/// out[0] = coeff times the sum of Term(i) for 0 <= i < n, of the element type.
template <template <class> class Term, class... P>
void sum_typed(const Context& on, int dtype, index_t n, double coeff, void* out, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, n, make<Term<T>>(member<T>(members)...), coeff, false, member<T>(out));
  });
}

/// out[0] = the sum of Term(i) for 0 <= i < n, a double: losses, and norms of blobs, which the host reads.
template <template <class> class Term, class... P>
void sum_in_double(const Context& on, int dtype, index_t n, double* out, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, n, make<Term<T>>(member<T>(members)...), 1.0, false, out);
  });
}

/// out[k] = coeff times the sum of Term(i) over the elements i of channel k, added if `add`.
template <template <class> class Term, class... P>
void channel_sums_typed(const Context& on, int dtype, const Channels& c, double coeff, bool add, void* out, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    channel_sums(on, c, make<Term<T>>(member<T>(members)...), coeff, add, member<T>(out));
  });
}

// Sums that many modules use: caffe.cpp compiles them once.
#define MC_ARGUMENTS const Context&, int, index_t, double*, const void*
#define MC_CHANNEL_ARGUMENTS const Context&, int, const Channels&, double, bool, void*, const void*
#define MC_SUMS(EXTERN)                                                          \
  EXTERN template void sum_in_double<AbsTerm>(MC_ARGUMENTS);                     \
  EXTERN template void sum_in_double<SquareTerm>(MC_ARGUMENTS);                  \
  EXTERN template void sum_in_double<DotTerm>(MC_ARGUMENTS, const void*);        \
  EXTERN template void channel_sums_typed<SumTerm>(MC_CHANNEL_ARGUMENTS);        \
  EXTERN template void channel_sums_typed<AbsTerm>(MC_CHANNEL_ARGUMENTS);        \
  EXTERN template void channel_sums_typed<SquareTerm>(MC_CHANNEL_ARGUMENTS);     \
  EXTERN template void channel_sums_typed<DotTerm>(MC_CHANNEL_ARGUMENTS, const void*);
#ifdef MC_COMPILED_ONCE
MC_SUMS(extern)
#endif

}  // namespace mc
