#include "services/cache_manager/tenant_budgets.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "base/log.h"
#include "config/tenants.h"
#include "rpc/domain.h"

namespace sluice::cache_manager {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 53;  // more than any worker has
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The texts were checked when the file was read.
uint64_t BytesOf(const std::string& amount, uint64_t capacity, uint64_t otherwise) {
  const auto parsed = config::ParseKvAmount(amount);
  return amount.empty() || !parsed.ok() ? otherwise : parsed->Of(capacity);
}

cluster::KvQuota QuotaOf(const v1::TenantLimits& limits, uint64_t capacity) {
  const v1::TenantKvShare& share = limits.kv().device();
  return {BytesOf(share.floor(), capacity, 0), BytesOf(share.cap(), capacity, kUnlimited),
          static_cast<double>(std::max(limits.weight(), 1u))};
}

}  // namespace

TenantBudgets::TenantBudgets(const Options& options, absl::Time now, telemetry::Registry& metrics)
    : options_(options),
      settled_at_(now + options.settle),
      metrics_(metrics),
      ledger_(options.tenants_max) {}

void TenantBudgets::SetTenants(v1::TenantsFile file) {
  file_ = std::move(file);
  SetQuotas();
}

uint64_t TenantBudgets::CapacityBytes() const {
  uint64_t capacity = 0;
  for (const auto& [id, member] : members_) capacity = std::min(capacity + member.bytes, kBytesMax);
  return capacity;
}

// Shares of a tier follow its size.
void TenantBudgets::SetQuotas() {
  if (!file_) return;
  quota_capacity_bytes_ = CapacityBytes();
  const cluster::KvQuota rest = QuotaOf(file_->default_class(), quota_capacity_bytes_);
  absl::flat_hash_map<TenantId, cluster::KvQuota> quotas;
  capped_ = rest.cap_bytes != kUnlimited;
  double floors = 0;
  for (const v1::TenantEntry& tenant : file_->tenants()) {
    const cluster::KvQuota quota = QuotaOf(tenant.limits(), quota_capacity_bytes_);
    capped_ = capped_ || quota.cap_bytes != kUnlimited;
    floors += static_cast<double>(quota.floor_bytes);
    quotas[TenantId(tenant.id())] = quota;
  }
  if (!members_.empty() && floors > static_cast<double>(quota_capacity_bytes_)) {
    SLUICE_LOG(kWarning) << "the floors of the tenants exceed what the workers have; each gets "
                            "its part of it: start the missing workers or lower the floors"
                         << Field("floor_bytes", floors)
                         << Field("worker_bytes", quota_capacity_bytes_);
  }
  ledger_.SetQuotas(std::move(quotas), rest);
}

void TenantBudgets::Attached(const v1::WorkerInfo& info) {
  Member& member = members_[WorkerId(info.worker_id())];
  const Incarnation incarnation(info.incarnation());
  const bool same = member.incarnation == incarnation;
  member.incarnation = incarnation;
  member.bytes = std::min(info.kv_bytes(), kBytesMax);
  member.request_bytes = std::min(info.kv_request_bytes(), member.bytes);
  member.dead_at = absl::InfiniteFuture();
  // One that comes back has what it had: it stays charged.
  if (!same) {
    ledger_.Attach(WorkerId(info.worker_id()), incarnation, member.bytes, member.request_bytes);
  }
  if (CapacityBytes() != quota_capacity_bytes_) SetQuotas();
}

void TenantBudgets::Heard(const WorkerId& worker, Incarnation incarnation,
                          const v1::Heartbeat& heartbeat) {
  ledger_.Report(worker, incarnation, heartbeat.budgets_version(), rpc::ToUsage(heartbeat));
}

void TenantBudgets::Gone(const WorkerId& worker, Incarnation incarnation, absl::Time now) {
  const auto member = members_.find(worker);
  if (member != members_.end() && member->second.incarnation == incarnation)
    member->second.dead_at = now + options_.lease;
}

void TenantBudgets::BuryDead(absl::Time now) {
  for (auto it = members_.begin(); it != members_.end();) {
    if (it->second.dead_at > now) {
      ++it;
      continue;
    }
    ledger_.Dead(it->first, it->second.incarnation);
    it = members_.erase(it);
  }
  if (CapacityBytes() != quota_capacity_bytes_) SetQuotas();
}

std::vector<std::pair<WorkerId, v1::BudgetUpdate>> TenantBudgets::Divide(absl::Time now) {
  std::vector<std::pair<WorkerId, v1::BudgetUpdate>> updates;
  BuryDead(now);
  CountUsage();
  if (!file_ || now < settled_at_) return updates;
  for (const cluster::KvBudgetUpdate& division : ledger_.Divide()) {
    const Member& member = members_.at(division.worker);
    if (member.dead_at != absl::InfiniteFuture()) continue;
    v1::BudgetUpdate update = rpc::ToProto(division);
    update.set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease)));
    // Who is new gets one request; where nobody has a cap, as much as there is.
    update.mutable_rest()->set_own_bytes(member.request_bytes);
    update.mutable_rest()->set_fair_bytes(member.request_bytes);
    update.mutable_rest()->set_limit_bytes(capped_ ? member.request_bytes : kUnlimited);
    updates.emplace_back(division.worker, std::move(update));
  }
  return updates;
}

void TenantBudgets::CountUsage() {
  std::map<std::string, cluster::KvUsage> by_label;
  for (const auto& [tenant, usage] : ledger_.Usage()) {
    cluster::KvUsage& sum = by_label[metrics_.TenantLabel(tenant.value())];
    sum.active_bytes += usage.active_bytes;
    sum.cached_bytes += usage.cached_bytes;
  }
  for (const std::string& label : counted_) by_label.try_emplace(label);
  counted_.clear();
  for (const auto& [label, usage] : by_label) {
    counted_.push_back(label);
    metrics_.gauge(telemetry::kLedgerBytes, {label, "active"})
        .Set(static_cast<double>(usage.active_bytes));
    metrics_.gauge(telemetry::kLedgerBytes, {label, "cached"})
        .Set(static_cast<double>(usage.cached_bytes));
  }
}

}  // namespace sluice::cache_manager
