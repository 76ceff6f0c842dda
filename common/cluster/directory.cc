#include "cluster/directory.h"

#include <algorithm>

namespace sluice::cluster {
namespace {

// A name that was not seen for this long starts like any new worker.
constexpr absl::Duration kLeftMemory = absl::Minutes(10);
constexpr size_t kLeftMax = 4096;
// The first share of work of a worker that is back.
constexpr double kWarmthMin = 0.1;
constexpr absl::Duration kMoveMemory = absl::Minutes(1);
// Of a smaller move, most of the time is round trips.
constexpr uint64_t kMoveBytesMin = 1 << 20;
// Nobody waits less: a link is not faster than what hides behind the computation.
constexpr absl::Duration kMoveWaitMin = absl::Milliseconds(1);

}  // namespace

void Breaker::RecordFailure(absl::Time now, uint32_t failures_max, const BreakerOptions& options) {
  if (half_open_ && now >= open_until_) {
    // The probe failed: stay away twice as long.
    open_for_ = std::min(open_for_ * 2, options.open_max);
    open_until_ = now + open_for_;
    return;
  }
  failures_.push_back(now);
  std::erase_if(failures_, [&](absl::Time at) { return at < now - options.window; });
  if (failures_.size() >= failures_max) {
    failures_.clear();
    half_open_ = true;
    open_for_ = options.open_min;
    open_until_ = now + open_for_;
  }
}

bool Directory::ApplyView(uint64_t version, std::vector<Update> workers,
                          std::vector<WorkerId>* lost) {
  if (version <= version_) return false;
  version_ = version;
  const absl::Time now = clock_.Now();
  absl::erase_if(left_, [&](const auto& entry) { return entry.second < now - kLeftMemory; });
  const auto lose = [&](const WorkerId& id, const WorkerState& state) {
    lost->push_back(id);
    if (state.draining && (drained_.size() < kLeftMax || drained_.contains(id)))
      drained_[id] = state.description.incarnation;
  };
  absl::flat_hash_map<WorkerId, Entry> next;
  for (Update& update : workers) {
    const WorkerId id = update.description.id;
    const auto known = entries_.find(id);
    Entry entry;
    bool back = left_.erase(id) > 0;
    if (known != entries_.end()) {
      if (known->second.state.description.incarnation == update.description.incarnation) {
        entry = std::move(known->second);
      } else {
        lose(id, known->second.state);
        back = true;
      }
    }
    if (back) entry.started_slowly = now;
    entry.kept_until = absl::InfinitePast();
    entry.state.description = std::move(update.description);
    entry.state.load = update.load;
    entry.state.ready = update.ready;
    entry.state.draining = update.draining;
    next.emplace(id, std::move(entry));
  }
  for (auto& [id, entry] : entries_) {
    if (next.contains(id)) continue;
    if (now < entry.kept_until) {
      next.emplace(id, std::move(entry));
      continue;
    }
    lose(id, entry.state);
    if (left_.size() < kLeftMax) left_[id] = now;
  }
  entries_ = std::move(next);
  std::sort(lost->begin(), lost->end());  // the same in every run
  return true;
}

void Directory::ManagerReplaced() {
  version_ = 0;
  const absl::Time until = clock_.Now() + membership_.unconfirmed_for;
  for (auto& [id, entry] : entries_) entry.kept_until = until;
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
  if (found != entries_.end()) found->second.breaker.RecordSuccess();
}

void Directory::RecordFailure(const WorkerId& worker) {
  const auto found = entries_.find(worker);
  if (found != entries_.end())
    found->second.breaker.RecordFailure(clock_.Now(), options_.failures, options_);
}

bool Directory::Drains(const WorkerId& worker, Incarnation incarnation) const {
  const auto drained = drained_.find(worker);
  if (drained != drained_.end() && drained->second == incarnation) return true;
  const WorkerState* state = Find(worker);
  return state != nullptr && state->description.incarnation == incarnation && state->draining;
}

void Directory::ConnectionBroke(const WorkerId& worker, Incarnation incarnation) {
  const auto found = entries_.find(worker);
  if (found == entries_.end() || found->second.state.description.incarnation != incarnation) return;
  found->second.broken_until = clock_.Now() + membership_.broken_for;
}

void Directory::RecordPairFailure(const WorkerPair& pair) {
  const absl::Time now = clock_.Now();
  if (!pairs_.contains(pair) && pairs_.size() >= options_.pairs_max) {
    pairs_.erase(std::min_element(pairs_.begin(), pairs_.end(), [](const auto& a, const auto& b) {
      return a.second.failed < b.second.failed;
    }));
  }
  PairEntry& entry = pairs_[pair];
  entry.failed = now;
  entry.breaker.RecordFailure(now, options_.pair_failures, options_);
}

void Directory::RecordMove(const WorkerPair& pair, uint64_t bytes, absl::Duration waited) {
  if (bytes < kMoveBytesMin) return;
  const absl::Time now = clock_.Now();
  const double took =
      absl::ToDoubleSeconds(std::max(waited, kMoveWaitMin)) / static_cast<double>(bytes);
  absl::erase_if(moves_, [&](const auto& entry) { return entry.second.last < now - kMoveMemory; });
  if (!moves_.contains(pair) && moves_.size() >= options_.pairs_max) return;
  Moves& moves = moves_[pair];
  moves.s_per_byte = moves.s_per_byte == 0 ? took : (moves.s_per_byte + took) / 2;
  moves.last = now;
}

const WorkerState* Directory::Find(const WorkerId& worker) const {
  const auto found = entries_.find(worker);
  return found == entries_.end() ? nullptr : &found->second.state;
}

std::vector<WorkerState> Directory::Workers() const {
  std::vector<WorkerState> all;
  const absl::Time now = clock_.Now();
  for (const auto& [id, entry] : entries_) {
    WorkerState& state = all.emplace_back(entry.state);
    state.ready = state.ready && now >= entry.broken_until;
    state.breaker_open = entry.breaker.OpenAt(now);
    state.warmth = std::clamp(
        absl::FDivDuration(now - entry.started_slowly, membership_.slow_start), kWarmthMin, 1.0);
  }
  std::sort(all.begin(), all.end(), [](const WorkerState& a, const WorkerState& b) {
    return a.description.id < b.description.id;
  });
  return all;
}

std::vector<WorkerPair> Directory::BrokenPairs() const {
  std::vector<WorkerPair> broken;
  const absl::Time now = clock_.Now();
  for (const auto& [pair, entry] : pairs_) {
    if (entry.breaker.OpenAt(now)) broken.push_back(pair);
  }
  std::sort(broken.begin(), broken.end());
  return broken;
}

std::vector<MoveRate> Directory::MoveRates() const {
  std::vector<MoveRate> rates;
  const absl::Time oldest = clock_.Now() - kMoveMemory;
  for (const auto& [pair, moves] : moves_) {
    if (moves.last >= oldest) rates.push_back({pair, 1 / moves.s_per_byte});
  }
  std::sort(rates.begin(), rates.end(),
            [](const MoveRate& a, const MoveRate& b) { return a.pair < b.pair; });
  return rates;
}

}  // namespace sluice::cluster
