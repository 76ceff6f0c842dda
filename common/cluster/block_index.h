// Where every cached block of the cluster is, as told by the workers' numbered events.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "kv/block_key.h"
#include "kv/prefix_index.h"

namespace sluice::cluster {

// How many leading blocks of a prompt one worker holds.
struct WorkerHit {
  WorkerId worker;
  Incarnation incarnation;
  uint32_t blocks = 0;
};

// Soft state: rebuilt from snapshots, lost without harm. Thread-safe; lookups take one lock and
// touch only the asked keys.
class BlockIndex {
 public:
  // At most `blocks_max` (block, worker) pairs are kept; events beyond that are counted and
  // forgotten.
  explicit BlockIndex(size_t blocks_max) : blocks_max_(blocks_max) {}

  enum class Applied {
    kOk,
    kStale,         // of an older incarnation, or numbers seen before: ignored
    kNeedSnapshot,  // numbers are missing, or the worker is unknown: ask for a snapshot, ignore
                    // events until it comes
  };
  // `first_sequence` is the number of changes[0]; numbers are consecutive.
  Applied ApplyChanges(const WorkerId& worker, Incarnation incarnation, uint64_t first_sequence,
                       absl::Span<const kv::BlockChange> changes);
  // Replaces everything known of the worker; the next change has number `last_sequence` + 1.
  void ApplySnapshot(const WorkerId& worker, Incarnation incarnation, uint64_t last_sequence,
                     absl::Span<const kv::BlockChange> blocks);
  void RemoveWorker(const WorkerId& worker);

  // Workers that hold keys[0], with the length of the run of leading keys each holds, longest
  // first.
  std::vector<WorkerHit> Lookup(absl::Span<const kv::BlockKey> keys) const;

  struct Stats {
    uint64_t blocks = 0;     // (block, worker) pairs
    uint64_t overflows = 0;  // events forgotten because the index is full
    uint64_t gaps = 0;
  };
  Stats stats() const;

 private:
  // Workers are named by a small number inside the table: a block costs 16 + about 8 bytes.
  using WorkerNumber = uint32_t;
  struct WorkerRecord {
    WorkerId id;
    Incarnation incarnation;
    uint64_t next_sequence = 0;
    bool synced = false;  // false: waiting for a snapshot
    uint64_t blocks = 0;
  };

  WorkerNumber NumberOf(const WorkerId& worker) SLUICE_REQUIRES(mutex_);
  void Add(kv::BlockKey key, WorkerNumber worker) SLUICE_REQUIRES(mutex_);
  void Remove(kv::BlockKey key, WorkerNumber worker) SLUICE_REQUIRES(mutex_);
  void Forget(WorkerNumber worker) SLUICE_REQUIRES(mutex_);
  bool Holds(kv::BlockKey key, WorkerNumber worker) const SLUICE_REQUIRES(mutex_);

  const size_t blocks_max_;
  mutable Mutex mutex_;
  absl::flat_hash_map<WorkerId, WorkerNumber> numbers_ SLUICE_GUARDED_BY(mutex_);
  std::vector<WorkerRecord> workers_ SLUICE_GUARDED_BY(mutex_);
  absl::flat_hash_map<kv::BlockKey, absl::InlinedVector<WorkerNumber, 2>> blocks_
      SLUICE_GUARDED_BY(mutex_);
  Stats stats_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::cluster
