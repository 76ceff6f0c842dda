#include "identity/claim.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::identity {
namespace {

const std::string kSecret(32, 's');
const std::string kOther(32, 'o');
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
const ClaimFacts kFacts = {"acme", "domain", "request-1", 2, -3, 5, "decode-0/Decode.Reserve"};

ClaimKeys Keys(const std::string& text) { return *ClaimKeys::Parse(text, "claim_key_file"); }

class ClaimTest : public testing::Test {
 protected:
  Claim Sign(absl::Time now = kNow) { return Keys(kSecret).Sign(kFacts, random_, now); }
  absl::Status Check(const ClaimFacts& facts, const Claim& claim, absl::Time now = kNow) {
    return check_.Check(Keys(kSecret), facts, claim, now);
  }
  void ExpectRefused(const absl::Status& status, absl::string_view expected) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_TRUE(absl::StrContains(status.message(), expected)) << status;
  }

  SecureRandom random_;
  ClaimCheck check_;
};

TEST_F(ClaimTest, AFreshClaimOfARouterIsGoodOnce) {
  const Claim claim = Sign();
  EXPECT_TRUE(Check(kFacts, claim).ok());
  ExpectRefused(Check(kFacts, claim), "used before");
  ExpectRefused(Check(kFacts, claim, kNow + absl::Seconds(50)), "used before");
  EXPECT_TRUE(Check(kFacts, Sign()).ok()) << "another claim for the same call";
}

TEST_F(ClaimTest, EveryFactIsVouchedFor) {
  std::vector<ClaimFacts> forged(7, kFacts);
  forged[0].tenant = "zeta";
  forged[1].cache_domain = "other";
  forged[2].request_id = "request-2";
  forged[3].attempt = 3;
  forged[4].priority = 100;
  forged[5].audience = "decode-1/Decode.Reserve";
  forged[6].weight = 1000;
  const Claim claim = Sign();
  for (const ClaimFacts& facts : forged) ExpectRefused(Check(facts, claim), "not signed");
  // Fields cannot borrow letters from each other.
  ClaimFacts shifted = kFacts;
  shifted.tenant = "acm";
  shifted.cache_domain = "edomain";
  ExpectRefused(Check(shifted, claim), "not signed");

  Claim later = claim;
  later.expires_ms += 1;
  ExpectRefused(Check(kFacts, later), "not signed");
  Claim another = claim;
  another.nonce += 1;
  ExpectRefused(Check(kFacts, another), "not signed");
  Claim flipped = claim;
  flipped.mac[31] = static_cast<char>(flipped.mac[31] ^ 1);
  ExpectRefused(Check(kFacts, flipped), "not signed");
  ExpectRefused(Check(kFacts, Claim()), "no claim of a router");
  ExpectRefused(Check(kFacts, Keys(kOther).Sign(kFacts, random_, kNow)), "not signed");
  EXPECT_TRUE(Check(kFacts, claim).ok()) << "refusals use nothing up";
}

TEST_F(ClaimTest, ClaimsExpireAndMayNotComeFromTheFuture) {
  ExpectRefused(Check(kFacts, Sign(), kNow + kClaimLifetime + kClaimSkew), "clocks differ");
  EXPECT_TRUE(Check(kFacts, Sign(), kNow + kClaimLifetime + kClaimSkew - absl::Seconds(1)).ok());
  ExpectRefused(Check(kFacts, Sign(kNow + kClaimSkew + absl::Seconds(1))), "clocks differ");
  EXPECT_TRUE(Check(kFacts, Sign(kNow + kClaimSkew)).ok());
}

TEST_F(ClaimTest, AReplayIsSeenForAsLongAsTheClaimIsGood) {
  // Whenever the memory is turned over between the two.
  for (int first_s = 0; first_s < 240; first_s += 7) {
    ClaimCheck check;
    const absl::Time begin = kNow;
    ASSERT_TRUE(check.Check(Keys(kSecret), kFacts, Sign(begin), begin).ok());
    const absl::Time made = begin + absl::Seconds(first_s);
    const Claim claim = Sign(made);
    ASSERT_TRUE(check.Check(Keys(kSecret), kFacts, claim, made).ok());
    for (int later_s = 0; later_s < 200; later_s += 5) {
      EXPECT_FALSE(check.Check(Keys(kSecret), kFacts, claim, made + absl::Seconds(later_s)).ok());
    }
  }
}

TEST_F(ClaimTest, KeysAreReplacedWithoutAPause) {
  const ClaimKeys old_key = Keys(kSecret);
  const ClaimKeys both = Keys(absl::StrCat(kOther, "\n", kSecret, "\n"));
  EXPECT_TRUE(both.Signed(kFacts, old_key.Sign(kFacts, random_, kNow)));
  EXPECT_TRUE(Keys(kOther).Signed(kFacts, both.Sign(kFacts, random_, kNow)));
  EXPECT_FALSE(old_key.Signed(kFacts, both.Sign(kFacts, random_, kNow)));
}

TEST(ClaimKeys, ShortSecretsAreRefused) {
  EXPECT_FALSE(ClaimKeys::Parse("", "f").ok());
  EXPECT_FALSE(ClaimKeys::Parse("short\n", "f").ok());
  EXPECT_FALSE(ClaimKeys::Parse(absl::StrCat(kSecret, "\nshort"), "f").ok());
}

}  // namespace
}  // namespace sluice::identity
