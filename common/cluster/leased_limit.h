// One limit of one tenant at one router: what may be used here, alone or as a part that the manager
// leases.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "cluster/rate_pool.h"
#include "cluster/token_bucket.h"

namespace sluice::cluster {

// One limit as clients are told about it.
struct RateWindow {
  uint64_t limit = 0;      // at once
  uint64_t remaining = 0;  // now
  absl::Duration reset;    // until all of it is there again
};

// Alone, a bucket that fills at the router's share of the limit. Leased, a bucket that only the
// manager fills. Owned by one thread.
class LeasedLimit {
 public:
  explicit LeasedLimit(absl::Time now) : whole_(Budget(), now), own_(Budget(), now) {}

  // The limit of all routers together.
  void SetLimit(const Budget& limit, absl::Time now);
  // What was never leased before is not there before the manager says so.
  void SetLeased(bool leased, absl::Time now);
  bool unlimited() const { return whole_.budget().unlimited(); }
  // Nothing was used or asked for lately, and nothing is held or owed.
  bool idle(absl::Time now);

  // As TokenBucket's.
  bool Covers(double amount, absl::Time now) { return own_.Covers(amount, now); }
  void Take(double amount, absl::Time now);
  void GiveBack(double amount, absl::Time now);
  // Does not cover it, but the limit does: other routers hold what is missing.
  bool HeldElsewhere(double amount, absl::Time now) {
    return leased_ && !Covers(amount, now) && whole_.Covers(amount, now);
  }
  // How long until Covers(amount), at best.
  absl::Duration Wait(double amount, absl::Time now);
  RateWindow Window(absl::Time now);
  const Budget& limit() const { return whole_.budget(); }

  // Counts as demand, whether it is taken or refused.
  void Want(double amount) { wanted_ += amount; }
  // Waits for the answer to the next report.
  void Need(double amount) { needed_ += amount; }
  // For the manager. Demand halves with every report, so what is not used any more is given back
  // within a few of them.
  LimitUse Report(absl::Time now);
  void Apply(const LimitLease& lease, absl::Time now);

 private:
  void Fit(absl::Time now);

  TokenBucket whole_;  // of all routers, as far as it is known here
  TokenBucket own_;
  bool leased_ = false;
  bool told_ = false;
  double share_ = 1;
  double used_ = 0;
  double wanted_ = 0;
  double needed_ = 0;
};

// The same for what is in use at a time.
class LeasedGauge {
 public:
  // The limit of all routers together; kNoLimit: none.
  static constexpr uint32_t kNoLimit = UINT32_MAX;
  void SetLimit(uint32_t limit);
  void SetLeased(bool leased);
  bool unlimited() const { return limit_ == kNoLimit; }
  bool idle() const { return used_ == 0 && wanted_ < 1 && (!leased_ || allowed_ < 1); }

  // More than may run at a time runs when nothing else does.
  bool Covers(uint32_t amount) const;
  bool HeldElsewhere(uint32_t amount) const {
    return leased_ && !Covers(amount) && left_ >= (amount < limit_ ? amount : limit_);
  }
  void Take(uint32_t amount) { used_ += amount; }
  void GiveBack(uint32_t amount) { used_ -= amount < used_ ? amount : used_; }
  uint32_t used() const { return used_; }
  uint32_t limit() const { return limit_; }

  void Want(uint32_t amount) { wanted_ += amount; }
  void Need(uint32_t amount) { needed_ += amount; }
  LimitUse Report();
  void Apply(const LimitLease& lease);

 private:
  void Fit();

  uint32_t limit_ = kNoLimit;
  uint32_t used_ = 0;
  double left_ = 0;            // over all routers, as last told
  double allowed_ = kNoLimit;  // here, what is in use included
  bool leased_ = false;
  double share_ = 1;
  double wanted_ = 0;
  double needed_ = 0;
};

}  // namespace sluice::cluster
