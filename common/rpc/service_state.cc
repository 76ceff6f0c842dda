#include "rpc/service_state.h"

#include <utility>

#include "base/check.h"

namespace sluice::rpc {

InFlight::InFlight(InFlight&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}

InFlight& InFlight::operator=(InFlight&& other) noexcept {
  if (this != &other) {
    if (state_ != nullptr) state_->End();
    state_ = std::exchange(other.state_, nullptr);
  }
  return *this;
}

InFlight::~InFlight() {
  if (state_ != nullptr) state_->End();
}

void ServiceState::SetReady(bool ready, absl::string_view missing) {
  MutexLock announce(announce_);
  bool now = false;
  {
    MutexLock lock(mutex_);
    const bool before = ready_ && !draining_;
    ready_ = ready;
    missing_ = std::string(missing);
    now = ready_ && !draining_;
    if (now == before) return;
  }
  if (changed_) changed_(now);
}

bool ServiceState::ready() const {
  MutexLock lock(mutex_);
  return ready_ && !draining_;
}

std::string ServiceState::why_not_ready() const {
  MutexLock lock(mutex_);
  if (draining_) return "draining";
  return ready_ ? "" : missing_;
}

std::optional<InFlight> ServiceState::Admit() {
  MutexLock lock(mutex_);
  if (draining_) return std::nullopt;
  ++in_flight_;
  return InFlight(this);
}

uint32_t ServiceState::in_flight() const {
  MutexLock lock(mutex_);
  return in_flight_;
}

void ServiceState::End() {
  MutexLock lock(mutex_);
  SLUICE_CHECK(in_flight_ > 0);
  if (--in_flight_ == 0) changed_cv_.NotifyAll();
}

bool ServiceState::BeginDrain() {
  MutexLock announce(announce_);
  bool was_ready = false;
  {
    MutexLock lock(mutex_);
    if (draining_) return false;
    draining_ = true;
    was_ready = ready_;
  }
  if (was_ready && changed_) changed_(false);
  // Only now: who waits for the drain goes on to destroy what the callback uses.
  MutexLock lock(mutex_);
  drain_announced_ = true;
  changed_cv_.NotifyAll();
  return true;
}

bool ServiceState::draining() const {
  MutexLock lock(mutex_);
  return draining_;
}

bool ServiceState::WaitIdle(absl::Duration timeout) {
  MutexLock lock(mutex_);
  while (in_flight_ > 0) {
    // Woken only when nothing is in flight, so one timeout is the whole timeout.
    if (!changed_cv_.WaitFor(mutex_, timeout)) break;
  }
  return in_flight_ == 0;
}

void ServiceState::WaitForDrain() {
  MutexLock lock(mutex_);
  while (!drain_announced_) changed_cv_.Wait(mutex_);
}

}  // namespace sluice::rpc
