// Which request may have killed the workers it ran on, so that it does not kill the whole fleet.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"

namespace sluice::cluster {

struct PoisonOptions {
  // A request that saw a death is on trial until so many tokens came since: nobody else on trial
  // shares its worker. Tokens that were lost with the worker do not clear it, hence more than one.
  uint32_t trial_tokens = 4;
  // After so many tokens it is held innocent: a request that kills its worker does so again at the
  // same position. Without this, any long stream of a cluster whose workers often die would be
  // suspected in the end.
  uint32_t cleared_tokens = 64;
  // Calls that break on a worker so long after its death are of the same death.
  absl::Duration death_memory = absl::Seconds(10);
};

// One request as the guard sees it; shared by the sequences of its choices. Changed by the guard
// alone.
class Suspicion {
 public:
  // It was at two deaths, and nobody else can have caused both.
  bool poisoned() const { return poisoned_; }
  // The workers that died under it since it was last held innocent, oldest first.
  const std::vector<WorkerId>& deaths() const { return deaths_; }

 private:
  friend class PoisonGuard;
  std::vector<WorkerId> deaths_;  // at most as many as a request may have moves
  uint32_t tokens_since_ = 0;
  bool poisoned_ = false;
};

// Knows which requests are on which worker. Owned by the router's loop; requests of other routers
// on the same workers are unknown to it.
class PoisonGuard {
 public:
  PoisonGuard(const Clock& clock, const PoisonOptions& options)
      : clock_(clock), options_(options) {}

  // A sequence of the request runs on the worker, until Leave: as often as Enter was called.
  void Enter(const std::shared_ptr<Suspicion>& request, const WorkerId& worker,
             Incarnation incarnation);
  void Leave(const std::shared_ptr<Suspicion>& request, const WorkerId& worker,
             Incarnation incarnation);

  // A process has died, or its connection broke while requests ran there. One of them that was at
  // an earlier death is poisoned if it is the only such one on trial, or the only such one at all;
  // if nobody stands out, all become suspects. Only the first call for an incarnation counts.
  void OnDeath(const WorkerId& worker, Incarnation incarnation);
  // The request got a new token.
  void OnToken(Suspicion& request) const;

  bool OnTrial(const Suspicion& request) const {
    return !request.deaths_.empty() && request.tokens_since_ < options_.trial_tokens;
  }
  // Workers that a request on trial must not join, because another one is tried there. Empty for
  // any other request.
  std::vector<WorkerId> Taken(const Suspicion& request) const;

 private:
  using Process = std::pair<WorkerId, Incarnation>;
  using Present = absl::flat_hash_map<std::shared_ptr<Suspicion>, uint32_t>;  // and how often
  struct Death {
    Process process;
    absl::Time at;
  };
  bool KnownDead(const Process& process);
  // Null when nobody stands out.
  Suspicion* Culprit(const Present& present) const;

  const Clock& clock_;
  const PoisonOptions options_;
  absl::flat_hash_map<Process, Present> processes_;  // only those with requests
  std::deque<Death> dead_;                           // of the last death_memory, oldest first
};

}  // namespace sluice::cluster
