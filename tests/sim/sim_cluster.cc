#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "config/tenants.h"
#include "tests/sim/sim_cluster_impl.h"

namespace sluice::sim {
namespace {

constexpr absl::Duration kHeartbeat = absl::Milliseconds(400);

// Shared by all worlds: it never changes.
std::shared_ptr<const services::TextModel> ToyText() {
  static const auto* model =
      new std::shared_ptr<const services::TextModel>(*services::LoadTextModel("toy"));
  return *model;
}

}  // namespace

SimCluster::SimCluster(Scenario scenario, const SimOptions& options)
    : s_(std::move(scenario)),
      options_(options),
      random_(Mix64(s_.seed + 0x77)),
      world_(s_.seed * 2 + 1),
      network_({.seed = s_.seed + 3, .limits = {}, .link = s_.link}, world_.clock()),
      chaos_(world_.AddLoop("chaos", 1 << 20)),
      manager_loop_(world_.AddLoop("manager", 1 << 20)),
      start_(world_.Now()),
      text_model_(ToyText()),
      manager_(manager_loop_, s_.silence_max / 3,
               [this](const v1::WorkerView& view) { Publish(view); }),
      routers_(s_.routers),
      router_slots_(s_.routers),
      slots_(s_.roles.size()),
      users_(
          world_.AddLoop("users", 1 << 20), router_slots_, s_.process.model,
          {.delay_max = s_.rpc.delay_max / 2, .detect_max = s_.rpc.detect_max}, s_.seed + 11,
          [this](std::string problem) { Violate(problem); },
          [this](std::string step) { TellStep(step); }) {
  s_.process.worker.guards = options.guards;
  s_.router.core.guards = options.guards;
  s_.router.core.tenants = router::Tenants::Fixed(
      *config::LoadTenants("default_class: {}", "simulation"),
      *identity::CacheSecret::Parse(std::string(32, 's'), "simulation"), world_.clock());
  AddNet(manager_loop_);
  world_.AddSource([this] { return PagesDue(); }, [this](absl::Time now) { RunPages(now); });
  world_.AddSource([this] { return CallsDue(); }, [this](absl::Time now) { RunCalls(now); });
  world_.SetObserver([this] { CheckInvariants(); });
}

SimCluster::~SimCluster() {
  for (std::unique_ptr<SimRouter>& router : routers_) router.reset();
  for (size_t i = 0; i < slots_.size(); ++i) Stop(i);
  manager_loop_.Crash();
  chaos_.Crash();
}

SimResult SimCluster::Run() {
  if (!options_.protocol && Tells()) Tell(Describe(s_));
  for (size_t i = 0; i < slots_.size(); ++i) StartProcess(i);
  for (size_t i = 0; i < routers_.size(); ++i) StartRouter(i);
  ArmTick();
  for (const SimRequest& request : s_.requests) {
    chaos_.RunAt(start_ + request.arrival, [this, &request] { users_.Submit(request); });
  }
  for (const Fault& fault : s_.faults) {
    chaos_.RunAt(start_ + fault.at, [this, &fault] { Strike(fault); });
  }
  RunTo(start_ + s_.faults_end, [] { return false; });
  Heal();
  RunTo(start_ + s_.faults_end + absl::Seconds(90),
        [this] { return users_.running() == 0 && users_.outcomes().size() == s_.requests.size(); });
  Probe();
  CheckOutcomes();
  Drain();
  for (const Slot& slot : slots_) Count(*slot.process);
  return Result();
}

std::string SimCluster::NameOf(size_t slot) { return absl::StrCat("w", slot); }
size_t SimCluster::SlotOf(const WorkerId& id) { return static_cast<size_t>(id.value()[1] - '0'); }

void SimCluster::Tell(const std::string& what) {
  if (options_.told) options_.told(world_.Now() - start_, what);
}

// A step may be what a fault waits for.
void SimCluster::TellStep(const std::string& what) {
  if (!options_.protocol) return;
  Tell(what);
  const uint64_t count = ++told_[what];
  for (const TriggeredFault& triggered : s_.triggered) {
    if (triggered.event != what || triggered.nth != count) continue;
    chaos_.Post([this, &triggered] { Strike(triggered.fault); });
  }
}

void SimCluster::Violate(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = absl::StrCat("at ", absl::FormatDuration(world_.Now() - start_), ": ", what);
  Tell(absl::StrCat("VIOLATION: ", what));
}

void SimCluster::RunTo(absl::Time until, const std::function<bool()>& done) {
  while (violation_.empty() && !done() && world_.RunOne(until)) {
  }
}

// The network of pages: runs what is due and wakes move loops.
absl::Time SimCluster::PagesDue() {
  for (const Slot& slot : slots_) {
    if (slot.process != nullptr && slot.process->WantsPoll()) return world_.Now();
  }
  return network_.NextEventTime();
}

void SimCluster::RunPages(absl::Time now) {
  network_.AdvanceTo(now);
  for (const Slot& slot : slots_) {
    if (slot.process != nullptr && slot.process->WantsPoll()) slot.process->PostPoll();
  }
}

absl::Time SimCluster::CallsDue() const {
  absl::Time due = absl::InfiniteFuture();
  for (const auto& net : nets_) due = std::min(due, net->NextEventTime());
  return due;
}

void SimCluster::RunCalls(absl::Time now) {
  for (const auto& net : nets_) {
    if (net->NextEventTime() <= now) return net->AdvanceTo(now);
  }
}

RpcNet& SimCluster::AddNet(testing::SimLoop& loop) {
  nets_.push_back(std::make_unique<RpcNet>(world_, loop, s_.seed + 5 + 1000 * nets_.size(), s_.rpc,
                                           slots_.size()));
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].process != nullptr) nets_.back()->Attach(i, *slots_[i].process);
  }
  return *nets_.back();
}

uint32_t SimCluster::FlavourOf(size_t slot) const {
  const uint32_t built =
      s_.roles[slot] == cluster::Role::kDecode ? s_.token_flavour : s_.prompt_flavour;
  const bool other_build = (slots_[slot].changes / 2) % 2 == 1;
  return built + (other_build ? s_.upgrade : 0);
}

void SimCluster::StartProcess(size_t i) {
  Slot& slot = slots_[i];
  ++slot.changes;
  slot.whole = slot.engine = slot.move = 0;
  ProcessOptions options = s_.process;
  options.model.flavour = FlavourOf(i);
  if (healed_) options.point_failure = options.transport.flip = 0;
  slot.process = std::make_unique<SimProcess>(world_, network_, NameOf(i), s_.roles[i], options,
                                              Mix64(s_.seed ^ (i << 32) ^ (slot.changes << 40)));
  for (const auto& net : nets_) net->Attach(i, *slot.process);
  if (options_.protocol) Listen(i);
  SendHeartbeat(i);
  if (!s_.link_to_prefill.has_value()) return;
  for (const Slot& other : slots_) {
    if (other.process == nullptr || &other == &slot) continue;
    const transport::NodeId here = slot.process->node(), there = other.process->node();
    if (s_.roles[i] == cluster::Role::kPrefill) network_.SetLink(there, here, *s_.link_to_prefill);
    if (other.process->role() == cluster::Role::kPrefill)
      network_.SetLink(here, there, *s_.link_to_prefill);
  }
}

void SimCluster::Stop(size_t i) {
  Slot& slot = slots_[i];
  if (slot.process == nullptr) return;
  ++slot.changes;
  Count(*slot.process);
  for (const auto& net : nets_) net->Detach(i);
  // Its stream to the manager breaks as well, unless only silence tells.
  if (random_.Unit() >= s_.rpc.death_lost) {
    manager_loop_.RunAt(
        world_.Now() + s_.rpc.detect_max * random_.Unit(),
        [this, incarnation = slot.process->incarnation()] { manager_.OnWorkerGone(incarnation); });
  }
  slot.process.reset();
}

// Every named point and every message of the worker becomes a step.
void SimCluster::Listen(size_t i) {
  SimProcess& process = *slots_[i].process;
  for (const char* point : kFaultPoints) {
    // Steps of no single request, and what its client tells anyway.
    if (absl::StartsWith(point, "engine.") || point == absl::string_view("worker.token")) continue;
    process.points().Arm(point, [this, step = absl::StrCat(NameOf(i), " ", point)] {
      TellStep(step);
      return absl::OkStatus();
    });
  }
  process.transport().SetScript([this, i](absl::string_view kind, const v1::MoveMessage& message) {
    return TreatmentOf(i, kind, message);
  });
}

Treatment SimCluster::TreatmentOf(size_t slot, absl::string_view kind,
                                  const v1::MoveMessage& message) {
  const uint64_t nth = ++sent_[{slot, std::string(kind)}];
  Treatment treatment;
  for (const MessageRule& rule : s_.message_rules) {
    if (rule.worker == slot && rule.kind == kind && (rule.nth == nth || rule.nth == 0))
      treatment = rule.treatment;
  }
  if (kind == "read") {
    if (treatment.delay > absl::ZeroDuration()) TellStep(NameOf(slot) + " reads: late");
    return treatment;
  }
  std::string step = absl::StrCat(NameOf(slot), " sends ", kind);
  if (message.has_offer()) absl::StrAppend(&step, " of ", message.offer().pieces_size(), " pieces");
  if (treatment.copies != 1) absl::StrAppend(&step, ": ", treatment.copies, " times");
  if (treatment.delay > absl::ZeroDuration()) absl::StrAppend(&step, ": late");
  TellStep(step);
  return treatment;
}

// From the process itself: it stops with it.
void SimCluster::SendHeartbeat(size_t i) {
  SimProcess& process = *slots_[i].process;
  SimHeartbeat beat;
  beat.info = process.info();
  *beat.state.mutable_load() = process.Load();
  beat.state.set_ready(true);
  beat.snapshot = process.snapshot_wanted;
  beat.blocks = process.index().TakeChanges(&beat.sequence);
  if (std::exchange(process.snapshot_wanted, false))
    beat.blocks = process.index().Snapshot(&beat.sequence);
  nets_[0]->Datagram(i, Toward::kRouter, [this, i, beat = std::move(beat)](SimProcess*) mutable {
    if (!manager_.OnHeartbeat(std::move(beat))) return;
    nets_[0]->Datagram(i, Toward::kWorker,
                       [](SimProcess* there) { there->snapshot_wanted = true; });
  });
  process.rpc_loop().RunAt(world_.Now() + kHeartbeat, [this, i] { SendHeartbeat(i); });
}

void SimCluster::ArmTick() {
  manager_.Tick();
  manager_loop_.RunAt(world_.Now() + kHeartbeat, [this] { ArmTick(); });
}

void SimCluster::StartRouter(size_t number) {
  RouterSlot& slot = router_slots_[number];
  ++slot.life;
  const std::string name = absl::StrCat("router", number);
  testing::SimLoop& loop = world_.AddLoop(name, 1 << 20);
  routers_[number] = std::make_unique<SimRouter>(
      world_, name, loop, AddNet(loop), manager_, s_.router, SlotOf, text_model_,
      Mix64(s_.seed + 7 + number) + slot.life, counts_.flows);
  slot.router = routers_[number].get();
  loop.Post([this, number, view = manager_.View()] { routers_[number]->OnView(view); });
}

void SimCluster::StopRouter(size_t number) {
  RouterSlot& slot = router_slots_[number];
  users_.OnRouterDied(slot);
  ++slot.life;
  slot.router = nullptr;
  routers_[number].reset();
}

void SimCluster::Publish(const v1::WorkerView& view) {
  for (size_t i = 0; i < routers_.size(); ++i) {
    if (routers_[i] == nullptr) continue;
    const absl::Duration delay = s_.rpc.delay_max * random_.Unit();
    manager_loop_.RunAt(world_.Now() + delay, [this, i, view, life = router_slots_[i].life] {
      if (routers_[i] == nullptr || router_slots_[i].life != life) return;
      routers_[i]->loop().Post([this, i, view] { routers_[i]->OnView(view); });
    });
  }
}

SimResult RunScenario(Scenario scenario, const SimOptions& options) {
  return SimCluster(std::move(scenario), options).Run();
}

}  // namespace sluice::sim
