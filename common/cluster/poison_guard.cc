#include "cluster/poison_guard.h"

#include <algorithm>

namespace sluice::cluster {
namespace {

// More than any request may be moved; bounds what is kept and told.
constexpr size_t kDeathsMax = 8;

}  // namespace

void PoisonGuard::Enter(const std::shared_ptr<Suspicion>& request, const WorkerId& worker,
                        Incarnation incarnation) {
  ++processes_[{worker, incarnation}][request];
}

void PoisonGuard::Leave(const std::shared_ptr<Suspicion>& request, const WorkerId& worker,
                        Incarnation incarnation) {
  const auto process = processes_.find({worker, incarnation});
  if (process == processes_.end()) return;
  const auto entry = process->second.find(request);
  if (entry == process->second.end()) return;
  if (--entry->second == 0) process->second.erase(entry);
  if (process->second.empty()) processes_.erase(process);
}

void PoisonGuard::OnDeath(const WorkerId& worker, Incarnation incarnation) {
  const Process process(worker, incarnation);
  if (KnownDead(process)) return;
  dead_.push_back({process, clock_.Now()});
  const auto found = processes_.find(process);
  if (found == processes_.end()) return;
  Suspicion* const culprit = Culprit(found->second);
  for (const auto& [request, count] : found->second) {
    if (culprit != nullptr && request.get() != culprit) continue;  // this death was not theirs
    request->poisoned_ = request.get() == culprit;
    request->tokens_since_ = 0;
    if (request->deaths_.size() < kDeathsMax) request->deaths_.push_back(worker);
  }
}

bool PoisonGuard::KnownDead(const Process& process) {
  const absl::Time oldest = clock_.Now() - options_.death_memory;
  while (!dead_.empty() && dead_.front().at < oldest) dead_.pop_front();
  return std::any_of(dead_.begin(), dead_.end(),
                     [&](const Death& death) { return death.process == process; });
}

Suspicion* PoisonGuard::Culprit(const Present& present) const {
  std::vector<Suspicion*> suspects;
  std::vector<Suspicion*> tried;
  for (const auto& [request, count] : present) {
    if (request->deaths_.empty()) continue;
    suspects.push_back(request.get());
    if (OnTrial(*request)) tried.push_back(request.get());
  }
  // One on trial has shown nothing since the last death; the others got on well meanwhile.
  if (tried.size() == 1) return tried[0];
  return suspects.size() == 1 ? suspects[0] : nullptr;
}

void PoisonGuard::OnToken(Suspicion& request) const {
  if (request.deaths_.empty()) return;
  if (++request.tokens_since_ >= options_.cleared_tokens) request.deaths_.clear();
}

std::vector<WorkerId> PoisonGuard::Taken(const Suspicion& request) const {
  std::vector<WorkerId> taken;
  if (!OnTrial(request)) return taken;
  for (const auto& [process, present] : processes_) {
    if (std::any_of(present.begin(), present.end(), [&](const auto& entry) {
          return entry.first.get() != &request && OnTrial(*entry.first);
        }))
      taken.push_back(process.first);
  }
  std::sort(taken.begin(), taken.end());  // maps have no order that a simulation could repeat
  return taken;
}

}  // namespace sluice::cluster
