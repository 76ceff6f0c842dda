#include "cluster/directory.h"

#include <algorithm>

namespace sluice::cluster {

bool Directory::ApplyView(uint64_t version, std::vector<Update> workers,
                          std::vector<WorkerId>* lost) {
  if (version <= version_) return false;
  version_ = version;
  absl::flat_hash_map<WorkerId, Entry> next;
  for (Update& update : workers) {
    const WorkerId id = update.description.id;
    const auto known = entries_.find(id);
    Entry entry;
    if (known != entries_.end()) {
      if (known->second.state.description.incarnation == update.description.incarnation) {
        entry = std::move(known->second);
      } else {
        lost->push_back(id);
      }
    }
    entry.state.description = std::move(update.description);
    entry.state.load = update.load;
    entry.state.ready = update.ready;
    entry.state.draining = update.draining;
    next.emplace(id, std::move(entry));
  }
  for (const auto& [id, entry] : entries_) {
    if (!next.contains(id)) lost->push_back(id);
  }
  entries_ = std::move(next);
  return true;
}

void Directory::ReportLoad(const WorkerId& worker, Incarnation incarnation,
                           const LoadReport& load) {
  const auto found = entries_.find(worker);
  if (found == entries_.end() || found->second.state.description.incarnation != incarnation) return;
  found->second.state.load = load;
}

void Directory::Sent(const WorkerId& worker, bool prefill, uint64_t tokens) {
  const auto found = entries_.find(worker);
  if (found == entries_.end()) return;
  WorkerState& state = found->second.state;
  (prefill ? state.sent_prefill_tokens : state.sent_decode_tokens) += tokens;
  ++state.sent_requests;
}

void Directory::Finished(const WorkerId& worker, bool prefill, uint64_t tokens) {
  const auto found = entries_.find(worker);
  if (found == entries_.end()) return;
  // The worker may have been replaced since: never below zero.
  WorkerState& state = found->second.state;
  uint64_t& sent = prefill ? state.sent_prefill_tokens : state.sent_decode_tokens;
  sent -= std::min(sent, tokens);
  if (state.sent_requests > 0) --state.sent_requests;
}

void Directory::RecordSuccess(const WorkerId& worker) {
  const auto found = entries_.find(worker);
  if (found != entries_.end()) found->second.breaker = {};
}

void Directory::RecordFailure(const WorkerId& worker) {
  const auto found = entries_.find(worker);
  if (found == entries_.end()) return;
  Breaker& breaker = found->second.breaker;
  const absl::Time now = clock_.Now();
  if (breaker.half_open && now >= breaker.open_until) {
    // The probe failed: stay away twice as long.
    breaker.open_for = std::min(breaker.open_for * 2, options_.open_max);
    breaker.open_until = now + breaker.open_for;
    return;
  }
  breaker.failures.push_back(now);
  std::erase_if(breaker.failures, [&](absl::Time at) { return at < now - options_.window; });
  if (breaker.failures.size() >= options_.failures) {
    breaker.failures.clear();
    breaker.half_open = true;
    breaker.open_for = options_.open_min;
    breaker.open_until = now + breaker.open_for;
  }
}

const WorkerState* Directory::Find(const WorkerId& worker) const {
  const auto found = entries_.find(worker);
  return found == entries_.end() ? nullptr : &found->second.state;
}

std::vector<WorkerState> Directory::Workers() const {
  std::vector<WorkerState> all;
  const absl::Time now = clock_.Now();
  for (const auto& [id, entry] : entries_) {
    all.push_back(entry.state);
    all.back().breaker_open = now < entry.breaker.open_until;
  }
  std::sort(all.begin(), all.end(), [](const WorkerState& a, const WorkerState& b) {
    return a.description.id < b.description.id;
  });
  return all;
}

}  // namespace sluice::cluster
