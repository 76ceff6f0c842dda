#include "identity/claim.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "identity/api_key.h"
#include "identity/digest.h"

namespace sluice::identity {
namespace {

constexpr size_t kKeysMax = 8;
// A claim made a skew ahead lives at most this long here.
absl::Duration Generation() { return kClaimLifetime + 2 * kClaimSkew; }

std::string MessageOf(const ClaimFacts& facts, uint64_t nonce, int64_t expires_ms) {
  std::string message = "sluice claim 2";
  AppendField(&message, facts.tenant);
  AppendField(&message, facts.cache_domain);
  AppendField(&message, facts.request_id);
  AppendField(&message, facts.audience);
  AppendField(&message, absl::StrCat(facts.attempt, ",", facts.priority, ",", facts.weight, ",",
                                     nonce, ",", expires_ms));
  return message;
}

}  // namespace

absl::StatusOr<ClaimKeys> ClaimKeys::Parse(absl::string_view text, absl::string_view source) {
  ClaimKeys keys;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (line.size() < kSecretBytesMin || keys.keys_.size() == kKeysMax) {
      return absl::InvalidArgumentError(absl::StrCat(source, " must have 1 to ", kKeysMax,
                                                     " lines with a secret of at least ",
                                                     kSecretBytesMin, " characters each"));
    }
    keys.keys_.emplace_back(line);
  }
  if (keys.keys_.empty())
    return absl::InvalidArgumentError(absl::StrCat(source, " has no secret in it"));
  return keys;
}

Claim ClaimKeys::Sign(const ClaimFacts& facts, RandomSource& random, absl::Time wall_now) const {
  Claim claim;
  claim.nonce = random.Next64();
  claim.expires_ms = absl::ToUnixMillis(wall_now + kClaimLifetime);
  claim.mac = HmacSha256(keys_.front(), MessageOf(facts, claim.nonce, claim.expires_ms));
  return claim;
}

bool ClaimKeys::Signed(const ClaimFacts& facts, const Claim& claim) const {
  const std::string message = MessageOf(facts, claim.nonce, claim.expires_ms);
  bool good = false;
  for (const std::string& key : keys_)
    good = EqualInConstantTime(HmacSha256(key, message), claim.mac) || good;
  return good;
}

absl::Status ClaimCheck::Check(const ClaimKeys& keys, const ClaimFacts& facts, const Claim& claim,
                               absl::Time wall_now) {
  if (claim.mac.empty())
    return absl::PermissionDeniedError(
        "the call has no claim of a router; set claim_key_file on the router as on this worker");
  if (!keys.Signed(facts, claim))
    return absl::PermissionDeniedError(
        "the call's claim was not signed for it by a router of this cluster");
  const absl::Time expires = absl::FromUnixMillis(claim.expires_ms);
  if (wall_now >= expires + kClaimSkew || expires > wall_now + kClaimLifetime + kClaimSkew) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the call's claim is good until ", absl::FormatTime(expires, absl::UTCTimeZone()),
        ", here it is ", absl::FormatTime(wall_now, absl::UTCTimeZone()),
        "; if it is fresh, the hosts' clocks differ by more than ",
        absl::FormatDuration(kClaimSkew)));
  }
  MutexLock lock(mutex_);
  if (wall_now >= turned_ + Generation() || wall_now < turned_) {
    // Generations also turn when the calendar was set back: then both would be empty too early, so
    // the present one is kept as the one before.
    seen_before_ = std::exchange(seen_, {});
    turned_ = wall_now;
  }
  if (seen_before_.contains(claim.mac) || seen_.contains(claim.mac))
    return absl::PermissionDeniedError("the call's claim was used before");
  if (seen_.size() >= kClaimsSeenMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "more than ", kClaimsSeenMax, " calls came within ", absl::FormatDuration(Generation())));
  }
  seen_.insert(claim.mac);
  return absl::OkStatus();
}

}  // namespace sluice::identity
