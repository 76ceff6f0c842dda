// How much a tenant may ask for: requests and tokens over time, sequences at a time; at one router,
// alone or with what the manager leases it of what all routers share. Decisions only: budgets and
// leases come from outside, time is the injected clock's.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cluster/leased_limit.h"
#include "cluster/token_bucket.h"

namespace sluice::cluster {

struct TenantBudgets {
  Budget requests;
  Budget tokens;
  uint32_t sequences_max = std::numeric_limits<uint32_t>::max();
  bool unlimited() const {
    return requests.unlimited() && tokens.unlimited() &&
           sequences_max == std::numeric_limits<uint32_t>::max();
  }
  friend bool operator==(const TenantBudgets&, const TenantBudgets&) = default;
};

struct RateReport {
  std::optional<RateWindow> requests;  // absent: unlimited
  std::optional<RateWindow> tokens;
};

// What the manager is told about a tenant, and what it answers. Absent: unlimited.
struct TenantUse {
  TenantId tenant;
  std::optional<LimitUse> requests;
  std::optional<LimitUse> tokens;
  std::optional<LimitUse> sequences;
};
struct TenantLease {
  std::optional<LimitLease> requests;
  std::optional<LimitLease> tokens;
  std::optional<LimitLease> sequences;
};

enum class RateLimit { kRequests, kTokens, kSequences };

// Owned by the router's loop.
class TenantRates {
 public:
  // `tenants_max`: remembered; those that owe nothing are forgotten first.
  explicit TenantRates(const Clock& clock, size_t tenants_max = 100000)
      : clock_(clock), tenants_max_(tenants_max) {}

  // What the tenant may have, of all routers together. Cheap when nothing changed.
  void SetBudgets(const TenantId& tenant, const TenantBudgets& budgets);

  // What was taken for one request; settled exactly once.
  struct Charge {
    TenantId tenant;
    uint64_t tokens = 0;
    uint32_t sequences = 0;
  };
  struct Refused {
    RateLimit limit;
    double asked = 0;
    double allowed = 0;          // at once
    absl::Duration retry_after;  // zero: when a sequence ends
  };
  // Takes a request, the tokens it may use and its sequences, or nothing.
  std::variant<Charge, Refused> Admit(const TenantId& tenant, uint64_t tokens, uint32_t sequences);

  // The request is over: its sequences end, and `used_tokens` replace what was taken for them; more
  // than that is owed.
  void Settle(const Charge& charge, uint64_t used_tokens);
  // It never began: everything goes back.
  void Undo(const Charge& charge);

  // Whether a manager hands out what may be used here, or the router goes by its share alone.
  void SetLeased(bool leased);
  bool leased() const { return leased_; }
  // Whether the manager may have more for a tenant that was refused: not if a moment ago it had
  // not.
  bool MayAsk(const TenantId& tenant) const;
  // A refused request waits for what the manager answers to the next Uses.
  void Need(const TenantId& tenant, uint64_t tokens, uint32_t sequences);
  // What it was refused for is there, but at other routers, which give it back within a period.
  bool HeldElsewhere(const TenantId& tenant, uint64_t tokens, uint32_t sequences);
  void ManagerHadNoMore(const TenantId& tenant) { StateOf(tenant).no_more_at = clock_.Now(); }
  // Of the tenants that used or want something, or hold it. Demand counts down with every call.
  std::vector<TenantUse> Uses();
  void Apply(const TenantId& tenant, const TenantLease& lease);

  RateReport Report(const TenantId& tenant);
  uint32_t sequences(const TenantId& tenant) const;

 private:
  struct State {
    TenantBudgets budgets;
    LeasedLimit requests;
    LeasedLimit tokens;
    LeasedGauge sequences;
    absl::Time no_more_at = absl::InfinitePast();
    bool idle(absl::Time now) { return requests.idle(now) && tokens.idle(now) && sequences.idle(); }
  };
  State& StateOf(const TenantId& tenant);

  const Clock& clock_;
  const size_t tenants_max_;
  bool leased_ = false;
  absl::flat_hash_map<TenantId, State> states_;
};

}  // namespace sluice::cluster
