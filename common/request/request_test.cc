#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "request/phase.h"
#include "request/sampling.h"

namespace sluice::request {
namespace {

TEST(Phase, TheEightStepsFollowEachOther) {
  for (size_t i = 0; i + 4 < kAllPhases.size(); ++i) {
    EXPECT_TRUE(MayFollow(kAllPhases[i], kAllPhases[i + 1])) << PhaseName(kAllPhases[i]);
  }
}

TEST(Phase, NothingFollowsAnEndAndEveryLivePhaseMayEnd) {
  for (Phase from : kAllPhases) {
    for (Phase to : kAllPhases) {
      if (IsTerminal(from)) {
        EXPECT_FALSE(MayFollow(from, to));
      } else if (IsTerminal(to)) {
        EXPECT_TRUE(MayFollow(from, to));
      }
    }
  }
}

TEST(Phase, EveryChangeIsAFaultPoint) {
  const std::vector<std::string> points = kPhaseMachine.Points();
  const std::set<std::string> unique(points.begin(), points.end());
  EXPECT_EQ(unique.size(), points.size());
  for (Phase from : kAllPhases) {
    for (Phase to : kAllPhases) {
      EXPECT_EQ(unique.contains(absl::StrCat("phase.", PhaseName(from), "_to_", PhaseName(to))),
                MayFollow(from, to));
    }
  }
}

TEST(Phase, NoStepIsSkippedOnTheSplitPath) {
  EXPECT_FALSE(MayFollow(Phase::kReserved, Phase::kTransferring));
  EXPECT_FALSE(MayFollow(Phase::kTransferring, Phase::kDecoding));
  EXPECT_FALSE(MayFollow(Phase::kReserved, Phase::kDecoding));
}

TEST(Sampling, EveryBadFieldIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    return std::string(ValidateSampling(params, 100).message());
  };
  EXPECT_EQ(ValidateSampling(SamplingParams{}, 100), absl::OkStatus());
  EXPECT_THAT(message([&](SamplingParams& p) { p.temperature = nan; }),
              testing::HasSubstr("temperature"));
  EXPECT_THAT(message([](SamplingParams& p) { p.temperature = -1; }),
              testing::HasSubstr("temperature"));
  EXPECT_THAT(message([](SamplingParams& p) { p.top_p = 0; }), testing::HasSubstr("top_p"));
  EXPECT_THAT(message([](SamplingParams& p) { p.min_p = 1.5f; }), testing::HasSubstr("min_p"));
  EXPECT_THAT(message([](SamplingParams& p) { p.repetition_penalty = 0; }),
              testing::HasSubstr("repetition_penalty"));
  EXPECT_THAT(message([](SamplingParams& p) {
                p.logit_bias = {{100, 1.0f}};
              }),
              testing::HasSubstr("logit_bias"));
  EXPECT_THAT(message([](SamplingParams& p) { p.stop_token_ids = {-1}; }),
              testing::HasSubstr("stop_token_ids"));
  EXPECT_THAT(message([](SamplingParams& p) { p.logprobs = 21; }), testing::HasSubstr("logprobs"));
  EXPECT_THAT(message([](SamplingParams& p) { p.max_tokens = 0; }),
              testing::HasSubstr("max_tokens"));
  EXPECT_THAT(message([](SamplingParams& p) { p.min_tokens = 17; }),
              testing::HasSubstr("min_tokens"));
}

}  // namespace
}  // namespace sluice::request
