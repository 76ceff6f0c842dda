#include "services/cache_manager/rate_lease_service.h"

#include "absl/strings/str_cat.h"
#include "rpc/rate_messages.h"
#include "rpc/status_map.h"

namespace sluice::cache_manager {
namespace {

// A router that is gone holds its part for so long. Routers speak every 200 ms.
constexpr absl::Duration kLease = absl::Milliseconds(1500);
constexpr absl::Duration kSweepPeriod = absl::Milliseconds(500);

}  // namespace

grpc::ServerUnaryReactor* RateLeaseService::Lease(grpc::CallbackServerContext* context,
                                                  const v1::LeaseRequest* request,
                                                  v1::LeaseReply* reply) {
  const absl::Time now = clock_.Now();
  absl::Status status;
  {
    MutexLock lock(mutex_);
    Sweep(now);
    for (const v1::TenantUse& use : request->tenants()) {
      if (tenants_.size() >= tenants_max_ && !tenants_.contains(use.tenant())) {
        status = absl::ResourceExhaustedError(
            absl::StrCat("rates of ", tenants_.size(), " tenants are kept, the most there can be"));
        break;
      }
      *reply->add_tenants() = LeaseOf(request->router(), use, now);
    }
  }
  return rpc::FinishUnary(context, status);
}

v1::TenantLease RateLeaseService::LeaseOf(uint64_t router, const v1::TenantUse& use,
                                          absl::Time now) {
  using cluster::RatePool;
  Tenant& tenant =
      tenants_
          .try_emplace(use.tenant(), Tenant{RatePool(false, kLease), RatePool(false, kLease),
                                            RatePool(true, kLease)})
          .first->second;
  v1::TenantLease lease;
  lease.set_tenant(use.tenant());
  const auto of = [&](RatePool& pool, const v1::LimitUse& part) {
    return rpc::ToProto(pool.Lease(router, rpc::FromProto(part), now));
  };
  if (use.has_requests()) *lease.mutable_requests() = of(tenant.requests, use.requests());
  if (use.has_tokens()) *lease.mutable_tokens() = of(tenant.tokens, use.tokens());
  if (use.has_sequences()) *lease.mutable_sequences() = of(tenant.sequences, use.sequences());
  return lease;
}

void RateLeaseService::Sweep(absl::Time now) {
  if (now - swept_ < kSweepPeriod) return;
  swept_ = now;
  absl::erase_if(tenants_, [now](auto& entry) {
    Tenant& tenant = entry.second;
    const bool requests = tenant.requests.Expire(now);
    const bool tokens = tenant.tokens.Expire(now);
    return tenant.sequences.Expire(now) && requests && tokens;
  });
}

}  // namespace sluice::cache_manager
