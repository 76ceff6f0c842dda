#include "engine/rates.h"

#include <gtest/gtest.h>

namespace sluice::engine {
namespace {

TEST(Rates, NothingBeforeTheFirstMeasurement) {
  Rates rates;
  rates.Add(100, 0, absl::ZeroDuration());  // a clock that stands still
  EXPECT_EQ(rates.prefill_tokens_per_s(), 0);
  EXPECT_EQ(rates.decode_step(), absl::ZeroDuration());
}

TEST(Rates, APromptIsNotChargedForTheStreamsBesideIt) {
  Rates rates;
  rates.Add(0, 4, absl::Milliseconds(10));
  rates.Add(100, 4, absl::Milliseconds(60));
  EXPECT_NEAR(rates.prefill_tokens_per_s(), 2000, 1);
  EXPECT_EQ(rates.decode_step(), absl::Milliseconds(10));
}

TEST(Rates, AMixedStepFasterThanADecodeStepStaysFinite) {
  Rates rates;
  rates.Add(0, 4, absl::Milliseconds(40));
  rates.Add(10, 4, absl::Milliseconds(20));
  EXPECT_NEAR(rates.prefill_tokens_per_s(), 2000, 1);  // a quarter of the step
}

TEST(Rates, FollowAChange) {
  Rates rates;
  for (int i = 0; i < 5; ++i) rates.Add(100, 0, absl::Milliseconds(100));
  for (int i = 0; i < 30; ++i) rates.Add(100, 0, absl::Milliseconds(50));
  EXPECT_NEAR(rates.prefill_tokens_per_s(), 2000, 10);
}

}  // namespace
}  // namespace sluice::engine
