#include "tests/sim/sim_router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/error.h"

namespace sluice::sim {

class SimRouter::Link final : public router::ClusterLink {
 public:
  Link(testing::SimLoop& loop, const SimManager& manager, double slowness, RandomSource& random)
      : loop_(loop), manager_(manager), slowness_(slowness), random_(random) {}

  void Lookup(v1::LookupRequest request, absl::Duration timeout,
              absl::AnyInvocable<void(absl::StatusOr<v1::LookupReply>)> done) override {
    const absl::Duration takes = timeout * (slowness_ * random_.Unit());
    loop_.RunAt(loop_.clock().Now() + std::min(takes, timeout),
                [this, late = takes > timeout, request = std::move(request),
                 done = std::move(done)]() mutable {
                  if (late) return done(absl::DeadlineExceededError("the lookup took too long"));
                  done(manager_.Lookup(request));
                });
  }
  // Tenants of simulations have no limits.
  void Lease(v1::LeaseRequest, absl::Duration,
             absl::AnyInvocable<void(absl::StatusOr<v1::LeaseReply>)> done) override {
    done(absl::UnimplementedError("no leases"));
  }
  bool connected() const override { return true; }

 private:
  testing::SimLoop& loop_;
  const SimManager& manager_;
  const double slowness_;
  RandomSource& random_;
};

class SimRouter::Metrics final : public router::RouterMetrics {
 public:
  explicit Metrics(FlowCounts& counts) : counts_(counts) {}
  void Refused(identity::Refusal, const absl::Status&) override {}
  void TenantsRead(const absl::Status&, absl::Span<const TenantId>) override {}
  void RequestEnded(const TenantId&, const absl::Status& status, absl::Duration) override {
    if (rpc::DetailOf(status).reason() == v1::REQUEST_POISONED) ++counts_.poisoned;
  }
  void GenerationEnded(const TenantId&, absl::Time,
                       const router::GenerationReport& report) override {
    const cluster::FlowSummary& first = report.first_choice;
    ++counts_.generations;
    if (first.split) ++counts_.split;
    if (report.usage.cached_tokens() > 0) ++counts_.cached;
    if (report.usage.recomputed_tokens() > 0) ++counts_.recomputed;
    for (const cluster::FlowMove& move : report.moves)
      ++(move.migration ? counts_.migrations : counts_.retries);
  }
  void QueueWait(const TenantId&, absl::Duration) override {}
  void Placed(bool) override {}
  void LookupFailed() override {}
  void Token(absl::Duration) override {}
  void State(const router::RouterState& state) override { state_ = state; }
  const router::RouterState& state() const { return state_; }

 private:
  FlowCounts& counts_;
  router::RouterState state_;
};

SimRouter::SimRouter(testing::SimWorld& world, absl::string_view name, testing::SimLoop& loop,
                     RpcNet& net, const SimManager& manager, const SimRouterOptions& options,
                     SimClient::SlotOf slot_of, std::shared_ptr<const services::TextModel> model,
                     uint64_t seed, FlowCounts& counts)
    : loop_(loop),
      text_loop_(world.AddLoop(absl::StrCat(name, ".text"), 1 << 20)),
      net_(net),
      random_(seed),
      metrics_(std::make_unique<Metrics>(counts)) {
  core_ = std::make_unique<router::RouterCore>(options.core, loop_, text_loop_, random_, *metrics_,
                                               state_, [&](cluster::Directory& directory) {
                                                 directory_ = &directory;
                                                 return std::make_unique<SimClient>(
                                                     net_, loop_, std::move(slot_of), random_,
                                                     options.repeats);
                                               });
  core_->AddModel(std::move(model));
  core_->SetLink(std::make_unique<Link>(loop_, manager, options.lookup_slowness, random_));
  core_->WatchState();
}

// Nothing that is destroyed here may still speak to anybody.
SimRouter::~SimRouter() {
  net_.Kill();
  loop_.Crash();
  text_loop_.Crash();
  core_.reset();
}

void SimRouter::OnView(const v1::WorkerView& view) {
  core_->OnView(view, std::exchange(fresh_, false));
}

void SimRouter::SetPaused(bool paused) {
  for (testing::SimLoop* loop : {&loop_, &text_loop_}) paused ? loop->Pause() : loop->Resume();
}

bool SimRouter::Knows(const WorkerId& worker, Incarnation incarnation) const {
  const cluster::WorkerState* state = directory_->Find(worker);
  return state != nullptr && state->description.incarnation == incarnation;
}

std::string SimRouter::CheckIdle() const {
  const router::RouterState& state = metrics_->state();
  if (state.running + state.waiting + state_.in_flight() > 0) {
    return absl::StrCat(state.running, " requests run, ", state.waiting, " wait, ",
                        state_.in_flight(), " are in flight");
  }
  for (const cluster::WorkerState& worker : directory_->Workers()) {
    if (worker.sent_requests + worker.sent_prefill_tokens + worker.sent_decode_tokens > 0) {
      return absl::StrCat("worker ", worker.description.id.value(), " has ", worker.sent_requests,
                          " requests, ", worker.sent_prefill_tokens, " and ",
                          worker.sent_decode_tokens, " tokens on its book");
    }
  }
  if (net_.open_streams() > 0) return absl::StrCat(net_.open_streams(), " calls are open");
  return "";
}

}  // namespace sluice::sim
