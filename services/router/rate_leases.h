// Keeps the router's leases of the tenants' rates.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/loop.h"
#include "base/random.h"
#include "cluster/tenant_rates.h"
#include "services/router/cluster_link.h"
#include "sluice/v1/rates.pb.h"

namespace sluice::router {

// Tells the manager what was used, a few times a second while there is anything to tell. When it
// does not answer, the router goes on alone, with its share, until it does again. Owned by the
// router's loop.
class RateLeases {
 public:
  RateLeases(Loop& loop, cluster::TenantRates& rates, RandomSource& random)
      : loop_(loop), rates_(rates), random_(random) {}

  // Null: there is no manager.
  void SetLink(ClusterLink* link) { link_ = link; }
  // Before a request is admitted: goes by the manager if there is one.
  void Begin();
  // Asks for more and calls `done` when the manager has answered, or will not.
  void Ask(std::function<void()> done);

 private:
  void Send();
  void OnReply(const absl::StatusOr<v1::LeaseReply>& reply);
  void Arm();

  Loop& loop_;
  cluster::TenantRates& rates_;
  RandomSource& random_;
  std::optional<uint64_t> router_;  // the name of this process, once it is needed
  ClusterLink* link_ = nullptr;
  bool in_flight_ = false;
  bool armed_ = false;
  bool alone_ = false;                        // the last call failed
  std::vector<std::function<void()>> asked_;  // since the call in flight was sent
  std::vector<std::function<void()>> asking_;
};

}  // namespace sluice::router
