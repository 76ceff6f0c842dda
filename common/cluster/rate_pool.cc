#include "cluster/rate_pool.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cluster/fair_division.h"

namespace sluice::cluster {
namespace {

// Division is in whole numbers; fractions of a request count.
constexpr double kUnitsPerOne = 1000;
// Of what is left, for what all routers want without needing it.
constexpr double kPlenty = 0.25;
// Need that was not met keeps others from holding what they only want; they speak up meanwhile.
constexpr absl::Duration kUnmet = absl::Milliseconds(500);
// Use is smoothed over this, for the shares that hold without a manager.
constexpr absl::Duration kSmoothing = absl::Seconds(5);

uint64_t UnitsOf(double amount) {
  return static_cast<uint64_t>(std::max(0.0, amount) * kUnitsPerOne);
}

}  // namespace

LimitLease RatePool::Lease(uint64_t router, const LimitUse& use, absl::Time now) {
  if (!known_) {
    left_ = use.limit.burst;
    at_ = now;
    known_ = true;
  }
  limit_ = use.limit;
  const auto [found, added] = parts_.try_emplace(router);
  Part& part = found->second;
  const bool fresh = added || now - part.heard > lease_;
  // What a router used before it was known here is in what it says is left.
  const double spent = fresh ? 0 : use.used - part.used;
  const double since_s = fresh ? 0 : absl::ToDoubleSeconds(now - part.heard);
  const double keep = std::exp(-since_s / absl::ToDoubleSeconds(kSmoothing));
  part.used = use.used;
  part.held = use.held;
  part.rate = gauge_ ? use.used : part.rate * keep + std::max(0.0, spent);
  part.heard = now;
  if (gauge_) {
    left_ = limit_.burst;
    for (const auto& [id, other] : parts_) left_ -= other.used;
  } else {
    left_ += limit_.per_s * std::max(0.0, absl::ToDoubleSeconds(now - at_)) - spent;
    left_ = std::min(left_, limit_.burst);
    if (fresh && use.left) left_ = std::min(left_, *use.left);
    at_ = std::max(at_, now);
  }

  LimitLease lease;
  // What is owed is in `left_` already.
  if (part.held < 0) lease.change -= std::exchange(part.held, 0);
  bool others_need = false;
  for (const auto& [id, other] : parts_)
    others_need = others_need || (id != router && other.unmet_until > now);
  // In whole ones: nobody can use less.
  const double spare =
      others_need ? 0
                  : std::floor(std::max(0.0, left_) * kPlenty / static_cast<double>(parts_.size()));
  part.aim = std::max(use.needed, std::min(use.wanted, spare));
  const double change = part.aim < part.held ? part.aim - part.held : Grant(router, part);
  part.held += change;
  lease.change += change;
  if (part.held < use.needed) part.unmet_until = now + kUnmet;
  lease.left = left_;
  lease.share = ShareOf(part);
  return lease;
}

double RatePool::Grant(uint64_t router, const Part& part) const {
  double free = left_;
  for (const auto& [id, other] : parts_) free -= std::max(0.0, other.held);
  if (free <= 0) return 0;
  std::vector<Claim> claims;
  size_t own = 0;
  for (const auto& [id, other] : parts_) {
    if (id == router) own = claims.size();
    claims.push_back({.wanted = UnitsOf(other.aim - std::max(0.0, other.held))});
  }
  const std::vector<uint64_t> granted = DivideFairly(UnitsOf(free), claims);
  return std::min(static_cast<double>(granted[own]) / kUnitsPerOne, part.aim - part.held);
}

double RatePool::ShareOf(const Part& part) const {
  double sum = 0;
  for (const auto& [id, other] : parts_) sum += other.rate;
  const double equal = 1.0 / static_cast<double>(parts_.size());
  // Half by use, half by number: a router that was idle must not be left with nothing.
  return sum <= 0 ? equal : (equal + part.rate / sum) / 2;
}

bool RatePool::Expire(absl::Time now) {
  for (auto part = parts_.begin(); part != parts_.end();) {
    if (now - part->second.heard <= lease_) {
      ++part;
      continue;
    }
    if (gauge_) left_ += part->second.used;
    part = parts_.erase(part);
  }
  if (!parts_.empty()) return false;
  return gauge_ || left_ + limit_.per_s * absl::ToDoubleSeconds(now - at_) >= limit_.burst;
}

}  // namespace sluice::cluster
