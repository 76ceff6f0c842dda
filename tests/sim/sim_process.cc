#include "tests/sim/sim_process.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rpc/domain.h"

namespace sluice::sim {
namespace {

constexpr size_t kQueueMax = 1 << 20;  // mail of the simulated network is never refused

std::shared_ptr<const v1::WorkerInfo> MakeInfo(absl::string_view name, cluster::Role role,
                                               Incarnation incarnation,
                                               const engine::ModelInfo& model) {
  auto info = std::make_shared<v1::WorkerInfo>();
  info->set_worker_id(std::string(name));
  info->set_incarnation(incarnation.value());
  info->set_role(role == cluster::Role::kPrefill  ? v1::PREFILL
                 : role == cluster::Role::kDecode ? v1::DECODE
                                                  : v1::BOTH);
  info->set_grpc_address(std::string(name));
  info->set_model(model.name);
  info->set_model_digest(model.model_digest.ToBytes());
  info->set_numerics_id(model.numerics_id.ToBytes());
  *info->mutable_layout() = rpc::ToProto(model.layout);
  info->set_layout_hash(model.layout.hash().ToBytes());
  info->set_context_tokens(static_cast<uint32_t>(model.context_tokens));
  info->set_vocabulary(static_cast<uint32_t>(model.vocabulary));
  return info;
}

}  // namespace

SimProcess::SimProcess(testing::SimWorld& world, transport::LoopbackNetwork& network,
                       absl::string_view name, cluster::Role role, const ProcessOptions& options,
                       uint64_t seed)
    : options_(options),
      engine_loop_(world.AddLoop(absl::StrCat(name, ".engine"), kQueueMax)),
      move_loop_(world.AddLoop(absl::StrCat(name, ".move"), kQueueMax)),
      rpc_loop_(world.AddLoop(absl::StrCat(name, ".rpc"), kQueueMax)),
      network_(network),
      random_(seed),
      role_(role) {
  model_ = *engine::CreateToyModel(options.model);
  transport_ =
      std::make_unique<SimTransport>(*network.CreateTransport(), options.transport, move_loop_,
                                     random_, [this] { worker_->PollTransport(); });
  const engine::ModelInfo& info = model_->info();
  transport::Region region = *transport_->AllocateRegion(options.pages * info.layout.page_bytes());
  pool_ = *kv::PagePool::Create(region.memory, info.layout, {.poison_freed = true});
  index_ = kv::PrefixIndex::Create(*pool_);

  incarnation_ = Incarnation(random_.Next64());
  info_ = MakeInfo(name, role, incarnation_, info);

  for (const char* point : kFaultPoints) {
    if (options.point_failure <= 0) break;
    points_.Arm(point, [this, point]() -> absl::Status {
      if (random_.Unit() >= options_.point_failure) return absl::OkStatus();
      return absl::UnavailableError(absl::StrCat("fault point ", point));
    });
  }
  worker_ = handoff::Worker::Create(
      options.worker, {*model_, *pool_, *index_, *transport_, region.remote_key, engine_loop_,
                       move_loop_, random_, incarnation_, &points_, [this](uint32_t tokens) {
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

void SimProcess::Heal() {
  slowdown_ = 1;
  transport_->set_flip(0);
  for (const char* point : kFaultPoints) points_.Disarm(point);
}

bool SimProcess::LoseAPage() {
  const auto header = [this](size_t page) {
    return pool_->PageData(PageIndex(static_cast<uint32_t>(page)));
  };
  std::vector<size_t> used;
  for (size_t i = 0; i < pool_->size(); ++i) {
    // A free page's tag is 0.
    if (reinterpret_cast<const kv::PageHeader*>(header(i))->generation != 0) used.push_back(i);
  }
  if (used.empty()) return false;
  uint8_t* page = header(used[random_.Below(used.size())]);
  for (size_t i = 0; i < pool_->layout().page_bytes(); ++i)
    page[i] = static_cast<uint8_t>(random_.Next64());
  return true;
}

bool SimProcess::WantsPoll() const { return !poll_posted_ && !transport_->PrepareSleep(); }

void SimProcess::PostPoll() {
  poll_posted_ = true;
  move_loop_.Post([this] {
    poll_posted_ = false;
    worker_->PollTransport();
  });
}

v1::WorkerLoad SimProcess::Load() const { return rpc::ToProto(worker_->load()); }

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
    const absl::StatusOr<LeaseId> credit = worker_->Admit(1, TenantId("t"));
    if (!credit.ok()) problem = absl::StrCat("a start credit is out: ", credit.status().message());
    if (credit.ok()) credits.push_back(*credit);
  }
  for (LeaseId credit : credits) worker_->ReturnCredit(credit);
  return problem;
}

}  // namespace sluice::sim
