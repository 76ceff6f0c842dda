// Attention of a whole model's depth, as a step runs it: 30 layers of pages, so that KV comes from
// memory, not from cache.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/huge_page_arena.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_store/kv_store.h"
#include "kernels/kv_store/kv_test_pages.h"

namespace sluice::kernels {
namespace {

constexpr int kLayers = 30;

struct Case {
  KvFormat format;
  int kv_heads;
  int group;
  int head_dim;
  int depth;
  int rows;  // 1: decode; more: a prefill chunk that ends at depth
};

// As an engine lays out a centred format: a sink row, and vectors to subtract.
void Centre(const std::vector<float>& centre, KvLayerView* layer) {
  if (!IsCentred(layer->format)) return;
  layer->sink_rows = 1;
  layer->k_centre = layer->v_centre = centre.data();
}

class Model {
 public:
  explicit Model(const Case& c)
      : case_(c),
        layer_(TestLayer(c.format, c.kv_heads, c.head_dim, 32, &page_bytes_)),
        centre_(static_cast<size_t>(c.kv_heads * c.head_dim), 0.1f) {
    Centre(centre_, &layer_);
    const int width = c.kv_heads * c.head_dim;
    SeededRandom random(1);
    std::vector<float> kv(static_cast<size_t>(width * c.depth));
    for (float& value : kv) value = static_cast<float>(random.Unit() * 2 - 1);
    q_.resize(static_cast<size_t>(width * c.group * c.rows));
    for (float& value : q_) value = static_cast<float>(random.Unit() * 2 - 1);
    out_.resize(q_.size());
    const size_t pages = static_cast<size_t>(c.depth / layer_.page_tokens + layer_.sink_rows);
    arena_ = device::HugePageArena::Create(pages * kLayers * page_bytes_).value();
    for (size_t l = 0; l < kLayers; ++l) {
      std::vector<std::byte*> table;
      // Every layer of a page together, as the pool lays pages out.
      for (size_t page = 0; page < pages; ++page) {
        table.push_back(arena_.memory().data() + (page * kLayers + l) * page_bytes_);
      }
      StoreKv(BestIsaPath(), layer_, table.data(), 0, {kv.data(), kv.data(), width, width}, 0,
              c.depth);
      tables_.push_back(table);
    }
    scratch_.resize(AttentionScratchBytes(layer_, c.kv_heads * c.group));
  }

  void Step(IsaPath path) {
    AttentionRun run;
    run.q = q_.data();
    run.out = out_.data();
    run.heads = case_.kv_heads * case_.group;
    run.q_stride = run.out_stride = run.heads * case_.head_dim;
    run.first_position = case_.depth - case_.rows;
    run.scale = 1 / std::sqrt(static_cast<float>(case_.head_dim));
    for (const std::vector<std::byte*>& table : tables_) {
      run.pages = table.data();
      Attention(path, layer_, run, 0, case_.rows, 0, case_.kv_heads, scratch_.data());
      benchmark::DoNotOptimize(out_.data());
    }
  }

  double kv_bytes() const {
    const double values = 2.0 * case_.kv_heads * case_.head_dim * case_.depth * kLayers;
    return values * (case_.format == KvFormat::kBf16 ? 2 : 1);
  }
  double flops() const {
    const double attended = case_.rows * (case_.depth - (case_.rows - 1) / 2.0);
    return 4.0 * attended * case_.kv_heads * case_.group * case_.head_dim * kLayers;
  }

 private:
  Case case_;
  size_t page_bytes_ = 0;
  KvLayerView layer_;
  std::vector<float> centre_;
  device::HugePageArena arena_;
  std::vector<std::vector<std::byte*>> tables_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<std::byte> scratch_;
};

void Run(benchmark::State& state, IsaPath path, const Case& c) {
  Model model(c);
  for (auto _ : state) model.Step(path);
  const auto steps = static_cast<double>(state.iterations());
  state.counters["kv_GB/s"] =
      benchmark::Counter(model.kv_bytes() * steps * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(model.flops() * steps * 1e-9, benchmark::Counter::kIsRate);
  state.counters["tokens/s"] = benchmark::Counter(c.rows * steps, benchmark::Counter::kIsRate);
}

void StoreRows(benchmark::State& state, IsaPath path, KvFormat format) {
  size_t page_bytes = 0;
  KvLayerView layer = TestLayer(format, 3, 64, 32, &page_bytes);
  const std::vector<float> centre(192, 0.1f);
  Centre(centre, &layer);
  TestPages pages(layer, page_bytes, 512);
  SeededRandom random(1);
  std::vector<float> kv(512 * 192);
  for (float& value : kv) value = static_cast<float>(random.Unit() * 2 - 1);
  for (auto _ : state) {
    StoreKv(path, layer, pages.table(), 0, {kv.data(), kv.data(), 192, 192}, 0, 512);
    benchmark::ClobberMemory();
  }
  state.counters["Gvalues/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 512 * 384 * 1e-9, benchmark::Counter::kIsRate);
}

void RegisterAll() {
  const std::pair<KvFormat, const char*> formats[] = {{KvFormat::kBf16, "bf16"},
                                                      {KvFormat::kGqaFp8, "gqa_fp8"},
                                                      {KvFormat::kGqaFp8c, "gqa_fp8c"},
                                                      {KvFormat::kGqaInt8c, "gqa_int8c"}};
  for (IsaPath path : AvailableIsaPaths()) {
    const std::string isa(IsaPathName(path));
    for (const auto& [format, format_name] : formats) {
      const std::string name = isa + "/" + format_name;
      benchmark::RegisterBenchmark(("store/" + name).c_str(), StoreRows, path, format);
      if (path == IsaPath::kReference) continue;
      const Case cases[] = {{format, 3, 3, 64, 2048, 1},  {format, 3, 3, 64, 256, 1},
                            {format, 8, 4, 128, 2048, 1}, {format, 2, 8, 64, 2048, 1},
                            {format, 3, 3, 64, 512, 512}, {format, 3, 3, 64, 2048, 64}};
      for (const Case& c : cases) {
        const std::string shape = "kv" + std::to_string(c.kv_heads) + "xG" +
                                  std::to_string(c.group) + "xD" + std::to_string(c.head_dim) +
                                  "/depth" + std::to_string(c.depth) + "/rows" +
                                  std::to_string(c.rows);
        benchmark::RegisterBenchmark(("attention/" + name + "/" + shape).c_str(), Run, path, c)
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
