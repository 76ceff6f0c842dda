// The rules that keep every stream and every page somebody's own, by name. Test builds can switch
// one off to show that it is needed.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace sluice::handoff {

enum class Guard : uint32_t {
  // Taker: the lease is checked after each read has completed, not only before it starts.
  kCheckAfterFetch,
  // Taker: a lease counts from the sending of the grant or renewal, never from the arrival of an
  // answer.
  kCountFromSending,
  // Taker: a renewal counts only once the holder has acknowledged it.
  kRenewalNeedsAck,
  // Taker: a lease that has lapsed is not revived by a late acknowledgement.
  kNoResurrection,
  // Taker: a page stays out of the pool while a read into it may still run.
  kHoldWhileFetching,
  // Holder: offered pages are pinned until they are released or the lease has expired.
  kPinUntilReleased,
  // Holder: a release ends the transfer of its own lease and no other.
  kMatchLease,
  // Holder: a piece carries a digest, and the taker compares it with the bytes that arrived.
  kDigests,
  // Both: what names another incarnation, of sender or receiver, is refused.
  kIncarnation,
  // Taker: a commit lands a sequence only with every piece it counts, whatever came first.
  kCommitCounts,
  // Engine: before each step the tag of every page is compared
  // with the generation that was handed out. Taker: all pieces of a block name one generation.
  kGeneration,
  // Router and taker: what belongs to an earlier attempt is dropped; router: the token that comes
  // is the next one of the stream.
  kAttemptAndPosition,
};

inline constexpr Guard kAllGuards[] = {
    Guard::kCheckAfterFetch, Guard::kCountFromSending,  Guard::kRenewalNeedsAck,
    Guard::kNoResurrection,  Guard::kHoldWhileFetching, Guard::kPinUntilReleased,
    Guard::kMatchLease,      Guard::kDigests,           Guard::kIncarnation,
    Guard::kCommitCounts,    Guard::kGeneration,        Guard::kAttemptAndPosition};

// Which guards are on: all of them, always, unless the build has fault points.
class Guards {
 public:
#ifdef SLUICE_FAULTS_ENABLED
  void SwitchOff(Guard guard) { off_ |= 1u << static_cast<uint32_t>(guard); }
  bool On(Guard guard) const { return (off_ & (1u << static_cast<uint32_t>(guard))) == 0; }

 private:
  uint32_t off_ = 0;
#else
  static constexpr bool On(Guard) { return true; }
#endif

 public:
  // Whether a message that names `got` is for, or from, `expected`.
  bool Match(Incarnation got, Incarnation expected) const {
    return got == expected || !On(Guard::kIncarnation);
  }
  // Whether what belongs to attempt `got` is of the one under way.
  bool SameAttempt(uint32_t got, uint32_t current) const {
    return got == current || !On(Guard::kAttemptAndPosition);
  }
};

}  // namespace sluice::handoff
