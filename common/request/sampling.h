// What a request asks of the sampler, and how a sequence ended. Plain values shared by router,
// workers and engine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::request {

using TokenId = int32_t;

// Sampling after defaults were applied. Meaning and ranges: inference.proto.
struct SamplingParams {
  float temperature = 1.0f;
  float top_p = 1.0f;
  uint32_t top_k = 0;  // 0: all tokens
  float min_p = 0.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;
  uint32_t choice = 0;  // index of this continuation among n; part of the noise
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  uint32_t min_tokens = 0;
  uint32_t max_tokens = 16;
  int logprobs = -1;         // number of top log-probabilities; -1: none at all
  bool logits_hash = false;  // report SampledToken::logits_hash

  bool greedy() const { return temperature < 1e-6f; }
};

inline constexpr int kLogprobsMax = 20;
inline constexpr size_t kLogitBiasMax = 300;

// Checks every range, finiteness included, and that ids lie inside the vocabulary.
// Errors: INVALID_ARGUMENT naming the field, its value and its range.
absl::Status ValidateSampling(const SamplingParams& params, TokenId vocabulary);

enum class FinishReason { kNone, kStop, kLength };
// "", "stop", "length".
absl::string_view FinishReasonName(FinishReason reason);

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;
};

// One sampled token. `logprob` is the model's own distribution (before penalties and temperature).
struct SampledToken {
  TokenId token = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
  // XXH3 of the row of logits it was drawn from, as it came from the model; 0 unless asked for.
  // Equal hashes: equal bits.
  uint64_t logits_hash = 0;
};

// Token counts of one request; cached and recomputed tokens are never charged twice.
struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t recomputed_tokens = 0;
};

}  // namespace sluice::request
