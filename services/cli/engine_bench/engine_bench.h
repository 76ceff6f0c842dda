// How fast one engine in this process computes: prefill and decode at several batch sizes, through
// the scheduler, the page pool and the sampler, not the bare model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/local_model/local_model.h"

namespace sluice::cli {

struct EngineBenchOptions {
  services::LocalModelOptions model;
  uint32_t prompt_tokens = 512;
  uint32_t gen_tokens = 128;
  // Context of every sequence when its decode is first timed.
  uint32_t depth_tokens = 128;
  std::vector<uint32_t> batches = {1, 8, 32};
  uint32_t repetitions = 3;
  uint64_t seed = 1;  // of the prompts' token ids
};

// Errors: INVALID_ARGUMENT naming the flag, its value and its range.
absl::Status ValidateEngineBench(const EngineBenchOptions& options);

// One timed stretch of work.
struct Stretch {
  uint64_t tokens = 0;
  uint64_t steps = 0;
  uint64_t weight_bytes = 0;  // read by all steps together
  absl::Duration took;

  double tokens_per_s() const;
  double step_ms() const;
  double weight_bytes_per_step() const;
};

// The stretch whose rate is the median; of an even number the slower of the two in the middle.
// `stretches` must not be empty.
Stretch MedianByRate(std::vector<Stretch> stretches);

struct DecodeFigure {
  uint32_t batch = 0;
  Stretch stretch;
};

struct EngineBenchReport {
  EngineBenchOptions options;
  std::string model;
  std::string kernels;
  std::string kv_format;
  int threads = 0;
  double read_gb_per_s = 0;  // measured, all threads together
  Stretch prefill;
  std::vector<DecodeFigure> decode;
};

// Loads the model once, warms up, times everything `repetitions` times and keeps the median.
// `progress` (may be null) gets a line before each part. Errors: as LoadLocalModel and
// ValidateEngineBench; INVALID_ARGUMENT when the context is too short.
absl::StatusOr<EngineBenchReport> RunEngineBench(
    const EngineBenchOptions& options, const std::function<void(absl::string_view)>& progress);

// One JSON object; `price_per_hour` of the machine, 0 when not known, adds cost per million tokens.
std::string EngineBenchJson(const EngineBenchReport& report, double price_per_hour);
// The same for people.
std::string EngineBenchTable(const EngineBenchReport& report, double price_per_hour);

}  // namespace sluice::cli
