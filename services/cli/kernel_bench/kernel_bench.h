// How close matrix kernels come to what this machine can do: bytes read a second with one row,
// operations a second with more, each beside the roof measured in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/peak/peak.h"

namespace sluice::cli {

struct KernelBenchOptions {
  std::string kernels = "auto";
  uint32_t threads = 0;      // 0: every usable core
  uint32_t memory_mib = 96;  // of weights visited in turn; 1..4096: more than the caches hold
  uint32_t repetitions = 5;  // the median counts; 1..1000
  std::vector<uint32_t> rows = {1, 8, 32, 128};  // each 1..4096
};

struct KernelFigure {
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  kernels::ActivationKind activations = kernels::ActivationKind::kFloat32;
  uint32_t rows = 0;
  double matrix_us = 0;  // one matrix of 1,536 x 768
  double gb_per_s = 0;   // of stored weights
  double gops = 0;       // 10^9 multiplications and additions a second
  std::string roof;      // "read" with one row, else the instruction: "float32", "int16", "int8"
  double share = 0;      // of that roof
};

// All threads together.
struct KernelBenchReport {
  std::string kernels;
  int threads = 0;
  double read_gb_per_s = 0;
  double peak_gops[3] = {};  // by kernels::PeakKind
  std::vector<KernelFigure> linear;
};

// Errors: INVALID_ARGUMENT for an option, UNIMPLEMENTED for a path this processor lacks,
// RESOURCE_EXHAUSTED when memory is short. Takes some 10 s.
absl::StatusOr<KernelBenchReport> RunKernelBench(const KernelBenchOptions& options);

std::string KernelBenchJson(const KernelBenchReport& report);   // one object
std::string KernelBenchTable(const KernelBenchReport& report);  // for people

}  // namespace sluice::cli
