#include "cluster/block_index.h"

#include <algorithm>

namespace sluice::cluster {

BlockIndex::WorkerNumber BlockIndex::NumberOf(const WorkerId& worker) {
  const auto [it, inserted] =
      numbers_.try_emplace(worker, static_cast<WorkerNumber>(workers_.size()));
  if (inserted) {
    workers_.emplace_back();
    workers_.back().id = worker;
  }
  return it->second;
}

BlockIndex::Applied BlockIndex::ApplyChanges(const WorkerId& worker, Incarnation incarnation,
                                             uint64_t first_sequence,
                                             absl::Span<const kv::BlockChange> changes) {
  MutexLock lock(mutex_);
  const WorkerNumber number = NumberOf(worker);
  WorkerRecord& record = workers_[number];
  if (record.incarnation != incarnation) {
    // A worker that starts fresh counts from 1: its events alone are a full history.
    if (first_sequence != 1) {
      record.synced = false;
      return Applied::kNeedSnapshot;
    }
    Forget(number);
    record.incarnation = incarnation;
    record.next_sequence = 1;
    record.synced = true;
  }
  if (!record.synced) return Applied::kNeedSnapshot;
  const uint64_t end = first_sequence + changes.size();
  if (end <= record.next_sequence) return Applied::kStale;
  if (first_sequence > record.next_sequence) {
    ++stats_.gaps;
    record.synced = false;
    return Applied::kNeedSnapshot;
  }
  for (const kv::BlockChange& change : changes.subspan(record.next_sequence - first_sequence)) {
    if (change.removed) {
      Remove(change.key, number);
    } else {
      Add(change.key, number);
    }
  }
  record.next_sequence = end;
  return Applied::kOk;
}

void BlockIndex::ApplySnapshot(const WorkerId& worker, Incarnation incarnation,
                               uint64_t last_sequence, absl::Span<const kv::BlockChange> blocks) {
  MutexLock lock(mutex_);
  const WorkerNumber number = NumberOf(worker);
  Forget(number);
  for (const kv::BlockChange& block : blocks) Add(block.key, number);
  WorkerRecord& record = workers_[number];
  record.incarnation = incarnation;
  record.next_sequence = last_sequence + 1;
  record.synced = true;
}

void BlockIndex::RemoveWorker(const WorkerId& worker) {
  MutexLock lock(mutex_);
  const auto found = numbers_.find(worker);
  if (found == numbers_.end()) return;
  Forget(found->second);
  workers_[found->second].synced = false;
  workers_[found->second].incarnation = Incarnation();
}

std::vector<WorkerHit> BlockIndex::Lookup(absl::Span<const kv::BlockKey> keys) const {
  MutexLock lock(mutex_);
  std::vector<WorkerHit> hits;
  if (keys.empty()) return hits;
  const auto first = blocks_.find(keys[0]);
  if (first == blocks_.end()) return hits;
  for (WorkerNumber number : first->second) {
    uint32_t held = 1;
    while (held < keys.size() && Holds(keys[held], number)) ++held;
    hits.push_back({workers_[number].id, workers_[number].incarnation, held});
  }
  std::sort(hits.begin(), hits.end(), [](const WorkerHit& a, const WorkerHit& b) {
    return a.blocks != b.blocks ? a.blocks > b.blocks : a.worker < b.worker;
  });
  return hits;
}

BlockIndex::Stats BlockIndex::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void BlockIndex::Add(kv::BlockKey key, WorkerNumber worker) {
  if (stats_.blocks >= blocks_max_) {
    ++stats_.overflows;
    return;
  }
  auto& holders = blocks_[key];
  if (std::find(holders.begin(), holders.end(), worker) != holders.end()) return;
  holders.push_back(worker);
  ++workers_[worker].blocks;
  ++stats_.blocks;
}

void BlockIndex::Remove(kv::BlockKey key, WorkerNumber worker) {
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return;
  auto& holders = found->second;
  const auto at = std::find(holders.begin(), holders.end(), worker);
  if (at == holders.end()) return;
  holders.erase(at);
  --workers_[worker].blocks;
  --stats_.blocks;
  if (holders.empty()) blocks_.erase(found);
}

// Walks the whole table: only when a worker leaves or starts over.
void BlockIndex::Forget(WorkerNumber worker) {
  if (workers_[worker].blocks == 0) return;
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    auto& holders = it->second;
    const auto at = std::find(holders.begin(), holders.end(), worker);
    if (at != holders.end()) {
      holders.erase(at);
      --stats_.blocks;
    }
    if (holders.empty()) {
      blocks_.erase(it++);
    } else {
      ++it;
    }
  }
  workers_[worker].blocks = 0;
}

bool BlockIndex::Holds(kv::BlockKey key, WorkerNumber worker) const {
  const auto found = blocks_.find(key);
  return found != blocks_.end() &&
         std::find(found->second.begin(), found->second.end(), worker) != found->second.end();
}

}  // namespace sluice::cluster
