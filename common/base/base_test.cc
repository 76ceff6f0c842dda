// Small units of base: ids, hashes, random numbers, clock, log fields, fault points, checks.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/random.h"
#include "base/request_id.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

TEST(Ids, Id128RoundTripsThroughBytes) {
  const Id128 id{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  Id128 back;
  ASSERT_TRUE(Id128::FromBytes(id.ToBytes(), &back));
  EXPECT_EQ(back, id);
  EXPECT_EQ(id.ToHex(), "0123456789abcdeffedcba9876543210");
  EXPECT_FALSE(Id128::FromBytes("short", &back));
}

TEST(Ids, RequestIdsAreShortAndPlain) {
  for (const std::string& id :
       {std::string("r"), std::string("Az09-_.:"), std::string(kRequestIdBytesMax, 'r')}) {
    EXPECT_TRUE(IsRequestId(id)) << id;
  }
  for (const std::string& id :
       {std::string(), std::string("a b"), std::string("a\nb"), std::string("a\0b", 3),
        std::string("\xc3\xa4"), std::string(kRequestIdBytesMax + 1, 'r')}) {
    EXPECT_FALSE(IsRequestId(id)) << id;
  }
}

// RFC 4231, test case 2.
TEST(Hash, HmacMatchesThePublishedVector) {
  EXPECT_EQ(HmacSha256_128("Jefe", "what do ya want for nothing?").ToHex(),
            "5bdcc146bf60754e6a042426089575c7");
}

TEST(Random, CounterNoiseDependsOnEveryArgumentAndStaysInside) {
  std::set<double> seen;
  for (uint64_t seed : {0u, 1u}) {
    for (uint32_t choice : {0u, 1u}) {
      for (uint64_t position : {0u, 1u}) {
        for (uint64_t lane : {0u, 1u}) {
          const double value = CounterNoise(seed, choice, position).Uniform(lane);
          EXPECT_GT(value, 0.0);
          EXPECT_LT(value, 1.0);
          seen.insert(value);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(Random, BelowIsUniformEnough) {
  SeededRandom random(1);
  int counts[5] = {};
  for (int i = 0; i < 50000; ++i) ++counts[random.Below(5)];
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);
}

TEST(Clock, FakeClockMovesOnlyForward) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  clock.Advance(absl::Seconds(3));
  clock.AdvanceTo(start);
  EXPECT_EQ(clock.Now(), start + absl::Seconds(3));
}

TEST(Log, FieldsWithBlanksAreQuoted) {
  EXPECT_EQ(Field("a", 1).text, " a=1");
  EXPECT_EQ(Field("a", "b c").text, " a=\"b c\"");
  EXPECT_EQ(Field("a", "").text, " a=\"\"");
}

TEST(Fault, ArmedPointsFailAndAllHitsAreCounted) {
  FaultInjector faults;
  EXPECT_TRUE(faults.Hit("x").ok());
  EXPECT_EQ(faults.Arm("x", [] { return absl::UnavailableError("armed"); }), 1u);
  EXPECT_EQ(faults.Hit("x").code(), absl::StatusCode::kUnavailable);
  faults.Disarm("x");
  EXPECT_TRUE(faults.Hit("x").ok());
  EXPECT_EQ(faults.HitCount("x"), 3u);
  EXPECT_EQ(faults.Arm(
                "x", [] { return absl::UnavailableError("armed"); }, "a"),
            3u);
  EXPECT_TRUE(faults.Hit("x").ok());
  EXPECT_TRUE(faults.Hit("x", "b").ok());
  EXPECT_FALSE(faults.Hit("x", "a").ok());
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  SLUICE_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

TEST(StatusMacros, PropagateTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_EQ(Quarter(3).status().message(), "odd");
}

TEST(CheckDeathTest, PrintsConditionAndMessage) {
  const int pages = 3;
  EXPECT_DEATH(SLUICE_CHECK(pages == 4) << "pages=" << pages, "check failed: pages == 4 pages=3");
}

}  // namespace
}  // namespace sluice
