#include "kv/prefix_index.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/mutex.h"
#include "kernels/page_tag/page_tag.h"
#include "kv/eviction_order.h"

namespace sluice::kv {
namespace {

constexpr size_t kTrimmedAtATime = 64;  // pages while the lock is held
constexpr size_t kHeadroomPart = 64;    // of the pool

class PrefixIndexImpl final : public PrefixIndex {
 public:
  PrefixIndexImpl(PagePool& pool, const Options& options)
      : pool_(pool), options_(options), order_(pool.size()) {
    pool_.SetEvictor([this](const PagePool::Need& need) { return Evict(need); });
  }
  ~PrefixIndexImpl() override {
    pool_.SetEvictor(nullptr);
    Clear();
  }

  std::vector<PageLease> Find(absl::Span<const BlockKey> keys) override {
    Found found = Acquire(keys);
    const Damage damage = FirstDamage(found);
    MutexLock lock(mutex_);
    if (damage.at < found.leases.size()) {
      ++(damage.by_tag ? stats_.tag_failures : stats_.digest_failures);
      Forget(keys[damage.at], found.leases[damage.at].ref());
      found.leases.erase(found.leases.begin() + static_cast<ptrdiff_t>(damage.at),
                         found.leases.end());
    }
    stats_.queries += keys.size();
    stats_.hits += found.leases.size();
    return std::move(found.leases);
  }

  size_t Count(absl::Span<const BlockKey> keys) const override {
    MutexLock lock(mutex_);
    size_t held = 0;
    while (held < keys.size() && entries_.contains(keys[held])) ++held;
    return held;
  }

  void Insert(BlockKey key, BlockKey parent, const PageLease& page,
              const TenantId& tenant) override {
    const uint64_t digest = options_.digests == DigestMode::kOff || Known(key) ? 0 : Digest(page);
    MutexLock lock(mutex_);
    if (entries_.contains(key)) return;
    const bool is_root = parent == BlockKey();
    const auto parent_entry = entries_.find(parent);
    // Without its parent the block could never be found.
    if (!is_root && parent_entry == entries_.end()) return;
    if (!pool_.MarkCached(page.ref(), tenant).ok()) return;
    Entry entry{page.ref(), parent, tenant, digest, 0, 0, false};
    if (!is_root) {
      entry.found_again = parent_entry->second.found_again;
      if (++parent_entry->second.children == 1) Delist(parent, parent_entry->second);
    }
    entry.usefulness = order_.UsefulnessNow(entry.found_again);
    Enlist(key, entry);
    entries_.emplace(key, std::move(entry));
    Record({key, false, tenant});
  }

  void Clear() override {
    MutexLock lock(mutex_);
    std::vector<std::pair<uint64_t, BlockKey>> all;
    for (const auto& [key, entry] : entries_) all.emplace_back(entry.usefulness, key);
    std::sort(all.begin(), all.end());
    for (const auto& [usefulness, key] : all) {
      const Entry& entry = entries_.at(key);
      pool_.UnmarkCached(entry.page);
      Record({key, true, entry.tenant});
    }
    entries_.clear();
    order_.Clear();
  }

  void TrimToLimits() override {
    for (const auto& [tenant, pages] : pool_.AboveLimit()) {
      PagePool::Need need{tenant, 0, 0, true};
      for (uint64_t left = pages; left > 0; left -= need.pages) {
        need.pages = std::min<uint64_t>(left, kTrimmedAtATime);
        if (Evict(need) < need.pages) break;
      }
    }
  }

  std::vector<BlockChange> TakeChanges(uint64_t* sequence) override {
    MutexLock lock(mutex_);
    *sequence = last_sequence_ - changes_.size() + 1;
    return std::exchange(changes_, {});
  }

  void OnEvicted(EvictionObserver observer) override { observer_ = std::move(observer); }

  std::vector<BlockChange> Snapshot(uint64_t* sequence) const override {
    MutexLock lock(mutex_);
    *sequence = last_sequence_;
    std::vector<BlockChange> all;
    all.reserve(entries_.size());
    for (const auto& [key, entry] : entries_) all.push_back({key, false, entry.tenant});
    return all;
  }

  Stats stats() const override {
    MutexLock lock(mutex_);
    Stats stats = stats_;
    stats.blocks = entries_.size();
    return stats;
  }

 private:
  struct Entry {
    PageRef page;
    BlockKey parent;
    TenantId tenant;
    uint64_t digest;  // 0: none was taken
    uint32_t children;
    uint64_t usefulness;
    bool found_again;
  };
  struct Found {
    std::vector<PageLease> leases;
    std::vector<uint64_t> digests;  // to be checked; 0: not this one
  };
  struct Damage {
    size_t at;
    bool by_tag;
  };
  using Eviction = std::pair<TenantId, EvictionCause>;

  bool Known(const BlockKey& key) const {
    MutexLock lock(mutex_);
    return entries_.contains(key);
  }

  uint64_t Digest(const PageLease& page) const {
    return BytesDigest(
        {page.data() + kPageHeaderBytes, pool_.layout().page_bytes() - kPageHeaderBytes});
  }

  Found Acquire(absl::Span<const BlockKey> keys) {
    MutexLock lock(mutex_);
    Found found;
    for (const BlockKey& key : keys) {
      const auto entry = entries_.find(key);
      if (entry == entries_.end()) break;
      absl::StatusOr<PageLease> lease = pool_.Acquire(entry->second.page);
      if (!lease.ok()) break;
      const bool due =
          options_.digests == DigestMode::kFull ||
          (options_.digests == DigestMode::kSampled && ++found_blocks_ % kDigestSampledEvery == 0);
      found.leases.push_back(*std::move(lease));
      found.digests.push_back(due ? entry->second.digest : 0);
    }
    // Children first: what more prompts may share is the more useful.
    for (size_t i = found.leases.size(); i-- > 0;) {
      Entry& entry = entries_.at(keys[i]);
      entry.found_again = true;
      Use(keys[i], entry, true);
    }
    return found;
  }

  // The first page that is not what was published. Without the lock: it reads pages, which the
  // leases keep in place.
  Damage FirstDamage(const Found& found) const {
    std::vector<const std::byte*> pages;
    std::vector<uint64_t> generations;
    for (const PageLease& lease : found.leases) {
      pages.push_back(reinterpret_cast<const std::byte*>(lease.data()));
      generations.push_back(lease.ref().generation.value());
    }
    const int64_t tag = kernels::FirstTagMismatch(pages.data(), generations.data(),
                                                  static_cast<int64_t>(pages.size()));
    const size_t intact = tag < 0 ? pages.size() : static_cast<size_t>(tag);
    for (size_t i = 0; i < intact; ++i) {
      if (found.digests[i] != 0 && Digest(found.leases[i]) != found.digests[i]) return {i, false};
    }
    return {intact, true};
  }

  // Forgets a damaged block and those below it: without it they cannot be found, and a block that
  // takes its place must not have children it does not know.
  void Forget(const BlockKey& key, PageRef page) SLUICE_REQUIRES(mutex_) {
    const auto damaged = entries_.find(key);
    if (damaged == entries_.end() || !(damaged->second.page == page)) return;
    std::vector<std::pair<BlockKey, BlockKey>> by_parent;
    for (const auto& [child, entry] : entries_) by_parent.emplace_back(entry.parent, child);
    std::sort(by_parent.begin(), by_parent.end());
    std::vector<BlockKey> doomed = {key};
    for (size_t i = 0; i < doomed.size(); ++i) {
      const BlockKey parent = doomed[i];
      for (auto it = std::lower_bound(by_parent.begin(), by_parent.end(),
                                      std::make_pair(parent, BlockKey()));
           it != by_parent.end() && it->first == parent; ++it) {
        doomed.push_back(it->second);
      }
    }
    for (auto it = doomed.rbegin(); it != doomed.rend(); ++it) {
      pool_.UnmarkCached(entries_.at(*it).page);
      Remove(*it);
    }
  }

  // Whose block it is when blocks are evicted: everybody's, as long as there are no budgets.
  const TenantId& GroupOf(const Entry& entry) const SLUICE_REQUIRES(mutex_) {
    return by_tenant_ ? entry.tenant : all_tenants_;
  }
  void Enlist(const BlockKey& key, const Entry& entry) SLUICE_REQUIRES(mutex_) {
    order_.Add(GroupOf(entry), entry.usefulness, key);
  }
  void Delist(const BlockKey& key, const Entry& entry) SLUICE_REQUIRES(mutex_) {
    order_.Remove(GroupOf(entry), entry.usefulness, key);
  }
  void Use(const BlockKey& key, Entry& entry, bool found_again) SLUICE_REQUIRES(mutex_) {
    if (entry.children == 0) Delist(key, entry);
    entry.usefulness = order_.UsefulnessNow(found_again);
    if (entry.children == 0) Enlist(key, entry);
  }
  // Once, when the first budgets have come. O(blocks).
  void GroupByTenant() SLUICE_REQUIRES(mutex_) {
    if (by_tenant_ || !pool_.has_budgets()) return;
    order_.Clear();
    by_tenant_ = true;
    for (const auto& [key, entry] : entries_) {
      if (entry.children == 0) Enlist(key, entry);
    }
  }

  void Record(BlockChange change) SLUICE_REQUIRES(mutex_) {
    if (changes_.size() >= options_.changes_max)
      changes_.clear();  // their numbers leave a gap, which asks for a snapshot
    ++last_sequence_;
    changes_.push_back(std::move(change));
  }

  size_t Evict(const PagePool::Need& need) {
    std::vector<Eviction> evictions;
    {
      MutexLock lock(mutex_);
      GroupByTenant();
      if (!by_tenant_ || need.from_taker) {
        const TenantId& group = by_tenant_ ? need.taker : all_tenants_;
        while (evictions.size() < need.pages && EvictFirst(group, need.taker, evictions)) {
        }
      } else {
        EvictByTenant(need, evictions);
      }
      stats_.evictions += evictions.size();
    }
    if (observer_) {
      for (const auto& [tenant, cause] : evictions)
        observer_(tenant, need.wanted > 0 ? cause : EvictionCause::kPressure);
    }
    return evictions.size();
  }

  void EvictByTenant(const PagePool::Need& need, std::vector<Eviction>& evictions)
      SLUICE_REQUIRES(mutex_) {
    const size_t headroom = pool_.size() / kHeadroomPart;
    absl::flat_hash_set<TenantId> spent;
    while (evictions.size() < need.pages + headroom) {
      const auto loser = pool_.NextLoser(need.taker, need.wanted, spent);
      if (!loser.has_value()) return;
      if (evictions.size() >= need.pages && !loser->over_fair) return;
      if (!EvictFirst(loser->tenant, need.taker, evictions)) spent.insert(loser->tenant);
    }
  }

  // Gives up the least useful block of a group that nobody uses. False if there is none, or if the
  // group's tenant has come down to its own part meanwhile.
  bool EvictFirst(const TenantId& group, const TenantId& taker, std::vector<Eviction>& evictions)
      SLUICE_REQUIRES(mutex_) {
    for (size_t tries = order_.Size(group); tries > 0; --tries) {
      const BlockKey key = *order_.First(group);
      Entry& entry = entries_.at(key);
      EvictionCause cause;
      switch (pool_.Evict(entry.page, taker, &cause)) {
        case PagePool::Evicted::kDone:
          evictions.emplace_back(entry.tenant, cause);
          Remove(key);
          return true;
        case PagePool::Evicted::kProtected:
          return false;
        case PagePool::Evicted::kInUse:
          // Behind all others, so that neither this search nor the next one meets it again.
          Use(key, entry, /*found_again=*/true);
      }
    }
    return false;
  }

  void Remove(BlockKey key) SLUICE_REQUIRES(mutex_) {
    const auto found = entries_.find(key);
    if (found->second.children == 0) Delist(key, found->second);
    const auto parent = entries_.find(found->second.parent);
    if (parent != entries_.end() && --parent->second.children == 0)
      Enlist(parent->first, parent->second);
    Record({key, true, found->second.tenant});
    entries_.erase(found);
  }

  PagePool& pool_;
  const Options options_;
  EvictionObserver observer_;
  mutable Mutex mutex_;
  absl::flat_hash_map<BlockKey, Entry> entries_ SLUICE_GUARDED_BY(mutex_);
  EvictionOrder order_ SLUICE_GUARDED_BY(mutex_);
  bool by_tenant_ SLUICE_GUARDED_BY(mutex_) = false;  // never false again
  const TenantId all_tenants_;
  std::vector<BlockChange> changes_ SLUICE_GUARDED_BY(mutex_);
  uint64_t last_sequence_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t found_blocks_ SLUICE_GUARDED_BY(mutex_) = 0;
  Stats stats_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<PrefixIndex> PrefixIndex::Create(PagePool& pool, const Options& options) {
  return std::make_unique<PrefixIndexImpl>(pool, options);
}

}  // namespace sluice::kv
