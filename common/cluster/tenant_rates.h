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

namespace sluice::cluster {

// What may be taken: `per_s` for ever, `burst` at once after a pause.
struct Budget {
  double per_s = std::numeric_limits<double>::infinity();
  double burst = std::numeric_limits<double>::infinity();

  bool unlimited() const { return burst == std::numeric_limits<double>::infinity(); }
  friend bool operator==(const Budget&, const Budget&) = default;
};

struct TenantBudgets {
  Budget requests;
  Budget tokens;
  uint32_t sequences_max = std::numeric_limits<uint32_t>::max();
  friend bool operator==(const TenantBudgets&, const TenantBudgets&) = default;
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
