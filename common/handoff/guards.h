// The rules that make a page move safe, by name. Test builds can switch one off to show that it is
// needed.
#pragma once

#include <cstdint>

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
};

inline constexpr Guard kAllGuards[] = {Guard::kCheckAfterFetch,   Guard::kCountFromSending,
                                       Guard::kRenewalNeedsAck,   Guard::kNoResurrection,
                                       Guard::kHoldWhileFetching, Guard::kPinUntilReleased,
                                       Guard::kMatchLease};

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
};

}  // namespace sluice::handoff
