// Start credits of one worker: who may begin a prompt, and how many pages are promised.
#pragma once

#include <cstdint>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/random.h"
#include "kv/page_pool.h"

namespace sluice::handoff {

// Thread-safe. A credit is out from Admit until it expires unused, is returned, or its prompt has
// been computed.
class Credits {
 public:
  struct Options {
    // A tenant that has none gets one even when all are out, up to twice as many in all.
    uint32_t credits_max = 8;
    absl::Duration lease = absl::Seconds(2);
  };
  // `pool`, `clock` and `random` outlive the credits; `random` must be thread-safe.
  Credits(const Options& options, kv::PagePool& pool, const Clock& clock, RandomSource& random)
      : options_(options), pool_(pool), clock_(clock), random_(random) {}

  // Errors: RESOURCE_EXHAUSTED when all credits are out, or the prompt does not fit what is free or
  // cached, not promised and not kept from its tenant (kv::IsBeyondLimit for its limit).
  absl::StatusOr<LeaseId> Admit(uint32_t prompt_tokens, const TenantId& tenant);
  // The call has begun: the credit stays out until Return. A credit that has expired is asked for
  // again.
  absl::StatusOr<LeaseId> Use(LeaseId credit, uint32_t prompt_tokens, const TenantId& tenant);
  // The prompt's pages are allocated: they count as such, not as promised.
  void PagesTaken(LeaseId credit);
  // Idempotent.
  void Return(LeaseId credit);

 private:
  struct Credit {
    absl::Time expires;
    uint64_t pages = 0;  // promised
    TenantId tenant;
  };
  void DropExpired() SLUICE_REQUIRES(mutex_);
  absl::StatusOr<LeaseId> AdmitLocked(uint32_t prompt_tokens, const TenantId& tenant)
      SLUICE_REQUIRES(mutex_);

  const Options options_;
  kv::PagePool& pool_;
  const Clock& clock_;
  RandomSource& random_;
  Mutex mutex_;
  absl::btree_map<LeaseId, Credit> credits_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::handoff
