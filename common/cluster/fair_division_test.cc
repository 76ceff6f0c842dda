#include "cluster/fair_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace sluice::cluster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

TEST(FairDivisionTest, PartsFollowWeightsBetweenFloorsAndWants) {
  EXPECT_THAT(DivideFairly(100, {}), IsEmpty());
  EXPECT_THAT(DivideFairly(0, {{1, 10, kAll}}), ElementsAre(0));
  EXPECT_THAT(DivideFairly(90, {{1, 0, kAll}, {2, 0, kAll}}), ElementsAre(30, 60));
  // What one does not want goes to the others by weight.
  EXPECT_THAT(DivideFairly(90, {{1, 0, 10}, {1, 0, kAll}, {3, 0, kAll}}), ElementsAre(10, 20, 60));
  // A floor below the share changes nothing; one above it takes from all others.
  EXPECT_THAT(DivideFairly(90, {{1, 20, kAll}, {2, 0, kAll}}), ElementsAre(30, 60));
  EXPECT_THAT(DivideFairly(90, {{1, 60, kAll}, {2, 0, kAll}}), ElementsAre(60, 30));
  // A floor is given as far as it is wanted.
  EXPECT_THAT(DivideFairly(90, {{1, 60, 5}, {2, 0, kAll}}), ElementsAre(5, 85));
  // All are content.
  EXPECT_THAT(DivideFairly(90, {{1, 60, 5}, {2, 0, 7}}), ElementsAre(5, 7));
}

TEST(FairDivisionTest, FloorsThatDoNotFitShrinkInProportion) {
  EXPECT_THAT(DivideFairly(30, {{1, 40, kAll}, {9, 20, kAll}, {1, 0, kAll}}),
              ElementsAre(20, 10, 0));
}

TEST(FairDivisionTest, RoundingLosesNothing) {
  EXPECT_THAT(DivideFairly(10, {{1, 0, kAll}, {1, 0, kAll}, {1, 0, kAll}}), ElementsAre(4, 3, 3));
}

// The definition: no part outside its bounds, nothing left while somebody wants more, and who is
// above his floor has no more per weight than anybody who wants more.
TEST(FairDivisionTest, RandomDivisionsAreMaxMinFair) {
  SeededRandom random(7);
  for (int round = 0; round < 20000; ++round) {
    std::vector<Claim> claims(1 + random.Below(8));
    for (Claim& claim : claims) {
      claim = {0.25 * static_cast<double>(1 + random.Below(40)), random.Below(300),
               random.Below(4) == 0 ? kAll : random.Below(1000)};
    }
    const uint64_t capacity = random.Below(2000);
    const std::vector<uint64_t> parts = DivideFairly(capacity, claims);
    uint64_t sum = 0;
    uint64_t floors = 0;
    bool all_content = true;
    for (size_t i = 0; i < claims.size(); ++i) {
      ASSERT_LE(parts[i], claims[i].wanted);
      sum += parts[i];
      floors += std::min(claims[i].floor, claims[i].wanted);
      all_content &= parts[i] == claims[i].wanted;
    }
    ASSERT_TRUE(sum == capacity || (sum < capacity && all_content)) << "round " << round;
    if (floors > capacity) continue;
    for (size_t i = 0; i < claims.size(); ++i) {
      ASSERT_GE(parts[i], std::min(claims[i].floor, claims[i].wanted));
      if (parts[i] == std::min(claims[i].floor, claims[i].wanted)) continue;
      for (size_t j = 0; j < claims.size(); ++j) {
        if (parts[j] == claims[j].wanted) continue;
        // Within the one unit that rounding moves.
        ASSERT_LE((static_cast<double>(parts[i]) - 1) / claims[i].weight,
                  (static_cast<double>(parts[j]) + 1) / claims[j].weight)
            << "round " << round << ": " << i << " against " << j;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::cluster
