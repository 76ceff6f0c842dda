// How well logits predict a text, and how far they are from other logits of the same text.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "request/sampling.h"

namespace sluice::cli {

// One compared position.
struct ComparedPosition {
  uint64_t index = 0;  // in the order they were added
  double kl = 0;       // KL(reference || logits)
  request::TokenId reference_top = 0;
  request::TokenId top = 0;
};

struct DistanceSummary {
  uint64_t tokens = 0;  // predicted
  double nll = 0;       // mean negative log-likelihood of a token
  double kl_mean = 0;   // KL(reference || logits) over the positions
  double kl_p99 = 0;
  double kl_max = 0;
  double top1_agreement = 0;  // share of positions with the same likeliest token, lowest id on ties
  std::vector<ComparedPosition> worst;  // those with the largest KL, largest first
};

// Thread-compatible. Keeps 24 bytes a position.
class Distance {
 public:
  // One position: logits over the vocabulary and the token that follows.
  void AddPrediction(absl::Span<const float> logits, request::TokenId next);
  // One position: the same logits against a reference's. Needs: equal widths.
  void AddComparison(absl::Span<const float> reference, absl::Span<const float> logits);

  // With at most `worst` positions.
  DistanceSummary Summary(size_t worst = 10) const;

 private:
  uint64_t tokens_ = 0;
  double nll_ = 0;
  std::vector<ComparedPosition> positions_;
};

}  // namespace sluice::cli
