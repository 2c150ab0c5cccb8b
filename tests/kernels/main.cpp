// `check CASE...` runs cases and names the kernels they launched.
#include "device.hpp"
#include "functors.hpp"

template <bool waits> bool right_across() {
  test::Array<int> y(64);
  mc::cuda::launch(test::stream(), Across<waits>{y.data}, 1);
  for (int i = 0; i < 64; ++i)
    if (y[size_t(i)] != 63 - i) return false;
  return true;
}

/// The fibers notice where a kernel does not wait.
CASE(fibers) {
  test::state().where = "fibers";
  test::state().checks += 2;
  if (!right_across<true>()) test::fail("a barrier does not hold");
  if (right_across<false>()) test::fail("a missing barrier goes unnoticed");
}

int main(int count, char** words) {
  test::State& state = test::state();
  for (int i = 1; i < count; ++i)
    for (auto& one : test::cases())
      if (one.first == words[i])
        for (int round = 0; round < 2; ++round) {
          state.backwards = state.flush_left = round == 1;
          one.second();
        }
  for (auto& kernel : state.kernels)
    std::printf("KERNEL %u %d %s\n", kernel.second->argument_sizes[0], kernel.second->max_threads, kernel.first.c_str());
  std::printf("%d checks, %d failures\n", state.checks, state.failures);
  return state.failures || !state.checks;
}
