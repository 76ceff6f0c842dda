// The pages of one worker: who holds each, and that nobody holds one that was given to another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "kv/page_layout.h"

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

// Pages of one tenant. Active ones include the quarantined.
struct TenantPages {
  TenantId tenant;
  uint64_t active = 0;
  uint64_t cached = 0;
};

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
  // Called without the lock when an allocation for `tenant` needs `pages` more than are free: gives
  // up cached pages and returns how many.
  using Evictor = absl::AnyInvocable<size_t(size_t pages, const TenantId& tenant)>;

  // `memory` must hold `pages` pages of the layout, 64-byte aligned, and outlive the pool.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(absl::Span<uint8_t> memory,
                                                          const PageLayout& layout,
                                                          const Options& options);
  ~PagePool();

  // `count` fresh pages whose headers carry a new generation and `owner`.
  // Errors: RESOURCE_EXHAUSTED with the numbers; nothing is taken then.
  absl::StatusOr<std::vector<PageLease>> Allocate(size_t count, Id128 owner,
                                                  const TenantId& tenant);

  // Takes a reference to a page if it is still of that generation and not free. Used by the prefix
  // index.
  absl::StatusOr<PageLease> Acquire(PageRef ref);

  // Marks a page as known to the prefix index (it becomes cached when its last lease goes) or
  // forgets it again. MarkCached fails with NOT_FOUND if the generation is not the page's any more.
  absl::Status MarkCached(PageRef ref);
  // UnmarkCached forgets the page whoever holds it; UnmarkCachedIfIdle only if nobody does. Both
  // return true if the page went to the free list by this call.
  bool UnmarkCached(PageRef ref);
  bool UnmarkCachedIfIdle(PageRef ref);
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
  // Of every tenant that holds a page, in no order.
  std::vector<TenantPages> tenants() const;
  // True if `tenant` holds more than its equal share: the pool's size divided among the tenants
  // that hold pages and `taker`, who is about to.
  bool OverEqualShare(const TenantId& tenant, const TenantId& taker) const;

 private:
  friend class PageLease;
  struct State;
  PagePool(absl::Span<uint8_t> memory, const PageLayout& layout, const Options& options);
  void AddReference(PageRef ref);
  void DropReference(PageRef ref);
  bool Unmark(PageRef ref, bool only_if_idle);
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
