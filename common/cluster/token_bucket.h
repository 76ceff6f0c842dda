// How much may be taken over time. Time is told by the caller.
#pragma once

#include <limits>

#include "absl/time/time.h"

namespace sluice::cluster {

// What may be taken: `per_s` for ever, `burst` at once after a pause.
struct Budget {
  double per_s = std::numeric_limits<double>::infinity();
  double burst = std::numeric_limits<double>::infinity();

  bool unlimited() const { return burst == std::numeric_limits<double>::infinity(); }
  friend bool operator==(const Budget&, const Budget&) = default;
};

// A bucket that fills at `per_s` up to `burst`. It may go below empty: what was taken then is
// waited for afterwards. Owned by one thread.
class TokenBucket {
 public:
  // Starts full.
  TokenBucket(const Budget& budget, absl::Time now)
      : budget_(budget), level_(budget.burst), at_(now) {}

  // A new budget does not fill the bucket: what is there stays, up to the new burst.
  void SetBudget(const Budget& budget, absl::Time now);
  // `amount` may be taken now: it is there, or the bucket is full and could never hold it. So every
  // request passes some time, however large, and the rate holds on average.
  bool Covers(double amount, absl::Time now);
  void Take(double amount, absl::Time now);
  void GiveBack(double amount, absl::Time now);
  // How long until Covers(amount), if nothing else happens.
  absl::Duration Wait(double amount, absl::Time now);

  const Budget& budget() const { return budget_; }
  double level(absl::Time now);

 private:
  void Fill(absl::Time now);

  Budget budget_;
  double level_;
  absl::Time at_;
};

}  // namespace sluice::cluster
