// What is under way on a loopback network, as its time comes.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/loopback_state.h"

namespace sluice::transport {

absl::Time LoopbackState::NextEventTime() const {
  return events_.empty() ? absl::InfiniteFuture() : events_.begin()->first.first;
}

void LoopbackState::AdvanceTo(absl::Time now) {
  while (!events_.empty() && events_.begin()->first.first <= now) {
    Event event = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    Run(std::move(event), now);
  }
}

void LoopbackState::Run(Event event, absl::Time now) {
  if (event.from != NodeId()) {
    const auto it = links_.find({event.from, event.to});
    if (it != links_.end() && it->second.clogged) {
      it->second.held.push_back(std::move(event));
      return;
    }
    if (IsCut(event.from, event.to)) {
      if (event.kind == Event::Kind::kMessage && !event.duplicate) {
        Uncount(event.receiver.connection, 1 - event.receiver.side, *event.message);
      }
      return;
    }
  }
  switch (event.kind) {
    case Event::Kind::kMessage:
      Deliver(std::move(event), now);
      break;
    case Event::Kind::kDown:
      if (connections_.contains(event.receiver.connection)) CloseEnd(event.receiver, event.status);
      break;
    case Event::Kind::kFetchHalf:
      CopyHalf(event, now);
      break;
    case Event::Kind::kFetchDone:
      FinishFetch(event.fetch, event.status);
      break;
  }
}

void LoopbackState::Deliver(Event event, absl::Time now) {
  const auto it = connections_.find(event.receiver.connection);
  if (it == connections_.end()) return;
  Connection& c = it->second;
  Side& own = c.sides[event.receiver.side];
  Node* node = FindNode(own.node);
  // As a reset: whoever missed the news of the close learns it from the answer to what it sends.
  if (node != nullptr && !own.open && !c.broken && c.sides[1 - event.receiver.side].open) {
    ScheduleDown(End{event.receiver.connection, 1 - event.receiver.side},
                 absl::UnavailableError("the peer had closed the connection"), true, now);
  }
  const bool full =
      node != nullptr && own.endpoint == EndpointId() && node->endpoints >= limits_.endpoints_max;
  if (full && own.open) {
    own.open = false;
    const End sender{event.receiver.connection, 1 - event.receiver.side};
    ScheduleDown(sender, absl::ResourceExhaustedError("the peer has no endpoint left"), true, now);
  }
  if (node == nullptr || full || !own.open || c.broken) {
    if (!event.duplicate) Uncount(it->first, 1 - event.receiver.side, *event.message);
    return;
  }
  if (own.endpoint == EndpointId()) AssignEndpoint(it->first, event.receiver.side);
  LoopbackInbound inbound;
  inbound.kind = LoopbackInbound::Kind::kMessage;
  inbound.endpoint = own.endpoint;
  inbound.message = std::move(event.message);
  inbound.connection = event.duplicate ? 0 : it->first;
  inbound.sender = 1 - event.receiver.side;
  Push(*node, std::move(inbound));
}

// Reads the holder's memory as it is at this moment, whoever owns it by now.
void LoopbackState::CopyHalf(const Event& event, absl::Time now) {
  const auto it = fetches_.find(event.fetch);
  if (it == fetches_.end()) return;
  Fetch& fetch = it->second;
  const auto connection = connections_.find(event.receiver.connection);
  const bool gone = connection == connections_.end() || connection->second.broken;
  if (gone || FindNode(fetch.holder) == nullptr || fetch.source == nullptr)
    return;  // ends with the connection
  const size_t begin = event.half == 0 ? 0 : fetch.split;
  const size_t end = event.half == 0 ? fetch.split : fetch.local.size();
  if (end > begin) std::memcpy(fetch.local.data() + begin, fetch.source + begin, end - begin);
  if (++fetch.halves_read < 2) return;
  const LinkPlan& plan = PlanOf(fetch.holder, fetch.by);
  const absl::Status status =
      fetch.fails ? absl::UnavailableError("the network failed this fetch") : absl::OkStatus();
  if (!Chance(plan.fetch_late)) return FinishFetch(event.fetch, status);
  Event done;
  done.kind = Event::Kind::kFetchDone;
  done.fetch = event.fetch;
  done.status = status;
  Schedule(now + Draw(absl::ZeroDuration(), plan.fetch_late_max), std::move(done));
}

void LoopbackState::FinishFetch(FetchId id, absl::Status status) {
  const auto it = fetches_.find(id);
  if (it == fetches_.end()) return;
  LoopbackInbound inbound;
  inbound.kind = LoopbackInbound::Kind::kFetchDone;
  inbound.endpoint = it->second.endpoint;
  inbound.fetch = id;
  inbound.status = std::move(status);
  Node* node = FindNode(it->second.by);
  fetches_.erase(it);
  if (node != nullptr) Push(*node, std::move(inbound));
}

void LoopbackState::CloseEnd(End end, const absl::Status& reason) {
  Connection& c = connections_.at(end.connection);
  Side& own = c.sides[end.side];
  if (own.open) {
    own.open = false;
    Node* node = FindNode(own.node);
    if (own.endpoint != EndpointId() && node != nullptr) {
      std::vector<FetchId> outstanding;
      for (const auto& [id, fetch] : fetches_) {
        if (fetch.endpoint == own.endpoint) outstanding.push_back(id);
      }
      for (const FetchId id : outstanding) FinishFetch(id, reason);
      LoopbackInbound inbound;
      inbound.kind = LoopbackInbound::Kind::kPeerDown;
      inbound.endpoint = own.endpoint;
      inbound.status = reason;
      Push(*node, std::move(inbound));
    }
    ends_.erase(own.endpoint);
  }
  if (!c.sides[1 - end.side].open) connections_.erase(end.connection);
}

void LoopbackState::Push(Node& node, LoopbackInbound inbound) {
  node.inbox.push_back(std::move(inbound));
  Wake(node);
}

void LoopbackState::Wake(const Node& node) {
  if (node.event_fd < 0) return;
  const uint64_t one = 1;
  // EAGAIN means the counter is saturated: the loop is awake then anyway.
  if (write(node.event_fd, &one, sizeof(one)) < 0) SLUICE_CHECK(errno == EAGAIN);
}

void LoopbackState::Uncount(uint64_t connection, size_t sender, const LoopbackMessage& message) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  --it->second.sides[sender].queued_messages;
  it->second.sides[sender].queued_bytes -= message.bytes();
}

std::optional<LoopbackInbound> LoopbackState::PopInbound(NodeId id) {
  Node* node = FindNode(id);
  if (node == nullptr || node->paused || node->inbox.empty()) return std::nullopt;
  LoopbackInbound inbound = std::move(node->inbox.front());
  node->inbox.pop_front();
  switch (inbound.kind) {
    case LoopbackInbound::Kind::kMessage:
      if (inbound.connection != 0) Uncount(inbound.connection, inbound.sender, *inbound.message);
      break;
    case LoopbackInbound::Kind::kFetchDone:
      --node->fetches;
      break;
    case LoopbackInbound::Kind::kPeerDown:
      --node->endpoints;
      break;
  }
  return inbound;
}

size_t LoopbackState::InboundCount(NodeId id) const {
  const auto it = nodes_.find(id);
  return it == nodes_.end() || it->second->dead || it->second->paused ? 0
                                                                      : it->second->inbox.size();
}

}  // namespace sluice::transport
