#include "services/cli/perplexity/distance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice::cli {
namespace {

double LogSumExp(absl::Span<const float> logits, double largest) {
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

}  // namespace

void Distance::AddPrediction(absl::Span<const float> logits, request::TokenId next) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  nll_ += LogSumExp(logits, largest) - static_cast<double>(logits[static_cast<size_t>(next)]);
  ++tokens_;
}

void Distance::AddComparison(absl::Span<const float> reference, absl::Span<const float> logits) {
  SLUICE_CHECK(reference.size() == logits.size()) << reference.size() << " " << logits.size();
  const auto reference_top = std::max_element(reference.begin(), reference.end());
  const auto top = std::max_element(logits.begin(), logits.end());
  same_top_ += (reference_top - reference.begin()) == (top - logits.begin());
  const double reference_sum = LogSumExp(reference, static_cast<double>(*reference_top));
  const double sum = LogSumExp(logits, static_cast<double>(*top));
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p = static_cast<double>(reference[i]) - reference_sum;
    const double q = static_cast<double>(logits[i]) - sum;
    kl += std::exp(p) * (p - q);
  }
  kl_.push_back(kl);
}

DistanceSummary Distance::Summary() const {
  DistanceSummary summary;
  summary.tokens = tokens_;
  if (tokens_ > 0) summary.nll = nll_ / static_cast<double>(tokens_);
  if (kl_.empty()) return summary;
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  for (double kl : sorted) summary.kl_mean += kl;
  summary.kl_mean /= static_cast<double>(sorted.size());
  // The smallest value that at least 99 % of the positions do not exceed.
  summary.kl_p99 = sorted[(sorted.size() * 99 + 99) / 100 - 1];
  summary.kl_max = sorted.back();
  summary.top1_agreement = static_cast<double>(same_top_) / static_cast<double>(sorted.size());
  return summary;
}

}  // namespace sluice::cli
