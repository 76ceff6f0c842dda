// The pages of one worker: who holds each, and that nobody holds one that was given to another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "kv/page_layout.h"
#include "kv/tenant_ledger.h"

namespace sluice::kv {

class PagePool;

// A page at one time of its life. Valid while its generation is the page's.
struct PageRef {
  PageIndex index;
  Generation generation;
  friend bool operator==(const PageRef& a, const PageRef& b) {
    return a.index == b.index && a.generation == b.generation;
  }
};

// Holds one reference to a page; dropping the last one frees the page, or leaves it cached when the
// prefix index knows it. Move-only. The pool must outlive it. Thread-compatible; different leases
// may be used by different threads.
class PageLease {
 public:
  PageLease() = default;
  PageLease(PageLease&& other) noexcept;
  PageLease& operator=(PageLease&& other) noexcept;
  ~PageLease();

  bool valid() const { return pool_ != nullptr; }
  PageRef ref() const { return ref_; }
  uint8_t* data() const;
  // A second reference: a pin for a source lease, or a prefix shared by another sequence.
  PageLease Share() const;
  // Drops the reference now.
  void Reset();

 private:
  friend class PagePool;
  PageLease(PagePool* pool, PageRef ref) : pool_(pool), ref_(ref) {}
  PagePool* pool_ = nullptr;
  PageRef ref_;
};

// Pages by state. The sum is the pool's size at every moment.
struct PageCounts {
  uint64_t free = 0;
  uint64_t active = 0;       // referenced by a sequence, a reservation or a source lease
  uint64_t cached = 0;       // known to the prefix index only; may be evicted at once
  uint64_t quarantined = 0;  // given up while a fetch into them may still run
  uint64_t total() const { return free + active + cached + quarantined; }
};

// True for the refusal of a tenant that would exceed its limit; code RESOURCE_EXHAUSTED. Another
// tenant may have found room.
bool IsBeyondLimit(const absl::Status& status);

// Thread-safe: engine and hand-off loops share one pool. No call does I/O or waits.
// Invariants: generations grow over the whole pool and never repeat; the free list is FIFO, so a
// page rests as long as possible before its next use; a page is in exactly one state; a page is
// zeroed before it is handed out, so nobody sees what another left and unwritten slots are zero;
// the header of a free page carries generation 0, which no sequence expects.
class PagePool {
 public:
  struct Options {
    // Test builds: fill freed pages with a pattern that decodes to NaN or absurd values.
    bool poison_freed = false;
    // Zero a page as soon as it is freed, not only before it is handed out again.
    bool zero_freed = false;
  };
  // What must be evicted so that `taker` gets `wanted` pages.
  struct Need {
    TenantId taker;
    size_t wanted = 0;
    size_t pages = 0;  // to be evicted; with `from_taker`, of the taker itself
    bool from_taker = false;
  };
  // Called without the lock: gives up cached pages and returns how many.
  using Evictor = absl::AnyInvocable<size_t(const Need& need)>;

  // `memory` must hold `pages` pages of the layout, 64-byte aligned, and outlive the pool.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(absl::Span<uint8_t> memory,
                                                          const PageLayout& layout,
                                                          const Options& options);
  ~PagePool();

  // `count` fresh pages whose headers carry a new generation and `owner`, charged to `tenant` from
  // now until they are free again. It never holds more than its limit.
  // Errors: RESOURCE_EXHAUSTED with the numbers, IsBeyondLimit or not; nothing is taken then.
  absl::StatusOr<std::vector<PageLease>> Allocate(size_t count, Id128 owner,
                                                  const TenantId& tenant);

  // Takes a reference to a page if it is still of that generation and not free. Used by the prefix
  // index.
  absl::StatusOr<PageLease> Acquire(PageRef ref);

  // Marks a page as known to the prefix index (it becomes cached when its last lease goes) or
  // forgets it again; it is charged to `tenant` from now on. MarkCached fails with NOT_FOUND if the
  // generation is not the page's any more, RESOURCE_EXHAUSTED if the tenant may not cache more.
  absl::Status MarkCached(PageRef ref, const TenantId& tenant);
  // Forgets the page whoever holds it.
  void UnmarkCached(PageRef ref);
  // Frees a page that only the prefix index knows, for `taker`, unless it is within another
  // tenant's own part.
  enum class Evicted { kDone, kInUse, kProtected };
  Evicted Evict(PageRef ref, const TenantId& taker, EvictionCause* cause);
  void SetEvictor(Evictor evictor);

  // Pages whose owner gave up while a fetch into them may still run. They return to the free list
  // when the ticket is dropped.
  class Quarantine {
   public:
    Quarantine() = default;
    Quarantine(Quarantine&&) noexcept = default;
    Quarantine& operator=(Quarantine&&) noexcept = default;

   private:
    friend class PagePool;
    struct Holder;
    std::shared_ptr<Holder> holder_;
  };
  // The leases must be the only ones of their pages.
  Quarantine QuarantinePages(std::vector<PageLease> leases);

  uint8_t* PageData(PageIndex index) const;
  // Offset of a page from the start of the pool's memory: what a remote reader adds to the pool's
  // address.
  uint64_t PageOffset(PageIndex index) const;
  const PageLayout& layout() const { return layout_; }
  size_t size() const { return pages_total_; }
  PageCounts counts() const;
  // Of every tenant that holds a page or was refused one, in order of names.
  std::vector<TenantPages> tenants() const;
  // The same, and forgets refusals: for reports of what is wanted.
  std::vector<TenantPages> TakeTenants();
  // OK if `tenant` could allocate `pages` now beside `promised` ones, which it has not taken yet:
  // so many are free, or cached and not protected from it, and within its limit. Else what Allocate
  // would answer; it counts as refused.
  absl::Status CheckRoom(const TenantId& tenant, uint64_t pages, uint64_t promised);

  // Somebody found no room for `pages` and did not even ask.
  void NoteRefused(const TenantId& tenant, uint64_t pages);

  // Budgets of tenants; see TenantLedger. What a lowered limit or another's return asks for is
  // evicted by whoever needs it next, or by PrefixIndex::TrimToLimits.
  void SetBudgets(const TenantBudgets& budgets);
  void ExpireBudgets();

  bool has_budgets() const;
  // Holds more than nobody may take from it.
  bool Borrows(const TenantId& tenant) const;

  // For the prefix index; see TenantLedger.
  std::optional<TenantLedger::Loser> NextLoser(const TenantId& taker, uint64_t pages,
                                               const absl::flat_hash_set<TenantId>& spent) const;
  std::vector<std::pair<TenantId, uint64_t>> AboveLimit() const;

 private:
  friend class PageLease;
  struct State;
  PagePool(absl::Span<uint8_t> memory, const PageLayout& layout, const Options& options);
  absl::Status Refusal(const TenantId& tenant, uint64_t pages, bool beyond_limit);
  void AddReference(PageRef ref);
  void DropReference(PageRef ref);
  void ReleaseQuarantined(const std::vector<PageRef>& refs);
  void Scrub(PageIndex index);
  void WriteHeader(PageIndex index, uint64_t generation, Id128 owner);

  const absl::Span<uint8_t> memory_;
  const PageLayout layout_;
  const Options options_;
  const size_t pages_total_;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::kv
