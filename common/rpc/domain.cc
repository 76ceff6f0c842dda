#include "rpc/domain.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::rpc {

absl::StatusOr<Id128> ParseId128(absl::string_view bytes, absl::string_view field) {
  Id128 id;
  if (!Id128::FromBytes(bytes, &id)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", bytes.size(), " bytes; it must have 16"));
  }
  return id;
}

absl::StatusOr<LeaseId> ParseLeaseId(absl::string_view bytes, absl::string_view field) {
  SLUICE_ASSIGN_OR_RETURN(const Id128 id, ParseId128(bytes, field));
  return LeaseId(id);
}

absl::StatusOr<std::vector<request::TokenId>> ParseTokens(
    const google::protobuf::RepeatedField<uint32_t>& ids) {
  std::vector<request::TokenId> tokens;
  tokens.reserve(static_cast<size_t>(ids.size()));
  for (uint32_t id : ids) {
    if (id > static_cast<uint32_t>(std::numeric_limits<request::TokenId>::max())) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", id, " is out of range"));
    }
    tokens.push_back(static_cast<request::TokenId>(id));
  }
  return tokens;
}

void AddTokens(const std::vector<request::TokenId>& tokens,
               google::protobuf::RepeatedField<uint32_t>* ids) {
  ids->Reserve(ids->size() + static_cast<int>(tokens.size()));
  for (request::TokenId token : tokens) ids->Add(static_cast<uint32_t>(token));
}

request::SamplingParams ToParams(const v1::SamplingSpec& spec) {
  request::SamplingParams params;
  params.temperature = spec.temperature();
  params.top_p = spec.top_p();
  params.top_k = spec.top_k();
  params.min_p = spec.min_p();
  params.frequency_penalty = spec.frequency_penalty();
  params.presence_penalty = spec.presence_penalty();
  params.repetition_penalty = spec.repetition_penalty();
  for (const auto& [token, bias] : spec.logit_bias()) {
    params.logit_bias.emplace_back(static_cast<request::TokenId>(token), bias);
  }
  // Maps have no order; sampling must not depend on one.
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  params.seed = spec.seed();
  params.choice = spec.choice();
  for (uint32_t token : spec.stop_token_ids())
    params.stop_token_ids.push_back(static_cast<request::TokenId>(token));
  params.ignore_eos = spec.ignore_eos();
  params.min_tokens = spec.min_tokens();
  params.max_tokens = spec.max_tokens();
  params.logprobs = spec.logprobs();
  params.logits_hash = spec.logits_hash();
  return params;
}

v1::SamplingSpec ToProto(const request::SamplingParams& params) {
  v1::SamplingSpec spec;
  spec.set_temperature(params.temperature);
  spec.set_top_p(params.top_p);
  spec.set_top_k(params.top_k);
  spec.set_min_p(params.min_p);
  spec.set_frequency_penalty(params.frequency_penalty);
  spec.set_presence_penalty(params.presence_penalty);
  spec.set_repetition_penalty(params.repetition_penalty);
  for (const auto& [token, bias] : params.logit_bias)
    (*spec.mutable_logit_bias())[static_cast<uint32_t>(token)] = bias;
  spec.set_seed(params.seed);
  spec.set_choice(params.choice);
  AddTokens(params.stop_token_ids, spec.mutable_stop_token_ids());
  spec.set_ignore_eos(params.ignore_eos);
  spec.set_min_tokens(params.min_tokens);
  spec.set_max_tokens(params.max_tokens);
  spec.set_logprobs(params.logprobs);
  spec.set_logits_hash(params.logits_hash);
  return spec;
}

absl::StatusOr<request::FinishReason> ParseFinishReason(absl::string_view name) {
  for (auto reason : {request::FinishReason::kNone, request::FinishReason::kStop,
                      request::FinishReason::kLength}) {
    if (request::FinishReasonName(reason) == name) return reason;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown finish reason '", name, "'"));
}

cluster::LoadReport ToLoad(const v1::WorkerLoad& load) {
  cluster::LoadReport report;
  report.running = load.running();
  report.waiting = load.waiting();
  report.prefill_tokens = load.prefill_tokens();
  report.decode_tokens = load.decode_tokens();
  report.pages_free = load.pages_free();
  report.pages_total = load.pages_total();
  report.pages_cached = load.pages_cached();
  report.prefill_tokens_per_s = load.prefill_tokens_per_s();
  report.decode_step_ms = load.decode_step_ms();
  return report;
}

v1::WorkerLoad ToProto(const cluster::LoadReport& load) {
  v1::WorkerLoad message;
  message.set_running(load.running);
  message.set_waiting(load.waiting);
  message.set_prefill_tokens(load.prefill_tokens);
  message.set_decode_tokens(load.decode_tokens);
  message.set_pages_free(load.pages_free);
  message.set_pages_total(load.pages_total);
  message.set_pages_cached(load.pages_cached);
  message.set_prefill_tokens_per_s(load.prefill_tokens_per_s);
  message.set_decode_step_ms(load.decode_step_ms);
  return message;
}

v1::WorkerLoad ToProto(const handoff::WorkerLoad& load) {
  cluster::LoadReport report;
  report.running = load.engine.running;
  report.waiting = load.engine.waiting;
  report.prefill_tokens = load.engine.prefill_tokens;
  report.decode_tokens = load.engine.decode_tokens;
  report.pages_free = load.pages.free;
  report.pages_total = load.pages.total();
  report.pages_cached = load.pages.cached;
  report.prefill_tokens_per_s = load.engine.prefill_tokens_per_s;
  report.decode_step_ms = load.engine.decode_step_ms;
  return ToProto(report);
}

absl::StatusOr<cluster::WorkerDescription> ToDescription(const v1::WorkerInfo& info) {
  if (info.worker_id().empty() || info.incarnation() == 0 || info.grpc_address().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("worker '", info.worker_id(),
                                                   "' registered without a name, an "
                                                   "incarnation or an address"));
  }
  cluster::WorkerDescription description;
  switch (info.role()) {
    case v1::PREFILL:
      description.role = cluster::Role::kPrefill;
      break;
    case v1::DECODE:
      description.role = cluster::Role::kDecode;
      break;
    case v1::BOTH:
      description.role = cluster::Role::kBoth;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("worker '", info.worker_id(), "' has no role"));
  }
  SLUICE_ASSIGN_OR_RETURN(const kv::PageLayout layout, FromProto(info.layout()));
  SLUICE_ASSIGN_OR_RETURN(description.model_digest,
                          ParseId128(info.model_digest(), "model_digest"));
  SLUICE_ASSIGN_OR_RETURN(description.numerics_id, ParseId128(info.numerics_id(), "numerics_id"));
  description.id = WorkerId(info.worker_id());
  description.incarnation = Incarnation(info.incarnation());
  description.grpc_address = info.grpc_address();
  description.model = info.model();
  description.layout_hash = layout.hash();
  description.layout = layout.Describe();
  description.page_tokens = layout.page_tokens();
  description.kv_bytes_per_token = static_cast<uint64_t>(layout.BytesPerToken());
  description.context_tokens = info.context_tokens();
  description.vocabulary = info.vocabulary();
  description.host = info.host();
  return description;
}

absl::StatusOr<std::vector<kv::BlockChange>> ToChanges(const v1::BlockEvents& events) {
  std::vector<kv::BlockChange> changes;
  changes.reserve(static_cast<size_t>(events.events_size()));
  for (const v1::BlockEvent& event : events.events()) {
    SLUICE_ASSIGN_OR_RETURN(const Id128 key, ParseId128(event.key(), "block key"));
    changes.push_back({kv::BlockKey(key), event.removed(), TenantId(event.tenant())});
  }
  return changes;
}

void AddChanges(absl::Span<const kv::BlockChange> changes, v1::BlockEvents* events) {
  for (const kv::BlockChange& change : changes) {
    v1::BlockEvent* event = events->add_events();
    event->set_key(change.key.value().ToBytes());
    event->set_removed(change.removed);
    event->set_tenant(change.tenant.value());
  }
}

void AddUsage(absl::Span<const kv::TenantPages> tenants, uint64_t page_bytes,
              v1::Heartbeat* heartbeat) {
  v1::TenantUsage* usage = nullptr;
  for (size_t i = 0; i < tenants.size(); ++i) {
    if (i <= kUsageMax) usage = heartbeat->add_usage();
    if (i < kUsageMax) usage->set_tenant(tenants[i].tenant.value());
    usage->set_active_bytes(usage->active_bytes() + tenants[i].active * page_bytes);
    usage->set_cached_bytes(usage->cached_bytes() + tenants[i].cached * page_bytes);
    usage->set_refused_bytes(usage->refused_bytes() + tenants[i].refused * page_bytes);
  }
}

absl::flat_hash_map<TenantId, cluster::KvUsage> ToUsage(const v1::Heartbeat& heartbeat) {
  absl::flat_hash_map<TenantId, cluster::KvUsage> usage;
  for (const v1::TenantUsage& tenant : heartbeat.usage()) {
    usage[TenantId(tenant.tenant())] = {tenant.active_bytes(), tenant.cached_bytes(),
                                        tenant.refused_bytes()};
  }
  return usage;
}

kv::TenantBudgets ToBudgets(const v1::BudgetUpdate& update) {
  const auto convert = [](const v1::Budget& budget) {
    return kv::TenantBudget{TenantId(budget.tenant()), budget.own_bytes(), budget.fair_bytes(),
                            budget.limit_bytes(), budget.floor_bytes()};
  };
  kv::TenantBudgets budgets;
  budgets.tenants.reserve(static_cast<size_t>(update.budgets_size()));
  for (const v1::Budget& budget : update.budgets()) budgets.tenants.push_back(convert(budget));
  budgets.rest = convert(update.rest());
  return budgets;
}

v1::BudgetUpdate ToProto(const cluster::KvBudgetUpdate& update) {
  v1::BudgetUpdate message;
  message.set_version(update.version);
  for (const cluster::KvBudget& budget : update.budgets) {
    v1::Budget* entry = message.add_budgets();
    entry->set_tenant(budget.tenant.value());
    entry->set_own_bytes(budget.own_bytes);
    entry->set_fair_bytes(budget.fair_bytes);
    entry->set_limit_bytes(budget.limit_bytes);
    entry->set_floor_bytes(budget.floor_bytes);
  }
  return message;
}

absl::Time DeadlineFromMs(uint32_t left_ms, absl::Time now) {
  return left_ms == 0 ? absl::InfiniteFuture() : now + absl::Milliseconds(left_ms);
}

uint32_t DeadlineToMs(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return 0;
  // A deadline that has passed must not turn into none.
  return static_cast<uint32_t>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - now), 1, UINT32_MAX));
}

absl::StatusOr<handoff::CallContext> MakeContext(absl::string_view request_id, uint32_t attempt,
                                                 absl::string_view tenant,
                                                 absl::string_view cache_domain,
                                                 uint32_t deadline_ms, uint64_t worker_incarnation,
                                                 absl::Time now) {
  if (request_id.size() > kRequestIdBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("request_id has ", request_id.size(),
                                                   " bytes; at most ", kRequestIdBytesMax,
                                                   " are allowed"));
  }
  handoff::CallContext context;
  context.request = RequestId(std::string(request_id));
  context.attempt = attempt;
  context.tenant = TenantId(std::string(tenant));
  context.deadline = DeadlineFromMs(deadline_ms, now);
  context.worker = Incarnation(worker_incarnation);
  if (!cache_domain.empty()) {
    SLUICE_ASSIGN_OR_RETURN(context.domain, kv::CacheDomain::FromBytes(cache_domain));
  }
  return context;
}

}  // namespace sluice::rpc
