#include "services/cli/perplexity/distance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sluice::cli {
namespace {

TEST(Distance, NllIsTheMeanOfLogProbabilities) {
  Distance distance;
  const std::vector<float> logits = {std::log(1.0f), std::log(3.0f)};
  distance.AddPrediction(logits, 0);
  distance.AddPrediction(logits, 1);
  const DistanceSummary summary = distance.Summary();
  EXPECT_EQ(summary.tokens, 2u);
  EXPECT_NEAR(summary.nll, -(std::log(0.25) + std::log(0.75)) / 2, 1e-6);
  EXPECT_EQ(summary.kl_mean, 0);
}

TEST(Distance, KlIsOfTheReferenceAndShiftsDoNotMatter) {
  Distance distance;
  const std::vector<float> reference = {std::log(1.0f), std::log(3.0f)};
  const std::vector<float> other = {std::log(1.0f) + 500, std::log(1.0f) + 500};
  distance.AddComparison(reference, other);
  distance.AddComparison(reference, reference);
  const DistanceSummary summary = distance.Summary();
  const double kl = 0.25 * std::log(0.25 / 0.5) + 0.75 * std::log(0.75 / 0.5);
  EXPECT_NEAR(summary.kl_mean, kl / 2, 1e-6);
  EXPECT_NEAR(summary.kl_p99, kl, 1e-6);
  EXPECT_NEAR(summary.kl_max, kl, 1e-6);
  EXPECT_EQ(summary.top1_agreement, 0.5);  // the lowest id wins the tie
  ASSERT_EQ(summary.worst.size(), 2u);
  EXPECT_EQ(summary.worst[0].index, 0u);
  EXPECT_EQ(summary.worst[0].reference_top, 1);
  EXPECT_EQ(summary.worst[0].top, 0);
  EXPECT_EQ(summary.worst[1].kl, 0);
  EXPECT_EQ(distance.Summary(1).worst.size(), 1u);
}

TEST(Distance, P99LeavesOnePositionInAHundredOut) {
  Distance distance;
  const std::vector<float> even = {0, 0};
  const std::vector<float> far = {0, 9};
  for (int i = 0; i < 99; ++i) distance.AddComparison(even, even);
  distance.AddComparison(even, far);
  EXPECT_NEAR(distance.Summary().kl_p99, 0, 1e-12);
  EXPECT_GT(distance.Summary().kl_max, 1);
  distance.AddComparison(even, far);
  EXPECT_GT(distance.Summary().kl_p99, 1);
}

TEST(Distance, NothingAddedIsZero) {
  const DistanceSummary summary = Distance().Summary();
  EXPECT_EQ(summary.tokens, 0u);
  EXPECT_EQ(summary.nll, 0);
}

}  // namespace
}  // namespace sluice::cli
