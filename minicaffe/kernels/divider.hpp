// Division by a number that is known before the launch: a multiplication and a shift. The division of a GPU takes about twenty
// instructions for 32 bits and a hundred for 64.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// quotient(n) is n / divisor. The general case, for 64 bits, divides.
template <class Index> struct IntDivider {
  Index divisor;
  MC_HD Index quotient(Index n) const { return n / divisor; }
};

/// n / d for 0 <= n < 2^31 and 1 <= d < 2^31. With 2^shift >= d, magic / 2^32 + 1 is 2^shift / d rounded up, by less than
/// 2^shift / 2^32 of the whole; so the product is right for all such n (Granlund, Montgomery: PLDI 1994; THC's IntDivider).
template <> struct IntDivider<unsigned> {
  unsigned divisor, magic, shift;
  MC_HD unsigned quotient(unsigned n) const { return (unsigned((unsigned long long)n * magic >> 32) + n) >> shift; }
};

MC_HD void set_divisor(IntDivider<unsigned>& divider, index_t d) {  // on the host, before the launch
  unsigned shift = 0;
  while ((1ll << shift) < d) ++shift;
  divider = {unsigned(d), unsigned((1ull << 32) * ((1ull << shift) - (unsigned long long)d) / (unsigned long long)d + 1), shift};
}
template <class Index> MC_HD void set_divisor(IntDivider<Index>& divider, index_t d) { divider.divisor = Index(d); }

/// N dividers as parameters of a kernel: an array of numbers for each member of a divider.
template <class Index, int N> struct DividerArray {
  Index divisor[N];
  MC_HD IntDivider<Index> at(int i) const { return {divisor[i]}; }
  MC_HD void set(int i, index_t d) { divisor[i] = Index(d); }
};
/// Of 32 bits: by the multiplication of IntDivider<unsigned>.
template <int N> struct DividerArray<unsigned, N> {
  unsigned divisor[N], magic[N], shift[N];
  MC_HD IntDivider<unsigned> at(int i) const { return {divisor[i], magic[i], shift[i]}; }
  MC_HD void set(int i, index_t d) {
    IntDivider<unsigned> one;
    set_divisor(one, d);
    divisor[i] = one.divisor, magic[i] = one.magic, shift[i] = one.shift;
  }
};

}  // namespace mc
