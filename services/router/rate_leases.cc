#include "services/router/rate_leases.h"

#include <utility>

#include "base/log.h"
#include "rpc/rate_messages.h"

namespace sluice::router {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(200);
constexpr absl::Duration kTimeout = absl::Milliseconds(100);

}  // namespace

void RateLeases::Begin() {
  const bool leased = link_ != nullptr && link_->connected() && !alone_;
  if (leased != rates_.leased()) rates_.SetLeased(leased);
  if (link_ != nullptr) Arm();
}

void RateLeases::Ask(std::function<void()> done) {
  asked_.push_back(std::move(done));
  if (!in_flight_) Send();
}

void RateLeases::Arm() {
  if (std::exchange(armed_, true)) return;
  loop_.RunAt(loop_.clock().Now() + kPeriod, [this] {
    armed_ = false;
    if (!in_flight_) Send();
  });
}

void RateLeases::Send() {
  v1::LeaseRequest request;
  if (!router_) router_ = random_.Next64();
  request.set_router(*router_);
  for (const cluster::TenantUse& use : rates_.Uses()) *request.add_tenants() = rpc::ToProto(use);
  // Nothing to tell, and nobody waits: the next request arms the timer again.
  if (request.tenants().empty() && asked_.empty()) return;
  in_flight_ = true;
  asking_ = std::exchange(asked_, {});
  link_->Lease(std::move(request), kTimeout,
               [this](absl::StatusOr<v1::LeaseReply> reply) { OnReply(reply); });
}

void RateLeases::OnReply(const absl::StatusOr<v1::LeaseReply>& reply) {
  in_flight_ = false;
  if (reply.ok()) {
    for (const v1::TenantLease& lease : reply->tenants())
      rates_.Apply(TenantId(lease.tenant()), rpc::FromProto(lease));
  } else if (!alone_) {
    SLUICE_LOG(kWarning) << "no leases of rates; limiting tenants with this router's share"
                         << Field("why", reply.status().message());
  }
  alone_ = !reply.ok();
  Begin();
  for (const auto& done : std::exchange(asking_, {})) done();
  if (!asked_.empty() && !in_flight_) Send();
}

}  // namespace sluice::router
