// What both sides of a page move share: counters, digests, and the envelope of their messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "kv/page_digest.h"
#include "kv/page_layout.h"
#include "request/sampling.h"
#include "sluice/v1/kv.pb.h"
#include "transport/transport.h"

namespace sluice::handoff {

// Which pieces carry a digest. The taker verifies every digest it is given.
using kv::DigestMode;

// A number that one loop changes and any thread may read.
class Counter {
 public:
  Counter() = default;
  Counter(const Counter& other) : value_(other.value_.load(std::memory_order_relaxed)) {}
  Counter& operator=(const Counter& other) {
    value_.store(other.value_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return *this;
  }
  // NOLINTNEXTLINE(google-explicit-constructor): reads like a number
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }
  void operator++() { *this += 1; }
  void operator+=(uint64_t by) { value_.fetch_add(by, std::memory_order_relaxed); }
  void operator-=(uint64_t by) { value_.fetch_sub(by, std::memory_order_relaxed); }
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Counters of the page-move protocol; names follow the metrics. Bytes and pieces count when their
// transfer is complete, so the sums of both sides agree.
struct MoveCounters {
  Counter bytes_sent;
  Counter bytes_received;
  Counter pieces_sent;
  Counter pieces_received;
  Counter transfers_completed;
  Counter transfers_failed;
  Counter stale_messages;  // another incarnation, lease, attempt or generation: refused
  Counter duplicate_messages;
  Counter invalid_messages;  // cannot be parsed, or contradict the grant or themselves: refused
  Counter digest_failures;
  Counter lease_expiries;
  Counter grants_refused;    // of another incarnation or layout, served before, malformed
  Counter peer_quarantines;  // peers whose pages had wrong digests too often
  Counter peer_refusals;     // moves refused because of a peer's record
  Counter pinned_since_ns;   // when the oldest pages that a taker may be reading were offered, by
                            // the loop's clock; 0: there are none
  Counter quarantined_now;       // pages given up while a read into them may still run
  Counter quarantined_since_ns;  // when the oldest of them was given up, by the loop's clock; 0:
                                 // there are none
};

// Most pieces of one Offer; a longer one is refused.
inline constexpr int kOfferPiecesMax = 512;

// True if a piece gets a digest in this mode; `kSampled` takes one in 16, by position alone.
bool WantsDigest(DigestMode mode, uint32_t block, uint32_t layer_begin);
// XXH3 over the digests in order of (block, layer_begin); 0 if all are 0.
uint64_t CommitDigest(absl::Span<const uint64_t> digests);

// Lease ids as messages carry them. False unless `bytes` holds 16 bytes that are not all zero.
bool ParseLease(absl::string_view bytes, LeaseId* out);

v1::SampledToken ToProto(const request::SampledToken& token);
// Errors: INVALID_ARGUMENT for ids outside the vocabulary, log-probabilities that are not numbers,
// or a list that is too long.
absl::StatusOr<request::SampledToken> FromProto(const v1::SampledToken& token,
                                                request::TokenId vocabulary);

v1::PageLayout ToProto(const kv::PageLayout& layout);
// Errors: INVALID_ARGUMENT for unknown names, dimensions that PageLayout refuses, or a page size
// that does not follow.
absl::StatusOr<kv::PageLayout> FromProto(const v1::PageLayout& layout);

}  // namespace sluice::handoff
