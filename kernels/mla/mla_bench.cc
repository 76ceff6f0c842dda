// Latent attention of a few layers, as a step runs it, in the shapes of published models.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/kv_store/mla_store.h"
#include "kernels/mla/mla_attention.h"
#include "kernels/mla/mla_test_pages.h"

namespace sluice::kernels {
namespace {

constexpr int kLayers = 4;
constexpr int kPageTokens = 64;

struct Case {
  KvFormat format;
  int latent;
  int rope;
  int heads;
  int depth;
  int rows;  // 1: decode; more: a prefill chunk that ends at depth
};

std::vector<float> Random(size_t n) {
  SeededRandom random(1);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(random.Unit() * 2 - 1);
  return values;
}

void Run(benchmark::State& state, IsaPath path, const Case& c) {
  const MlaTestLayout layout(c.format, c.latent, c.rope, kPageTokens);
  const int width = c.latent + c.rope;
  const std::vector<float> rows = Random(static_cast<size_t>(width * c.depth));
  std::vector<MlaTestPages> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.emplace_back(layout, c.depth, std::byte{0});
    StoreMla(path, layout.layer, layers.back().table(), 0,
             {rows.data(), rows.data() + c.latent, width, width}, 0, c.depth);
  }
  const std::vector<float> q = Random(static_cast<size_t>(c.rows * c.heads * width));
  std::vector<float> out(static_cast<size_t>(c.rows * c.heads * c.latent));
  std::vector<std::byte> scratch(MlaScratchBytes(layout.layer) + 64);
  std::byte* const aligned =
      scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  MlaRun run = {q.data(),
                out.data(),
                int64_t{c.heads} * width,
                int64_t{c.heads} * c.latent,
                c.heads,
                c.depth - c.rows,
                nullptr,
                0.1f};
  for (auto _ : state) {
    for (const MlaTestPages& pages : layers) {
      run.pages = pages.const_table();
      MlaAttention(path, layout.layer, run, 0, c.rows, 0, c.heads, aligned);
      benchmark::DoNotOptimize(out.data());
    }
  }
  const double steps = static_cast<double>(state.iterations()) * kLayers;
  const double attended = c.rows * (c.depth - (c.rows - 1) / 2.0) * steps;
  state.counters["GFLOP/s"] = benchmark::Counter(
      2.0 * attended * c.heads * (width + c.latent) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["Mtoken-layers/s"] =
      benchmark::Counter(attended * 1e-6, benchmark::Counter::kIsRate);
}

void RegisterAll() {
  constexpr std::pair<KvFormat, const char*> kFormats[] = {
      {KvFormat::kBf16, "bf16"}, {KvFormat::kMlaFp8, "mla_fp8"}, {KvFormat::kMlaFp8Tiles, "656"}};
  for (IsaPath path : AvailableIsaPaths()) {
    if (path == IsaPath::kReference) continue;
    for (const auto& [format, name] : kFormats) {
      for (const Case& c :
           {Case{format, 512, 64, 64, 2048, 1}, Case{format, 512, 64, 16, 2048, 1},
            Case{format, 512, 64, 64, 1024, 16}, Case{format, 64, 16, 6, 1024, 1}}) {
        const std::string shape = "L" + std::to_string(c.latent) + "/heads" +
                                  std::to_string(c.heads) + "/depth" + std::to_string(c.depth) +
                                  "/rows" + std::to_string(c.rows);
        const std::string isa(IsaPathName(path));
        benchmark::RegisterBenchmark((isa + "/" + name + "/" + shape).c_str(), Run, path, c)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels

int main(int argc, char** argv) {
  sluice::kernels::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
