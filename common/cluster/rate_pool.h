// One limit of one tenant, shared by all routers: the manager's side. Decisions only.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "cluster/token_bucket.h"

namespace sluice::cluster {

// What a router says about a limit.
struct LimitUse {
  Budget limit;       // of all routers together
  double used = 0;    // since its start, less what was given back; of a gauge: now
  double held = 0;    // may be used without asking; below 0: owed
  double needed = 0;  // must be there for requests that wait for the answer
  double wanted = 0;  // would like to hold, so that it need not ask
  std::optional<double> left = std::nullopt;  // of the whole limit, if it was ever told
};

// What it hears.
struct LimitLease {
  double change = 0;  // to be added to what it holds
  double left = 0;    // of the whole limit, what is held anywhere included
  double share = 1;   // its part while there is no manager
};

// What is left of the limit is kept here; each router holds a part of it, spends that without
// asking, and says afterwards what it spent. The parts never exceed what is left, so all routers
// together stay within the limit, whichever of them a tenant's clients call. What is only wanted is
// given from plenty: less than a quarter of what is left lies where nobody needs it, and of a small
// limit, or while another router needs more than it got, nothing does. A report is a complete
// statement: lost replies and repeated reports change nothing. Owned by one thread.
class RatePool {
 public:
  // A gauge counts what is in use at a time instead of what was used: what a router uses comes back
  // when it is gone.
  RatePool(bool gauge, absl::Duration lease) : gauge_(gauge), lease_(lease) {}

  // The limit of the latest report holds. `router` is one process. Cost: O(routers log routers).
  LimitLease Lease(uint64_t router, const LimitUse& use, absl::Time now);
  // Forgets routers that were silent for longer than a lease. True when nothing is left to know:
  // no router, and the whole limit is there again.
  bool Expire(absl::Time now);

  double left() const { return left_; }

 private:
  struct Part {
    double used = 0;
    double held = 0;
    double aim = 0;   // to be held
    double rate = 0;  // of use, smoothed: decides the share
    absl::Time heard;
    absl::Time unmet_until = absl::InfinitePast();  // needs more than there was for it
  };
  // Up to its aim, for the router among others that have not reached theirs.
  double Grant(uint64_t router, const Part& part) const;
  double ShareOf(const Part& part) const;

  const bool gauge_;
  const absl::Duration lease_;
  bool known_ = false;
  Budget limit_;
  double left_ = 0;
  absl::Time at_;
  absl::btree_map<uint64_t, Part> parts_;
};

}  // namespace sluice::cluster
