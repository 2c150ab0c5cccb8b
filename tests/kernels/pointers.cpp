// Which words of a kernel's parameters are pointers, by their types (kernels/grid.hpp).
#include "device.hpp"
#include "minicaffe/ops/dropout/kernel.hpp"
#include "minicaffe/ops/eltwise/kernel.hpp"

namespace {

struct Empty {};
struct Inner {
  const float* x;
  int n;
};
struct Nested {
  bool on;
  Inner inner[2];
  short few;
  Inner* next;
  float* rows[2][2];
};
struct Derived : Inner {
  Empty empty;
  mc::Bf16 half[3];
  float* y;
};
struct alignas(16) Padded {
  float* y;
};
struct Private {
  Private() = default;
 private:
  float* y_ = nullptr;
};
struct Other {
  int (*function)(int);
  double d;
  const void* const fixed = nullptr;
  unsigned long long address;
  Private hidden;
};

template <class T> void expect_words(const char* what, const std::string& expected) {
  const auto words = static_cast<const unsigned long long*>(mc::pointers_in<T>());
  std::string found;
  for (size_t i = 0; i < sizeof(T) / 8; ++i) found += words[i] == ~0ull ? 'p' : words[i] ? '?' : '.';
  ++test::state().checks;
  if (found != expected) test::fail("pointers of %s: %s, not %s", what, found.c_str(), expected.c_str());
}

}  // namespace

CASE(pointers) {
  test::state().where = "pointers";
  expect_words<float*>("float*", "p");
  expect_words<long long>("long long", ".");
  expect_words<Nested>("an array of structs, and one of arrays", ".p.p..ppppp");
  expect_words<Derived>("a base, an empty member and numbers with a constructor", "p..p");
  expect_words<Padded>("padding", "p.");
  expect_words<Other>("functions, constants and numbers", "p.p..");
  expect_words<Private>("a class with private members", ".");
  expect_words<mc::Vector<mc::Same<float>, float, 1>>("a functor without members", ".pp.");
  expect_words<mc::DropoutLane<float>>("a seed, a start and a count", "..p.pp.");
  expect_words<mc::Each<mc::RectifiedSum<float, 3>>>("a functor with a base", "ppp..p.");
}
