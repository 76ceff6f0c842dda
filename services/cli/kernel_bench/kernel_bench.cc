#include "services/cli/kernel_bench/kernel_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "device/cpu.h"
#include "device/huge_page_arena.h"
#include "device/thread_pool.h"
#include "services/cli/flag_range.h"

namespace sluice::cli {
namespace {

using kernels::ActivationKind;
using kernels::IsaPath;
using kernels::PackedMatrix;
using kernels::PeakKind;
using kernels::WeightFormat;

constexpr int64_t kOutputs = 1536;
constexpr int64_t kInputs = 768;
constexpr int64_t kPeakRounds = 500000;  // some milliseconds
constexpr int kPeakTries = 3;
// Operations of one timed stretch, some milliseconds, unless one matrix takes more.
constexpr double kStretchOperations = 3e9;
constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,  WeightFormat::kBf16, WeightFormat::kFp8Channel, WeightFormat::kQ8_0,
    WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ6_K,       WeightFormat::kInt4};
constexpr const char* kPeakNames[] = {"float32", "int16", "int8"};

PeakKind PeakOf(ActivationKind kind) {
  if (kind == ActivationKind::kInt8) return PeakKind::kInt8;
  return kind == ActivationKind::kInt16 ? PeakKind::kInt16 : PeakKind::kFloat32;
}

class KernelBench {
 public:
  KernelBench(const KernelBenchOptions& options, IsaPath path, device::ThreadPool& pool)
      : options_(options), path_(path), pool_(pool) {}

  // The best of a few tries, all threads together.
  double PeakGops(PeakKind kind) {
    double best = 0;
    for (int i = 0; i < kPeakTries; ++i) {
      const absl::Time start = clock_.Now();
      pool_.ParallelFor(pool_.workers(), [&](int64_t begin, int64_t end, int) {
        for (int64_t w = begin; w < end; ++w) kernels::RunPeak(path_, kind, kPeakRounds);
      });
      const double seconds = absl::ToDoubleSeconds(clock_.Now() - start);
      // What a call returns does not depend on time: one round tells.
      const double operations = static_cast<double>(kernels::RunPeak(path_, kind, 1)) *
                                static_cast<double>(kPeakRounds * pool_.workers());
      best = std::max(best, operations / seconds * 1e-9);
    }
    return best;
  }

  // Every number of rows with one format, added to `report`.
  absl::Status Linear(WeightFormat format, ActivationKind blocks, KernelBenchReport* report) {
    const PackedMatrix shape = kernels::DescribePacked(path_, format, kOutputs, kInputs, blocks);
    const int64_t copies =
        std::max<int64_t>((int64_t{options_.memory_mib} << 20) / shape.bytes(), 1);
    SLUICE_ASSIGN_OR_RETURN(
        device::HugePageArena arena,
        device::HugePageArena::Create(static_cast<size_t>(copies * shape.bytes())));
    uint8_t* const weights = reinterpret_cast<uint8_t*>(arena.memory().data());
    // Any bytes do whose scales are ordinary numbers: these are in all formats.
    pool_.ParallelFor(copies, [&](int64_t begin, int64_t end, int) {
      std::memset(weights + begin * shape.bytes(), 0x11,
                  static_cast<size_t>((end - begin) * shape.bytes()));
    });
    for (uint32_t rows : options_.rows) {
      SLUICE_ASSIGN_OR_RETURN(KernelFigure figure, Time(shape, weights, copies, rows));
      const PeakKind peak = PeakOf(shape.activations);
      figure.roof = rows == 1 ? "read" : kPeakNames[static_cast<int>(peak)];
      const double roof =
          rows == 1 ? report->read_gb_per_s : report->peak_gops[static_cast<int>(peak)];
      if (roof > 0) figure.share = (rows == 1 ? figure.gb_per_s : figure.gops) / roof;
      report->linear.push_back(std::move(figure));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<KernelFigure> Time(const PackedMatrix& shape, uint8_t* weights, int64_t copies,
                                    uint32_t rows) {
    const int64_t row_bytes = kernels::PreparedRowBytes(shape.activations, kInputs);
    const int64_t out_bytes = kOutputs * static_cast<int64_t>(sizeof(float));
    SLUICE_ASSIGN_OR_RETURN(
        device::HugePageArena arena,
        device::HugePageArena::Create(static_cast<size_t>(rows * (row_bytes + out_bytes) + 64)));
    uint8_t* const prepared = reinterpret_cast<uint8_t*>(arena.memory().data());
    float* const y = reinterpret_cast<float*>(prepared + rows * row_bytes);
    std::vector<float> x(static_cast<size_t>(kInputs));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 31) - 15.0f;
    for (uint32_t r = 0; r < rows; ++r) {
      kernels::PrepareActivations(shape, x.data(), 1, kInputs, prepared + r * row_bytes);
    }
    const double operations = 2.0 * static_cast<double>(rows) * kOutputs * kInputs;
    const auto enough = static_cast<int64_t>(kStretchOperations / operations) + 1;
    const int64_t count = rows == 1 ? copies : std::min(copies, enough);
    std::vector<double> seconds;
    int64_t at = 0;
    for (uint32_t i = 0; i < options_.repetitions; ++i) {
      const absl::Time start = clock_.Now();
      for (int64_t c = 0; c < count; ++c, at = (at + 1) % copies) {
        PackedMatrix matrix = shape;
        matrix.data = weights + at * shape.bytes();
        pool_.ParallelFor(
            matrix.panels(),
            [&](int64_t begin, int64_t end, int) {
              kernels::Forward(matrix, prepared, rows, begin, end, y, kOutputs);
            },
            4);
      }
      seconds.push_back(absl::ToDoubleSeconds(clock_.Now() - start) / static_cast<double>(count));
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    const double median = seconds[seconds.size() / 2];
    KernelFigure figure;
    figure.format = shape.format;
    figure.activations = shape.activations;
    figure.rows = rows;
    figure.matrix_us = median * 1e6;
    figure.gb_per_s = static_cast<double>(shape.bytes()) / median * 1e-9;
    figure.gops = operations / median * 1e-9;
    return figure;
  }

  const KernelBenchOptions& options_;
  const IsaPath path_;
  device::ThreadPool& pool_;
  SystemClock clock_;
};

absl::Status Validate(const KernelBenchOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckRange("--memory-mib", options.memory_mib, 1, 4096));
  SLUICE_RETURN_IF_ERROR(CheckRange("--repetitions", options.repetitions, 1, 1000));
  if (options.rows.empty()) return absl::InvalidArgumentError("--rows is empty; write --rows 1,8");
  for (uint32_t rows : options.rows) SLUICE_RETURN_IF_ERROR(CheckRange("--rows", rows, 1, 4096));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KernelBenchReport> RunKernelBench(const KernelBenchOptions& options) {
  SLUICE_RETURN_IF_ERROR(Validate(options));
  const auto path = kernels::ParseIsaPath(options.kernels);
  if (!path) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kernels is '", options.kernels, "'; use auto, reference, avx2 or avx512"));
  }
  if (!kernels::IsaPathAvailable(*path)) {
    return absl::UnimplementedError(
        absl::StrCat("this processor cannot run the kernels '", options.kernels, "'; use 'auto'"));
  }
  const int workers =
      options.threads > 0 ? static_cast<int>(options.threads) : device::UsableCpus();
  SLUICE_ASSIGN_OR_RETURN(const auto pool, device::ThreadPool::Create({.workers = workers}));
  KernelBenchReport report;
  report.kernels = std::string(kernels::IsaPathName(*path));
  report.threads = workers;
  SLUICE_ASSIGN_OR_RETURN(
      report.read_gb_per_s,
      device::MeasureReadBandwidth(*pool, SystemClock(), size_t{options.memory_mib} << 20));
  KernelBench bench(options, *path, *pool);
  for (PeakKind kind : {PeakKind::kFloat32, PeakKind::kInt16, PeakKind::kInt8}) {
    report.peak_gops[static_cast<int>(kind)] = bench.PeakGops(kind);
  }
  for (WeightFormat format : kFormats) {
    const bool blocks = kernels::DescribePacked(*path, format, kOutputs, kInputs).activations ==
                        ActivationKind::kInt16;
    if (blocks) SLUICE_RETURN_IF_ERROR(bench.Linear(format, ActivationKind::kInt8, &report));
    SLUICE_RETURN_IF_ERROR(bench.Linear(format, ActivationKind::kInt16, &report));
  }
  return report;
}

}  // namespace sluice::cli
