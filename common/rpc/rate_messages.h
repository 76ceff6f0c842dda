// Leases of rates as messages.
#pragma once

#include "cluster/tenant_rates.h"
#include "sluice/v1/rates.pb.h"

namespace sluice::rpc {

v1::TenantUse ToProto(const cluster::TenantUse& use);
// Numbers that are not finite, or limits below 0, are 0.
cluster::LimitUse FromProto(const v1::LimitUse& message);

v1::LimitLease ToProto(const cluster::LimitLease& lease);
cluster::TenantLease FromProto(const v1::TenantLease& message);

}  // namespace sluice::rpc
