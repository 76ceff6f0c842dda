// The life of a process as its clients see it: starting, ready, draining, stopped; and the requests
// in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace sluice::rpc {

class ServiceState;

// One request in flight; dropping it ends the request. Move-only, may outlive its handler but not
// the ServiceState.
class InFlight {
 public:
  InFlight() = default;
  InFlight(InFlight&& other) noexcept;
  InFlight& operator=(InFlight&& other) noexcept;
  ~InFlight();

 private:
  friend class ServiceState;
  explicit InFlight(ServiceState* state) : state_(state) {}
  ServiceState* state_ = nullptr;
};

// Thread-safe.
class ServiceState {
 public:
  // Everything that admission needs is there, or what is missing. Draining wins over it.
  void SetReady(bool ready, absl::string_view missing = "starting");
  bool ready() const;
  // "starting", "draining" or what is missing; empty when ready.
  std::string why_not_ready() const;

  // Called after every change of ready(), in order, on the thread that caused it; must not cause
  // another. Set before the state is shared.
  void OnReadyChanged(absl::AnyInvocable<void(bool ready)> changed) {
    changed_ = std::move(changed);
  }

  // Empty while draining. Not ready is no reason to refuse: readiness is advice for those who
  // choose.
  std::optional<InFlight> Admit();
  uint32_t in_flight() const;

  // Stops admission. Returns false if that had begun before. What OnReadyChanged set has returned
  // by then, either way.
  bool BeginDrain();
  bool draining() const;
  // Waits until nothing is in flight, at most `timeout`. Returns whether that was reached.
  bool WaitIdle(absl::Duration timeout);
  // Waits until BeginDrain was called and has told.
  void WaitForDrain();

 private:
  friend class InFlight;
  void End();

  Mutex announce_;  // held while a change is made and told; taken before mutex_
  mutable Mutex mutex_;
  CondVar changed_cv_;
  bool ready_ SLUICE_GUARDED_BY(mutex_) = false;
  std::string missing_ SLUICE_GUARDED_BY(mutex_) = "starting";
  bool draining_ SLUICE_GUARDED_BY(mutex_) = false;
  bool drain_announced_ SLUICE_GUARDED_BY(mutex_) = false;
  uint32_t in_flight_ SLUICE_GUARDED_BY(mutex_) = 0;
  absl::AnyInvocable<void(bool)> changed_;
};

}  // namespace sluice::rpc
