#include "tests/sim/small_world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/loop.h"
#include "base/timer_wheel.h"
#include "handoff/dispatch.h"
#include "handoff/source.h"
#include "handoff/taker.h"

namespace sluice::sim {
namespace {

constexpr uint32_t kPageTokens = 16;
constexpr size_t kHolder = 0, kTaker = 1;
constexpr absl::Duration kLease = absl::Seconds(1);

kv::PageLayout SmallLayout() {
  kv::LayoutSpec spec;
  spec.format = kernels::KvFormat::kBf16;
  spec.page_tokens = kPageTokens;
  spec.layers = 1;
  spec.kv_heads = 1;
  spec.head_dim = 16;
  return *kv::PageLayout::Make(spec);
}

// Runs nothing by itself.
class ManualLoop final : public Loop {
 public:
  explicit ManualLoop(const Clock& clock) : clock_(clock) {}
  bool Post(Task task) override {
    tasks_.push_back(std::move(task));
    return true;
  }
  TimerId RunAt(absl::Time at, Task task) override { return timers_.Add(at, std::move(task)); }
  bool Cancel(TimerId timer) override { return timers_.Cancel(timer); }
  const Clock& clock() const override { return clock_; }

  bool Due() const { return !tasks_.empty() || timers_.NextDue() <= clock_.Now(); }
  void Run() {
    for (Task& task : std::exchange(tasks_, {})) task();
    timers_.Advance(clock_.Now());
  }

 private:
  const Clock& clock_;
  std::vector<Task> tasks_;
  TimerWheel timers_;
};

struct Read {
  size_t request = 0;
  size_t offset = 0;  // in the holder's memory
  absl::Span<uint8_t> local;
  int halves = 0;
};

}  // namespace

struct SmallWorld::Message {
  size_t to = 0;
  std::string header;
};

// Messages and reads under way, and the time.
class SmallWorld::Wire {
 public:
  FakeClock clock;
  std::map<uint64_t, Message> messages;
  std::map<uint64_t, Read> reads;
  uint64_t last_message = 0;
  uint64_t last_read = 0;
};

// One side with a pool and a transport whose every step waits for somebody to take it.
class SmallWorld::Node final : public transport::Transport, public handoff::SourceEvents {
 public:
  Node(size_t number, const SmallWorldLimits& limits, const handoff::Guards& guards, Wire& wire)
      : number_(number),
        wire_(wire),
        capabilities_{"small", true, 1 << 16},
        random_(number + 1),
        loop(wire.clock) {
    const kv::PageLayout layout = SmallLayout();
    const size_t count = number == kHolder ? limits.holder_pages : limits.taker_pages;
    memory_.resize(count * layout.page_bytes() + 64);
    const size_t skip = (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    pages = absl::MakeSpan(memory_).subspan(skip, count * layout.page_bytes());
    pool = *kv::PagePool::Create(pages, layout, {.poison_freed = true});
    index = kv::PrefixIndex::Create(*pool);
    handoff::SourceOptions source_options;
    source_options.incarnation = Incarnation(100 + number);
    source_options.digests = handoff::DigestMode::kOff;
    source_options.served_max = limits.grants_again > 0 ? 0 : 16;
    source_options.guards = guards;
    source = std::make_unique<handoff::HandoffSource>(
        source_options,
        handoff::HandoffSource::Dependencies{*pool, *this, "key", loop, *this, counters, nullptr});
    handoff::TakerOptions taker_options;
    taker_options.incarnation = Incarnation(100 + number);
    taker_options.vocabulary = 1000;
    taker_options.context_tokens = 64;
    taker_options.lease = kLease;
    taker_options.drift_margin = 0;
    taker_options.guards = guards;
    taker = std::make_unique<handoff::HandoffTaker>(
        taker_options, handoff::HandoffTaker::Dependencies{*pool, *index, *this, loop, random_,
                                                           counters, nullptr});
    dispatcher = std::make_unique<handoff::MoveDispatcher>(*source, *taker, counters);
  }

  void Receive(const std::string& header) {
    dispatcher->OnMessage(transport::EndpointId(1), header, {});
  }
  void ReadDone(uint64_t read) {
    dispatcher->OnFetchDone(transport::FetchId(read), absl::OkStatus());
  }

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override { return absl::StrCat("n", number_); }
  absl::StatusOr<transport::Region> AllocateRegion(size_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<transport::EndpointId> Connect(absl::string_view) override {
    return transport::EndpointId(1);
  }
  absl::Status Send(transport::EndpointId, absl::string_view header,
                    absl::Span<const uint8_t>) override {
    wire_.messages[++wire_.last_message] = {1 - number_, std::string(header)};
    return absl::OkStatus();
  }
  absl::StatusOr<transport::FetchId> Fetch(transport::EndpointId, absl::string_view,
                                           uint64_t offset, absl::Span<uint8_t> local) override {
    wire_.reads[++wire_.last_read] = {0, offset, local, 0};
    return transport::FetchId(wire_.last_read);
  }
  void Close(transport::EndpointId) override {}  // a read in this world ends by itself, or not
  bool Poll(transport::Events&) override { return false; }
  int EventFd() const override { return -1; }
  bool PrepareSleep() override { return true; }
  void OnSourceEnded(LeaseId, const absl::Status&, uint64_t) override {}

  // What holds pages comes last: it goes first.
 private:
  const size_t number_;
  Wire& wire_;
  const transport::Capabilities capabilities_;
  SeededRandom random_;
  std::vector<uint8_t> memory_;

 public:
  ManualLoop loop;
  absl::Span<uint8_t> pages;
  handoff::MoveCounters counters;
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<kv::PrefixIndex> index;
  std::unique_ptr<handoff::HandoffSource> source;
  std::unique_ptr<handoff::HandoffTaker> taker;
  std::unique_ptr<handoff::MoveDispatcher> dispatcher;
};

struct SmallWorld::Request {
  bool reserved = false;
  std::optional<v1::Grant> grant;  // on its way to the holder
  bool given_up = false;
  std::optional<handoff::LandedSequence> landed;
  LeaseId lease;
};

SmallWorld::SmallWorld(const SmallWorldLimits& limits, const handoff::Guards& guards)
    : limits_(limits), left_(limits), wire_(std::make_unique<Wire>()), requests_(limits.requests) {
  for (size_t i : {kHolder, kTaker})
    nodes_.push_back(std::make_unique<Node>(i, limits, guards, *wire_));
  for (std::vector<uint64_t>& node : histories_) node.resize(limits.requests);
}

SmallWorld::~SmallWorld() = default;

std::vector<Action> SmallWorld::Actions() const {
  using Kind = Action::Kind;
  std::vector<Action> actions;
  // The holder's first, so that those which do not touch each other have an order.
  for (uint64_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].grant.has_value() && nodes_[kHolder]->pool->counts().free > 0)
      actions.push_back({Kind::kGrant, i});
  }
  for (size_t to : {kHolder, kTaker}) {
    for (const auto& [id, message] : wire_->messages) {
      if (message.to != to) continue;
      actions.push_back({Kind::kDeliver, id});
      if (left_.losses > 0) actions.push_back({Kind::kLose, id});
      if (left_.duplicates > 0) actions.push_back({Kind::kRepeat, id});
    }
    if (nodes_[to]->loop.Due()) actions.push_back({Kind::kTimers, to});
  }
  for (uint64_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    // One after the other: requests are all alike.
    if (!request.reserved && (i == 0 || requests_[i - 1].reserved) &&
        nodes_[kTaker]->pool->counts().free > 0) {
      actions.push_back({Kind::kReserve, i});
    }
    if (request.landed.has_value()) {
      actions.push_back({Kind::kAttend, i});
    } else if (request.reserved && !request.given_up && left_.gives_up > 0) {
      actions.push_back({Kind::kGiveUp, i});
    }
  }
  for (const auto& [id, read] : wire_->reads)
    actions.push_back({read.halves < 2 ? Kind::kRead : Kind::kReadDone, id});
  if (left_.steps > 0) actions.push_back({Kind::kTime, 0});
  return actions;
}

// What happens to one lease does not touch the others of its node, but for the pages, whose bytes
// are part of the key.
void SmallWorld::Remember(size_t node, uint64_t request, const Action& action, uint64_t detail) {
  uint64_t& history = histories_[node][request];
  history = Mix64(history ^ Mix64(static_cast<uint64_t>(action.kind) * 31 + detail +
                                  (uint64_t{left_.steps} << 56)));
}

size_t SmallWorld::RequestOf(const std::string& header) const {
  v1::MoveMessage message;
  SLUICE_CHECK(message.ParseFromString(header));
  const std::string* lease = nullptr;
  switch (message.body_case()) {
    case v1::MoveMessage::kOffer:
      lease = &message.offer().lease_id();
      break;
    case v1::MoveMessage::kCommit:
      lease = &message.commit().lease_id();
      break;
    case v1::MoveMessage::kRenew:
      lease = &message.renew().lease_id();
      break;
    case v1::MoveMessage::kRenewAck:
      lease = &message.renew_ack().lease_id();
      break;
    case v1::MoveMessage::kReleased:
      lease = &message.released().lease_id();
      break;
    case v1::MoveMessage::kReleasedAck:
      lease = &message.released_ack().lease_id();
      break;
    case v1::MoveMessage::kWithdrawn:
      lease = &message.withdrawn().lease_id();
      break;
    case v1::MoveMessage::BODY_NOT_SET:
      break;
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (lease != nullptr && requests_[i].lease.value().ToBytes() == *lease) return i;
  }
  SLUICE_CHECK(false) << "a message of no request";
  return 0;
}

// What was dropped as stale or seen before, without an answer, has changed nothing.
void SmallWorld::Receive(const Message& message) {
  Node& node = *nodes_[message.to];
  const auto dropped = [&] {
    return node.counters.stale_messages + node.counters.duplicate_messages;
  };
  const uint64_t dropped_before = dropped(), sent_before = wire_->last_message;
  const size_t request = RequestOf(message.header);
  const uint64_t read_before = wire_->last_read;
  node.Receive(message.header);
  for (uint64_t read = read_before + 1; read <= wire_->last_read; ++read)
    wire_->reads.at(read).request = request;
  if (dropped() > dropped_before && wire_->last_message == sent_before) return;
  Remember(message.to, request, {Action::Kind::kDeliver, 0},
           Hash64(message.header.data(), message.header.size()));
}

void SmallWorld::Reserve(uint64_t id) {
  Request& request = requests_[id];
  handoff::ReserveCall call;
  call.context.request = RequestId(absl::StrCat("r", id));
  call.context.attempt = 1;
  call.context.tenant = TenantId("t");
  call.prompt.assign(kPageTokens, static_cast<request::TokenId>(id + 1));
  call.holder = Incarnation(100 + kHolder);
  call.holder_layout_hash = nodes_[kHolder]->pool->layout().hash();
  const absl::StatusOr<v1::Grant> grant = nodes_[kTaker]->taker->Reserve(call);
  SLUICE_CHECK(grant.ok()) << grant.status().ToString();
  request.reserved = true;
  request.grant = *grant;
  SLUICE_CHECK(handoff::ParseLease(grant->lease_id(), &request.lease));
  nodes_[kTaker]->taker->Attach(request.lease,
                                [this, id](absl::StatusOr<handoff::LandedSequence> landed) {
                                  if (landed.ok()) requests_[id].landed = *std::move(landed);
                                });
}

// Byte b of request i's page is i + 1.
void SmallWorld::Grant(uint64_t id) {
  Node& holder = *nodes_[kHolder];
  const v1::Grant grant = *requests_[id].grant;
  if (left_.grants_again > 0) {
    --left_.grants_again;
  } else {
    requests_[id].grant.reset();
  }
  if (!holder.source->Open(grant, kPageTokens).ok()) return;
  std::vector<kv::PageLease> page = *holder.pool->Allocate(1, {1, id}, TenantId("t"));
  std::memset(page[0].data() + kv::kPageHeaderBytes, static_cast<int>(id) + 1,
              holder.pool->layout().page_bytes() - kv::kPageHeaderBytes);
  std::vector<engine::FinalPage> final;
  final.push_back({0, std::move(page[0])});
  holder.source->Offer(requests_[id].lease, std::move(final), 0, 1);
  request::SampledToken first;
  first.token = 1;
  holder.source->Commit(requests_[id].lease, kPageTokens, first, 0);
}

void SmallWorld::Attend(uint64_t id) {
  const handoff::LandedSequence landed = *std::move(requests_[id].landed);
  requests_[id].landed.reset();
  ++attended_;
  const kv::ByteRange bytes = nodes_[kTaker]->pool->layout().PieceRange(0, 1);
  for (uint32_t i = 0; i < bytes.bytes; ++i) {
    const int byte = landed.pages[0].data()[bytes.offset + i];
    if (byte == static_cast<int>(id) + 1) continue;
    violation_ = absl::StrCat("request ", id, " attends ", byte, " at byte ", i);
    return;
  }
}

void SmallWorld::Take(const Action& action) {
  using Kind = Action::Kind;
  const uint64_t id = action.id;
  switch (action.kind) {
    case Kind::kReserve:
      Remember(kTaker, id, action, 0);
      return Reserve(id);
    case Kind::kGrant:
      Remember(kHolder, id, action, 0);
      return Grant(id);
    case Kind::kLose:
      --left_.losses;
      wire_->messages.erase(id);
      return;
    case Kind::kDeliver:
    case Kind::kRepeat: {
      const Message message = wire_->messages.at(id);
      if (action.kind == Kind::kDeliver) wire_->messages.erase(id);
      if (action.kind == Kind::kRepeat) --left_.duplicates;
      return Receive(message);
    }
    case Kind::kRead: {
      Read& read = wire_->reads.at(id);
      const size_t half = read.local.size() / 2;
      const size_t at = static_cast<size_t>(read.halves++) * half;
      std::memcpy(read.local.data() + at, nodes_[kHolder]->pages.data() + read.offset + at, half);
      return;
    }
    case Kind::kReadDone:
      Remember(kTaker, wire_->reads.at(id).request, action, 0);
      wire_->reads.erase(id);
      return nodes_[kTaker]->ReadDone(id);
    case Kind::kTimers:
      for (size_t i = 0; i < requests_.size(); ++i) Remember(id, i, action, 0);
      return nodes_[id]->loop.Run();
    case Kind::kGiveUp:
      --left_.gives_up;
      requests_[id].given_up = true;
      Remember(kTaker, id, action, 0);
      return nodes_[kTaker]->taker->Release(requests_[id].lease, "given up");
    case Kind::kAttend:
      Remember(kTaker, id, action, 0);
      return Attend(id);
    case Kind::kTime:
      --left_.steps;
      wire_->clock.Advance(kLease / 2);
      return;
  }
}

uint64_t SmallWorld::Key() const {
  uint64_t key = 1;
  const auto add = [&key](uint64_t value) { key = Mix64(key ^ value) + 1; };
  add(left_.steps | left_.losses << 8 | left_.duplicates << 16 | left_.gives_up << 24);
  add(left_.grants_again);
  for (const Request& request : requests_) add(request.grant.has_value());
  for (const auto& node : histories_) {
    for (uint64_t history : node) add(history);
  }
  // Numbers follow the order of sending, which two orders of the same events may differ in.
  uint64_t messages = 0;
  for (const auto& [id, message] : wire_->messages)
    messages += Mix64(Hash64(message.header.data(), message.header.size()) + message.to);
  add(messages);
  uint64_t reads = 0;
  for (const auto& [id, read] : wire_->reads)
    reads += Mix64(read.request * 64 + static_cast<uint64_t>(read.halves) * 8 + 1);
  add(reads);
  for (const auto& node : nodes_) key = Hash64(node->pages.data(), node->pages.size(), key);
  return key;
}

namespace {

// A run up to here, and what it may still deviate.
struct Prefix {
  std::vector<Action> path;
  uint32_t deviations;
};

}  // namespace

Enumeration EnumerateAll(const SmallWorldLimits& limits, const handoff::Guards& guards,
                         uint64_t actions_max) {
  Enumeration result;
  // By key: the most deviations that were left when the state was met, plus one.
  absl::flat_hash_map<uint64_t, uint32_t> seen;
  std::vector<Prefix> todo = {{{}, limits.deviations}};
  while (!todo.empty()) {
    if (result.actions >= actions_max) return result;
    auto [path, deviations] = std::move(todo.back());
    todo.pop_back();
    SmallWorld world(limits, guards);
    for (const Action& action : path) world.Take(action);
    for (;;) {
      ++result.actions;
      if (!world.violation().empty()) {
        result.violation = world.violation();
        result.path = std::move(path);
        return result;
      }
      uint32_t& best = seen[world.Key()];
      if (best > deviations) break;
      best = deviations + 1;
      const std::vector<Action> actions = world.Actions();
      if (actions.empty()) break;
      for (size_t i = 1; i < actions.size() && deviations > 0; ++i) {
        todo.push_back({path, deviations - 1});
        todo.back().path.push_back(actions[i]);
      }
      world.Take(actions[0]);
      path.push_back(actions[0]);
    }
    result.attended = std::max<uint64_t>(result.attended, world.attended());
  }
  result.states = seen.size();
  result.complete = true;
  return result;
}

std::string Describe(const Action& action) {
  static constexpr const char* kNames[] = {"reserve", "grant",  "deliver",   "lose",
                                           "repeat",  "read",   "read done", "timers of",
                                           "give up", "attend", "time"};
  return absl::StrCat(kNames[static_cast<size_t>(action.kind)], " ", action.id);
}

}  // namespace sluice::sim
