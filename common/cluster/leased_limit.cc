#include "cluster/leased_limit.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::cluster {
namespace {

// Demand smaller than this part of one is none.
constexpr double kNothing = 1e-3;
constexpr double kShareMin = 1e-3;
// So much more than the demand is asked for, that growing demand need not ask each time.
constexpr double kAhead = 2;
// The manager may find more by then, in what other routers give back.
constexpr absl::Duration kLeaseRetry = absl::Milliseconds(200);

double Halved(double* wanted) {
  const double now = *wanted;
  *wanted = now / 2 < kNothing ? 0 : now / 2;
  return now;
}

}  // namespace

void LeasedLimit::Fit(absl::Time now) {
  const Budget& limit = whole_.budget();
  if (limit.unlimited()) {
    own_.SetBudget(limit, now);
  } else if (leased_) {
    own_.SetBudget({0, limit.burst}, now);
    if (!told_) own_.Take(std::max(0.0, own_.level(now)), now);
  } else {
    own_.SetBudget({limit.per_s * share_, limit.burst * share_}, now);
  }
}

void LeasedLimit::SetLimit(const Budget& limit, absl::Time now) {
  if (limit == whole_.budget()) return;
  whole_.SetBudget(limit, now);
  Fit(now);
}

void LeasedLimit::SetLeased(bool leased, absl::Time now) {
  if (leased == leased_) return;
  leased_ = leased;
  // Alone the router saw its part only, and takes the others to have done alike.
  if (leased && told_ && !unlimited()) {
    const double left = own_.level(now) / share_;
    if (left < whole_.level(now)) whole_.Take(whole_.level(now) - left, now);
  }
  Fit(now);
}

bool LeasedLimit::idle(absl::Time now) {
  if (unlimited()) return true;
  if (leased_) return wanted_ < kNothing && std::abs(own_.level(now)) < kNothing;
  return own_.level(now) >= own_.budget().burst;
}

void LeasedLimit::Take(double amount, absl::Time now) {
  whole_.Take(amount, now);
  own_.Take(amount, now);
  used_ += amount;
}

void LeasedLimit::GiveBack(double amount, absl::Time now) {
  whole_.GiveBack(amount, now);
  own_.GiveBack(amount, now);
  used_ -= amount;
}

absl::Duration LeasedLimit::Wait(double amount, absl::Time now) {
  if (Covers(amount, now)) return absl::ZeroDuration();
  if (!leased_) return own_.Wait(amount, now);
  return std::max(whole_.Wait(amount, now), kLeaseRetry);
}

RateWindow LeasedLimit::Window(absl::Time now) {
  const double level = std::max(whole_.level(now), 0.0);
  return {static_cast<uint64_t>(limit().burst), static_cast<uint64_t>(level),
          whole_.Wait(limit().burst, now)};
}

LimitUse LeasedLimit::Report(absl::Time now) {
  LimitUse use;
  use.limit = limit();
  use.used = used_;
  use.held = own_.level(now);
  use.needed = std::min(std::exchange(needed_, 0), limit().burst);
  use.wanted = std::min(kAhead * Halved(&wanted_), limit().burst);
  if (told_) use.left = whole_.level(now);
  return use;
}

void LeasedLimit::Apply(const LimitLease& lease, absl::Time now) {
  if (unlimited()) return;
  told_ = true;
  share_ = std::max(lease.share, kShareMin);
  Fit(now);
  if (leased_) own_.GiveBack(lease.change, now);
  whole_.GiveBack(lease.left - whole_.level(now), now);
}

void LeasedGauge::Fit() {
  if (unlimited()) {
    allowed_ = kNoLimit;
  } else if (leased_) {
    allowed_ = std::min(allowed_, static_cast<double>(used_));
  } else {
    allowed_ = std::max(1.0, std::ceil(share_ * limit_));
  }
}

void LeasedGauge::SetLimit(uint32_t limit) {
  if (limit == limit_) return;
  limit_ = limit;
  Fit();
}

void LeasedGauge::SetLeased(bool leased) {
  if (leased == leased_) return;
  leased_ = leased;
  Fit();
}

bool LeasedGauge::Covers(uint32_t amount) const {
  if (unlimited()) return true;
  if (used_ == 0 && (!leased_ || allowed_ >= limit_)) return true;
  return static_cast<double>(used_) + amount <= allowed_;
}

LimitUse LeasedGauge::Report() {
  LimitUse use;
  use.limit = {0, static_cast<double>(limit_)};
  use.used = used_;
  use.held = allowed_ - used_;
  use.needed = std::min(std::exchange(needed_, 0), static_cast<double>(limit_));
  use.wanted = std::min(kAhead * Halved(&wanted_), static_cast<double>(limit_));
  return use;
}

void LeasedGauge::Apply(const LimitLease& lease) {
  if (unlimited()) return;
  share_ = std::max(lease.share, kShareMin);
  left_ = lease.left;
  if (leased_) allowed_ += lease.change;
}

}  // namespace sluice::cluster
