// How much a tenant may ask for: requests and tokens over time, sequences at a time. Decisions
// only: budgets are set from outside, time is the injected clock's.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cluster/token_bucket.h"

namespace sluice::cluster {

struct TenantBudgets {
  Budget requests;
  Budget tokens;
  uint32_t sequences_max = std::numeric_limits<uint32_t>::max();
  friend bool operator==(const TenantBudgets&, const TenantBudgets&) = default;
};

// One limit as clients are told about it.
struct RateWindow {
  uint64_t limit = 0;      // at once
  uint64_t remaining = 0;  // now
  absl::Duration reset;    // until all of it is there again
};
struct RateReport {
  std::optional<RateWindow> requests;  // absent: unlimited
  std::optional<RateWindow> tokens;
};

enum class RateLimit { kRequests, kTokens, kSequences };

// Owned by the router's loop.
class TenantRates {
 public:
  // `tenants_max`: remembered; those that owe nothing are forgotten first.
  explicit TenantRates(const Clock& clock, size_t tenants_max = 100000)
      : clock_(clock), tenants_max_(tenants_max) {}

  // What the tenant may have here: from the tenants file, or this router's lease of it. Cheap when
  // nothing changed.
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

  RateReport Report(const TenantId& tenant);
  uint32_t sequences(const TenantId& tenant) const;

 private:
  struct State {
    TenantBudgets budgets;
    TokenBucket requests;
    TokenBucket tokens;
    uint32_t sequences = 0;
  };
  State& StateOf(const TenantId& tenant);

  const Clock& clock_;
  const size_t tenants_max_;
  absl::flat_hash_map<TenantId, State> states_;
};

}  // namespace sluice::cluster
