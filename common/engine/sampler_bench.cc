// Cost of one draw by kind and vocabulary: it is paid for every token of every stream.
#include <benchmark/benchmark.h>

#include "base/random.h"
#include "engine/sampler.h"

namespace sluice::engine {
namespace {

// A row like a language model's: a few dozen tokens stand out of a wide bulk.
std::vector<float> Row(int64_t vocabulary) {
  SeededRandom random(1);
  std::vector<float> row;
  for (int64_t i = 0; i < vocabulary; ++i) {
    const double bulk = random.Unit() + random.Unit() + random.Unit();
    row.push_back(
        static_cast<float>(bulk * 4 + (random.Below(2000) == 0 ? random.Unit() * 16 : 0)));
  }
  return row;
}

void Draw(benchmark::State& state, const request::SamplingParams& params) {
  const std::vector<float> row = Row(state.range(0));
  Sampler sampler(params, {2}, {});
  sampler.AddOutput(5);
  uint32_t position = 0;
  for (auto step : state) benchmark::DoNotOptimize(sampler.Sample(row, position++));
}

request::SamplingParams With(float temperature, float top_p, int logprobs = -1) {
  request::SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.logprobs = logprobs;
  return params;
}

#define VOCABULARIES ->Arg(49152)->Arg(151936)->Unit(benchmark::kMicrosecond)
BENCHMARK_CAPTURE(Draw, greedy, With(0, 1)) VOCABULARIES;
BENCHMARK_CAPTURE(Draw, temperature, With(1, 1)) VOCABULARIES;
BENCHMARK_CAPTURE(Draw, top_p, With(1, 0.95f)) VOCABULARIES;
BENCHMARK_CAPTURE(Draw, greedy_logprobs, With(0, 1, 20)) VOCABULARIES;

}  // namespace
}  // namespace sluice::engine

BENCHMARK_MAIN();
