// The workers that are attached: who they are, how they are, when they were last heard. Plain state
// without I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "sluice/v1/cache.pb.h"

namespace sluice::cache_manager {

// One Attach stream; never reused.
using ConnectionId = StrongId<struct ConnectionIdTag, uint64_t>;

struct Worker {
  WorkerId id;
  Incarnation incarnation;
};

// Owned by one loop; not thread-safe. A worker is there from its attach until its connection ends
// or no heartbeat came for three periods; until then its name is its own.
class Registry {
 public:
  explicit Registry(absl::Duration heartbeat) : silence_max_(3 * heartbeat) {}

  // Registers a worker. `*replaced` gets an earlier connection that should be closed: the same
  // process's, or a silent one's. Errors: INVALID_ARGUMENT for an info that makes no sense;
  // ALREADY_EXISTS when the connection has attached before, or another process of that name is
  // alive.
  absl::Status Attach(ConnectionId connection, const v1::WorkerInfo& info, absl::Time now,
                      std::optional<ConnectionId>* replaced);
  // False when the connection has not attached or was replaced.
  bool Heartbeat(ConnectionId connection, const v1::Heartbeat& heartbeat, absl::Time now);
  // The connection of the worker that has the name now.
  std::optional<ConnectionId> ConnectionOf(const WorkerId& worker) const;
  // The worker of a connection.
  std::optional<Worker> Find(ConnectionId connection) const;
  // The worker that is gone now, if the connection was one's.
  std::optional<Worker> Detach(ConnectionId connection);
  // Connections that were silent for too long; Detach them.
  std::vector<ConnectionId> Silent(absl::Time now) const;

  // All workers that have said how they are, in order of id: one that is on its way back to a new
  // manager must not look unready. The version grows with every change, loads included.
  v1::WorkerView View() const;
  uint64_t version() const { return version_; }

 private:
  struct Entry {
    ConnectionId connection;
    v1::WorkerEntry message;
    absl::Time heard;
    bool reported = false;  // a heartbeat came
  };

  const absl::Duration silence_max_;
  uint64_t version_ = 1;
  std::map<WorkerId, Entry> entries_;
  std::map<ConnectionId, WorkerId> connections_;
};

}  // namespace sluice::cache_manager
