// sluice.v1.RateLeases: the tenants' limits, shared by all routers.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/rate_pool.h"
#include "sluice/v1/rates.grpc.pb.h"

namespace sluice::cache_manager {

// Answers on gRPC's threads; the mutex is a leaf. What it knows is soft: routers say what was left.
class RateLeaseService final : public v1::RateLeases::CallbackService {
 public:
  // `clock` must outlive it. Beyond `tenants_max` calls fail, and routers limit alone.
  explicit RateLeaseService(const Clock& clock, size_t tenants_max = 100000)
      : clock_(clock), tenants_max_(tenants_max) {}

  grpc::ServerUnaryReactor* Lease(grpc::CallbackServerContext* context,
                                  const v1::LeaseRequest* request, v1::LeaseReply* reply) override;

 private:
  struct Tenant {
    cluster::RatePool requests;
    cluster::RatePool tokens;
    cluster::RatePool sequences;
  };
  v1::TenantLease LeaseOf(uint64_t router, const v1::TenantUse& use, absl::Time now)
      SLUICE_REQUIRES(mutex_);
  // Forgets routers that are gone and tenants of whom nothing is left to know, now and then.
  void Sweep(absl::Time now) SLUICE_REQUIRES(mutex_);

  const Clock& clock_;
  const size_t tenants_max_;
  Mutex mutex_;
  absl::flat_hash_map<std::string, Tenant> tenants_ SLUICE_GUARDED_BY(mutex_);
  absl::Time swept_ SLUICE_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace sluice::cache_manager
