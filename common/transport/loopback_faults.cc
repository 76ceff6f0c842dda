// What the driver does to nodes and links, and how it shows to those who are left.
#include <utility>

#include "transport/loopback_state.h"

namespace sluice::transport {

void LoopbackState::Unclog(NodeId from, NodeId to, absl::Time now) {
  Link& link = LinkOf(from, to);
  link.clogged = false;
  for (Event& event : link.held) Schedule(now, std::move(event));
  link.held.clear();
}

void LoopbackState::Disconnect(NodeId a, NodeId b, absl::Time now) {
  for (auto& [id, c] : connections_) {
    const NodeId first = c.sides[0].node;
    const NodeId second = c.sides[1].node;
    if (!(first == a && second == b) && !(first == b && second == a)) continue;
    c.broken = true;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      if (c.sides[side].open)
        ScheduleDown(End{id, side}, absl::UnavailableError("the connection broke"), false, now);
    }
  }
}

void LoopbackState::SetPaused(NodeId id, bool paused) {
  Node* node = FindNode(id);
  if (node == nullptr) return;
  node->paused = paused;
  if (!paused && !node->inbox.empty()) Wake(*node);
}

void LoopbackState::Crash(NodeId id, absl::Time now) {
  Node* node = FindNode(id);
  if (node == nullptr) return;
  node->dead = true;
  node->inbox.clear();
  absl::erase_if(fetches_, [&](const auto& entry) { return entry.second.by == id; });
  std::vector<uint64_t> over;
  for (auto& [connection, c] : connections_) {
    for (const size_t side : {size_t{0}, size_t{1}}) {
      if (c.sides[side].node != id) continue;
      c.sides[side].open = false;
      ends_.erase(c.sides[side].endpoint);
      const End peer{connection, 1 - side};
      if (c.sides[peer.side].open) {
        ScheduleDown(peer, absl::UnavailableError("the peer's process ended"), false, now);
      } else {
        over.push_back(connection);
      }
    }
  }
  for (const uint64_t connection : over) connections_.erase(connection);
}

}  // namespace sluice::transport
