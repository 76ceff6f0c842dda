// Elements per second of processor time, at the row lengths of a small model.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/elementwise/elementwise.h"

namespace sluice::kernels {
namespace {

// Runs `function(x, w, n, y)` over rows of n random values.
template <typename Function>
void Run(benchmark::State& state, int64_t n, Function function) {
  SeededRandom random(1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = static_cast<float>(random.Unit() * 8 - 4);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    function(x.data(), x.data(), n, y.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * n);
}

template <typename Function>
void Add(IsaPath path, const char* name, int64_t n, Function function) {
  const std::string full = std::string(IsaPathName(path)) + "/" + name + "/" + std::to_string(n);
  benchmark::RegisterBenchmark(full.c_str(),
                               [n, function](benchmark::State& state) { Run(state, n, function); });
}

void Register(IsaPath path) {
  Add(path, "rms_norm", 576, [path](const float* x, const float* w, int64_t n, float* y) {
    RmsNorm(path, x, w, 1e-5f, n, y);
  });
  Add(path, "silu_multiply", 1536, [path](const float* x, const float* w, int64_t n, float* y) {
    SiluMultiply(path, x, w, n, y);
  });
  Add(path, "add", 576,
      [path](const float* x, const float*, int64_t n, float* y) { AddInPlace(path, x, n, y); });
  Add(path, "log_sum_exp", 49152, [path](const float* x, const float*, int64_t n, float*) {
    benchmark::DoNotOptimize(LogSumExp(path, x, n));
  });
  Add(path, "arg_max", 49152, [path](const float* x, const float*, int64_t n, float*) {
    benchmark::DoNotOptimize(ArgMax(path, x, n));
  });
  for (RopeOrder order : {RopeOrder::kHalfSplit, RopeOrder::kInterleaved}) {
    const char* name = order == RopeOrder::kHalfSplit ? "rope_half_split" : "rope_interleaved";
    Add(path, name, 576, [path, order](const float* x, const float*, int64_t n, float* y) {
      ApplyRope(path, order, x, x + 32, 32, n / 64, 64, y);
    });
  }
}

}  // namespace
}  // namespace sluice::kernels

int main(int argc, char** argv) {
  for (sluice::kernels::IsaPath path : sluice::kernels::AvailableIsaPaths()) {
    sluice::kernels::Register(path);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
