#include "device.hpp"
#include "minicaffe/loops/strided/caffe.hpp"
#include "functors.hpp"

using namespace test;

// Computed with the instructions that every processor has, so that float64 gives the same bits everywhere (device/apply.hpp).
static_assert(mc::cpu::uses<double, mc::Map<Weighted<double>, double, 3>>::value);
static_assert(!mc::cpu::uses<double, mc::StridedCopy<float, float, unsigned>>::value);

// Every quotient of a divisor d is right if 2^(32+shift) <= (2^32 + magic) d <= 2^(32+shift) + 2^(shift+1) (Granlund, Montgomery:
// theorem 4.2 with 31 bits), which is checked for all small divisors and many large ones.
CASE(divider) {
  state().where = "divider";
  auto check = [](index_t d) {
    mc::IntDivider<unsigned> divider;
    mc::set_divisor(divider, d);
    unsigned __int128 one = 1, power = one << (32 + divider.shift), product = ((one << 32) + divider.magic) * unsigned(d);
    ++state().checks;
    if (product < power || product > power + (one << (divider.shift + 1))) fail("the magic of %lld", d);
    for (index_t multiple : {d, d * 2, 2147483647 / d * d, d * (2147483647 / d / 2)})
      for (index_t n = multiple - 2; n < multiple + 2; ++n)
        if (n >= 0 && n <= 2147483647 && divider.quotient(unsigned(n)) != n / d) fail("%lld / %lld", n, d);
  };
  for (index_t d = 1; d < (1 << 20); ++d) check(d);
  for (index_t d = 2147483647; d > 2147483647 - 1000; --d) check(d);
  std::minstd_rand engine(1);
  for (int i = 0; i < 100000; ++i) check(1 + index_t(engine()) % 2147483647);
  for (int bit = 1; bit < 31; ++bit)
    for (int off = -1; off <= 1; ++off) check((1ll << bit) + off);
  for (unsigned d = 1; d < 300; ++d) {
    mc::IntDivider<unsigned> divider;
    mc::set_divisor(divider, d);
    for (unsigned n = 0; n < 70000; ++n)
      if (divider.quotient(n) != n / d) return fail("%u / %u", n, d);
  }
}

/// Indices of 31 bits are used where all elements are within 2^31 of the first, in both directions together.
CASE(narrow_strides) {
  state().where = "narrow strides";
  std::minstd_rand engine(5);
  for (int i = 0; i < 2000; ++i) {
    mc::Strides s;
    s.axes = 1 + int(engine() % 3);
    __int128 count = 1, reach[2] = {};
    for (int a = 0; a < s.axes; ++a) {
      s.size[a] = 1 + index_t(engine() % (1u << engine() % 17));
      count *= s.size[a];
      for (int t = 0; t < 2; ++t) {
        const index_t stride = index_t(engine() % (1u << engine() % 24));
        s.stride[a][t] = engine() % 2 ? stride : -stride;
        reach[t] += __int128(s.size[a] - 1) * stride;
      }
    }
    const __int128 most = 2147483647;
    ++state().checks;
    if (s.narrow() != (count <= most && reach[0] <= most && reach[1] <= most)) return fail("case %d", i);
  }
}

/// A view on memory of its own: axes in any order, some backwards, sliced or repeated.
template <class T> struct View {
  std::vector<index_t> stride;
  index_t reach = 1, origin = 0;
  std::unique_ptr<Array<T>> array;
  View(const std::vector<index_t>& sizes, std::minstd_rand& engine, bool plain, bool output, unsigned seed) : stride(sizes.size()) {
    std::vector<int> order(sizes.size());
    for (size_t a = 0; a < sizes.size(); ++a) order[a] = int(a);
    if (!plain) std::shuffle(order.begin(), order.end(), engine);
    index_t step = plain || engine() % 3 ? 1 : 2;
    for (size_t i = sizes.size(); i-- > 0;) {
      int a = order[i];
      bool repeated = !plain && !output && engine() % 6 == 0;
      bool backwards = !plain && engine() % 6 == 0;
      stride[a] = repeated ? 0 : backwards ? -step : step;
      if (backwards && !repeated) origin += (sizes[a] - 1) * step;
      if (!repeated) reach += (sizes[a] - 1) * step, step *= sizes[a] + (!plain && engine() % 4 == 0 ? 3 : 0);
    }
    array = std::make_unique<Array<T>>(size_t(std::max<index_t>(reach, 0)), seed);
  }
  T* data() const { return array->data + origin; }
};

template <class T> void strided_case(const std::vector<index_t>& sizes, std::minstd_rand& engine, bool plain) {
  index_t count = 1;
  for (index_t s : sizes) count *= s;
  View<T> y(sizes, engine, plain, true, 9), x(sizes, engine, plain, false, 0);
  Array<T> start(*y.array);
  std::vector<double> want(start.data, start.data + start.count);
  for (index_t i = 0; i < count; ++i) {
    index_t rest = i, to = y.origin, from = 0;
    for (size_t a = sizes.size(); a-- > 0;) {
      to += rest % sizes[a] * y.stride[a];
      from += rest % sizes[a] * x.stride[a];
      rest /= sizes[a];
    }
    want[size_t(to)] = x.data()[from];
  }
  std::string name = text("strided, %zu bytes, sizes", sizeof(T));
  for (index_t s : sizes) name += text(" %lld", s);
  on_both(name, [&](const mc::Context& on) {
    std::copy(start.data, start.data + start.count, y.array->data);
    mc::copy_strided(on, dtype<T>(), dtype<T>(), int(sizes.size()), sizes.data(), x.data(), x.stride.data(), y.data(), y.stride.data());
    expect("y", y.array->data, want, 0);
  });
}

CASE(strided) {
  std::minstd_rand engine(7);
  for_both_types([&](auto type) {
    using T = decltype(type);
    for (std::vector<index_t> sizes : std::vector<std::vector<index_t>>{
             {}, {1}, {5}, {1000}, {0}, {3, 0, 2}, {33, 65}, {64, 64}, {100, 1, 31}, {8, 8}, {7, 40}, {3, 40, 50}, {40, 3, 50},
             {2, 35, 3, 33}, {2, 3, 4, 5, 6}, {2, 2, 2, 2, 2, 2, 2, 2}, {2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2}})
      for (int round = 0; round < 24; ++round) strided_case<T>(sizes, engine, round == 0);
  });
}

/// Two pieces of memory far apart.
CASE(wide_strides) {
  const index_t far = (1ll << 31) + 7;
  size_t bytes = size_t(far + 4096) * sizeof(float);
  void* reserved = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return fail("no address space");
  float* x = static_cast<float*>(reserved);
  index_t sizes[3] = {2, 30, 40}, strides[3] = {far, 1, 30}, out[3] = {1200, 40, 1};
  for (index_t i = 0; i < 1200; ++i) x[i] = float(i), x[far + i] = float(-i);
  std::vector<double> want;
  for (index_t i = 0; i < 2400; ++i) want.push_back(x[i / 1200 * far + i / 40 % 30 + i % 40 * 30]);
  on_both("wide strides", [&](const mc::Context& on) {
    Array<float> y(2400);
    mc::copy_strided(on, mc::FLOAT, mc::FLOAT, 3, sizes, x, strides, y.data, out);
    expect("y", y.data, want, 0);
  });
  munmap(reserved, bytes);
}

/// Indices beyond 31 bits cannot be run in reasonable time, but computed.
CASE(wide_offsets) {
  state().where = "wide offsets";
  mc::Strides s;
  s.axes = 3;
  index_t sizes[3] = {1ll << 20, 1 << 10, 1 << 9}, strides[3][2] = {{1 << 19, 1}, {1 << 9, -(1ll << 33)}, {1, 1ll << 20}};
  for (int a = 0; a < 3; ++a) {
    s.size[a] = sizes[a];
    std::copy(strides[a], strides[a] + 2, s.stride[a]);
  }
  if (s.narrow()) fail("2^39 elements are not narrow");
  auto info = s.offset_info<unsigned long long>();
  for (index_t i = 12345; i < s.count(); i += 9876543211ll) {
    index_t got[2], a = i >> 19, b = i >> 9 & 1023, c = i & 511;
    info.offsets(i, got);
    ++state().checks;
    if (got[0] != i || got[1] != a - (b << 33) + (c << 20)) return fail("%lld is at %lld", i, got[1]);
  }
}
