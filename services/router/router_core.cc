#include "services/router/router_core.h"

#include <algorithm>
#include <bit>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "rpc/domain.h"
#include "rpc/error.h"
#include "services/router/conversation.h"
#include "services/router/tenant_limits.h"

namespace sluice::router {
namespace {

constexpr absl::Duration kStatePeriod = absl::Seconds(1);
// Other routers report their use, and hear what to give back, five times a second.
constexpr absl::Duration kGivenBackWithin = absl::Milliseconds(250);
// What a choice is expected to put out when the client does not say.
constexpr uint64_t kExpectedOutputTokens = 1024;

WorkerStanding StandingOf(const cluster::WorkerState& worker) {
  if (worker.draining) return WorkerStanding::kDraining;
  if (!worker.ready) return WorkerStanding::kNotReady;
  return worker.breaker_open ? WorkerStanding::kBreakerOpen : WorkerStanding::kUsable;
}

// What a request has cost the cluster: as the fair queue expected it, but for what was cached.
uint64_t CostOf(const GenerationReport& report) {
  const uint64_t prompt = report.usage.prompt_tokens();
  return prompt - std::min<uint64_t>(prompt, report.usage.cached_tokens()) +
         report.usage.completion_tokens();
}

// Sessions of one tenant never meet another's.
std::string SessionKey(const PreparedRequest& prepared) {
  return absl::StrCat(prepared.flow.context.tenant.value(), "\n",
                      prepared.request.session_affinity());
}

}  // namespace

RouterCore::RouterCore(RouterOptions options, Loop& loop, Loop& text_loop, RandomSource& random,
                       RouterMetrics& metrics, rpc::ServiceState& state,
                       const ClientFactory& make_client)
    : options_(std::move(options)),
      loop_(loop),
      text_loop_(text_loop),
      random_(random),
      metrics_(metrics),
      state_(state),
      directory_(loop.clock(), options_.breaker),
      budget_(options_.retry, loop.clock()),
      poison_(loop.clock(), options_.poison),
      queue_(loop.clock(), options_.queue),
      rates_(loop.clock()),
      leases_(loop, rates_, random),
      client_(make_client(directory_)) {
  environment_ = std::make_unique<cluster::FlowEnvironment>(cluster::FlowEnvironment{
      loop_, *client_, directory_, random_, budget_, options_.retry,
      [this](const cluster::PlacementQuery& query, const cluster::FlowSpec& spec,
             absl::AnyInvocable<void(absl::StatusOr<cluster::PlacementDecision>)> done) {
        Place(query, spec, std::move(done));
      },
      poison_, options_.guards, options_.faults});
}

RouterCore::~RouterCore() {
  // A generation and its call hold each other until its end.
  for (const auto& [number, call] : calls_) call->generation.reset();
}

void RouterCore::AddModel(std::shared_ptr<const services::TextModel> model) {
  MutexLock lock(models_mutex_);
  Served& served = models_[model->name];
  served.text = std::move(model);
  served.created_s = absl::ToUnixSeconds(loop_.clock().WallNow());
}

void RouterCore::OnView(const v1::WorkerView& view, bool fresh) {
  if (fresh) directory_.ManagerReplaced();
  std::vector<cluster::Directory::Update> updates;
  for (const v1::WorkerEntry& entry : view.workers()) {
    auto description = rpc::ToDescription(entry.info());
    if (!description.ok()) {
      SLUICE_LOG(kWarning) << "ignoring a worker"
                           << Field("reason", description.status().message());
      continue;
    }
    LoadModel(entry.info().model(), entry.info().model_path());
    updates.push_back(
        {*std::move(description), rpc::ToLoad(entry.load()), entry.ready(), entry.draining()});
  }
  std::vector<WorkerId> lost;
  if (!directory_.ApplyView(view.version(), std::move(updates), &lost)) return;
  UpdateReady();
  ReportState();
  const auto calls = calls_;  // a flow that ends changes the map
  for (const WorkerId& worker : lost) {
    SLUICE_LOG(kWarning) << "worker is gone" << Field("worker", worker);
    for (const auto& [number, call] : calls) {
      if (call->generation != nullptr) call->generation->OnWorkerLost(worker);
    }
  }
}

void RouterCore::LoadModel(const std::string& name, const std::string& path) {
  {
    MutexLock lock(models_mutex_);
    Served& served = models_[name];
    if (served.text != nullptr || served.loading || path.empty()) return;
    served.loading = true;
  }
  text_loop_.Post([this, name, path] {
    auto model = services::LoadTextModel(path);
    if (!model.ok()) {
      SLUICE_LOG(kError) << "cannot load the tokenizer" << Field("model", name)
                         << Field("path", path) << Field("status", model.status().ToString());
    }
    {
      MutexLock lock(models_mutex_);
      Served& served = models_[name];
      served.loading = false;
      if (model.ok()) served.text = *std::move(model);
      served.created_s = absl::ToUnixSeconds(loop_.clock().WallNow());
    }
    loop_.Post([this] { UpdateReady(); });
  });
}

void RouterCore::UpdateReady() {
  bool model_loaded = false;
  {
    MutexLock lock(models_mutex_);
    for (const auto& [name, served] : models_)
      model_loaded = model_loaded || served.text != nullptr;
  }
  std::string missing = cluster::WhyNobodyServes(options_.placement, directory_.Workers());
  if (missing.empty() && !model_loaded) missing = "the model's tokenizer is being loaded";
  state_.SetReady(missing.empty(), missing);
}

absl::StatusOr<std::pair<std::string, std::shared_ptr<const services::TextModel>>>
RouterCore::FindModel(absl::string_view name) {
  MutexLock lock(models_mutex_);
  std::string known;
  for (const auto& [served_name, served] : models_) {
    if (served.text == nullptr) continue;
    if (name.empty() || name == served_name) return std::make_pair(served_name, served.text);
    absl::StrAppend(&known, known.empty() ? "" : ", ", served_name);
  }
  if (known.empty()) {
    return rpc::MakeError(v1::NO_READY_WORKERS, "no worker has registered yet; retry in a moment",
                          {.retry_after = absl::Seconds(1)});
  }
  return rpc::MakeError(v1::MODEL_NOT_FOUND, absl::StrCat("no model '", name, "'; served: ", known),
                        {.field = "model"});
}

absl::StatusOr<TenantId> RouterCore::Authenticate(const identity::Credentials& credentials) {
  const identity::Verdict verdict = options_.tenants->Authenticate(credentials);
  if (verdict.tenant != nullptr) return verdict.tenant->id;
  const absl::Status refused =
      rpc::MakeError(v1::INVALID_API_KEY, verdict.refusal == identity::Refusal::kMissing
                                              ? "no API key; send 'authorization: Bearer KEY'"
                                              : "the credentials are not valid");
  metrics_.Refused(verdict.refusal, refused);
  const uint64_t so_far = refusals_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (std::has_single_bit(so_far)) {
    SLUICE_LOG(kWarning) << "refused a caller"
                         << Field("reason", identity::RefusalName(verdict.refusal))
                         << Field("why", verdict.why) << Field("so_far", so_far);
  }
  return refused;
}

std::function<void()> RouterCore::Generate(v1::GenerateRequest request, rpc::Caller caller,
                                           std::unique_ptr<rpc::GenerationSink> sink) {
  auto call = std::make_shared<Call>();
  call->number = ++calls_made_;
  call->caller = std::move(caller);
  call->sink = std::move(sink);
  call->arrived = loop_.clock().Now();
  auto in_flight = state_.Admit();
  if (!in_flight) {
    loop_.Post([this, call] {
      Reject(call, rpc::MakeError(v1::DRAINING, "this router is shutting down; use another one"));
    });
    return [] {};
  }
  call->in_flight = *std::move(in_flight);
  if (!request.reject_if_busy() && !queue_full_.load(std::memory_order_relaxed)) {
    Prepare(call, std::move(request));
  } else {
    loop_.Post([this, call, request = std::move(request)]() mutable {
      if (call->over) return;
      const absl::Status room = RoomInQueue(call->caller.tenant, request.reject_if_busy());
      if (!room.ok()) return Reject(call, room);
      Prepare(call, std::move(request));
    });
  }
  return [this, weak = std::weak_ptr<Call>(call)] {
    if (auto live = weak.lock()) loop_.Post([this, live] { CancelCall(live); });
  };
}

void RouterCore::Prepare(const std::shared_ptr<Call>& call, v1::GenerateRequest request) {
  const bool posted = text_loop_.Post([this, call, request = std::move(request)]() mutable {
    absl::StatusOr<PreparedRequest> prepared = absl::UnknownError("");
    const auto model = FindModel(request.model());
    prepared = model.ok()
                   ? PrepareRequest(std::move(request), call->caller, model->second, model->first)
                   : absl::StatusOr<PreparedRequest>(model.status());
    loop_.Post([this, call, prepared = std::move(prepared)]() mutable {
      OnPrepared(call, std::move(prepared));
    });
  });
  if (!posted) {
    loop_.Post([this, call] {
      Reject(call, rpc::MakeError(v1::OVERLOADED, "the router's text queue is full; retry later",
                                  {.retry_after = absl::Seconds(1)}));
    });
  }
}

absl::Status RouterCore::RoomInQueue(const TenantId& id, bool only_if_idle) const {
  std::string why;
  const identity::TenantPtr tenant = options_.tenants->Find(id);
  if (tenant != nullptr && !queue_.HasRoomFor(id, tenant->limits.weight())) {
    why = absl::StrCat("the queue holds ", queue_.waiting(), " requests, its limit; retry later");
  } else if (only_if_idle && queue_.Busy()) {
    why = absl::StrCat("busy: ", queue_.running(), " requests run and ", queue_.waiting(), " wait");
  }
  if (why.empty()) return absl::OkStatus();
  return rpc::MakeError(v1::OVERLOADED, why, {.retry_after = absl::Seconds(1)});
}

void RouterCore::OnPrepared(const std::shared_ptr<Call>& call,
                            absl::StatusOr<PreparedRequest> prepared) {
  if (call->over) return;
  if (!prepared.ok()) return Reject(call, prepared.status());
  call->prepared = *std::move(prepared);
  if (const absl::Status status = Enqueue(call); !status.ok()) Reject(call, status);
}

absl::Status RouterCore::Enqueue(const std::shared_ptr<Call>& call) {
  cluster::FlowSpec& flow = call->prepared->flow;
  const absl::Time now = loop_.clock().Now();
  SLUICE_RETURN_IF_ERROR(FitIntoPools(*call->prepared));
  flow.context.deadline = std::min(call->caller.deadline, now + options_.default_deadline);
  call->prepared->reader_patience = options_.reader_patience;
  const identity::TenantPtr tenant = options_.tenants->Find(flow.context.tenant);
  if (tenant == nullptr)
    return rpc::MakeError(v1::INVALID_API_KEY, "the credentials are not valid any more");
  flow.context.domain =
      options_.tenants->DomainOf(*tenant, flow.prompt, call->prepared->request.cache_salt());
  call->priority = std::clamp(flow.context.priority, -kRequestPriorityMax, kRequestPriorityMax);
  flow.context.priority = WorkerPriority(tenant->limits, call->priority);
  flow.context.weight = tenant->limits.weight();
  if (!call->prepared->request.session_affinity().empty()) {
    const auto session = sessions_.find(SessionKey(*call->prepared));
    if (session != sessions_.end()) {
      flow.affine_prefill = session->second.prefill;
      flow.affine_decode = session->second.decode;
    }
  }
  SLUICE_RETURN_IF_ERROR(
      RoomInQueue(flow.context.tenant, call->prepared->request.reject_if_busy()));
  calls_[call->number] = call;
  return Charge(call, Asked::kNot);
}

absl::Status RouterCore::WaitForTurn(const identity::Tenant& tenant,
                                     const std::shared_ptr<Call>& call) {
  const cluster::FlowSpec& flow = call->prepared->flow;
  const absl::Time now = loop_.clock().Now();
  // Ends with the wait, or is cancelled when the turn comes.
  const absl::Time longest = now + options_.retry.queue_wait_max;
  const bool by_deadline = flow.context.deadline < longest;
  call->queue_timer =
      loop_.RunAt(std::min(longest, flow.context.deadline), [this, call, by_deadline] {
        call->queue_timer = kNoTimer;
        Reject(call, by_deadline
                         ? rpc::MakeError(v1::DEADLINE_EXCEEDED, "the deadline passed in the queue")
                         : rpc::MakeError(v1::OVERLOADED, "waited too long in the queue",
                                          {.retry_after = absl::Seconds(1)}));
      });
  cluster::FairQueue::Request request;
  request.tenant = flow.context.tenant;
  request.weight = tenant.limits.weight();
  request.priority = call->priority;
  request.tokens =
      flow.prompt.size() +
      std::min<uint64_t>(flow.sampling.max_tokens, kExpectedOutputTokens) * call->prepared->choices;
  request.model = flow.model;
  request.start = [this, call](cluster::FairQueue::Ticket ticket) {
    call->ticket = ticket;
    StartGeneration(call);
  };
  request.pushed_out = [this, call] {
    call->ticket.reset();
    Reject(call, rpc::MakeError(v1::OVERLOADED,
                                "the queue is full, and this tenant has most of it; retry later",
                                {.retry_after = absl::Seconds(1)}));
  };
  auto ticket = queue_.Enqueue(std::move(request));
  if (!ticket.ok())
    return rpc::MakeError(v1::OVERLOADED, ticket.status().message(),
                          {.retry_after = absl::Seconds(1)});
  if (!call->over) call->ticket = *ticket;
  queue_full_.store(queue_.Full(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status RouterCore::FitIntoPools(PreparedRequest& prepared) const {
  const auto fit = cluster::LargestFitOf(directory_.Workers(), prepared.flow.model);
  if (!fit) return absl::OkStatus();
  const uint64_t prompt = prepared.flow.prompt.size();
  request::SamplingParams& sampling = prepared.flow.sampling;
  const bool prompt_fits = prompt <= fit->prompt_tokens && prompt < fit->sequence_tokens;
  if (prompt_fits && !prepared.request.has_max_tokens()) {
    // What is left of the pages instead of what is left of the context.
    sampling.max_tokens = static_cast<uint32_t>(
        std::min<uint64_t>(sampling.max_tokens, fit->sequence_tokens - prompt));
    return absl::OkStatus();
  }
  if (prompt_fits && prompt + sampling.max_tokens <= fit->sequence_tokens) return absl::OkStatus();
  return rpc::MakeError(
      v1::LIMIT_EXCEEDED,
      absl::StrCat("the prompt has ", prompt, " tokens",
                   prepared.request.has_max_tokens()
                       ? absl::StrCat(" and max_tokens is ", sampling.max_tokens)
                       : "",
                   "; the pages of the largest workers hold a prompt of ", fit->prompt_tokens,
                   " tokens and a sequence of ", fit->sequence_tokens,
                   ": shorten it, or enlarge engine.kv_pool_mib"),
      {.field = prompt_fits ? "max_tokens" : "input"});
}

absl::Status RouterCore::Charge(const std::shared_ptr<Call>& call, Asked asked) {
  PreparedRequest& prepared = *call->prepared;
  const identity::TenantPtr tenant = options_.tenants->Find(prepared.flow.context.tenant);
  if (tenant == nullptr)
    return rpc::MakeError(v1::INVALID_API_KEY, "the credentials are not valid any more");
  const uint64_t output =
      prepared.request.has_max_tokens()
          ? prepared.request.max_tokens()
          : std::min<uint64_t>(prepared.flow.sampling.max_tokens, kExpectedOutputTokens);
  const cluster::TenantBudgets budgets = BudgetsOf(tenant->limits);
  if (!budgets.unlimited()) leases_.Begin();
  rates_.SetBudgets(tenant->id, budgets);
  const uint64_t tokens = prepared.flow.prompt.size() + output * prepared.choices;
  const auto outcome = rates_.Admit(tenant->id, tokens, prepared.choices);
  const v1::RateLimits limits = ToProto(rates_.Report(tenant->id));
  if (const auto* refused = std::get_if<cluster::TenantRates::Refused>(&outcome)) {
    if (asked == Asked::kNot && rates_.MayAsk(tenant->id)) {
      AskForMore(call, tokens, Asked::kOnce);
      return absl::OkStatus();
    }
    if (asked == Asked::kOnce && rates_.HeldElsewhere(tenant->id, tokens, prepared.choices)) {
      loop_.RunAt(loop_.clock().Now() + kGivenBackWithin,
                  [this, call, tokens] { AskForMore(call, tokens, Asked::kTwice); });
      return absl::OkStatus();
    }
    if (asked != Asked::kNot) rates_.ManagerHadNoMore(tenant->id);
    return RateError(*refused, limits);
  }
  call->charge = std::get<cluster::TenantRates::Charge>(outcome);
  if (limits.has_requests() || limits.has_tokens()) prepared.rate_limits = limits;
  return WaitForTurn(*tenant, call);
}

void RouterCore::AskForMore(const std::shared_ptr<Call>& call, uint64_t tokens, Asked asked) {
  if (call->over) return;
  rates_.Need(call->caller.tenant, tokens, call->prepared->choices);
  leases_.Ask([this, call, asked] {
    if (call->over) return;
    if (const absl::Status status = Charge(call, asked); !status.ok()) Reject(call, status);
  });
}

void RouterCore::Settle(const std::shared_ptr<Call>& call, const GenerationReport& report) {
  if (!call->charge) return;
  const cluster::TenantRates::Charge charge = *std::exchange(call->charge, std::nullopt);
  const bool by_client = absl::IsCancelled(report.status);
  const bool served = report.status.ok() || by_client || report.usage.completion_tokens() > 0;
  // Nothing was dispatched: the client left, or found no worker.
  if (report.first_choice.attempts == 0) return rates_.Undo(charge);
  // Who leaves after the prompt was computed pays for it; whom the cluster failed does not. Moves
  // and retries are the cluster's affair: the prompt counts once, and so does every token.
  rates_.Settle(
      charge,
      served ? uint64_t{report.usage.prompt_tokens()} + report.usage.completion_tokens() : 0);
}

void RouterCore::RecordUsage(const Call& call, const GenerationReport& report) {
  if (!options_.on_usage) return;
  const PreparedRequest& prepared = call.generation->prepared();
  UsageRecord record;
  record.at = loop_.clock().WallNow();
  record.tenant = call.caller.tenant.value();
  record.request_id = prepared.flow.context.request.value();
  record.model = prepared.model->name;
  record.outcome =
      report.status.ok() ? "ok" : v1::ErrorReason_Name(rpc::DetailOf(report.status).reason());
  record.choices = prepared.choices;
  record.prompt_tokens = report.usage.prompt_tokens();
  record.cached_tokens = report.usage.cached_tokens();
  record.output_tokens = report.usage.completion_tokens();
  record.duration = loop_.clock().Now() - call.arrived;
  options_.on_usage(std::move(record));
}

void RouterCore::StartGeneration(const std::shared_ptr<Call>& call) {
  if (call->queue_timer != kNoTimer) loop_.Cancel(std::exchange(call->queue_timer, kNoTimer));
  metrics_.QueueWait(call->caller.tenant, loop_.clock().Now() - call->arrived);
  call->generation = Generation::Create(
      *environment_, *std::exchange(call->prepared, std::nullopt), std::move(call->sink),
      [this](absl::Duration gap) { metrics_.Token(gap); },
      [this, ticket = call->ticket] {
        if (ticket) queue_.Found(*ticket);
      },
      [this, call](const GenerationReport& report) { Finish(call, report); });
  call->generation->Start();
}

void RouterCore::Reject(const std::shared_ptr<Call>& call, const absl::Status& status) {
  if (std::exchange(call->over, true)) return;
  if (call->queue_timer != kNoTimer) loop_.Cancel(std::exchange(call->queue_timer, kNoTimer));
  if (call->ticket) Leave(call);
  if (call->charge) rates_.Undo(*std::exchange(call->charge, std::nullopt));
  metrics_.RequestEnded(call->caller.tenant, status, loop_.clock().Now() - call->arrived);
  call->sink->OnEnd(rpc::WithContext(
      status, "router", call->prepared ? call->prepared->flow.context.request.value() : ""));
  call->sink.reset();
  call->in_flight = {};
  calls_.erase(call->number);
}

void RouterCore::Leave(const std::shared_ptr<Call>& call, std::optional<uint64_t> used_tokens) {
  queue_.Finished(*std::exchange(call->ticket, std::nullopt), used_tokens);
  queue_full_.store(queue_.Full(), std::memory_order_relaxed);
}

void RouterCore::CancelCall(const std::shared_ptr<Call>& call) {
  const absl::Status status = rpc::MakeError(v1::CLIENT_CANCELLED, "the client left");
  if (call->generation != nullptr) {
    call->generation->Cancel(status);
  } else {
    Reject(call, status);
  }
}

void RouterCore::Finish(const std::shared_ptr<Call>& call, const GenerationReport& report) {
  if (std::exchange(call->over, true)) return;
  metrics_.RequestEnded(call->caller.tenant, report.status, loop_.clock().Now() - call->arrived);
  metrics_.GenerationEnded(call->caller.tenant, call->arrived, report);
  Settle(call, report);
  RecordUsage(*call, report);
  if (report.status.ok()) RememberSession(*call->generation, report);
  if (call->ticket) Leave(call, CostOf(report));
  call->in_flight = {};
  calls_.erase(call->number);
  // The generation is still on the stack above; it goes when its own reference does.
  loop_.Post([call] { call->generation.reset(); });
}

void RouterCore::RememberSession(const Generation& generation, const GenerationReport& report) {
  const PreparedRequest& prepared = generation.prepared();
  if (prepared.request.session_affinity().empty()) return;
  if (sessions_.size() >= options_.sessions_max) sessions_.erase(sessions_.begin());
  sessions_[SessionKey(prepared)] = {report.first_choice.prefill, report.first_choice.decode};
}

void RouterCore::Place(const cluster::PlacementQuery& query, const cluster::FlowSpec& spec,
                       absl::AnyInvocable<void(absl::StatusOr<cluster::PlacementDecision>)> done) {
  auto finish = [this, known = cluster::PlacementQuery(query),
                 done = std::move(done)](std::vector<cluster::WorkerHit> hits) mutable {
    known.hits = std::move(hits);
    auto decision = cluster::Place(options_.placement, known, directory_.Workers(), random_);
    if (decision.ok()) metrics_.Placed(decision->split);
    done(std::move(decision));
  };
  if (link_ == nullptr || !link_->connected() || !spec.context.domain) {
    loop_.Post([finish = std::move(finish)]() mutable { finish({}); });
    return;
  }
  v1::LookupRequest request = LookupFor(spec);
  link_->Lookup(std::move(request), options_.lookup_timeout,
                [this, finish = std::move(finish)](absl::StatusOr<v1::LookupReply> reply) mutable {
                  std::vector<cluster::WorkerHit> found;
                  if (!reply.ok()) {
                    metrics_.LookupFailed();
                  } else {
                    for (const v1::WorkerHit& hit : reply->hits()) {
                      found.push_back({WorkerId(hit.worker_id()), Incarnation(hit.incarnation()),
                                       hit.blocks()});
                    }
                  }
                  finish(std::move(found));
                });
}

// One list of keys for each kind of worker: equal weights, numerics and layout name blocks alike. A
// request asks again with every attempt, and while it waits for room.
v1::LookupRequest RouterCore::LookupFor(const cluster::FlowSpec& spec) const {
  v1::LookupRequest request;
  request.set_tenant(spec.context.tenant.value());
  std::set<std::tuple<Id128, Id128, Id128>> seen;
  for (const cluster::WorkerState& worker : directory_.Workers()) {
    const cluster::WorkerDescription& d = worker.description;
    if (d.page_tokens == 0 || !seen.emplace(d.model_digest, d.numerics_id, d.layout_hash).second)
      continue;
    v1::KeyList* list = request.add_lists();
    list->set_numerics_id(d.numerics_id.ToBytes());
    const kv::KeyContext context{d.model_digest, d.numerics_id, d.layout_hash, ""};
    for (const kv::BlockKey& key :
         spec.keys->Of(*spec.context.domain, context, spec.prompt, d.page_tokens)) {
      list->add_keys(key.value().ToBytes());
    }
  }
  return request;
}

void RouterCore::ReportState() {
  RouterState state;
  state.waiting = queue_.waiting();
  state.running = queue_.running();
  state.manager_connected = link_ != nullptr && link_->connected();
  for (const cluster::WorkerState& worker : directory_.Workers()) {
    ++state.workers[static_cast<size_t>(worker.description.role)]
                   [static_cast<size_t>(StandingOf(worker))];
  }
  metrics_.State(state);
}

void RouterCore::WatchState() {
  UpdateReady();
  ReportState();
  loop_.RunAt(loop_.clock().Now() + kStatePeriod, [this] { WatchState(); });
}

void RouterCore::CancelAll() {
  loop_.Post([this] {
    const auto calls = calls_;
    for (const auto& [number, call] : calls) {
      const absl::Status status =
          rpc::MakeError(v1::DRAINING, "the router shut down before the request was finished");
      if (call->generation != nullptr) {
        call->generation->Cancel(status);
      } else {
        Reject(call, status);
      }
    }
  });
}

v1::ListModelsResponse RouterCore::ListModels() {
  v1::ListModelsResponse response;
  MutexLock lock(models_mutex_);
  for (const auto& [name, served] : models_) {
    if (served.text == nullptr) continue;
    v1::Model* model = response.add_models();
    model->set_id(name);
    model->set_context_tokens(static_cast<uint32_t>(served.text->context_tokens));
    model->set_vocabulary(static_cast<uint32_t>(served.text->vocabulary));
    model->set_created(served.created_s);
  }
  return response;
}

absl::StatusOr<v1::TokenizeResponse> RouterCore::Tokenize(const v1::TokenizeRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const auto model, FindModel(request.model()));
  v1::TokenizeResponse response;
  std::vector<request::TokenId> ids;
  if (request.has_messages()) {
    SLUICE_ASSIGN_OR_RETURN(PreparedChat chat, PrepareChat(request.messages(), *model.second));
    ids = std::move(chat.prompt.ids);
    response.set_rendered(std::move(chat.prompt.text));
  } else {
    if (model.second->tokenizer == nullptr)
      return absl::FailedPreconditionError("the model has no tokenizer");
    SLUICE_ASSIGN_OR_RETURN(ids,
                            model.second->tokenizer->Encode(request.text(), request.special()));
  }
  rpc::AddTokens(ids, response.mutable_ids());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> RouterCore::Detokenize(
    const v1::DetokenizeRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const auto model, FindModel(request.model()));
  if (model.second->tokenizer == nullptr)
    return absl::FailedPreconditionError("the model has no tokenizer");
  SLUICE_ASSIGN_OR_RETURN(const std::vector<request::TokenId> ids, rpc::ParseTokens(request.ids()));
  v1::DetokenizeResponse response;
  response.set_text(
      text::Detokenize(*model.second->tokenizer, ids, {.skip_special_tokens = false}));
  return response;
}

}  // namespace sluice::router
