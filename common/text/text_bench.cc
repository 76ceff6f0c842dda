// Speed of encoding and decoding with the vocabulary of SmolLM2, on prose and on the worst texts.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/testing/golden.h"
#include "text/tokenizer.h"

namespace sluice::text {
namespace {

constexpr size_t kTextBytes = size_t{1} << 20;

const Tokenizer& SmolLm2() {
  static const auto tokenizer = testing::GoldenTokenizer("smollm2");
  SLUICE_CHECK(tokenizer != nullptr);
  return *tokenizer;
}

std::string Repeat(const std::string& unit) {
  std::string text;
  while (text.size() < kTextBytes) text += unit;
  return text;
}

void Encode(benchmark::State& state, const std::string& text) {
  for (auto _ : state) {
    const auto ids = SmolLm2().Encode(text);
    SLUICE_CHECK(ids.ok());
    benchmark::DoNotOptimize(ids->size());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK_CAPTURE(Encode, prose, Repeat(testing::GoldenFile("tokenizer/README.md")));
BENCHMARK_CAPTURE(Encode, json, testing::GoldenFile("tokenizer/glm/tokenizer.json"));
// Every word of the vocabulary once: nothing repeats.
BENCHMARK_CAPTURE(Encode, words, testing::GoldenFile("tokenizer/smollm2/merges.txt"));
BENCHMARK_CAPTURE(Encode, one_letter, Repeat("a"));
BENCHMARK_CAPTURE(Encode, spaces, Repeat(" "));
BENCHMARK_CAPTURE(Encode, equal_signs, Repeat("="));

void Decode(benchmark::State& state) {
  const auto ids = SmolLm2().Encode(Repeat(testing::GoldenFile("tokenizer/README.md")));
  SLUICE_CHECK(ids.ok());
  for (auto _ : state) benchmark::DoNotOptimize(Detokenize(SmolLm2(), *ids));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ids->size()));
}
BENCHMARK(Decode);

void Load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(testing::GoldenTokenizer("smollm2"));
}
BENCHMARK(Load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::text

BENCHMARK_MAIN();
