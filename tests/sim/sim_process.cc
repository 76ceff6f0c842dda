#include "tests/sim/sim_process.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice::sim {
namespace {

constexpr size_t kQueueMax = 1 << 20;  // mail of the simulated network is never refused

}  // namespace

SimProcess::SimProcess(testing::SimWorld& world, transport::LoopbackNetwork& network,
                       absl::string_view name, cluster::Role role, const ProcessOptions& options,
                       uint64_t seed)
    : options_(options),
      engine_loop_(world.AddLoop(absl::StrCat(name, ".engine"), kQueueMax)),
      move_loop_(world.AddLoop(absl::StrCat(name, ".move"), kQueueMax)),
      rpc_loop_(world.AddLoop(absl::StrCat(name, ".rpc"), kQueueMax)),
      network_(network),
      random_(seed) {
  model_ = *engine::CreateToyModel(options.model);
  transport_ = *network.CreateTransport();
  const engine::ModelInfo& info = model_->info();
  transport::Region region = *transport_->AllocateRegion(options.pages * info.layout.page_bytes());
  pool_ = *kv::PagePool::Create(region.memory, info.layout, {.poison_freed = true});
  index_ = kv::PrefixIndex::Create(*pool_);

  description_.id = WorkerId(std::string(name));
  description_.incarnation = Incarnation(random_.Next64());
  description_.role = role;
  description_.model = info.name;
  description_.model_digest = info.model_digest;
  description_.numerics_id = info.numerics_id;
  description_.layout_hash = info.layout.hash();
  description_.layout = info.layout.Describe();
  description_.page_tokens = info.layout.page_tokens();
  description_.kv_bytes_per_token = static_cast<uint64_t>(info.layout.BytesPerToken());
  description_.context_tokens = static_cast<uint32_t>(info.context_tokens);
  description_.vocabulary = static_cast<uint32_t>(info.vocabulary);

  for (const char* point : kFaultPoints) {
    if (options.point_failure <= 0) break;
    points_.Arm(point, [this, point]() -> absl::Status {
      if (random_.Unit() >= options_.point_failure) return absl::OkStatus();
      return absl::UnavailableError(absl::StrCat("fault point ", point));
    });
  }
  worker_ = handoff::Worker::Create(
      options.worker,
      {*model_, *pool_, *index_, *transport_, region.remote_key, engine_loop_, move_loop_, random_,
       description_.incarnation, &points_, [this](uint32_t tokens) {
         return (options_.step_cost + options_.token_cost * tokens) * slowdown_;
       }});
}

SimProcess::~SimProcess() {
  for (testing::SimLoop* loop : {&engine_loop_, &move_loop_, &rpc_loop_}) loop->Crash();
  network_.Crash(node());
  worker_.reset();
}

void SimProcess::SetPaused(bool whole, bool engine, bool move) {
  const auto set = [](testing::SimLoop& loop, bool paused) {
    paused ? loop.Pause() : loop.Resume();
  };
  network_.SetPaused(node(), whole);
  set(rpc_loop_, whole);
  set(engine_loop_, whole || engine);
  set(move_loop_, whole || move);
}

void SimProcess::DisarmPoints() {
  for (const char* point : kFaultPoints) points_.Disarm(point);
}

bool SimProcess::WantsPoll() const { return !poll_posted_ && !transport_->PrepareSleep(); }

void SimProcess::PostPoll() {
  poll_posted_ = true;
  move_loop_.Post([this] {
    poll_posted_ = false;
    worker_->PollTransport();
  });
}

cluster::LoadReport SimProcess::Load() const {
  const handoff::WorkerLoad load = worker_->load();
  cluster::LoadReport report;
  report.running = load.engine.running;
  report.waiting = load.engine.waiting;
  report.prefill_tokens = load.engine.prefill_tokens;
  report.decode_tokens = load.engine.decode_tokens;
  report.pages_free = load.pages.free;
  report.pages_cached = load.pages.cached;
  report.pages_total = load.pages.total();
  report.prefill_tokens_per_s = load.engine.prefill_tokens_per_s;
  report.decode_step_ms = load.engine.decode_step_ms;
  return report;
}

std::string SimProcess::CheckInvariants() const {
  const handoff::WorkerLoad load = worker_->load();
  const uint64_t quarantined = worker_->counters().quarantined_now;
  if (load.pages.total() != pool_->size()) {
    return absl::StrCat("pages are not conserved: ", load.pages.total(), " of ", pool_->size());
  }
  if (load.pages.quarantined != quarantined) {
    return absl::StrCat(load.pages.quarantined, " pages in quarantine, the hand-off knows of ",
                        quarantined);
  }
  if (load.engine.running + load.engine.waiting > options_.worker.calls_max) {
    return absl::StrCat(load.engine.running, " sequences run and ", load.engine.waiting,
                        " wait, of at most ", options_.worker.calls_max, " calls");
  }
  return "";
}

std::string SimProcess::CheckIdle() {
  const handoff::WorkerLoad load = worker_->load();
  if (load.engine.running + load.engine.waiting > 0) {
    return absl::StrCat(load.engine.running, " sequences run and ", load.engine.waiting, " wait");
  }
  if (load.pages.active + load.pages.quarantined > 0) {
    return absl::StrCat(load.pages.active, " pages are held, ", load.pages.quarantined,
                        " in quarantine");
  }
  if (worker_->last_progress() != engine_loop_.clock().Now()) return "the engine has work";
  std::vector<LeaseId> credits;
  std::string problem;
  for (uint32_t i = 0; i < options_.worker.credits_max; ++i) {
    const absl::StatusOr<LeaseId> credit = worker_->Admit(1);
    if (!credit.ok()) problem = absl::StrCat("a start credit is out: ", credit.status().message());
    if (credit.ok()) credits.push_back(*credit);
  }
  for (LeaseId credit : credits) worker_->ReturnCredit(credit);
  return problem;
}

}  // namespace sluice::sim
