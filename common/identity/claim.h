// What a router vouches for on the way to a worker: whose the request is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/random.h"

namespace sluice::identity {

// How long a claim is good for, and what hosts' calendars may differ by on top. Short: a claim is
// made for each call, just before it.
inline constexpr absl::Duration kClaimLifetime = absl::Seconds(60);
inline constexpr absl::Duration kClaimSkew = absl::Seconds(30);
// Claims remembered against replays; a worker gets a few hundred calls a second.
inline constexpr size_t kClaimsSeenMax = size_t{1} << 20;

// What is vouched for.
struct ClaimFacts {
  absl::string_view tenant;
  absl::string_view cache_domain;
  absl::string_view request_id;
  uint32_t attempt = 0;
  int32_t priority = 0;
  uint32_t weight = 0;  // of the tenant
  // Worker and method, "decode-0/Decode.Reserve": a claim for one is none for another.
  absl::string_view audience;
};

struct Claim {
  uint64_t nonce = 0;
  int64_t expires_ms = 0;  // wall clock
  std::string mac;         // 32 bytes
};

// The secrets that routers and workers share. The first signs, all verify, so that a new one can be
// brought in without a pause: add it everywhere, move it to the front, remove the old one.
// Immutable, so any thread may use it.
class ClaimKeys {
 public:
  // One secret a line. Errors: INVALID_ARGUMENT naming `source` unless there are 1 to 8 of at least
  // kSecretBytesMin characters.
  static absl::StatusOr<ClaimKeys> Parse(absl::string_view text, absl::string_view source);

  // HMAC-SHA-256 over all facts, nonce and expiry.
  Claim Sign(const ClaimFacts& facts, RandomSource& random, absl::Time wall_now) const;
  bool Signed(const ClaimFacts& facts, const Claim& claim) const;

 private:
  ClaimKeys() = default;
  std::vector<std::string> keys_;
};

// Sees to it that a claim is used once. Thread-safe; the mutex is a leaf.
class ClaimCheck {
 public:
  // Errors: PERMISSION_DENIED saying why: not signed by a router, expired, or seen before;
  // RESOURCE_EXHAUSTED when more calls come than can be remembered.
  absl::Status Check(const ClaimKeys& keys, const ClaimFacts& facts, const Claim& claim,
                     absl::Time wall_now);

 private:
  // Two generations: one that is filled and the one before it, each for the longest time that a
  // claim may live.
  Mutex mutex_;
  absl::flat_hash_set<std::string> seen_ SLUICE_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> seen_before_ SLUICE_GUARDED_BY(mutex_);
  absl::Time turned_ SLUICE_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace sluice::identity
