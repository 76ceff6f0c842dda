// The loopback network without its lock: nodes, connections, and what is under way between them.
// Internal to the folder.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "transport/loopback.h"
#include "transport/private_memory.h"
#include "transport/transport.h"

namespace sluice::transport {

struct LoopbackMessage {
  std::string header;
  std::vector<uint8_t> payload;
  size_t bytes() const { return header.size() + payload.size(); }
};

// What a node's next Poll reports.
struct LoopbackInbound {
  enum class Kind { kMessage, kFetchDone, kPeerDown };
  Kind kind = Kind::kMessage;
  EndpointId endpoint;
  std::shared_ptr<const LoopbackMessage> message;  // shared with its duplicates
  uint64_t connection = 0;  // whose queue the message counts in, 0 for a duplicate
  size_t sender = 0;        // the end that sent it
  FetchId fetch;
  absl::Status status;
};

namespace loopback_internal {

// One end of a connection. `endpoint` is 0 until the node has heard of the connection.
struct Side {
  NodeId node;
  EndpointId endpoint;
  bool open = true;
  size_t queued_messages = 0;  // sent by this side, not delivered
  size_t queued_bytes = 0;
  absl::Time last_delivery = absl::InfinitePast();  // of what this side sent in order
};

struct Connection {
  Side sides[2];
  bool broken = false;  // nothing gets through; the ends learn it after their detection delay
};

struct End {
  uint64_t connection;
  size_t side;
};

struct Fetch {
  NodeId by;
  EndpointId endpoint;
  NodeId holder;
  const uint8_t* source;
  absl::Span<uint8_t> local;
  size_t split;  // where the second half begins
  bool fails;
  int halves_read = 0;
};

struct Event {
  enum class Kind { kMessage, kDown, kFetchHalf, kFetchDone };
  Kind kind = Kind::kMessage;
  NodeId from, to;     // the link it needs; from = 0: none
  End receiver{0, 0};  // kMessage, kDown
  std::shared_ptr<const LoopbackMessage> message;
  bool duplicate = false;
  FetchId fetch;
  size_t half = 0;
  absl::Status status;
};

struct Link {
  std::optional<LinkPlan> plan;
  bool clogged = false;
  bool cut = false;
  std::vector<Event> held;
};

}  // namespace loopback_internal

// Thread-compatible; `now` never decreases from call to call. Ordered containers only: a run must
// replay from its seed.
class LoopbackState {
 public:
  LoopbackState(uint64_t seed, const Limits& limits, const LinkPlan& link);
  ~LoopbackState();

  // `event_fd` is written whenever the node has something to poll; -1 for none.
  NodeId AddNode(int event_fd);
  // Crashes the node and releases its memory.
  void RemoveNode(NodeId node, absl::Time now);

  // The verbs of Transport for one node.
  std::string AddressOf(NodeId node) const;
  absl::StatusOr<Region> AllocateRegion(NodeId node, size_t bytes);
  absl::StatusOr<EndpointId> Connect(NodeId node, absl::string_view address, absl::Time now);
  absl::Status Send(NodeId node, EndpointId to, absl::string_view header,
                    absl::Span<const uint8_t> payload, absl::Time now);
  absl::StatusOr<FetchId> StartFetch(NodeId node, EndpointId from, absl::string_view remote_key,
                                     uint64_t offset, absl::Span<uint8_t> local, absl::Time now);
  void Close(NodeId node, EndpointId endpoint, absl::Time now);
  std::optional<LoopbackInbound> PopInbound(NodeId node);
  size_t InboundCount(NodeId node) const;

  absl::Time NextEventTime() const;
  void AdvanceTo(absl::Time now);

  void SetLink(NodeId from, NodeId to, const LinkPlan& plan) { LinkOf(from, to).plan = plan; }
  void Clog(NodeId from, NodeId to) { LinkOf(from, to).clogged = true; }
  void Unclog(NodeId from, NodeId to, absl::Time now);
  void SetCut(NodeId from, NodeId to, bool cut) { LinkOf(from, to).cut = cut; }
  void Disconnect(NodeId a, NodeId b, absl::Time now);
  void SetPaused(NodeId node, bool paused);
  void Crash(NodeId node, absl::Time now);

 private:
  struct Node;
  using Side = loopback_internal::Side;
  using Connection = loopback_internal::Connection;
  using End = loopback_internal::End;
  using Fetch = loopback_internal::Fetch;
  using Event = loopback_internal::Event;
  using Link = loopback_internal::Link;

  Link& LinkOf(NodeId from, NodeId to) { return links_[{from, to}]; }
  const LinkPlan& PlanOf(NodeId from, NodeId to) const;
  bool IsCut(NodeId from, NodeId to) const;
  bool Chance(double probability) { return probability > 0 && random_.Unit() < probability; }
  absl::Duration Draw(absl::Duration min, absl::Duration max) {
    return min + (max - min) * random_.Unit();
  }

  Node* FindNode(NodeId node);
  // The end behind an endpoint of this node, or null.
  const End* FindEnd(NodeId node, EndpointId endpoint) const;
  std::optional<EndpointId> FindConnection(NodeId node, NodeId peer);
  EndpointId AssignEndpoint(uint64_t connection, size_t side);
  absl::StatusOr<absl::Span<const uint8_t>> CheckKey(NodeId holder, absl::string_view key) const;

  void Schedule(absl::Time at, Event event) {
    events_.emplace(std::make_pair(at, ++last_event_), std::move(event));
  }
  void ScheduleMessage(End receiver, std::shared_ptr<const LoopbackMessage> message,
                       absl::Time now);
  // Tells one end that its connection is over; in order behind what was sent when `in_order`, else
  // after the detection delay.
  void ScheduleDown(End receiver, absl::Status reason, bool in_order, absl::Time now);
  void Run(Event event, absl::Time now);
  void Deliver(Event event, absl::Time now);
  void CopyHalf(const Event& event, absl::Time now);
  void FinishFetch(FetchId id, absl::Status status);
  // Closes one end: reports its fetches and then the end of the peer, if the node knows of it.
  void CloseEnd(End end, const absl::Status& reason);
  void Push(Node& node, LoopbackInbound inbound);
  static void Wake(const Node& node);
  void Uncount(uint64_t connection, size_t sender, const LoopbackMessage& message);

  const Limits limits_;
  const LinkPlan default_plan_;
  const uint64_t seal_;  // tells this network's addresses and keys from any other bytes
  SeededRandom random_;
  absl::btree_map<NodeId, std::unique_ptr<Node>> nodes_;
  absl::btree_map<uint64_t, Connection> connections_;
  absl::btree_map<EndpointId, End> ends_;
  absl::btree_map<FetchId, Fetch> fetches_;
  absl::btree_map<std::pair<NodeId, NodeId>, Link> links_;
  absl::btree_map<std::pair<absl::Time, uint64_t>, Event> events_;
  uint64_t last_event_ = 0;
  uint64_t last_connection_ = 0;
  uint64_t last_endpoint_ = 0;
  uint64_t last_fetch_ = 0;
  uint64_t last_node_ = 0;
};

struct LoopbackState::Node {
  int event_fd;
  bool dead = false;
  bool paused = false;
  size_t endpoints = 0;  // known to the node and not yet reported as down
  size_t fetches = 0;    // started and not yet reported
  std::vector<PrivateMemory> regions;
  std::deque<LoopbackInbound> inbox;
};

}  // namespace sluice::transport
