// What must hold after every event, at the end of every request, and after the faults.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "handoff/peers.h"
#include "rpc/error.h"
#include "tests/sim/sim_cluster_impl.h"

namespace sluice::sim {
namespace {

constexpr size_t kProbes = 3;
// After its deadline a request's end may still be under way.
constexpr absl::Duration kLateMax = absl::Seconds(1);
// A few of the longest leases.
constexpr absl::Duration kDrainMax = absl::Seconds(8);

}  // namespace

bool SimCluster::EverybodyKnown() const {
  return std::all_of(slots_.begin(), slots_.end(), [this](const Slot& slot) {
    const WorkerId id(slot.process->info()->worker_id());
    return std::all_of(routers_.begin(), routers_.end(), [&](const auto& router) {
      return router->Knows(id, slot.process->incarnation());
    });
  });
}

// Who got wrong bytes from a worker takes nothing from it for a while, mended or not.
void SimCluster::AwaitTrust() {
  const bool distrust = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.process->worker().counters().peer_quarantines > 0;
  });
  if (!distrust) return;
  RunTo(world_.Now() + handoff::PeerOptions().quarantine_min, [] { return false; });
}

// A healed cluster serves, by every router.
void SimCluster::Probe() {
  AwaitTrust();
  RunTo(world_.Now() + absl::Seconds(10), [this] { return EverybodyKnown(); });
  if (!violation_.empty()) return;
  if (!EverybodyKnown()) return Violate("a router does not know all workers");
  const size_t first = users_.outcomes().size();
  probes_.resize(kProbes);
  for (size_t i = 0; i < kProbes; ++i) {
    probes_[i].deadline = absl::Seconds(60);
    probes_[i].prompt.assign(20 + 10 * i, static_cast<request::TokenId>(i));
    probes_[i].sampling.temperature = 0;
    probes_[i].sampling.max_tokens = 10;
    users_.Submit(probes_[i]);
  }
  RunTo(world_.Now() + absl::Seconds(90), [this] { return users_.running() == 0; });
  for (size_t i = first; i < users_.outcomes().size(); ++i) {
    const SimOutcome& outcome = *users_.outcomes()[i];
    if (!outcome.status.ok()) {
      Violate(absl::StrCat("request ", i,
                           ", sent after everything had healed: ", outcome.status.ToString()));
    }
  }
}

void SimCluster::CheckOutcomes() {
  for (size_t i = 0; i < users_.outcomes().size() && violation_.empty(); ++i) {
    const SimOutcome& outcome = *users_.outcomes()[i];
    const std::string problem = Judge(outcome);
    if (!problem.empty())
      Violate(absl::StrCat("request ", i, " ", problem, ": ", outcome.status.ToString()));
  }
}

std::string SimCluster::Judge(const SimOutcome& outcome) const {
  if (outcome.ends != 1) return absl::StrCat("ended ", outcome.ends, " times");
  if (outcome.ended > outcome.due + s_.router_pause_max + kLateMax) {
    return absl::StrCat("ended ", absl::FormatDuration(outcome.ended - outcome.due),
                        " after its deadline");
  }
  if (outcome.status.ok()) return "";
  const v1::ErrorReason reason = rpc::DetailOf(outcome.status).reason();
  switch (reason) {
    case v1::CLIENT_CANCELLED:
      return outcome.left ? "" : "was cancelled by nobody";
    case v1::DEADLINE_EXCEEDED:
      // Refused at once when it cannot be met.
      if (outcome.ended < outcome.due &&
          !absl::StrContains(outcome.status.message(), "the first token would take")) {
        return "missed its deadline before it came";
      }
      break;
    // Losing workers or the race for pages often enough ends a request; in a calm world nobody
    // loses.
    case v1::WORKER_FAILED:
    case v1::NO_READY_WORKERS:
    case v1::OVERLOADED:
    case v1::REQUEST_POISONED:
      break;
    default:
      return "ended with what only a bug explains";
  }
  const bool hurried = reason == v1::DEADLINE_EXCEEDED && outcome.hurried;
  return s_.calm && !hurried ? "failed in a calm world" : "";
}

// Everything that was held for requests is given back.
void SimCluster::Drain() {
  std::string held;
  const absl::Time from = world_.Now();
  const absl::Time until = from + kDrainMax;
  while (violation_.empty() && world_.Now() < until) {
    RunTo(world_.Now() + absl::Milliseconds(500), [] { return false; });
    counts_.drain_max = world_.Now() - from;
    held.clear();
    for (size_t i = 0; i < routers_.size() && held.empty(); ++i) {
      const std::string problem = routers_[i]->CheckIdle();
      if (!problem.empty()) held = absl::StrCat("router ", i, ": ", problem);
    }
    for (size_t i = 0; i < slots_.size() && held.empty(); ++i) {
      const std::string problem = slots_[i].process->CheckIdle();
      if (!problem.empty()) held = absl::StrCat("worker ", i, ": ", problem);
    }
    if (held.empty()) return;
  }
  if (!held.empty()) Violate(absl::StrCat("not drained: ", held));
}

void SimCluster::CheckInvariants() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].process == nullptr) continue;
    const std::string problem = slots_[i].process->CheckInvariants();
    if (!problem.empty()) Violate(absl::StrCat("worker ", i, ": ", problem));
    if (slots_[i].process->pool().counts().quarantined > 0) ++counts_.quarantines;
  }
}

void SimCluster::Count(SimProcess& process) {
  const handoff::MoveCounters moves = process.worker().counters();
  counts_.flips += process.transport().flips();
  counts_.digest_failures += moves.digest_failures;
  counts_.transfers += moves.transfers_completed;
  counts_.transfers_failed += moves.transfers_failed;
  counts_.lease_expiries += moves.lease_expiries;
  counts_.stale_messages += moves.stale_messages;
  counts_.duplicate_messages += moves.duplicate_messages;
  counts_.evictions += process.index().stats().evictions;
  for (const char* point : kFaultPoints) counts_.points[point] += process.points().HitCount(point);
}

SimResult SimCluster::Result() {
  uint64_t hash = world_.log_hash();
  counts_.events = world_.events();
  for (const auto& outcome : users_.outcomes()) {
    for (const auto& tokens : outcome->tokens)
      hash = Hash64(tokens.data(), tokens.size() * sizeof(tokens[0]), hash);
    hash = Mix64(hash ^ static_cast<uint64_t>(outcome->status.code()));
    ++counts_.requests;
    counts_.choices += outcome->tokens.size();
    counts_.resumes += outcome->resumes;
    if (outcome->status.ok()) {
      ++counts_.ok;
    } else {
      ++counts_.errors[v1::ErrorReason_Name(rpc::DetailOf(outcome->status).reason())];
    }
  }
  return {violation_, hash, counts_};
}

}  // namespace sluice::sim
