// How many tokens of KV cache fit beside a model's weights on a set of GPUs: every term of the sum.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"

namespace sluice::model {

struct PlanOptions {
  std::string gpu = "h200";  // h100, h200, b200, b300
  int32_t gpus = 8;
  int32_t tp = 8;                // ranks that share one copy of the weights; divides `gpus`
  std::string weights = "bf16";  // bf16, fp8, fp8-channel, int4, nvfp4
  std::string kv = "bf16";  // f32, bf16, fp8, gqa_fp8, gqa_fp8c, gqa_int8c, mla_fp8, mla_fp8_656
  std::optional<double> memory_fraction;  // of the memory free before loading; else `reserve` below
  int32_t prefill_chunk_tokens = 8192;
  int32_t decode_batch_max = 512;
  bool mtp = false;               // load the draft layers too, with their KV
  bool index_every_layer = true;  // index keys on layers that reuse another's picks too
};

struct PlanTerm {
  std::string name;
  double value = 0;
  std::string unit;  // "bytes", "parameters", "tokens", "MiB" or empty
  std::string note;  // where it comes from
};

struct Plan {
  uint64_t parameters = 0;        // draft layers included
  uint64_t checkpoint_bytes = 0;  // in the weight format, draft layers included
  uint64_t weight_bytes_per_gpu = 0;
  double memory_fraction = 0;
  int64_t kv_pool_bytes_per_gpu = 0;  // negative: the weights do not fit
  uint64_t kv_bytes_per_token = 0;    // of one GPU
  int64_t kv_tokens = 0;              // of one copy of the model: `tp` GPUs
  int32_t copies = 1;
  std::vector<PlanTerm> terms;  // everything above and what it is made of, in the order of the sum
};

// INVALID_ARGUMENT naming the option and what is possible; a KV format of the other kind of
// attention too.
absl::StatusOr<Plan> MakePlan(const ModelConfig& config, const PlanOptions& options);

}  // namespace sluice::model
