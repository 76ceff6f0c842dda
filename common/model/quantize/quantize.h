// Rewrites a Hugging Face folder with its weights in another format.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/thread_pool.h"

namespace sluice::model {

enum class QuantizeTo {
  kInt4,      // routed experts (dense models: every matrix of a layer) as INT4 in groups of 32
  kInt4All,   // every matrix of a layer but the router as INT4 in groups of 32
  kFp8,       // every matrix of a layer but the router as FP8 with a scale per block
  kLossless,  // every BF16 matrix as kernels::WeightFormat::kBf16Palette: 3/4 of the bytes, same
              // bits
};

struct QuantizeOptions {
  QuantizeTo to = QuantizeTo::kInt4;
  uint64_t shard_bytes_max = uint64_t{4} << 30;
};

struct QuantizeReport {
  uint64_t quantized = 0;  // matrices
  uint64_t widened = 0;    // matrices that were quantised before and are BF16 now
  // Tensors as they were: those of vision towers and draft layers too, and with kLossless matrices
  // whose exponents are too many.
  uint64_t copied = 0;
  uint64_t bytes_before = 0;
  uint64_t bytes_after = 0;
};

// Reads the model in folder `source` and writes it to folder `out`, which must not exist: weights,
// a config.json that names the format, and every other file of the model as it is. config.json
// comes last, so an interrupted run leaves no model. INVALID_ARGUMENT for a shape that the format
// does not take, ALREADY_EXISTS for `out`, UNIMPLEMENTED for a GGUF file.
absl::StatusOr<QuantizeReport> QuantizeFolder(absl::string_view source, absl::string_view out,
                                              const QuantizeOptions& options,
                                              device::ThreadPool& pool);

}  // namespace sluice::model
