// Invariants of State, all under its mutex:
//   refs[i] > 0                      -> the page is active (or quarantined)
//   refs[i] == 0 and cached[i]       -> the page is cached
//   refs[i] == 0 and not cached[i]   -> the page is in the free list exactly once
//   a page that is scrubbed on its way there counts as active
//   usage[t] counts the pages of tenant t that are not in the free list; tenants without any have no
//   entry
// A generation of 0 in `generations` means free; a PageRef matches only while its generation is the
// page's.
#include "kv/page_pool.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace sluice::kv {

struct PagePool::State {
  struct Page {
    uint64_t generation = 0;
    uint32_t refs = 0;
    bool cached = false;
    bool quarantined = false;
    TenantId tenant;
  };
  struct Usage {
    uint64_t pages = 0;
    uint64_t cached_idle = 0;
  };

  Mutex mutex;
  std::vector<Page> pages SLUICE_GUARDED_BY(mutex);
  std::deque<uint32_t> free SLUICE_GUARDED_BY(mutex);
  uint64_t last_generation SLUICE_GUARDED_BY(mutex) = 0;
  absl::flat_hash_map<TenantId, Usage> usage SLUICE_GUARDED_BY(mutex);
  uint64_t cached_idle SLUICE_GUARDED_BY(mutex) = 0;
  uint64_t quarantined SLUICE_GUARDED_BY(mutex) = 0;
  std::shared_ptr<Evictor> evictor SLUICE_GUARDED_BY(mutex);

  // Null when the page has moved on.
  Page* Find(PageRef ref) SLUICE_REQUIRES(mutex) {
    if (ref.index.value() >= pages.size() || ref.generation.value() == 0) return nullptr;
    Page& page = pages[ref.index.value()];
    return page.generation == ref.generation.value() ? &page : nullptr;
  }

  void BecomeIdle(const Page& page) SLUICE_REQUIRES(mutex) {
    ++cached_idle;
    ++usage[page.tenant].cached_idle;
  }
  void LeaveIdle(const Page& page) SLUICE_REQUIRES(mutex) {
    --cached_idle;
    --usage[page.tenant].cached_idle;
  }
  void ForgetPage(const TenantId& tenant) SLUICE_REQUIRES(mutex) {
    const auto found = usage.find(tenant);
    if (--found->second.pages == 0) usage.erase(found);
  }
};

struct PagePool::Quarantine::Holder {
  PagePool* pool;
  std::vector<PageRef> refs;
  Holder(PagePool* p, std::vector<PageRef> r) : pool(p), refs(std::move(r)) {}
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { pool->ReleaseQuarantined(refs); }
};

PageLease::PageLease(PageLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), ref_(other.ref_) {}

PageLease& PageLease::operator=(PageLease&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    ref_ = other.ref_;
  }
  return *this;
}

PageLease::~PageLease() { Reset(); }

uint8_t* PageLease::data() const { return pool_->PageData(ref_.index); }

PageLease PageLease::Share() const {
  SLUICE_CHECK(valid());
  pool_->AddReference(ref_);
  return PageLease(pool_, ref_);
}

void PageLease::Reset() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->DropReference(ref_);
}

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(absl::Span<uint8_t> memory,
                                                           const PageLayout& layout,
                                                           const Options& options) {
  if (reinterpret_cast<uintptr_t>(memory.data()) % 64 != 0) {
    return absl::InvalidArgumentError("page pool: memory is not aligned to 64 bytes");
  }
  if (memory.size() < layout.page_bytes() || memory.size() / layout.page_bytes() > UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("page pool: ", memory.size(), " bytes do not hold a page of ",
                     layout.page_bytes(), " bytes; enlarge kv_pool_mib"));
  }
  return std::unique_ptr<PagePool>(new PagePool(memory, layout, options));
}

PagePool::PagePool(absl::Span<uint8_t> memory, const PageLayout& layout, const Options& options)
    : memory_(memory),
      layout_(layout),
      options_(options),
      pages_total_(memory.size() / layout.page_bytes()),
      state_(std::make_unique<State>()) {
  MutexLock lock(state_->mutex);
  state_->pages.resize(pages_total_);
  for (uint32_t i = 0; i < pages_total_; ++i) {
    state_->free.push_back(i);
    WriteHeader(PageIndex(i), 0, {});
  }
}

PagePool::~PagePool() = default;

absl::StatusOr<std::vector<PageLease>> PagePool::Allocate(size_t count, Id128 owner,
                                                          const TenantId& tenant) {
  std::vector<PageRef> taken;
  for (;;) {
    size_t missing = 0;
    size_t free_now = 0;
    std::shared_ptr<Evictor> evictor;
    {
      MutexLock lock(state_->mutex);
      free_now = state_->free.size();
      if (free_now >= count) {
        if (count > 0) state_->usage[tenant].pages += count;
        for (size_t i = 0; i < count; ++i) {
          const uint32_t index = state_->free.front();
          state_->free.pop_front();
          State::Page& page = state_->pages[index];
          page.generation = ++state_->last_generation;
          page.refs = 1;
          page.tenant = tenant;
          taken.push_back({PageIndex(index), Generation(page.generation)});
        }
        break;
      }
      missing = count - free_now;
      evictor = state_->evictor;
    }
    if (evictor == nullptr || (*evictor)(missing, tenant) == 0) {
      return absl::ResourceExhaustedError(absl::StrCat("page pool: ", count, " pages wanted, ",
                                                       free_now, " of ", pages_total_,
                                                       " free and none to evict"));
    }
  }
  // The pages are ours alone from here on: zeroing needs no lock.
  std::vector<PageLease> leases;
  leases.reserve(count);
  for (const PageRef& ref : taken) {
    std::memset(PageData(ref.index), 0, layout_.page_bytes());
    WriteHeader(ref.index, ref.generation.value(), owner);
    leases.push_back(PageLease(this, ref));
  }
  return leases;
}

absl::StatusOr<PageLease> PagePool::Acquire(PageRef ref) {
  MutexLock lock(state_->mutex);
  State::Page* page = state_->Find(ref);
  if (page == nullptr || page->quarantined || (page->refs == 0 && !page->cached)) {
    return absl::NotFoundError(absl::StrCat("page ", ref.index.value(), " is not of generation ",
                                            ref.generation.value(), " any more"));
  }
  if (page->refs == 0) state_->LeaveIdle(*page);
  ++page->refs;
  return PageLease(this, ref);
}

absl::Status PagePool::MarkCached(PageRef ref) {
  MutexLock lock(state_->mutex);
  State::Page* page = state_->Find(ref);
  if (page == nullptr || page->quarantined || page->refs == 0) {
    return absl::NotFoundError(absl::StrCat("page ", ref.index.value(), " of generation ",
                                            ref.generation.value(), " is held by nobody"));
  }
  page->cached = true;
  return absl::OkStatus();
}

bool PagePool::UnmarkCached(PageRef ref) { return Unmark(ref, false); }
bool PagePool::UnmarkCachedIfIdle(PageRef ref) { return Unmark(ref, true); }

bool PagePool::Unmark(PageRef ref, bool only_if_idle) {
  {
    MutexLock lock(state_->mutex);
    State::Page* page = state_->Find(ref);
    if (page == nullptr || !page->cached || (only_if_idle && page->refs > 0)) return false;
    page->cached = false;
    if (page->refs > 0) return false;
    state_->LeaveIdle(*page);
    page->refs = 1;  // ours while it is scrubbed
  }
  DropReference(ref);
  return true;
}

void PagePool::SetEvictor(Evictor evictor) {
  MutexLock lock(state_->mutex);
  state_->evictor = evictor == nullptr ? nullptr : std::make_shared<Evictor>(std::move(evictor));
}

PagePool::Quarantine PagePool::QuarantinePages(std::vector<PageLease> leases) {
  std::vector<PageRef> refs;
  {
    MutexLock lock(state_->mutex);
    for (PageLease& lease : leases) {
      State::Page* page = state_->Find(lease.ref_);
      SLUICE_CHECK(page != nullptr && page->refs == 1 && !page->cached)
          << "only unshared pages can be quarantined";
      page->quarantined = true;
      ++state_->quarantined;
      refs.push_back(lease.ref_);
      lease.pool_ = nullptr;
    }
  }
  Quarantine quarantine;
  quarantine.holder_ = std::make_shared<Quarantine::Holder>(this, std::move(refs));
  return quarantine;
}

void PagePool::ReleaseQuarantined(const std::vector<PageRef>& refs) {
  {
    MutexLock lock(state_->mutex);
    for (const PageRef& ref : refs) {
      State::Page* page = state_->Find(ref);
      SLUICE_CHECK(page != nullptr && page->quarantined);
      page->quarantined = false;
      --state_->quarantined;
    }
  }
  for (const PageRef& ref : refs) DropReference(ref);
}

void PagePool::AddReference(PageRef ref) {
  MutexLock lock(state_->mutex);
  State::Page* page = state_->Find(ref);
  SLUICE_CHECK(page != nullptr && page->refs > 0);
  ++page->refs;
}

void PagePool::DropReference(PageRef ref) {
  {
    MutexLock lock(state_->mutex);
    State::Page* page = state_->Find(ref);
    SLUICE_CHECK(page != nullptr && page->refs > 0);
    if (page->refs > 1 || page->cached) {
      --page->refs;
      if (page->refs == 0) state_->BecomeIdle(*page);
      return;
    }
  }
  // The last reference is ours, so nobody can take another one while the page is scrubbed.
  Scrub(ref.index);
  MutexLock lock(state_->mutex);
  State::Page& page = state_->pages[ref.index.value()];
  page.generation = 0;
  page.refs = 0;
  state_->ForgetPage(page.tenant);
  page.tenant = TenantId();
  state_->free.push_back(ref.index.value());
}

void PagePool::Scrub(PageIndex index) {
  WriteHeader(index, 0, {});
  if (options_.poison_freed) {
    // All ones: NaN in e4m3, bf16 and float32.
    std::memset(PageData(index) + kPageHeaderBytes, 0xFF, layout_.page_bytes() - kPageHeaderBytes);
  } else if (options_.zero_freed) {
    std::memset(PageData(index), 0, layout_.page_bytes());
  }
}

void PagePool::WriteHeader(PageIndex index, uint64_t generation, Id128 owner) {
  auto* header = reinterpret_cast<PageHeader*>(PageData(index));
  // Another loop may run its tag check over a stale block table meanwhile: it must see the old or
  // the new value.
  std::atomic_ref<uint64_t>(header->generation).store(generation, std::memory_order_relaxed);
  header->owner_high = owner.high;
  header->owner_low = owner.low;
}

uint8_t* PagePool::PageData(PageIndex index) const { return memory_.data() + PageOffset(index); }

uint64_t PagePool::PageOffset(PageIndex index) const {
  return uint64_t{index.value()} * layout_.page_bytes();
}

PageCounts PagePool::counts() const {
  MutexLock lock(state_->mutex);
  PageCounts counts;
  counts.free = state_->free.size();
  counts.cached = state_->cached_idle;
  counts.quarantined = state_->quarantined;
  counts.active = pages_total_ - counts.free - counts.cached - counts.quarantined;
  return counts;
}

std::vector<TenantPages> PagePool::tenants() const {
  MutexLock lock(state_->mutex);
  std::vector<TenantPages> tenants;
  tenants.reserve(state_->usage.size());
  for (const auto& [tenant, usage] : state_->usage) {
    tenants.push_back({tenant, usage.pages - usage.cached_idle, usage.cached_idle});
  }
  return tenants;
}

bool PagePool::OverEqualShare(const TenantId& tenant, const TenantId& taker) const {
  MutexLock lock(state_->mutex);
  const auto found = state_->usage.find(tenant);
  if (found == state_->usage.end()) return false;
  const size_t sharers = state_->usage.size() + (state_->usage.contains(taker) ? 0 : 1);
  return found->second.pages * sharers > pages_total_;
}

}  // namespace sluice::kv
