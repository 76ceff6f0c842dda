// Weight bytes and operations per second of Forward. Matrices are visited round robin over more
// memory than the caches hold, as a model's layers are. Each thread owns half of the panels.
// Rates are per second of processor time of a thread, so that a busy machine reads the same; with
// two threads they are the rate of each. Arguments: rows of x. Counters: weights = stored bytes
// read a second, ops = 2 * rows * n * k a second.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/test_matrix.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kN = 1536;
constexpr int64_t kK = 768;
constexpr int64_t kWorkingSet = int64_t{192} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;

// Copies of one packed matrix in huge pages.
class Layers {
 public:
  Layers(IsaPath path, WeightFormat format, ActivationKind blocks)
      : matrix_(DescribePacked(path, format, kN, kK, blocks)) {
    count_ = kWorkingSet / matrix_.bytes();
    const size_t size = static_cast<size_t>(kWorkingSet + kHugePage);
    mapping_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapping_);
    base_ = reinterpret_cast<uint8_t*>((address + kHugePage - 1) / kHugePage * kHugePage);
    madvise(base_, static_cast<size_t>(kWorkingSet), MADV_HUGEPAGE);
    const TestMatrix source(format, kN, kK, 1);
    PackPanels(matrix_, source.rows(), 0, matrix_.panels(), base_);
    for (int64_t i = 1; i < count_; ++i) {
      std::memcpy(base_ + i * matrix_.bytes(), base_, static_cast<size_t>(matrix_.bytes()));
    }
  }
  ~Layers() { munmap(mapping_, static_cast<size_t>(kWorkingSet + kHugePage)); }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  PackedMatrix at(int64_t i) const {
    PackedMatrix matrix = matrix_;
    matrix.data = base_ + i % count_ * matrix_.bytes();
    return matrix;
  }

 private:
  PackedMatrix matrix_;
  int64_t count_ = 0;
  void* mapping_ = nullptr;
  uint8_t* base_ = nullptr;
};

void BM_Forward(benchmark::State& state, IsaPath path, WeightFormat format, ActivationKind blocks) {
  static std::unique_ptr<Layers> layers;  // shared by the threads of one run
  if (state.thread_index() == 0) layers = std::make_unique<Layers>(path, format, blocks);
  const int64_t rows = state.range(0);
  const PackedMatrix shape = DescribePacked(path, format, kN, kK, blocks);
  const std::vector<float> x = RandomFloats(rows * kK, 2);
  AlignedBytes prepared(rows * PreparedRowBytes(shape.activations, kK));
  PrepareActivations(shape, x.data(), rows, kK, prepared.data());
  std::vector<float> y(static_cast<size_t>(rows * kN));
  const int64_t begin = shape.panels() * state.thread_index() / state.threads();
  const int64_t end = shape.panels() * (state.thread_index() + 1) / state.threads();
  int64_t i = 0;
  for (auto _ : state) {
    Forward(layers->at(i++), prepared.data(), rows, begin, end, y.data(), kN);
    benchmark::ClobberMemory();
  }
  const double panels = static_cast<double>(state.iterations()) * static_cast<double>(end - begin);
  state.counters["weights"] = benchmark::Counter(panels * static_cast<double>(shape.panel_bytes),
                                                 benchmark::Counter::kIsRate);
  state.counters["ops"] = benchmark::Counter(
      panels * 2.0 * kPanelRows * static_cast<double>(kK * rows), benchmark::Counter::kIsRate);
  if (state.thread_index() == 0) layers.reset();
}

void BM_Prepare(benchmark::State& state, IsaPath path, ActivationKind kind) {
  const int64_t rows = state.range(0);
  const std::vector<float> x = RandomFloats(rows * kK, 2);
  AlignedBytes prepared(rows * PreparedRowBytes(kind, kK));
  for (auto _ : state) {
    PrepareActivations(path, kind, x.data(), rows, kK, kK, prepared.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * kK);
}

void Register() {
  for (IsaPath path : AvailableIsaPaths()) {
    const std::string prefix = std::string(IsaPathName(path)) + "/";
    for (WeightFormat format : kAllWeightFormats) {
      for (ActivationKind blocks : {ActivationKind::kInt16, ActivationKind::kInt8}) {
        const bool is_int8 =
            DescribePacked(path, format, kN, kK, blocks).activations == ActivationKind::kInt8;
        if (blocks == ActivationKind::kInt8 && !is_int8) continue;
        const std::string name =
            prefix + std::string(WeightFormatName(format)) + (is_int8 ? "/int8" : "");
        for (int threads : {1, 2}) {
          benchmark::RegisterBenchmark(name.c_str(), BM_Forward, path, format, blocks)
              ->Arg(1)
              ->Arg(2)
              ->Arg(4)
              ->Arg(8)
              ->Arg(16)
              ->Arg(128)
              ->Threads(threads);
        }
      }
    }
    if (path == IsaPath::kReference) continue;
    for (ActivationKind kind : {ActivationKind::kInt16, ActivationKind::kInt8}) {
      const bool is_int8 = kind == ActivationKind::kInt8;
      benchmark::RegisterBenchmark((prefix + (is_int8 ? "prepare_int8" : "prepare_int16")).c_str(),
                                   BM_Prepare, path, kind)
          ->Arg(1)
          ->Arg(64);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels

int main(int argc, char** argv) {
  sluice::kernels::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
