// What routers ask of a worker. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"
#include "kv/block_key.h"
#include "request/sampling.h"
#include "sluice/v1/kv.pb.h"

namespace sluice::handoff {

struct CallContext {
  RequestId request;
  // Counts dispatches of one request; messages of another attempt are stale.
  uint32_t attempt = 0;
  // The process that is meant; 0: any. A successor may have other numerics: it refuses.
  Incarnation worker;
  TenantId tenant;
  int32_t priority = 0;
  uint32_t weight = 1;  // of the tenant: its share of compute relative to others'
  absl::Time deadline = absl::InfiniteFuture();
  // Namespace for prefix reuse; empty: neither look up nor publish.
  std::optional<kv::CacheDomain> domain;
};

struct ReserveCall {
  CallContext context;
  std::vector<request::TokenId> prompt;
  uint32_t emitted_tokens = 0;
  uint32_t max_tokens = 0;
  Incarnation holder;
  Id128 holder_layout_hash;
  std::string holder_layout;  // description, for the error
  Id128 holder_numerics_id;
};

struct PrefillCall {
  CallContext context;
  LeaseId credit;
  std::vector<request::TokenId> prompt;
  std::vector<request::TokenId> emitted;
  request::SamplingParams sampling;
  v1::Grant grant;  // without a lease id: compute only, move nothing
};

struct DecodeCall {
  CallContext context;
  std::optional<LeaseId> lease;          // empty: compute the prompt here
  std::vector<request::TokenId> prompt;  // only without a lease
  // Without a lease: what the client has. With one: empty unless the commit carries no token.
  std::vector<request::TokenId> emitted;
  request::SamplingParams sampling;
};

}  // namespace sluice::handoff
