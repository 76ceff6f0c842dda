// From logits to one token, for one sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "request/sampling.h"

namespace sluice::engine {

// Order of a draw: frequency and presence penalties (output only), repetition penalty (prompt and
// output; positive logits are divided by it, negative ones multiplied), logit_bias, mask of EOS and
// stop ids below min_tokens, NaN guard, temperature, then top_k, top_p and min_p together on that
// distribution, then Gumbel-max: the kept token with the largest logit / temperature + noise wins,
// the lowest id on ties. The noise depends on (seed, choice, output position, token id) and nothing
// else, so a stream that moves, or is computed in another batch, draws the same tokens.
//
// Log-probabilities are those of the model: log softmax of the logits before all of the above.
//
// State can be rebuilt from ids: construct, then AddOutput for what was emitted. Owned by one
// thread.
class Sampler {
 public:
  // `params` must have passed ValidateSampling. `eos_tokens` end the sequence unless ignore_eos.
  Sampler(const request::SamplingParams& params, absl::Span<const request::TokenId> eos_tokens,
          absl::Span<const request::TokenId> prompt);

  // Counts a token of the output: for penalties.
  void AddOutput(request::TokenId token);

  // Draws output token number `position` (from 0). Does not count it. logits: [vocabulary] float32,
  // unchanged. Errors: INTERNAL when no logit is finite. Cost: one pass for greedy; one pass and
  // one mixing step a token for plain temperature; with top_k, top_p or min_p one exponential a
  // token and a partial sort of the candidates. Penalties and bias add a copy of the row.
  absl::StatusOr<request::SampledToken> Sample(absl::Span<const float> logits, uint32_t position);

  // True for EOS and stop ids, unless they are ignored.
  bool EndsSequence(request::TokenId token) const;

 private:
  struct Candidate {
    request::TokenId token;
    float score;  // logit / temperature - largest such value
  };

  bool Adjusts(uint32_t position) const;
  void Adjust(absl::Span<float> row, uint32_t position) const;
  request::TokenId DrawFromAll(absl::Span<const float> row, request::TokenId best,
                               uint32_t position) const;
  request::TokenId DrawFromTop(absl::Span<const float> row, request::TokenId best,
                               uint32_t position);
  size_t KeepTop(double total);

  const request::SamplingParams params_;
  std::vector<request::TokenId> ending_;  // sorted
  absl::flat_hash_map<request::TokenId, uint32_t> output_counts_;
  std::vector<request::TokenId>
      prompt_tokens_;  // distinct; filled only when a repetition penalty needs them
  std::vector<float> row_;
  std::vector<Candidate> candidates_;
};

// Log softmax of `logits` at `token`, and the `top` most likely tokens in falling order (the lower
// id first on ties). NaN counts as minus infinity. Cost: one exponential a token.
request::SampledToken WithLogprobs(absl::Span<const float> logits, request::TokenId token, int top);

}  // namespace sluice::engine
