// Invariants of State, all under its mutex:
//   refs[i] > 0                      -> the page is active (or quarantined)
//   refs[i] == 0 and cached[i]       -> the page is cached
//   refs[i] == 0 and not cached[i]   -> the page is in the free list exactly once
//   a page that is scrubbed on its way there counts as active
// The ledger counts the pages of each tenant that are not in the free list.
// A generation of 0 in `generations` means free; a PageRef matches only while its generation is the
// page's.
#include "kv/page_pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace sluice::kv {
namespace {

constexpr char kBeyondLimitUrl[] = "sluice.kv.BeyondLimit";

void SortByName(std::vector<TenantPages>& tenants) {
  std::sort(tenants.begin(), tenants.end(),
            [](const TenantPages& a, const TenantPages& b) { return a.tenant < b.tenant; });
}

}  // namespace

bool IsBeyondLimit(const absl::Status& status) {
  return status.GetPayload(kBeyondLimitUrl).has_value();
}

struct PagePool::State {
  struct Page {
    uint64_t generation = 0;
    uint32_t refs = 0;
    bool cached = false;
    bool quarantined = false;
    TenantId tenant;
  };
  State(uint64_t pages_total, uint64_t page_bytes) : ledger(pages_total, page_bytes) {}

  Mutex mutex;
  std::vector<Page> pages SLUICE_GUARDED_BY(mutex);
  std::deque<uint32_t> free SLUICE_GUARDED_BY(mutex);
  uint64_t last_generation SLUICE_GUARDED_BY(mutex) = 0;
  TenantLedger ledger SLUICE_GUARDED_BY(mutex);
  uint64_t cached_idle SLUICE_GUARDED_BY(mutex) = 0;
  uint64_t quarantined SLUICE_GUARDED_BY(mutex) = 0;
  std::shared_ptr<Evictor> evictor SLUICE_GUARDED_BY(mutex);

  // Null when the page has moved on.
  Page* Find(PageRef ref) SLUICE_REQUIRES(mutex) {
    if (ref.index.value() >= pages.size() || ref.generation.value() == 0) return nullptr;
    Page& page = pages[ref.index.value()];
    return page.generation == ref.generation.value() ? &page : nullptr;
  }

  // What has to go before `tenant` gets `count` pages.
  Need NeedOf(const TenantId& tenant, size_t count) const SLUICE_REQUIRES(mutex) {
    const uint64_t beyond = ledger.BeyondLimit(tenant, count);
    if (beyond > 0) return {tenant, count, beyond, true};
    return {tenant, count, count > free.size() ? count - free.size() : 0, false};
  }
  uint64_t EvictableFor(const TenantId& tenant) const SLUICE_REQUIRES(mutex) {
    return ledger.has_budgets() ? ledger.EvictableFor(tenant) : cached_idle;
  }
  // Asked first, because an eviction that does not suffice is for nothing.
  bool MayMeet(const Need& need) const SLUICE_REQUIRES(mutex) {
    return need.pages <= (need.from_taker ? ledger.CachedOf(need.taker) : EvictableFor(need.taker));
  }
  std::vector<PageRef> TakeFree(const TenantId& tenant, size_t count) SLUICE_REQUIRES(mutex) {
    std::vector<PageRef> taken;
    taken.reserve(count);
    ledger.Take(tenant, count);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t index = free.front();
      free.pop_front();
      Page& page = pages[index];
      page.generation = ++last_generation;
      page.refs = 1;
      page.tenant = tenant;
      taken.push_back({PageIndex(index), Generation(page.generation)});
    }
    return taken;
  }

  void BecomeIdle(const Page& page) SLUICE_REQUIRES(mutex) {
    ++cached_idle;
    ledger.BecomeCached(page.tenant);
  }
  void LeaveIdle(const Page& page) SLUICE_REQUIRES(mutex) {
    --cached_idle;
    ledger.LeaveCached(page.tenant);
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
      state_(std::make_unique<State>(pages_total_, layout.page_bytes())) {
  MutexLock lock(state_->mutex);
  state_->pages.resize(pages_total_);
  for (uint32_t i = 0; i < pages_total_; ++i) {
    state_->free.push_back(i);
    WriteHeader(PageIndex(i), 0, {});
  }
}

PagePool::~PagePool() = default;

absl::Status PagePool::Refusal(const TenantId& tenant, uint64_t pages, bool beyond_limit) {
  MutexLock lock(state_->mutex);
  state_->ledger.Refuse(tenant, pages);
  if (!beyond_limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("page pool: ", pages, " pages wanted; of ", pages_total_, ", ",
                     state_->free.size(), " are free and ", state_->EvictableFor(tenant),
                     " can be evicted for the tenant ", tenant.value()));
  }
  const uint64_t limit = state_->ledger.LimitOf(tenant);
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "the tenant ", tenant.value(), " wants ", pages, " pages more and may hold ", limit, " (",
      limit * layout_.page_bytes(), " bytes) here: wait for its other requests, ask for fewer ",
      "tokens, or raise its kv cap"));
  status.SetPayload(kBeyondLimitUrl, absl::Cord());
  return status;
}

absl::Status PagePool::CheckRoom(const TenantId& tenant, uint64_t pages, uint64_t promised) {
  bool beyond_limit = false;
  {
    MutexLock lock(state_->mutex);
    const uint64_t active = state_->ledger.HeldOf(tenant) - state_->ledger.CachedOf(tenant);
    beyond_limit = active + pages > state_->ledger.LimitOf(tenant);
    const uint64_t room = state_->free.size() + state_->EvictableFor(tenant);
    if (!beyond_limit && pages + promised + state_->ledger.KeptFrom(tenant) <= room)
      return absl::OkStatus();
  }
  return Refusal(tenant, pages, beyond_limit);
}

absl::StatusOr<std::vector<PageLease>> PagePool::Allocate(size_t count, Id128 owner,
                                                          const TenantId& tenant) {
  std::vector<PageRef> taken;
  for (;;) {
    Need need{tenant, count};
    std::shared_ptr<Evictor> evictor;
    {
      MutexLock lock(state_->mutex);
      need = state_->NeedOf(tenant, count);
      if (need.pages == 0) {
        taken = state_->TakeFree(tenant, count);
        break;
      }
      if (state_->MayMeet(need)) evictor = state_->evictor;
    }
    if (evictor == nullptr || (*evictor)(need) == 0) return Refusal(tenant, count, need.from_taker);
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

absl::Status PagePool::MarkCached(PageRef ref, const TenantId& tenant) {
  MutexLock lock(state_->mutex);
  State::Page* page = state_->Find(ref);
  if (page == nullptr || page->quarantined || page->refs == 0) {
    return absl::NotFoundError(absl::StrCat("page ", ref.index.value(), " of generation ",
                                            ref.generation.value(), " is held by nobody"));
  }
  TenantLedger& ledger = state_->ledger;
  const bool other = page->tenant != tenant;
  if (!ledger.MayCache(tenant) || (other && ledger.BeyondLimit(tenant, 1) > 0)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tenant ", tenant.value(), " may not cache more here"));
  }
  if (other) {
    ledger.Recharge(page->tenant, tenant);
    page->tenant = tenant;
  }
  page->cached = true;
  return absl::OkStatus();
}

void PagePool::UnmarkCached(PageRef ref) {
  {
    MutexLock lock(state_->mutex);
    State::Page* page = state_->Find(ref);
    if (page == nullptr || !page->cached) return;
    page->cached = false;
    if (page->refs > 0) return;
    state_->LeaveIdle(*page);
    page->refs = 1;  // ours while it is scrubbed
  }
  DropReference(ref);
}

PagePool::Evicted PagePool::Evict(PageRef ref, const TenantId& taker, EvictionCause* cause) {
  {
    MutexLock lock(state_->mutex);
    State::Page* page = state_->Find(ref);
    if (page == nullptr || !page->cached || page->refs > 0) return Evicted::kInUse;
    *cause = state_->ledger.CauseOf(page->tenant, taker);
    if (*cause == EvictionCause::kForeign && state_->ledger.has_budgets())
      return Evicted::kProtected;
    page->cached = false;
    state_->LeaveIdle(*page);
    page->refs = 1;  // ours while it is scrubbed
  }
  DropReference(ref);
  return Evicted::kDone;
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
  state_->ledger.Free(page.tenant);
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
  std::vector<TenantPages> tenants;
  {
    MutexLock lock(state_->mutex);
    tenants = state_->ledger.tenants();
  }
  SortByName(tenants);
  return tenants;
}

std::vector<TenantPages> PagePool::TakeTenants() {
  std::vector<TenantPages> tenants;
  {
    MutexLock lock(state_->mutex);
    tenants = state_->ledger.tenants();
    state_->ledger.ForgetRefused();
  }
  SortByName(tenants);
  return tenants;
}

void PagePool::NoteRefused(const TenantId& tenant, uint64_t pages) {
  MutexLock lock(state_->mutex);
  state_->ledger.Refuse(tenant, pages);
}

void PagePool::SetBudgets(const TenantBudgets& budgets) {
  MutexLock lock(state_->mutex);
  state_->ledger.SetBudgets(budgets);
}

void PagePool::ExpireBudgets() {
  MutexLock lock(state_->mutex);
  state_->ledger.Expire();
}

bool PagePool::has_budgets() const {
  MutexLock lock(state_->mutex);
  return state_->ledger.has_budgets();
}

bool PagePool::Borrows(const TenantId& tenant) const {
  MutexLock lock(state_->mutex);
  return state_->ledger.Borrows(tenant);
}

std::optional<TenantLedger::Loser> PagePool::NextLoser(
    const TenantId& taker, uint64_t pages, const absl::flat_hash_set<TenantId>& spent) const {
  MutexLock lock(state_->mutex);
  return state_->ledger.NextLoser(taker, pages, spent);
}

std::vector<std::pair<TenantId, uint64_t>> PagePool::AboveLimit() const {
  MutexLock lock(state_->mutex);
  return state_->ledger.AboveLimit();
}

}  // namespace sluice::kv
