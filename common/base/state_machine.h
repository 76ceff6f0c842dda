// State machines as data: a table of the changes that each may make. Every change is a fault point
// whose name follows from the machine and the two states, so there is no change without one.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/fault.h"

namespace sluice {

template <typename State>
struct StateChange {
  State from;
  State to;
};

// `State` is an enum that counts from 0; `states` names its values in order.
template <typename State, size_t kStates, size_t kChanges>
struct StateMachine {
  absl::string_view name;
  std::array<absl::string_view, kStates> states;
  std::array<StateChange<State>, kChanges> changes;

  constexpr bool Allows(State from, State to) const {
    for (const StateChange<State>& change : changes) {
      if (change.from == from && change.to == to) return true;
    }
    return false;
  }
  constexpr absl::string_view NameOf(State state) const { return states[static_cast<size_t>(state)]; }
  // "machine.from_to_to": the fault point of a change.
  std::string PointOf(State from, State to) const {
    return absl::StrCat(name, ".", NameOf(from), "_to_", NameOf(to));
  }
  // Those of all changes, in the order of the table.
  std::vector<std::string> Points() const {
    std::vector<std::string> points;
    points.reserve(changes.size());
    for (const StateChange<State>& change : changes)
      points.push_back(PointOf(change.from, change.to));
    return points;
  }
};

// The state of one thing. Not thread-safe.
template <const auto& kMachine>
class StateOf {
 public:
  using State = decltype(kMachine.changes[0].from);

  // Begins in the first state of the enum.
  StateOf() = default;
  State get() const { return state_; }

  // Changes the state, unless a test has armed the change's fault point in `faults` (may be null):
  // its error is returned then and the state stays. Dies on a change that is not in the table,
  // which is our bug.
  absl::Status ChangeTo(State to, FaultInjector* faults) {
    absl::Status status = Hit(to, faults);
    if (status.ok()) state_ = to;
    return status;
  }
  // For what cannot be refused: an armed fault point can only watch, or stop the thread.
  void MustChangeTo(State to, FaultInjector* faults) {
    Hit(to, faults).IgnoreError();
    state_ = to;
  }

 private:
  absl::Status Hit(State to, FaultInjector* faults) const {
    SLUICE_CHECK(kMachine.Allows(state_, to))
        << kMachine.name << ": " << kMachine.NameOf(state_) << " to " << kMachine.NameOf(to);
    return SLUICE_FAULT(faults, kMachine.PointOf(state_, to));
  }

  State state_{};
};

}  // namespace sluice
