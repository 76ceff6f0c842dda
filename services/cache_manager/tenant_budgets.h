// Tenants' shares of the cluster's cache: the tenants file and the workers' reports in, budgets
// out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"
#include "cluster/kv_budgets.h"
#include "sluice/v1/cache.pb.h"
#include "sluice/v1/tenants.pb.h"
#include "telemetry/metrics.h"

namespace sluice::cache_manager {

// The ledger (cluster::KvBudgets) of the device pages, between messages and the file. Owned by one
// loop. Without SetTenants there are no budgets.
class TenantBudgets {
 public:
  struct Options {
    // No budgets before: a manager that starts anew learns of workers and of what they hold one by
    // one, and they have those of its predecessor.
    absl::Duration settle = absl::Seconds(3);
    // How long budgets hold without another update.
    absl::Duration lease = absl::Seconds(10);
    // Tenants of one worker that are kept apart.
    size_t tenants_max = 10'000;
  };
  TenantBudgets(const Options& options, absl::Time now, telemetry::Registry& metrics);

  // `file` as config::LoadTenants gives it.
  void SetTenants(v1::TenantsFile file);

  void Attached(const v1::WorkerInfo& info);
  void Heard(const WorkerId& worker, Incarnation incarnation, const v1::Heartbeat& heartbeat);
  // Its stream has ended. It may live on, so its bytes stay charged until its leases have run out
  // or another process of its name attaches.
  void Gone(const WorkerId& worker, Incarnation incarnation, absl::Time now);

  // What every worker that is attached gets now.
  std::vector<std::pair<WorkerId, v1::BudgetUpdate>> Divide(absl::Time now);

 private:
  struct Member {
    Incarnation incarnation;
    uint64_t bytes = 0;
    uint64_t request_bytes = 0;
    absl::Time dead_at = absl::InfiniteFuture();
  };
  void SetQuotas();
  uint64_t CapacityBytes() const;
  void BuryDead(absl::Time now);
  void CountUsage();

  const Options options_;
  const absl::Time settled_at_;
  telemetry::Registry& metrics_;
  cluster::KvBudgets ledger_;
  std::optional<v1::TenantsFile> file_;
  bool capped_ = false;                // somebody has a cap
  uint64_t quota_capacity_bytes_ = 0;  // that the quotas were made for
  std::map<WorkerId, Member> members_;
  std::vector<std::string> counted_;  // labels that have series; at most telemetry::Registry's
};

}  // namespace sluice::cache_manager
