#include "rpc/rate_messages.h"

#include <algorithm>
#include <cmath>

namespace sluice::rpc {
namespace {

double Finite(double value) { return std::isfinite(value) ? value : 0; }

v1::LimitUse ToProto(const cluster::LimitUse& use) {
  v1::LimitUse message;
  message.set_per_s(use.limit.per_s);
  message.set_burst(use.limit.burst);
  message.set_used(use.used);
  message.set_held(use.held);
  message.set_needed(use.needed);
  message.set_wanted(use.wanted);
  if (use.left) message.set_left(*use.left);
  return message;
}

cluster::LimitLease FromProto(const v1::LimitLease& message) {
  return {Finite(message.change()), Finite(message.left()),
          std::clamp(Finite(message.share()), 0.0, 1.0)};
}

}  // namespace

v1::TenantUse ToProto(const cluster::TenantUse& use) {
  v1::TenantUse message;
  message.set_tenant(use.tenant.value());
  if (use.requests) *message.mutable_requests() = ToProto(*use.requests);
  if (use.tokens) *message.mutable_tokens() = ToProto(*use.tokens);
  if (use.sequences) *message.mutable_sequences() = ToProto(*use.sequences);
  return message;
}

cluster::LimitUse FromProto(const v1::LimitUse& message) {
  cluster::LimitUse use;
  use.limit = {std::max(0.0, Finite(message.per_s())), std::max(0.0, Finite(message.burst()))};
  use.used = Finite(message.used());
  use.held = Finite(message.held());
  use.needed = std::max(0.0, Finite(message.needed()));
  use.wanted = std::max(0.0, Finite(message.wanted()));
  if (message.has_left()) use.left = Finite(message.left());
  return use;
}

v1::LimitLease ToProto(const cluster::LimitLease& lease) {
  v1::LimitLease message;
  message.set_change(lease.change);
  message.set_left(lease.left);
  message.set_share(lease.share);
  return message;
}

cluster::TenantLease FromProto(const v1::TenantLease& message) {
  cluster::TenantLease lease;
  if (message.has_requests()) lease.requests = FromProto(message.requests());
  if (message.has_tokens()) lease.tokens = FromProto(message.tokens());
  if (message.has_sequences()) lease.sequences = FromProto(message.sequences());
  return lease;
}

}  // namespace sluice::rpc
