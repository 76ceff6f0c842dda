// The router without its front ends: admission, queue, placement, flows. Front ends speak to it as
// rpc::InferenceBackend.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "base/loop.h"
#include "base/random.h"
#include "cluster/directory.h"
#include "cluster/fair_queue.h"
#include "cluster/placement.h"
#include "cluster/poison_guard.h"
#include "cluster/request_flow.h"
#include "cluster/tenant_rates.h"
#include "rpc/inference_backend.h"
#include "rpc/service_state.h"
#include "services/router/cluster_link.h"
#include "services/router/generation.h"
#include "services/router/rate_leases.h"
#include "services/router/router_metrics.h"
#include "services/router/tenants.h"
#include "services/router/usage_log.h"
#include "services/text_model/text_model.h"

namespace sluice::router {

struct RouterOptions {
  cluster::PlacementOptions placement;
  cluster::RetryOptions retry;
  cluster::BreakerOptions breaker;
  cluster::PoisonOptions poison;
  cluster::FairQueueOptions queue;
  absl::Duration default_deadline = absl::Seconds(600);
  // A stream whose client reads too slowly is paused, and ended after this.
  absl::Duration reader_patience = absl::Seconds(20);
  absl::Duration lookup_timeout = absl::Milliseconds(20);
  size_t sessions_max = 10000;  // remembered for affinity
  handoff::Guards guards;
  FaultInjector* faults = nullptr;  // outlives the core
  std::shared_ptr<const Tenants> tenants;
  // Hears of each request that was let in, when it has ended. May be empty; on the loop.
  std::function<void(UsageRecord)> on_usage;
};

// Thread-safe front; what it keeps belongs to `loop`. Text work runs on `text_loop`. Both loops
// must be stopped before the core is destroyed.
class RouterCore final : public rpc::InferenceBackend {
 public:
  using ClientFactory = std::function<std::unique_ptr<cluster::WorkerClient>(cluster::Directory&)>;
  RouterCore(RouterOptions options, Loop& loop, Loop& text_loop, RandomSource& random,
             RouterMetrics& metrics, rpc::ServiceState& state, const ClientFactory& make_client);
  ~RouterCore() override;

  // On the loop. Without it: placement by load alone.
  void SetLink(std::unique_ptr<ClusterLink> link) {
    link_ = std::move(link);
    leases_.SetLink(link_.get());
  }
  // A text model known from the start; otherwise the files that the workers name are used.
  void AddModel(std::shared_ptr<const services::TextModel> model);
  // On the loop.
  void OnView(const v1::WorkerView& view, bool fresh);

  // Reports the router's state now and every second. On the loop, once.
  void WatchState();

  // Ends what is left with UNAVAILABLE, when a drain has taken too long.
  void CancelAll();

  absl::StatusOr<TenantId> Authenticate(const identity::Credentials& credentials) override;
  std::function<void()> Generate(v1::GenerateRequest request, rpc::Caller caller,
                                 std::unique_ptr<rpc::GenerationSink> sink) override;
  v1::ListModelsResponse ListModels() override;
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) override;
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request) override;
  bool Ready() const override { return state_.ready(); }

 private:
  // One request from its arrival to its end. Only touched on the loop after Generate returned.
  struct Call {
    uint64_t number = 0;  // in order of arrival
    rpc::Caller caller;
    std::unique_ptr<rpc::GenerationSink> sink;  // until the generation takes it
    std::optional<PreparedRequest> prepared;
    std::shared_ptr<Generation> generation;
    int32_t priority = 0;  // inside its tenant
    std::optional<cluster::TenantRates::Charge> charge;
    std::optional<cluster::FairQueue::Ticket> ticket;
    TimerId queue_timer = kNoTimer;
    rpc::InFlight in_flight;
    absl::Time arrived;
    bool over = false;
  };
  struct Served {
    std::shared_ptr<const services::TextModel> text;
    int64_t created_s = 0;
    bool loading = false;
  };

  // Text work, on its loop; then OnPrepared.
  void Prepare(const std::shared_ptr<Call>& call, v1::GenerateRequest request);
  // Errors: OVERLOADED when the queue would refuse the tenant's next request, or let it wait
  // although it is to be served at once or not at all.
  absl::Status RoomInQueue(const TenantId& tenant, bool only_if_idle) const;
  void OnPrepared(const std::shared_ptr<Call>& call, absl::StatusOr<PreparedRequest> prepared);
  absl::Status Enqueue(const std::shared_ptr<Call>& call);
  // Takes what the request may use out of the tenant's budgets, and then queues it. Before it is
  // refused the manager is asked for more, and once again where other routers hold what is
  // missing. Errors: RATE_LIMITED, OVERLOADED.
  enum class Asked { kNot, kOnce, kTwice };
  absl::Status Charge(const std::shared_ptr<Call>& call, Asked asked);
  absl::Status WaitForTurn(const identity::Tenant& tenant, const std::shared_ptr<Call>& call);
  // Asks the manager for what the call needs, and charges it again.
  void AskForMore(const std::shared_ptr<Call>& call, uint64_t tokens, Asked asked);
  void RecordUsage(const Call& call, const GenerationReport& report);
  // What the request did use replaces what was taken for it.
  void Settle(const std::shared_ptr<Call>& call, const GenerationReport& report);
  void StartGeneration(const std::shared_ptr<Call>& call);
  void Reject(const std::shared_ptr<Call>& call, const absl::Status& status);
  // Gives up the call's place in the queue, or ends its turn.
  void Leave(const std::shared_ptr<Call>& call, std::optional<uint64_t> used_tokens = std::nullopt);
  void CancelCall(const std::shared_ptr<Call>& call);
  void Finish(const std::shared_ptr<Call>& call, const GenerationReport& report);
  void Place(const cluster::PlacementQuery& query, const cluster::FlowSpec& spec,
             absl::AnyInvocable<void(absl::StatusOr<cluster::PlacementDecision>)> done);
  v1::LookupRequest LookupFor(const cluster::FlowSpec& spec) const;
  void LoadModel(const std::string& name, const std::string& path);
  // Ready: there are workers of every role that a request needs, and the text side of their model
  // is loaded.
  void UpdateReady();
  // Refuses what no worker can ever hold; where the client named no limit, what the workers hold is
  // one.
  absl::Status FitIntoPools(PreparedRequest& prepared) const;
  void ReportState();
  absl::StatusOr<std::pair<std::string, std::shared_ptr<const services::TextModel>>> FindModel(
      absl::string_view name);
  void RememberSession(const Generation& generation, const GenerationReport& report);

  const RouterOptions options_;
  Loop& loop_;
  Loop& text_loop_;
  RandomSource& random_;
  RouterMetrics& metrics_;
  rpc::ServiceState& state_;
  cluster::Directory directory_;
  cluster::RetryBudget budget_;
  cluster::PoisonGuard poison_;
  cluster::FairQueue queue_;
  // Of the queue, read where requests arrive: who would be refused is refused before its prompt is
  // rendered and tokenized. A value that is a moment old costs only that work.
  std::atomic<bool> queue_full_{false};
  cluster::TenantRates rates_;
  RateLeases leases_;
  std::atomic<uint64_t> refusals_ = 0;
  std::unique_ptr<cluster::WorkerClient> client_;
  std::unique_ptr<ClusterLink> link_;
  std::unique_ptr<cluster::FlowEnvironment> environment_;
  // By number: whatever concerns all of them happens in the same order in every run.
  absl::btree_map<uint64_t, std::shared_ptr<Call>> calls_;
  std::atomic<uint64_t> calls_made_{0};
  struct Session {
    WorkerId prefill;
    WorkerId decode;
  };
  absl::flat_hash_map<std::string, Session> sessions_;

  Mutex models_mutex_;
  absl::flat_hash_map<std::string, Served> models_ SLUICE_GUARDED_BY(models_mutex_);
};

}  // namespace sluice::router
