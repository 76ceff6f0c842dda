#include "services/cli/perplexity/distance.h"

#include <algorithm>
#include <cmath>
#include <utility>

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
  const double reference_sum = LogSumExp(reference, static_cast<double>(*reference_top));
  const double sum = LogSumExp(logits, static_cast<double>(*top));
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p = static_cast<double>(reference[i]) - reference_sum;
    const double q = static_cast<double>(logits[i]) - sum;
    kl += std::exp(p) * (p - q);
  }
  positions_.push_back({positions_.size(), kl,
                        static_cast<request::TokenId>(reference_top - reference.begin()),
                        static_cast<request::TokenId>(top - logits.begin())});
}

DistanceSummary Distance::Summary(size_t worst) const {
  DistanceSummary summary;
  summary.tokens = tokens_;
  if (tokens_ > 0) summary.nll = nll_ / static_cast<double>(tokens_);
  if (positions_.empty()) return summary;
  std::vector<ComparedPosition> sorted = positions_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.kl > b.kl; });
  uint64_t same_top = 0;
  for (const ComparedPosition& position : sorted) {
    summary.kl_mean += position.kl;
    same_top += position.reference_top == position.top;
  }
  const auto count = static_cast<double>(sorted.size());
  summary.kl_mean /= count;
  // The smallest value that at least 99 % of the positions do not exceed.
  summary.kl_p99 = sorted[sorted.size() - (sorted.size() * 99 + 99) / 100].kl;
  summary.kl_max = sorted.front().kl;
  summary.top1_agreement = static_cast<double>(same_top) / count;
  sorted.resize(std::min(worst, sorted.size()));
  summary.worst = std::move(sorted);
  return summary;
}

}  // namespace sluice::cli
