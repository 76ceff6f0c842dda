#include "kv/prefix_index.h"

#include <cstddef>
#include <list>
#include <unordered_map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "base/mutex.h"
#include "kernels/page_tag/page_tag.h"

namespace sluice::kv {
namespace {

class PrefixIndexImpl final : public PrefixIndex {
 public:
  PrefixIndexImpl(PagePool& pool, const Options& options) : pool_(pool), options_(options) {
    pool_.SetEvictor([this](size_t pages, const TenantId& taker) { return Evict(pages, taker); });
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
    if (!pool_.MarkCached(page.ref()).ok()) return;
    Entry entry{page.ref(), parent, tenant, digest, 0, {}};
    if (is_root) {
      entry.position = recency_.insert(recency_.end(), key);
    } else {
      // Just older than its parent, so that eviction meets leaves first.
      entry.position = recency_.insert(parent_entry->second.position, key);
      ++parent_entry->second.children;
    }
    entries_.emplace(key, std::move(entry));
    Record({key, false, tenant});
  }

  void Clear() override {
    MutexLock lock(mutex_);
    for (const BlockKey& key : recency_) {
      const Entry& entry = entries_.at(key);
      pool_.UnmarkCached(entry.page);
      Record({key, true, entry.tenant});
    }
    entries_.clear();
    recency_.clear();
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
    std::list<BlockKey>::iterator position;
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
    std::vector<Entry*> used;
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
      used.push_back(&entry->second);
    }
    // Children first: a parent ends up more recent than its children, so eviction meets leaves
    // first.
    for (auto it = used.rbegin(); it != used.rend(); ++it) Touch(**it);
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
    std::unordered_multimap<BlockKey, BlockKey, absl::Hash<BlockKey>> children;
    for (const BlockKey& child : recency_) children.emplace(entries_.at(child).parent, child);
    std::vector<BlockKey> doomed = {key};
    for (size_t i = 0; i < doomed.size(); ++i) {
      const auto [begin, end] = children.equal_range(doomed[i]);
      for (auto it = begin; it != end; ++it) doomed.push_back(it->second);
    }
    for (auto it = doomed.rbegin(); it != doomed.rend(); ++it) {
      pool_.UnmarkCached(entries_.at(*it).page);
      Remove(*it);
    }
  }

  void Touch(Entry& entry) SLUICE_REQUIRES(mutex_) {
    recency_.splice(recency_.end(), recency_, entry.position);
  }

  void Record(BlockChange change) SLUICE_REQUIRES(mutex_) {
    if (changes_.size() >= options_.changes_max)
      changes_.clear();  // their numbers leave a gap, which asks for a snapshot
    ++last_sequence_;
    changes_.push_back(std::move(change));
  }

  EvictionCause CauseOf(const TenantId& owner, const TenantId& taker) const {
    if (owner == taker) return EvictionCause::kOwn;
    return pool_.OverEqualShare(owner, taker) ? EvictionCause::kBorrowed : EvictionCause::kForeign;
  }

  size_t Evict(size_t pages, const TenantId& taker) {
    const std::vector<Eviction> evictions = EvictLeaves(pages, taker);
    if (observer_) {
      for (const auto& [tenant, cause] : evictions) observer_(tenant, cause);
    }
    return evictions.size();
  }

  // Gives up idle leaves, least recently used first. Freeing a leaf may make its parent one, hence
  // another pass.
  std::vector<Eviction> EvictLeaves(size_t pages, const TenantId& taker) {
    MutexLock lock(mutex_);
    std::vector<Eviction> freed;
    for (size_t before = SIZE_MAX; freed.size() < pages && freed.size() != before;) {
      before = freed.size();
      for (auto it = recency_.begin(); it != recency_.end() && freed.size() < pages;) {
        const BlockKey key = *it++;
        const Entry& entry = entries_.at(key);
        if (entry.children > 0) continue;
        const EvictionCause cause = CauseOf(entry.tenant, taker);
        if (!pool_.UnmarkCachedIfIdle(entry.page)) continue;
        freed.emplace_back(entry.tenant, cause);
        Remove(key);
      }
    }
    stats_.evictions += freed.size();
    return freed;
  }

  void Remove(BlockKey key) SLUICE_REQUIRES(mutex_) {
    const auto found = entries_.find(key);
    const auto parent = entries_.find(found->second.parent);
    if (parent != entries_.end()) --parent->second.children;
    recency_.erase(found->second.position);
    Record({key, true, found->second.tenant});
    entries_.erase(found);
  }

  PagePool& pool_;
  const Options options_;
  EvictionObserver observer_;
  mutable Mutex mutex_;
  absl::flat_hash_map<BlockKey, Entry> entries_ SLUICE_GUARDED_BY(mutex_);
  std::list<BlockKey> recency_ SLUICE_GUARDED_BY(mutex_);  // least recently used first
  std::vector<BlockChange> changes_ SLUICE_GUARDED_BY(mutex_);
  uint64_t last_sequence_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t found_blocks_ SLUICE_GUARDED_BY(mutex_) = 0;
  Stats stats_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace

absl::string_view EvictionCauseName(EvictionCause cause) {
  switch (cause) {
    case EvictionCause::kOwn:
      return "own";
    case EvictionCause::kBorrowed:
      return "borrowed";
    case EvictionCause::kForeign:
      return "foreign";
  }
  return "unknown";
}

std::unique_ptr<PrefixIndex> PrefixIndex::Create(PagePool& pool, const Options& options) {
  return std::make_unique<PrefixIndexImpl>(pool, options);
}

}  // namespace sluice::kv
