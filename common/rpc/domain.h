// Messages to domain values and back, for every pair that more than one service needs. Conversions
// from messages check what a peer or client may get wrong; conversions to messages cannot fail.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/block_index.h"
#include "cluster/directory.h"
#include "cluster/kv_budgets.h"
#include "google/protobuf/repeated_field.h"
#include "handoff/move.h"
#include "handoff/worker.h"
#include "kv/page_layout.h"
#include "kv/prefix_index.h"
#include "kv/tenant_ledger.h"
#include "request/sampling.h"
#include "sluice/v1/cache.pb.h"
#include "sluice/v1/kv.pb.h"
#include "sluice/v1/prefill.pb.h"

namespace sluice::rpc {

// Ids of 16 bytes. Errors: INVALID_ARGUMENT naming `field`.
absl::StatusOr<Id128> ParseId128(absl::string_view bytes, absl::string_view field);
absl::StatusOr<LeaseId> ParseLeaseId(absl::string_view bytes, absl::string_view field);

// Token ids. Errors: INVALID_ARGUMENT for a value that is no int32.
absl::StatusOr<std::vector<request::TokenId>> ParseTokens(
    const google::protobuf::RepeatedField<uint32_t>& ids);
void AddTokens(const std::vector<request::TokenId>& tokens,
               google::protobuf::RepeatedField<uint32_t>* ids);

// Ranges are checked by request::ValidateSampling, not here.
request::SamplingParams ToParams(const v1::SamplingSpec& spec);
v1::SamplingSpec ToProto(const request::SamplingParams& params);

// Sampled tokens and page layouts travel between workers too: those conversions are handoff's.
using handoff::FromProto;
using handoff::ToProto;
// "" , "stop" and "length"; anything else is INVALID_ARGUMENT.
absl::StatusOr<request::FinishReason> ParseFinishReason(absl::string_view name);

cluster::LoadReport ToLoad(const v1::WorkerLoad& load);
v1::WorkerLoad ToProto(const handoff::WorkerLoad& load);
v1::WorkerLoad ToProto(const cluster::LoadReport& load);

// Errors: INVALID_ARGUMENT for a missing id, address or layout, or a role that is none.
absl::StatusOr<cluster::WorkerDescription> ToDescription(const v1::WorkerInfo& info);

absl::StatusOr<std::vector<kv::BlockChange>> ToChanges(const v1::BlockEvents& events);
void AddChanges(absl::Span<const kv::BlockChange> changes, v1::BlockEvents* events);

// Usage of tenants, in order of names; beyond kUsageMax of them the rest is one without a name.
inline constexpr size_t kUsageMax = 10000;
void AddUsage(absl::Span<const kv::TenantPages> tenants, uint64_t page_bytes,
              v1::Heartbeat* heartbeat);
absl::flat_hash_map<TenantId, cluster::KvUsage> ToUsage(const v1::Heartbeat& heartbeat);
kv::TenantBudgets ToBudgets(const v1::BudgetUpdate& update);
v1::BudgetUpdate ToProto(const cluster::KvBudgetUpdate& update);

// Deadlines travel as what is left of them: hosts share no clock. 0 means none.
absl::Time DeadlineFromMs(uint32_t left_ms, absl::Time now);
uint32_t DeadlineToMs(absl::Time deadline, absl::Time now);

// The parts of a call context that prefill and decode messages share. An empty cache domain means
// no prefix reuse. Errors: INVALID_ARGUMENT for a request id over kRequestIdBytesMax or a cache
// domain that is none.
template <typename Message>
absl::StatusOr<handoff::CallContext> ToContext(const Message& message, absl::Time now);
template <typename Message>
void SetContext(const handoff::CallContext& context, absl::Time now, Message* message) {
  message->set_request_id(context.request.value());
  message->set_attempt(context.attempt);
  message->set_tenant(context.tenant.value());
  message->set_priority(context.priority);
  message->set_tenant_weight(context.weight);
  message->set_deadline_ms(DeadlineToMs(context.deadline, now));
  message->set_worker_incarnation(context.worker.value());
  if (context.domain) message->set_cache_domain(context.domain->bytes());
}

absl::StatusOr<handoff::CallContext> MakeContext(absl::string_view request_id, uint32_t attempt,
                                                 absl::string_view tenant,
                                                 absl::string_view cache_domain,
                                                 uint32_t deadline_ms, uint64_t worker_incarnation,
                                                 absl::Time now);

template <typename Message>
absl::StatusOr<handoff::CallContext> ToContext(const Message& message, absl::Time now) {
  auto context =
      MakeContext(message.request_id(), message.attempt(), message.tenant(), message.cache_domain(),
                  message.deadline_ms(), message.worker_incarnation(), now);
  if (context.ok()) {
    context->priority = message.priority();
    context->weight = std::max(message.tenant_weight(), uint32_t{1});
  }
  return context;
}

}  // namespace sluice::rpc
