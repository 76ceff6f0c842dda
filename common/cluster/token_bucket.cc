#include "cluster/token_bucket.h"

#include <algorithm>

namespace sluice::cluster {

void TokenBucket::Fill(absl::Time now) {
  // A clock that was set back adds nothing.
  if (now <= at_) return;
  if (!budget_.unlimited()) {
    level_ = std::min(budget_.burst, level_ + budget_.per_s * absl::ToDoubleSeconds(now - at_));
  }
  at_ = now;
}

double TokenBucket::level(absl::Time now) {
  Fill(now);
  return level_;
}

void TokenBucket::SetBudget(const Budget& budget, absl::Time now) {
  Fill(now);
  // From unlimited there is no level that could be kept.
  level_ =
      budget_.unlimited() || budget.unlimited() ? budget.burst : std::min(level_, budget.burst);
  budget_ = budget;
}

bool TokenBucket::Covers(double amount, absl::Time now) {
  return budget_.unlimited() || level(now) >= std::min(amount, budget_.burst);
}

void TokenBucket::Take(double amount, absl::Time now) {
  if (!budget_.unlimited()) level_ = level(now) - amount;
}

void TokenBucket::GiveBack(double amount, absl::Time now) {
  if (!budget_.unlimited()) level_ = std::min(budget_.burst, level(now) + amount);
}

absl::Duration TokenBucket::Wait(double amount, absl::Time now) {
  if (Covers(amount, now)) return absl::ZeroDuration();
  return absl::Seconds((std::min(amount, budget_.burst) - level_) / budget_.per_s);
}

}  // namespace sluice::cluster
