#include "handoff/credits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::handoff {

void Credits::DropExpired() {
  const absl::Time now = clock_.Now();
  for (auto it = credits_.begin(); it != credits_.end();) {
    it = it->second.expires <= now ? credits_.erase(it) : std::next(it);
  }
}

absl::StatusOr<LeaseId> Credits::AdmitLocked(uint32_t prompt_tokens, const TenantId& tenant) {
  DropExpired();
  const bool has_one = std::any_of(credits_.begin(), credits_.end(), [&](const auto& entry) {
    return entry.second.tenant == tenant;
  });
  if (credits_.size() >= (has_one ? 1 : 2) * size_t{options_.credits_max}) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.credits_max, " start credits are out"));
  }
  const uint64_t pages = pool_.layout().PagesFor(prompt_tokens);
  uint64_t promised = 0;
  for (const auto& [id, credit] : credits_) promised += credit.pages;
  const absl::Status room = pool_.CheckRoom(tenant, pages, promised);
  if (!room.ok()) return room;
  const LeaseId credit(random_.NextId128());
  credits_[credit] = {clock_.Now() + options_.lease, pages, tenant};
  return credit;
}

absl::StatusOr<LeaseId> Credits::Admit(uint32_t prompt_tokens, const TenantId& tenant) {
  MutexLock lock(mutex_);
  return AdmitLocked(prompt_tokens, tenant);
}

absl::StatusOr<LeaseId> Credits::Use(LeaseId credit, uint32_t prompt_tokens,
                                     const TenantId& tenant) {
  MutexLock lock(mutex_);
  DropExpired();
  auto found = credits_.find(credit);
  if (found == credits_.end() || found->second.expires == absl::InfiniteFuture()) {
    absl::StatusOr<LeaseId> fresh = AdmitLocked(prompt_tokens, tenant);
    if (!fresh.ok()) return fresh.status();
    found = credits_.find(*fresh);
  }
  found->second.expires = absl::InfiniteFuture();
  return found->first;
}

void Credits::PagesTaken(LeaseId credit) {
  MutexLock lock(mutex_);
  const auto found = credits_.find(credit);
  if (found != credits_.end()) found->second.pages = 0;
}

void Credits::Return(LeaseId credit) {
  MutexLock lock(mutex_);
  credits_.erase(credit);
}

}  // namespace sluice::handoff
