#include "tests/sim/sim_manager.h"

#include <optional>
#include <utility>

#include "base/check.h"
#include "rpc/domain.h"

namespace sluice::sim {

using cache_manager::ConnectionId;

SimManager::SimManager(testing::SimLoop& loop, absl::Duration heartbeat,
                       std::function<void(const v1::WorkerView&)> publish)
    : loop_(loop), publish_(std::move(publish)), registry_(heartbeat), blocks_(1 << 16) {}

bool SimManager::OnHeartbeat(SimHeartbeat heartbeat) {
  const absl::Time now = loop_.clock().Now();
  const Incarnation incarnation(heartbeat.info->incarnation());
  if (!connections_.contains(incarnation)) {
    const ConnectionId connection(++last_connection_);
    std::optional<ConnectionId> replaced;
    // Refused while another process of that name seems to live; it tries again.
    if (!registry_.Attach(connection, *heartbeat.info, now, &replaced).ok()) return false;
    if (replaced) {
      std::erase_if(connections_, [&](const auto& entry) { return entry.second == *replaced; });
    }
    connections_[incarnation] = connection;
  }
  registry_.Heartbeat(connections_[incarnation], heartbeat.state, now);
  const WorkerId id(heartbeat.info->worker_id());
  bool snapshot_wanted = false;
  if (heartbeat.snapshot) {
    blocks_.ApplySnapshot(id, incarnation, heartbeat.sequence, heartbeat.blocks);
  } else {
    snapshot_wanted = blocks_.ApplyChanges(id, incarnation, heartbeat.sequence, heartbeat.blocks) ==
                      cluster::BlockIndex::Applied::kNeedSnapshot;
  }
  Publish();
  return snapshot_wanted;
}

void SimManager::OnWorkerGone(Incarnation incarnation) {
  const auto found = connections_.find(incarnation);
  if (found != connections_.end()) Drop(found->second);
}

void SimManager::Tick() {
  for (const ConnectionId connection : registry_.Silent(loop_.clock().Now())) Drop(connection);
}

void SimManager::Drop(ConnectionId connection) {
  const std::optional<cache_manager::Worker> worker = registry_.Detach(connection);
  SLUICE_CHECK(worker.has_value());
  connections_.erase(worker->incarnation);
  blocks_.RemoveWorker(worker->id);
  Publish();
}

void SimManager::Publish() {
  if (std::exchange(published_, registry_.version()) == registry_.version()) return;
  publish_(registry_.View());
}

bool SimManager::Knows(Incarnation incarnation) const { return connections_.contains(incarnation); }

v1::LookupReply SimManager::Lookup(const v1::LookupRequest& request) const {
  v1::LookupReply reply;
  for (const v1::KeyList& list : request.lists()) {
    std::vector<kv::BlockKey> keys;
    for (const std::string& bytes : list.keys()) keys.emplace_back(*rpc::ParseId128(bytes, "key"));
    for (const cluster::WorkerHit& hit : blocks_.Lookup(keys)) {
      v1::WorkerHit* out = reply.add_hits();
      out->set_worker_id(hit.worker.value());
      out->set_incarnation(hit.incarnation.value());
      out->set_blocks(hit.blocks);
    }
  }
  return reply;
}

}  // namespace sluice::sim
