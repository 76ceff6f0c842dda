#include "transport/loopback_state.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "transport/private_memory.h"

namespace sluice::transport {
namespace {

constexpr char kMagic[] = "sluice-loopback";

// Addresses and keys: some words and a hash that strangers' bytes do not have.
std::string Seal(uint64_t seal, std::initializer_list<uint64_t> words) {
  std::string bytes;
  for (const uint64_t word : words)
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  const uint64_t hash = Hash64(bytes.data(), bytes.size(), seal);
  bytes.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  return bytes;
}

bool Unseal(uint64_t seal, absl::string_view bytes, absl::Span<uint64_t> words) {
  const size_t body = words.size() * sizeof(uint64_t);
  if (bytes.size() != body + sizeof(uint64_t)) return false;
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + body, sizeof(hash));
  if (hash != Hash64(bytes.data(), body, seal)) return false;
  std::memcpy(words.data(), bytes.data(), body);
  return true;
}

}  // namespace

LoopbackState::LoopbackState(uint64_t seed, const Limits& limits, const LinkPlan& link)
    : limits_(limits),
      default_plan_(link),
      seal_(Hash64(kMagic, sizeof(kMagic), seed)),
      random_(seed) {}
LoopbackState::~LoopbackState() = default;

NodeId LoopbackState::AddNode(int event_fd) {
  const NodeId id(++last_node_);
  auto node = std::make_unique<Node>();
  node->event_fd = event_fd;
  nodes_.emplace(id, std::move(node));
  return id;
}

void LoopbackState::RemoveNode(NodeId node, absl::Time now) {
  Crash(node, now);
  nodes_.erase(node);
  // Its links have nothing left to carry but what is already under way.
  for (auto it = links_.begin(); it != links_.end();) {
    it = it->first.first == node || it->first.second == node ? links_.erase(it) : std::next(it);
  }
}

const LinkPlan& LoopbackState::PlanOf(NodeId from, NodeId to) const {
  const auto it = links_.find({from, to});
  return it == links_.end() || !it->second.plan ? default_plan_ : *it->second.plan;
}

bool LoopbackState::IsCut(NodeId from, NodeId to) const {
  const auto it = links_.find({from, to});
  return it != links_.end() && it->second.cut;
}

LoopbackState::Node* LoopbackState::FindNode(NodeId node) {
  const auto it = nodes_.find(node);
  return it == nodes_.end() || it->second->dead ? nullptr : it->second.get();
}

const LoopbackState::End* LoopbackState::FindEnd(NodeId node, EndpointId endpoint) const {
  const auto it = ends_.find(endpoint);
  if (it == ends_.end()) return nullptr;
  return connections_.at(it->second.connection).sides[it->second.side].node == node ? &it->second
                                                                                    : nullptr;
}

std::string LoopbackState::AddressOf(NodeId node) const { return Seal(seal_, {node.value()}); }

absl::StatusOr<Region> LoopbackState::AllocateRegion(NodeId id, size_t bytes) {
  Node* node = FindNode(id);
  if (node == nullptr) return absl::UnavailableError("this loopback node has crashed");
  if (node->regions.size() >= limits_.regions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", limits_.regions_max, " regions are in use"));
  }
  SLUICE_ASSIGN_OR_RETURN(PrivateMemory memory, PrivateMemory::Map(bytes));
  node->regions.push_back(std::move(memory));
  Region region;
  region.memory = node->regions.back().bytes();
  region.remote_key = Seal(seal_, {id.value(), node->regions.size() - 1, bytes});
  return region;
}

EndpointId LoopbackState::AssignEndpoint(uint64_t connection, size_t side) {
  Side& s = connections_.at(connection).sides[side];
  s.endpoint = EndpointId(++last_endpoint_);
  ends_[s.endpoint] = End{connection, side};
  ++nodes_.at(s.node)->endpoints;
  return s.endpoint;
}

// The newest connection to `peer` that this node may use: its own end is open, and known or worth
// getting to know.
std::optional<EndpointId> LoopbackState::FindConnection(NodeId node, NodeId peer) {
  for (auto it = connections_.rbegin(); it != connections_.rend(); ++it) {
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const Side& own = it->second.sides[side];
      const Side& other = it->second.sides[1 - side];
      if (own.node != node || other.node != peer || !own.open) continue;
      if (own.endpoint != EndpointId()) return own.endpoint;
      if (other.open && !it->second.broken) return AssignEndpoint(it->first, side);
    }
  }
  return std::nullopt;
}

absl::StatusOr<EndpointId> LoopbackState::Connect(NodeId id, absl::string_view address,
                                                  absl::Time now) {
  Node* node = FindNode(id);
  if (node == nullptr) return absl::UnavailableError("this loopback node has crashed");
  uint64_t peer = 0;
  if (!Unseal(seal_, address, absl::MakeSpan(&peer, 1))) {
    return absl::InvalidArgumentError(
        absl::StrCat("not an address of this loopback network: ", address.size(), " bytes"));
  }
  if (NodeId(peer) == id)
    return absl::InvalidArgumentError("a transport does not connect to itself");
  if (node->endpoints >= limits_.endpoints_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", limits_.endpoints_max, " endpoints are in use"));
  }
  if (const auto existing = FindConnection(id, NodeId(peer))) return *existing;
  const uint64_t connection = ++last_connection_;
  Connection& c = connections_[connection];
  c.sides[0].node = id;
  c.sides[1].node = NodeId(peer);
  const EndpointId endpoint = AssignEndpoint(connection, 0);
  if (FindNode(NodeId(peer)) == nullptr) {
    c.sides[1].open = false;
    ScheduleDown(End{connection, 0}, absl::UnavailableError("no such peer"), false, now);
  }
  return endpoint;
}

absl::Status LoopbackState::Send(NodeId id, EndpointId to, absl::string_view header,
                                 absl::Span<const uint8_t> payload, absl::Time now) {
  const End* end = FindEnd(id, to);
  if (end == nullptr)
    return absl::NotFoundError(absl::StrCat("endpoint ", to.value(), " is not connected"));
  const size_t bytes = header.size() + payload.size();
  Side& own = connections_.at(end->connection).sides[end->side];
  SLUICE_RETURN_IF_ERROR(CheckSend(limits_, to, bytes, own.queued_messages, own.queued_bytes));
  auto message = std::make_shared<LoopbackMessage>();
  message->header = std::string(header);
  message->payload.assign(payload.begin(), payload.end());
  ScheduleMessage(End{end->connection, 1 - end->side}, std::move(message), now);
  return absl::OkStatus();
}

void LoopbackState::ScheduleMessage(End receiver, std::shared_ptr<const LoopbackMessage> message,
                                    absl::Time now) {
  Connection& c = connections_.at(receiver.connection);
  Side& sender = c.sides[1 - receiver.side];
  const NodeId to = c.sides[receiver.side].node;
  const LinkPlan& plan = PlanOf(sender.node, to);
  if (c.broken) {  // as retransmissions that nobody answers: whoever sends learns of it in the end
    return ScheduleDown(End{receiver.connection, 1 - receiver.side},
                        absl::UnavailableError("the connection had broken"), false, now);
  }
  if (IsCut(sender.node, to) || Chance(plan.loss)) return;
  absl::Time at = now + Draw(plan.delay_min, plan.delay_max);
  if (Chance(plan.reorder)) {
    at += Draw(absl::ZeroDuration(), plan.reorder_delay_max);
  } else {
    at = std::max(at, sender.last_delivery);
    sender.last_delivery = at;
  }
  ++sender.queued_messages;
  sender.queued_bytes += message->bytes();
  Event event;
  event.kind = Event::Kind::kMessage;
  event.from = sender.node;
  event.to = to;
  event.receiver = receiver;
  event.message = std::move(message);
  if (Chance(plan.duplicate)) {
    Event again = event;
    again.duplicate = true;
    Schedule(at + Draw(absl::ZeroDuration(), plan.reorder_delay_max), std::move(again));
  }
  Schedule(at, std::move(event));
}

absl::StatusOr<absl::Span<const uint8_t>> LoopbackState::CheckKey(NodeId holder,
                                                                  absl::string_view key) const {
  uint64_t words[3] = {};
  if (!Unseal(seal_, key, absl::MakeSpan(words))) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a key of this loopback network: ", key.size(), " bytes"));
  }
  if (NodeId(words[0]) != holder) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key of node ", words[0], " used with node ", holder.value()));
  }
  const auto it = nodes_.find(holder);
  // A holder that is gone: the connection ends soon, the fetch with it.
  if (it == nodes_.end() || words[1] >= it->second->regions.size()) {
    return absl::Span<const uint8_t>(static_cast<const uint8_t*>(nullptr), words[2]);
  }
  return it->second->regions[words[1]].bytes();
}

absl::StatusOr<FetchId> LoopbackState::StartFetch(NodeId id, EndpointId from,
                                                  absl::string_view remote_key, uint64_t offset,
                                                  absl::Span<uint8_t> local, absl::Time now) {
  const End* end = FindEnd(id, from);
  if (end == nullptr)
    return absl::NotFoundError(absl::StrCat("endpoint ", from.value(), " is not connected"));
  const NodeId holder = connections_.at(end->connection).sides[1 - end->side].node;
  SLUICE_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> region, CheckKey(holder, remote_key));
  if (offset > region.size() || local.size() > region.size() - offset) {
    return absl::OutOfRangeError(absl::StrCat("a fetch of ", local.size(), " bytes at ", offset,
                                              " from a region of ", region.size(), " bytes"));
  }
  Node& node = *nodes_.at(id);
  if (node.fetches >= limits_.fetches_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", limits_.fetches_max, " fetches are outstanding"));
  }
  ++node.fetches;
  const LinkPlan& there = PlanOf(id, holder);
  const LinkPlan& back = PlanOf(holder, id);
  const FetchId fetch(++last_fetch_);
  const uint8_t* source = region.data() == nullptr ? nullptr : region.data() + offset;
  const size_t split = random_.Below(local.size() / 64 + 1) * 64;
  fetches_[fetch] = Fetch{id, from, holder, source, local, split, Chance(back.fetch_error)};

  Event event;
  event.kind = Event::Kind::kFetchHalf;
  event.fetch = fetch;
  event.receiver = *end;
  event.from = id;
  event.to = holder;
  event.half = random_.Below(2);
  absl::Time at = now + Draw(there.delay_min, there.delay_max);
  Schedule(at, event);
  at += Draw(back.delay_min, back.delay_max);
  if (back.bytes_per_second > 0)
    at += absl::Seconds(static_cast<double>(local.size()) / back.bytes_per_second);
  event.from = holder;
  event.to = id;
  event.half = 1 - event.half;
  Schedule(at, event);
  return fetch;
}

void LoopbackState::Close(NodeId id, EndpointId endpoint, absl::Time now) {
  const End* found = FindEnd(id, endpoint);
  if (found == nullptr) return;
  const End end = *found;
  Node& node = *nodes_.at(id);
  for (const LoopbackInbound& inbound : node.inbox) {
    if (inbound.kind != LoopbackInbound::Kind::kMessage || inbound.endpoint != endpoint) continue;
    if (inbound.connection != 0) Uncount(inbound.connection, inbound.sender, *inbound.message);
  }
  std::erase_if(node.inbox, [&](const LoopbackInbound& inbound) {
    return inbound.kind == LoopbackInbound::Kind::kMessage && inbound.endpoint == endpoint;
  });
  const End other{end.connection, 1 - end.side};
  if (connections_.at(end.connection).sides[other.side].open) {
    ScheduleDown(other, absl::UnavailableError("the peer closed the connection"), true, now);
  }
  CloseEnd(end, absl::CancelledError("closed here"));
}

void LoopbackState::ScheduleDown(End receiver, absl::Status reason, bool in_order, absl::Time now) {
  Connection& c = connections_.at(receiver.connection);
  Side& sender = c.sides[1 - receiver.side];
  const NodeId to = c.sides[receiver.side].node;
  const LinkPlan& plan = PlanOf(sender.node, to);
  if (Chance(plan.down_lost)) return;
  Event event;
  event.kind = Event::Kind::kDown;
  event.receiver = receiver;
  event.status = std::move(reason);
  absl::Time at = now + Draw(plan.detect_min, plan.detect_max);
  if (in_order) {
    event.from = sender.node;
    event.to = to;
    at = std::max(now + Draw(plan.delay_min, plan.delay_max), sender.last_delivery);
  }
  Schedule(at, std::move(event));
}

}  // namespace sluice::transport
