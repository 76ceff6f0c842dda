// What strikes a world, and how it heals.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_cluster_impl.h"

namespace sluice::sim {

void SimCluster::ApplyPauses(size_t i) {
  Slot& slot = slots_[i];
  slot.process->SetPaused(slot.whole > 0, slot.engine > 0, slot.move > 0);
  for (const auto& net : nets_) net->SetPaused(i, slot.whole > 0);
}

// Undoes a fault after its time, unless the process is another or everything has healed.
void SimCluster::Later(const Fault& fault, std::function<void()> undo) {
  chaos_.RunAt(world_.Now() + fault.duration,
               [this, &fault, changes = slots_[fault.a].changes, undo = std::move(undo)] {
                 if (healed_ || slots_[fault.a].changes != changes) return;
                 if (Tells()) Tell(absl::StrCat("over: ", Describe(fault)));
                 undo();
               });
}

void SimCluster::Pause(const Fault& fault, int Slot::*what) {
  ++(slots_[fault.a].*what);
  ApplyPauses(fault.a);
  Later(fault, [this, i = fault.a, what] {
    --(slots_[i].*what);
    ApplyPauses(i);
  });
}

void SimCluster::PauseRouter(const Fault& fault) {
  const size_t number = fault.a % routers_.size();
  if (routers_[number] == nullptr || routers_[number]->loop().paused()) return;
  routers_[number]->SetPaused(true);
  chaos_.RunAt(world_.Now() + fault.duration, [this, number, life = router_slots_[number].life] {
    if (router_slots_[number].life == life && routers_[number] != nullptr)
      routers_[number]->SetPaused(false);
  });
}

void SimCluster::CrashRouter(const Fault& fault) {
  const size_t number = fault.a % routers_.size();
  if (routers_[number] == nullptr) return;
  ++counts_.router_crashes;
  StopRouter(number);
  chaos_.RunAt(world_.Now() + fault.duration, [this, &fault, number] {
    if (routers_[number] != nullptr) return;
    if (Tells()) Tell(absl::StrCat("over: ", Describe(fault)));
    StartRouter(number);
  });
}

void SimCluster::Strike(const Fault& fault) {
  if (healed_) return;
  const bool of_router =
      fault.kind == Fault::Kind::kPauseRouter || fault.kind == Fault::Kind::kCrashRouter;
  if (!of_router && slots_[fault.a].process == nullptr) return;
  if (Tells()) Tell(Describe(fault));
  switch (fault.kind) {
    case Fault::Kind::kPauseProcess:
      return Pause(fault, &Slot::whole);
    case Fault::Kind::kPauseEngine:
      return Pause(fault, &Slot::engine);
    case Fault::Kind::kPauseMove:
      return Pause(fault, &Slot::move);
    case Fault::Kind::kPauseRouter:
      return PauseRouter(fault);
    case Fault::Kind::kCrashRouter:
      return CrashRouter(fault);
    case Fault::Kind::kCrash:
      ++counts_.crashes;
      Stop(fault.a);
      return Later(fault, [this, i = fault.a] { StartProcess(i); });
    case Fault::Kind::kSlow:
      slots_[fault.a].process->set_slowdown(10);
      return Later(fault, [this, i = fault.a] { slots_[i].process->set_slowdown(1); });
    case Fault::Kind::kLoseAPage:
      if (slots_[fault.a].process->LoseAPage()) ++counts_.lost_pages;
      return;
    case Fault::Kind::kCutCalls:
      return CutCalls(fault);
    case Fault::Kind::kCutPages:
    case Fault::Kind::kClogPages:
    case Fault::Kind::kDisconnect:
      return StrikePages(fault);
  }
}

void SimCluster::CutCalls(const Fault& fault) {
  std::vector<Toward> cut = {fault.forward ? Toward::kWorker : Toward::kRouter};
  if (fault.both) cut = {Toward::kWorker, Toward::kRouter};
  for (const auto& net : nets_) {
    for (Toward toward : cut) net->Cut(fault.a, toward);
  }
  Later(fault, [this, i = fault.a, cut] {
    for (const auto& net : nets_) {
      for (Toward toward : cut) net->Mend(i, toward);
    }
  });
}

void SimCluster::StrikePages(const Fault& fault) {
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
    for (const auto& [from, to] : links) clog ? network_.Unclog(from, to) : network_.Mend(from, to);
  });
  // What is cut for long is noticed by the transports.
  if (!clog && fault.duration > s_.rpc.keepalive) {
    chaos_.RunAt(world_.Now() + s_.rpc.keepalive, [this, a, b] { network_.Disconnect(a, b); });
  }
}

void SimCluster::Heal() {
  if (Tells()) Tell("heal");
  healed_ = true;
  s_.rpc = RpcPlan();
  s_.link_to_prefill.reset();
  for (const auto& net : nets_) net->SetPlan(s_.rpc);
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].process == nullptr) StartProcess(i);
    slots_[i].whole = slots_[i].engine = slots_[i].move = 0;
    slots_[i].process->Heal();
    ApplyPauses(i);
    for (const auto& net : nets_) {
      net->Mend(i, Toward::kWorker);
      net->Mend(i, Toward::kRouter);
    }
  }
  for (size_t i = 0; i < routers_.size(); ++i) {
    if (routers_[i] == nullptr) StartRouter(i);
    routers_[i]->SetPaused(false);
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

}  // namespace sluice::sim
