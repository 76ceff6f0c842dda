// Compiled twice by a test, with and without fault points: a step and a change of state.
#include "base/fault.h"
#include "base/state_machine.h"

namespace sluice {

enum class ProbeState { kAsleep, kAwake };
inline constexpr StateMachine<ProbeState, 2, 1> kProbeMachine = {
    "probe", {"asleep", "awake"}, {{{ProbeState::kAsleep, ProbeState::kAwake}}}};

absl::Status ProbeFaultPoints(FaultInjector* faults);
absl::Status ProbeFaultPoints(FaultInjector* faults) {
  StateOf<kProbeMachine> state;
  absl::Status status = SLUICE_FAULT(faults, "probe.step");
  if (status.ok()) status = state.ChangeTo(ProbeState::kAwake, faults);
  return status;
}

}  // namespace sluice
