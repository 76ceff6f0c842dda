// Cached blocks of one worker: block key -> page. Finds prefixes, keeps recently used blocks,
// reports changes.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kv/block_key.h"
#include "kv/page_digest.h"
#include "kv/page_pool.h"

namespace sluice::kv {

// One change, in order, for the cluster-wide index.
struct BlockChange {
  BlockKey key;
  bool removed = false;
  TenantId tenant;
};

// Thread-safe. Lock order: index before pool.
//
// Eviction takes blocks nobody uses and no block depends on. Once the pool has budgets the ledger
// names the tenant who gives way (see TenantLedger), and of its blocks the least useful goes; as
// many as are needed, and where tenants are above their fair part a little more, so that the next
// allocation need not ask. Without budgets all blocks count as one tenant's. Useful: used lately;
// a block that was found again, or that continues such a one as a conversation does, counts as
// used one turn-over of the pool later than it was.
//
// Cost: O(log blocks) for each block inserted, found at the end of a prefix or evicted.
//
// Invariant: a page that Find hands out still carries its generation in its header, and, as often
// as `digests` says, holds the bytes that it was published with.
class PrefixIndex {
 public:
  struct Options {
    // Bounds what TakeChanges may return; beyond it the oldest are lost and their numbers leave a
    // gap.
    size_t changes_max = 1 << 20;
    // A digest is taken when a block is published, and checked before a hit is used: of every
    // block, of every 16th that is found, or never. Costs one pass over the page each, by the
    // caller.
    DigestMode digests = DigestMode::kOff;
  };
  // Becomes the pool's evictor. Both must live equally long; the pool must outlive the index's last
  // call.
  static std::unique_ptr<PrefixIndex> Create(PagePool& pool, const Options& options);
  static std::unique_ptr<PrefixIndex> Create(PagePool& pool) { return Create(pool, Options()); }
  virtual ~PrefixIndex() = default;

  // Leases on the longest run of leading keys that is held and passes the checks. Marks them used.
  // What fails is forgotten, with all blocks below it, and counted.
  virtual std::vector<PageLease> Find(absl::Span<const BlockKey> keys) = 0;
  // Number of leading keys held; changes nothing.
  virtual size_t Count(absl::Span<const BlockKey> keys) const = 0;
  // Publishes a full, final block, which is charged to `tenant` from now on. If the key is known
  // already the old page stays and the new one is simply not indexed, nor is it if the tenant may
  // not cache more.
  virtual void Insert(BlockKey key, BlockKey parent, const PageLease& page,
                      const TenantId& tenant) = 0;
  // Forgets everything; pages in use stay with their users.
  virtual void Clear() = 0;
  // Evicts what tenants have cached above their limits, after these were lowered.
  virtual void TrimToLimits() = 0;

  // Changes since the last call, in order; `*sequence` gets the number of the first (they count
  // from 1 without gaps).
  virtual std::vector<BlockChange> TakeChanges(uint64_t* sequence) = 0;
  // Told of every eviction, without locks, by whatever thread needed the page. Set before the index
  // is shared.
  using EvictionObserver = std::function<void(const TenantId& tenant, EvictionCause cause)>;
  virtual void OnEvicted(EvictionObserver observer) = 0;

  // All blocks; `*sequence` gets the number of the last change they contain.
  virtual std::vector<BlockChange> Snapshot(uint64_t* sequence) const = 0;

  struct Stats {
    uint64_t blocks = 0;
    uint64_t queries = 0;
    uint64_t hits = 0;
    uint64_t evictions = 0;
    uint64_t tag_failures = 0;     // found blocks whose page had another tag
    uint64_t digest_failures = 0;  // found blocks whose bytes had changed
  };
  virtual Stats stats() const = 0;
};

}  // namespace sluice::kv
