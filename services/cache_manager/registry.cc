#include "services/cache_manager/registry.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rpc/domain.h"

namespace sluice::cache_manager {
namespace {

bool SameState(const v1::WorkerEntry& entry, const v1::Heartbeat& heartbeat) {
  return entry.ready() == heartbeat.ready() && entry.draining() == heartbeat.draining() &&
         entry.load().SerializeAsString() == heartbeat.load().SerializeAsString();
}

std::string Describe(const v1::WorkerInfo& info) {
  return absl::StrCat("the process at ", info.grpc_address(), " (incarnation ",
                      absl::Hex(info.incarnation()), ")");
}

}  // namespace

absl::Status Registry::Attach(ConnectionId connection, const v1::WorkerInfo& info, absl::Time now,
                              std::optional<ConnectionId>* replaced) {
  SLUICE_RETURN_IF_ERROR(rpc::ToDescription(info).status());
  if (connections_.contains(connection)) {
    return absl::AlreadyExistsError(
        absl::StrCat("worker ", info.worker_id(), " attached twice on one stream"));
  }
  const WorkerId id(info.worker_id());
  const auto known = entries_.find(id);
  if (known != entries_.end()) {
    const v1::WorkerInfo& holder = known->second.message.info();
    // Two that took the name from each other in turn would both be unusable.
    if (holder.incarnation() != info.incarnation() && now - known->second.heard <= silence_max_) {
      return absl::AlreadyExistsError(absl::StrCat(
          "two workers are named ", info.worker_id(), ": ", Describe(holder), " has the name, ",
          Describe(info), " is refused; give one of them another service.name"));
    }
    *replaced = known->second.connection;
    connections_.erase(known->second.connection);
  }
  Entry entry;
  entry.connection = connection;
  *entry.message.mutable_info() = info;
  entry.heard = now;
  entries_[id] = std::move(entry);
  connections_[connection] = id;
  ++version_;
  return absl::OkStatus();
}

bool Registry::Heartbeat(ConnectionId connection, const v1::Heartbeat& heartbeat, absl::Time now) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return false;
  Entry& entry = entries_[found->second];
  entry.heard = now;
  if (entry.reported && SameState(entry.message, heartbeat)) return true;
  entry.reported = true;
  entry.message.set_ready(heartbeat.ready());
  entry.message.set_draining(heartbeat.draining());
  *entry.message.mutable_load() = heartbeat.load();
  ++version_;
  return true;
}

std::optional<ConnectionId> Registry::ConnectionOf(const WorkerId& worker) const {
  const auto found = entries_.find(worker);
  if (found == entries_.end()) return std::nullopt;
  return found->second.connection;
}

std::optional<Worker> Registry::Find(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return std::nullopt;
  return Worker{found->second,
                Incarnation(entries_.at(found->second).message.info().incarnation())};
}

std::optional<Worker> Registry::Detach(ConnectionId connection) {
  const std::optional<Worker> worker = Find(connection);
  if (!worker) return std::nullopt;
  connections_.erase(connection);
  entries_.erase(worker->id);
  ++version_;
  return worker;
}

std::vector<ConnectionId> Registry::Silent(absl::Time now) const {
  std::vector<ConnectionId> silent;
  for (const auto& [id, entry] : entries_) {
    if (now - entry.heard > silence_max_) silent.push_back(entry.connection);
  }
  return silent;
}

v1::WorkerView Registry::View() const {
  v1::WorkerView view;
  view.set_version(version_);
  for (const auto& [id, entry] : entries_) {
    if (entry.reported) *view.add_workers() = entry.message;
  }
  return view;
}

}  // namespace sluice::cache_manager
