// The cache-manager: the real registry and block index, on one simulated thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cluster/block_index.h"
#include "kv/prefix_index.h"
#include "services/cache_manager/registry.h"
#include "sluice/v1/cache.pb.h"
#include "tests/support/sim_loop.h"

namespace sluice::sim {

// What a worker tells now and then.
struct SimHeartbeat {
  std::shared_ptr<const v1::WorkerInfo> info;
  v1::Heartbeat state;
  bool snapshot = false;
  uint64_t sequence = 0;  // of the first change, or of the last one in the snapshot
  std::vector<kv::BlockChange> blocks;
};

// Owned by its loop.
class SimManager {
 public:
  // `publish` gets every new view.
  SimManager(testing::SimLoop& loop, absl::Duration heartbeat,
             std::function<void(const v1::WorkerView&)> publish);

  // Returns true if the worker should send a snapshot of its blocks.
  bool OnHeartbeat(SimHeartbeat heartbeat);
  // The worker's stream has ended.
  void OnWorkerGone(Incarnation incarnation);
  // Called now and then: drops workers that are silent.
  void Tick();
  bool Knows(Incarnation incarnation) const;
  v1::WorkerView View() const { return registry_.View(); }
  v1::LookupReply Lookup(const v1::LookupRequest& request) const;

 private:
  void Drop(cache_manager::ConnectionId connection);
  void Publish();

  testing::SimLoop& loop_;
  const std::function<void(const v1::WorkerView&)> publish_;
  cache_manager::Registry registry_;
  cluster::BlockIndex blocks_;
  std::map<Incarnation, cache_manager::ConnectionId> connections_;
  uint64_t last_connection_ = 0;
  uint64_t published_ = 0;
};

}  // namespace sluice::sim
