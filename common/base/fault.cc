#include "base/fault.h"

#include <utility>

namespace sluice {

uint64_t FaultInjector::Arm(absl::string_view point, Action action, absl::string_view subject) {
  MutexLock lock(mutex_);
  Point& entry = points_[std::string(point)];
  entry.action = std::make_shared<Action>(std::move(action));
  entry.subject = std::string(subject);
  return entry.hits;
}

void FaultInjector::Disarm(absl::string_view point) {
  MutexLock lock(mutex_);
  const auto found = points_.find(std::string(point));
  if (found != points_.end()) found->second.action = nullptr;
}

absl::Status FaultInjector::Hit(absl::string_view point, absl::string_view subject) {
  std::shared_ptr<Action> action;
  {
    MutexLock lock(mutex_);
    Point& entry = points_[std::string(point)];
    ++entry.hits;
    if (entry.subject.empty() || entry.subject == subject) action = entry.action;
  }
  return action == nullptr ? absl::OkStatus() : (*action)();
}

uint64_t FaultInjector::HitCount(absl::string_view point) const {
  MutexLock lock(mutex_);
  const auto found = points_.find(std::string(point));
  return found == points_.end() ? 0 : found->second.hits;
}

}  // namespace sluice
