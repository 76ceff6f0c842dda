#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace sluice::sim {
namespace {

constexpr absl::Duration kHeartbeat = absl::Milliseconds(400);
constexpr size_t kProbes = 3;
// A few of the longest leases.
constexpr absl::Duration kDrainMax = absl::Seconds(8);

class SimCluster {
 public:
  SimCluster(Scenario scenario, const SimOptions& options)
      : s_(std::move(scenario)),
        options_(options),
        random_(Mix64(s_.seed + 0x77)),
        world_(s_.seed * 2 + 1),
        network_({.seed = s_.seed + 3, .limits = {}, .link = s_.link}, world_.clock()),
        chaos_(world_.AddLoop("chaos", 1 << 20)),
        router_loop_(world_.AddLoop("router", 1 << 20)),
        net_(world_, router_loop_, s_.seed + 5, s_.rpc, s_.roles.size()),
        router_(
            router_loop_, net_, [](const WorkerId& id) { return SlotOf(id); }, s_.router,
            s_.seed + 7, [this](std::string problem) { Violate(problem); }),
        start_(world_.Now()),
        slots_(s_.roles.size()) {
    s_.process.worker.guards = options.guards;
    world_.AddSource([this] { return PagesDue(); }, [this](absl::Time now) { RunPages(now); });
    world_.AddSource([this] { return net_.NextEventTime(); },
                     [this](absl::Time now) { net_.AdvanceTo(now); });
    world_.SetObserver([this] { CheckInvariants(); });
  }
  ~SimCluster() {
    for (size_t i = 0; i < slots_.size(); ++i) Stop(i);
    router_loop_.Crash();
    chaos_.Crash();
  }

  SimResult Run() {
    Trace(Describe(s_));
    for (size_t i = 0; i < slots_.size(); ++i) StartProcess(i);
    ArmTick();
    for (const SimRequest& request : s_.requests) {
      router_loop_.RunAt(start_ + request.arrival, [this, &request] { Submit(request); });
    }
    for (const Fault& fault : s_.faults) {
      chaos_.RunAt(start_ + fault.at, [this, &fault] { Strike(fault); });
    }
    RunTo(start_ + s_.faults_end, [] { return false; });
    Heal();
    RunTo(start_ + s_.faults_end + absl::Seconds(90), [this] {
      return router_.running() == 0 && router_.outcomes().size() == s_.requests.size();
    });
    Probe();
    CheckOutcomes();
    Drain();
    for (size_t i = 0; i < slots_.size(); ++i) Count(*slots_[i].process);
    return Result();
  }

 private:
  struct Slot {
    std::unique_ptr<SimProcess> process;
    uint64_t changes = 0;  // starts and stops
    // Faults in force.
    int whole = 0;
    int engine = 0;
    int move = 0;
  };

  static std::string NameOf(size_t slot) { return absl::StrCat("w", slot); }
  static size_t SlotOf(const WorkerId& id) { return static_cast<size_t>(id.value()[1] - '0'); }

  void Trace(const std::string& what) const {
    if (!options_.trace) return;
    fprintf(stderr, "%10.6f %s\n", absl::ToDoubleSeconds(world_.Now() - start_), what.c_str());
  }
  void Violate(const std::string& what) {
    if (!violation_.empty()) return;
    violation_ = absl::StrCat("at ", absl::FormatDuration(world_.Now() - start_), ": ", what);
    Trace(absl::StrCat("VIOLATION: ", what));
  }
  void RunTo(absl::Time until, const std::function<bool()>& done) {
    while (violation_.empty() && !done() && world_.RunOne(until)) {
    }
  }

  // The network of pages: runs what is due and wakes move loops.
  absl::Time PagesDue() {
    for (const Slot& slot : slots_) {
      if (slot.process != nullptr && slot.process->WantsPoll()) return world_.Now();
    }
    return network_.NextEventTime();
  }
  void RunPages(absl::Time now) {
    network_.AdvanceTo(now);
    for (const Slot& slot : slots_) {
      if (slot.process != nullptr && slot.process->WantsPoll()) slot.process->PostPoll();
    }
  }

  void StartProcess(size_t i) {
    Slot& slot = slots_[i];
    ++slot.changes;
    slot.whole = slot.engine = slot.move = 0;
    slot.process =
        std::make_unique<SimProcess>(world_, network_, NameOf(i), s_.roles[i], s_.process,
                                     Mix64(s_.seed ^ (i << 32) ^ (slot.changes << 40)));
    net_.Attach(i, *slot.process);
    SendHeartbeat(i);
    if (!s_.link_to_prefill.has_value()) return;
    for (const Slot& other : slots_) {
      if (other.process == nullptr || &other == &slot) continue;
      if (s_.roles[i] == cluster::Role::kPrefill) SetLinkToPrefill(other, slot);
      if (other.process->description().role == cluster::Role::kPrefill)
        SetLinkToPrefill(slot, other);
    }
  }
  void SetLinkToPrefill(const Slot& from, const Slot& to) {
    network_.SetLink(from.process->node(), to.process->node(), *s_.link_to_prefill);
  }
  void Stop(size_t i) {
    if (slots_[i].process == nullptr) return;
    ++slots_[i].changes;
    Count(*slots_[i].process);
    net_.Detach(i);
    slots_[i].process.reset();
  }

  // From the process itself: it stops with it.
  void SendHeartbeat(size_t i) {
    SimProcess& process = *slots_[i].process;
    Heartbeat beat{process.description(), process.Load(), process.snapshot_wanted, 0, {}};
    if (process.snapshot_wanted) {
      uint64_t first = 0;
      process.index().TakeChanges(&first);
      beat.blocks = process.index().Snapshot(&beat.sequence);
      process.snapshot_wanted = false;
    } else {
      beat.blocks = process.index().TakeChanges(&beat.sequence);
    }
    net_.Datagram(i, Toward::kRouter, [this, i, beat = std::move(beat)](SimProcess*) mutable {
      if (!router_.OnHeartbeat(std::move(beat))) return;
      net_.Datagram(i, Toward::kWorker, [](SimProcess* there) { there->snapshot_wanted = true; });
    });
    process.rpc_loop().RunAt(world_.Now() + kHeartbeat, [this, i] { SendHeartbeat(i); });
  }
  void ArmTick() {
    router_.Tick();
    router_loop_.RunAt(world_.Now() + kHeartbeat, [this] { ArmTick(); });
  }

  size_t Submit(const SimRequest& request) {
    const size_t number = router_.Submit(request, ReferenceTokens(s_.process.model, request));
    Trace(absl::StrCat("request ", number, ": ", request.prompt.size(), " + ",
                       request.sampling.max_tokens, " tokens"));
    return number;
  }

  void ApplyPauses(size_t i) {
    Slot& slot = slots_[i];
    slot.process->SetPaused(slot.whole > 0, slot.engine > 0, slot.move > 0);
    net_.SetPaused(i, slot.whole > 0);
  }
  // Undoes a fault after its time, unless the process is another or everything has healed.
  void Later(const Fault& fault, std::function<void()> undo) {
    chaos_.RunAt(world_.Now() + fault.duration,
                 [this, &fault, changes = slots_[fault.a].changes, undo = std::move(undo)] {
                   if (healed_ || slots_[fault.a].changes != changes) return;
                   Trace(absl::StrCat("over: ", Describe(fault)));
                   undo();
                 });
  }
  void Pause(const Fault& fault, int Slot::*what) {
    ++(slots_[fault.a].*what);
    ApplyPauses(fault.a);
    Later(fault, [this, i = fault.a, what] {
      --(slots_[i].*what);
      ApplyPauses(i);
    });
  }
  void PauseRouter(const Fault& fault) {
    if (router_loop_.paused()) return;
    router_loop_.Pause();
    chaos_.RunAt(world_.Now() + fault.duration, [this] { router_loop_.Resume(); });
  }
  void Strike(const Fault& fault) {
    if (healed_ || slots_[fault.a].process == nullptr) return;
    Trace(Describe(fault));
    switch (fault.kind) {
      case Fault::Kind::kPauseProcess:
        return Pause(fault, &Slot::whole);
      case Fault::Kind::kPauseEngine:
        return Pause(fault, &Slot::engine);
      case Fault::Kind::kPauseMove:
        return Pause(fault, &Slot::move);
      case Fault::Kind::kPauseRouter:
        return PauseRouter(fault);
      case Fault::Kind::kCrash:
        ++counts_.crashes;
        Stop(fault.a);
        return Later(fault, [this, i = fault.a] { StartProcess(i); });
      case Fault::Kind::kSlow:
        slots_[fault.a].process->set_slowdown(10);
        return Later(fault, [this, i = fault.a] { slots_[i].process->set_slowdown(1); });
      case Fault::Kind::kCutCalls:
        return CutCalls(fault);
      case Fault::Kind::kCutPages:
      case Fault::Kind::kClogPages:
      case Fault::Kind::kDisconnect:
        return StrikePages(fault);
    }
  }
  void CutCalls(const Fault& fault) {
    std::vector<Toward> cut = {fault.forward ? Toward::kWorker : Toward::kRouter};
    if (fault.both) cut = {Toward::kWorker, Toward::kRouter};
    for (Toward toward : cut) net_.Cut(fault.a, toward);
    Later(fault, [this, i = fault.a, cut] {
      for (Toward toward : cut) net_.Mend(i, toward);
    });
  }
  void StrikePages(const Fault& fault) {
    if (slots_[fault.b].process == nullptr) return;
    using transport::NodeId;
    const NodeId a = slots_[fault.a].process->node();
    const NodeId b = slots_[fault.b].process->node();
    if (fault.kind == Fault::Kind::kDisconnect) return network_.Disconnect(a, b);
    std::vector<std::pair<NodeId, NodeId>> links = {{a, b}};
    if (fault.both) links.emplace_back(b, a);
    const bool clog = fault.kind == Fault::Kind::kClogPages;
    for (const auto& [from, to] : links) clog ? network_.Clog(from, to) : network_.Cut(from, to);
    Later(fault, [this, clog, links] {
      for (const auto& [from, to] : links)
        clog ? network_.Unclog(from, to) : network_.Mend(from, to);
    });
    // What is cut for long is noticed by the transports.
    if (!clog && fault.duration > s_.rpc.keepalive) {
      chaos_.RunAt(world_.Now() + s_.rpc.keepalive, [this, a, b] { network_.Disconnect(a, b); });
    }
  }

  void Heal() {
    Trace("heal");
    healed_ = true;
    router_loop_.Resume();
    s_.rpc = RpcPlan();
    s_.link_to_prefill.reset();
    net_.SetPlan(s_.rpc);
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].process == nullptr) StartProcess(i);
      slots_[i].whole = slots_[i].engine = slots_[i].move = 0;
      slots_[i].process->set_slowdown(1);
      slots_[i].process->DisarmPoints();
      ApplyPauses(i);
      net_.Mend(i, Toward::kWorker);
      net_.Mend(i, Toward::kRouter);
    }
    transport::LinkPlan good;
    good.delay_max = absl::Milliseconds(2);
    for (const Slot& a : slots_) {
      for (const Slot& b : slots_) {
        if (&a == &b) continue;
        network_.Mend(a.process->node(), b.process->node());
        network_.Unclog(a.process->node(), b.process->node());
        network_.SetLink(a.process->node(), b.process->node(), good);
      }
    }
  }

  bool RouterKnowsAll() const {
    return std::all_of(slots_.begin(), slots_.end(), [this](const Slot& slot) {
      const cluster::WorkerDescription& description = slot.process->description();
      return router_.Knows(description.id, description.incarnation);
    });
  }

  // A healed cluster serves.
  void Probe() {
    RunTo(world_.Now() + absl::Seconds(10), [this] { return RouterKnowsAll(); });
    if (!violation_.empty()) return;
    if (!RouterKnowsAll()) return Violate("the router does not know all workers");
    std::vector<size_t> probes;
    for (size_t i = 0; i < kProbes; ++i) {
      SimRequest probe;
      probe.deadline = absl::Seconds(60);
      probe.prompt.assign(20 + 10 * i, static_cast<request::TokenId>(i));
      probe.sampling.temperature = 0;
      probe.sampling.max_tokens = 10;
      probes.push_back(Submit(probe));
    }
    RunTo(world_.Now() + absl::Seconds(90), [this] { return router_.running() == 0; });
    for (size_t i : probes) {
      const SimOutcome& outcome = *router_.outcomes()[i];
      if (!outcome.status.ok()) {
        Violate(absl::StrCat("request ", i,
                             ", sent after everything had healed: ", outcome.status.ToString()));
      }
    }
  }

  void CheckOutcomes() {
    for (size_t i = 0; i < router_.outcomes().size() && violation_.empty(); ++i) {
      const SimOutcome& outcome = *router_.outcomes()[i];
      const std::string problem = Judge(outcome);
      if (!problem.empty())
        Violate(absl::StrCat("request ", i, " ", problem, ": ", outcome.status.ToString()));
    }
  }
  std::string Judge(const SimOutcome& outcome) const {
    if (outcome.ends != 1) return absl::StrCat("ended ", outcome.ends, " times");
    if (outcome.ended > outcome.due + s_.router_pause_max + absl::Milliseconds(1)) {
      return absl::StrCat("ended ", absl::FormatDuration(outcome.ended - outcome.due),
                          " after its deadline");
    }
    switch (outcome.status.code()) {
      case absl::StatusCode::kOk:
        return "";
      case absl::StatusCode::kCancelled:
        return outcome.left ? "" : "was cancelled by nobody";
      case absl::StatusCode::kDeadlineExceeded:
        if (outcome.ended < outcome.due && outcome.summary.gave_up != cluster::GaveUp::kTooLate)
          return "missed its deadline before it came";
        break;
      // Losing workers or the race for pages often enough ends a request; in a calm world nobody
      // loses.
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kAborted:
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kResourceExhausted:
        break;
      default:
        return "ended with what only a bug explains";
    }
    const bool hurried =
        outcome.status.code() == absl::StatusCode::kDeadlineExceeded && outcome.hurried;
    return s_.calm && !hurried ? "failed in a calm world" : "";
  }

  // Everything that was held for requests is given back.
  void Drain() {
    std::string held;
    const absl::Time from = world_.Now();
    const absl::Time until = from + kDrainMax;
    while (violation_.empty() && world_.Now() < until) {
      RunTo(world_.Now() + absl::Milliseconds(500), [] { return false; });
      counts_.drain_max = world_.Now() - from;
      held = router_.CheckIdle();
      for (size_t i = 0; i < slots_.size() && held.empty(); ++i) {
        const std::string problem = slots_[i].process->CheckIdle();
        if (!problem.empty()) held = absl::StrCat("worker ", i, ": ", problem);
      }
      if (held.empty()) return;
    }
    if (!held.empty()) Violate(absl::StrCat("not drained: ", held));
  }

  void CheckInvariants() {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].process == nullptr) continue;
      const std::string problem = slots_[i].process->CheckInvariants();
      if (!problem.empty()) Violate(absl::StrCat("worker ", i, ": ", problem));
      if (slots_[i].process->pool().counts().quarantined > 0) ++counts_.quarantines;
    }
  }

  void Count(SimProcess& process) {
    const handoff::MoveCounters moves = process.worker().counters();
    counts_.transfers += moves.transfers_completed;
    counts_.transfers_failed += moves.transfers_failed;
    counts_.lease_expiries += moves.lease_expiries;
    counts_.stale_messages += moves.stale_messages;
    counts_.duplicate_messages += moves.duplicate_messages;
    counts_.evictions += process.index().stats().evictions;
    for (const char* point : kFaultPoints)
      counts_.points[point] += process.points().HitCount(point);
  }
  SimResult Result() {
    uint64_t hash = world_.log_hash();
    counts_.events = world_.events();
    for (const auto& outcome : router_.outcomes()) {
      const std::vector<request::TokenId>& tokens = outcome->tokens;
      hash = Hash64(tokens.data(), tokens.size() * sizeof(tokens[0]), hash);
      hash = Mix64(hash ^ static_cast<uint64_t>(outcome->status.code()));
      ++counts_.requests;
      if (outcome->status.ok()) ++counts_.ok;
      if (!outcome->status.ok()) ++counts_.errors[absl::StatusCodeToString(outcome->status.code())];
      if (outcome->summary.split) ++counts_.split;
      if (outcome->summary.usage.cached_tokens > 0) ++counts_.cached;
      if (outcome->summary.usage.recomputed_tokens > 0) ++counts_.preempted;
      counts_.migrations += outcome->summary.migrations;
      counts_.retries += std::max(outcome->summary.attempts, 1u) - 1;
    }
    return {violation_, hash, counts_};
  }

  Scenario s_;
  const SimOptions options_;
  SeededRandom random_;
  testing::SimWorld world_;
  transport::LoopbackNetwork network_;
  testing::SimLoop& chaos_;
  testing::SimLoop& router_loop_;
  RpcNet net_;
  SimRouter router_;
  const absl::Time start_;
  std::vector<Slot> slots_;
  bool healed_ = false;
  std::string violation_;
  SimCounts counts_;
};

}  // namespace

SimResult RunScenario(Scenario scenario, const SimOptions& options) {
  return SimCluster(std::move(scenario), options).Run();
}

void SimCounts::Add(const SimCounts& other) {
  events += other.events;
  requests += other.requests;
  ok += other.ok;
  split += other.split;
  cached += other.cached;
  retries += other.retries;
  migrations += other.migrations;
  crashes += other.crashes;
  transfers += other.transfers;
  transfers_failed += other.transfers_failed;
  lease_expiries += other.lease_expiries;
  stale_messages += other.stale_messages;
  duplicate_messages += other.duplicate_messages;
  quarantines += other.quarantines;
  evictions += other.evictions;
  preempted += other.preempted;
  drain_max = std::max(drain_max, other.drain_max);
  for (const auto& [name, count] : other.errors) errors[name] += count;
  for (const auto& [name, count] : other.points) points[name] += count;
}

std::string SimCounts::ToString() const {
  std::string out = absl::StrCat(events, " events, ", requests, " requests, ", ok, " ok, ", split,
                                 " split, ", cached, " with a prefix hit, ");
  absl::StrAppend(&out, retries, " retries, ", migrations, " migrations, ", preempted,
                  " recomputed, ", crashes, " crashes, ", transfers, " transfers, ",
                  transfers_failed, " failed, ");
  absl::StrAppend(&out, lease_expiries, " leases expired, ", stale_messages, " stale and ",
                  duplicate_messages, " duplicate messages, ", evictions,
                  " evictions, quarantine after ", quarantines, " events, drained in ",
                  absl::FormatDuration(drain_max));
  for (const auto& [name, count] : errors) absl::StrAppend(&out, ", ", count, " ", name);
  return out;
}

}  // namespace sluice::sim
