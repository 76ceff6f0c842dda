// One world. Internal to sim_cluster.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "services/text_model/text_model.h"
#include "tests/sim/rpc_net.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_cluster.h"
#include "tests/sim/sim_manager.h"
#include "tests/sim/sim_process.h"
#include "tests/sim/sim_router.h"
#include "tests/sim/sim_user.h"
#include "tests/support/sim_loop.h"
#include "transport/loopback.h"

namespace sluice::sim {

class SimCluster {
 public:
  SimCluster(Scenario scenario, const SimOptions& options);
  ~SimCluster();
  SimResult Run();

 private:
  struct Slot {
    std::unique_ptr<SimProcess> process;
    uint64_t changes = 0;  // starts and stops
    // Faults in force.
    int whole = 0;
    int engine = 0;
    int move = 0;
  };

  static std::string NameOf(size_t slot);
  static size_t SlotOf(const WorkerId& id);

  // What is told, and what must never happen.
  bool Tells() const { return options_.told != nullptr; }
  void Tell(const std::string& what);
  void TellStep(const std::string& what);
  void Violate(const std::string& what);
  void RunTo(absl::Time until, const std::function<bool()>& done);

  // Networks.
  absl::Time PagesDue();
  void RunPages(absl::Time now);
  absl::Time CallsDue() const;
  void RunCalls(absl::Time now);
  RpcNet& AddNet(testing::SimLoop& loop);

  // Processes (sim_cluster.cc).
  uint32_t FlavourOf(size_t slot) const;
  void StartProcess(size_t slot);
  void Stop(size_t slot);
  void Listen(size_t slot);
  Treatment TreatmentOf(size_t slot, absl::string_view kind, const v1::MoveMessage& message);
  void SendHeartbeat(size_t slot);
  void ArmTick();
  void StartRouter(size_t number);
  void StopRouter(size_t number);
  void Publish(const v1::WorkerView& view);

  // Faults (sim_faults.cc).
  void ApplyPauses(size_t slot);
  void Later(const Fault& fault, std::function<void()> undo);
  void Pause(const Fault& fault, int Slot::*what);
  void PauseRouter(const Fault& fault);
  void CrashRouter(const Fault& fault);
  void Strike(const Fault& fault);
  void CutCalls(const Fault& fault);
  void StrikePages(const Fault& fault);
  void Heal();

  // After the faults (sim_checks.cc).
  bool EverybodyKnown() const;
  void AwaitTrust();
  void Probe();
  void CheckOutcomes();
  std::string Judge(const SimOutcome& outcome) const;
  void Drain();
  void CheckInvariants();
  void Count(SimProcess& process);
  SimResult Result();

  Scenario s_;
  const SimOptions options_;
  SeededRandom random_;
  testing::SimWorld world_;
  transport::LoopbackNetwork network_;
  testing::SimLoop& chaos_;
  testing::SimLoop& manager_loop_;
  const absl::Time start_;
  const std::shared_ptr<const services::TextModel> text_model_;
  // The manager's, then those of routers, dead ones included: the other ends still notice.
  std::vector<std::unique_ptr<RpcNet>> nets_;
  SimManager manager_;
  std::vector<std::unique_ptr<SimRouter>> routers_;
  std::vector<RouterSlot> router_slots_;
  std::vector<Slot> slots_;
  SimUsers users_;
  std::vector<SimRequest> probes_;
  std::map<std::string, uint64_t> told_;  // how often each step was told
  std::map<std::pair<size_t, std::string>, uint64_t> sent_;
  bool healed_ = false;
  std::string violation_;
  SimCounts counts_;
};

}  // namespace sluice::sim
