// The loopback network on virtual time: order, faults, torn reads, the ends of connections, replay
// from a seed.
#include "transport/loopback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded_queue.h"
#include "base/thread_loop.h"

namespace sluice::transport {
namespace {

class Recorder final : public Events {
 public:
  void OnMessage(EndpointId from, absl::string_view header,
                 absl::Span<const uint8_t> payload) override {
    log.push_back(absl::StrCat("message ", header));
    headers.emplace_back(header);
    payload_bytes += payload.size();
    last_from = from;
  }
  void OnFetchDone(FetchId fetch, const absl::Status& status) override {
    log.push_back(absl::StrCat("fetch ", status.ok() ? "ok" : "failed"));
    fetches.emplace_back(fetch, status);
  }
  void OnPeerDown(EndpointId endpoint, const absl::Status& reason) override {
    log.push_back("down");
    down.push_back(endpoint);
    EXPECT_FALSE(reason.ok());
  }

  std::vector<std::string> log;
  std::vector<std::string> headers;
  std::vector<std::pair<FetchId, absl::Status>> fetches;
  std::vector<EndpointId> down;
  EndpointId last_from;
  size_t payload_bytes = 0;
};

struct World {
  explicit World(const LinkPlan& link = {}, uint64_t seed = 1, const Limits& limits = {})
      : network({seed, limits, link, false}, clock),
        a(network.CreateTransport().value()),
        b(network.CreateTransport().value()) {}

  // Runs all that is under way, polling after every moment; `until` bounds the virtual time.
  void Run(absl::Duration until = absl::Hours(1)) {
    const absl::Time end = clock.Now() + until;
    for (;;) {
      const absl::Time next = network.NextEventTime();
      if (next > end) break;
      clock.AdvanceTo(next);
      network.AdvanceTo(clock.Now());
      PollAll();
    }
    clock.AdvanceTo(end);
    PollAll();
  }
  void PollAll() {
    while (a->Poll(at_a) || (b != nullptr && b->Poll(at_b))) {
    }
  }
  EndpointId ConnectAToB() { return a->Connect(b->LocalAddress()).value(); }

  FakeClock clock;
  LoopbackNetwork network;
  std::unique_ptr<LoopbackTransport> a;
  std::unique_ptr<LoopbackTransport> b;
  Recorder at_a;
  Recorder at_b;
};

LinkPlan Delays(absl::Duration min, absl::Duration max) {
  LinkPlan plan;
  plan.delay_min = min;
  plan.delay_max = max;
  return plan;
}

TEST(Loopback, KeepsOrderUnderRandomDelays) {
  World w(Delays(absl::Milliseconds(1), absl::Milliseconds(50)));
  const EndpointId to = w.ConnectAToB();
  std::vector<std::string> sent;
  for (int i = 0; i < 200; ++i) {
    sent.push_back(absl::StrCat(i));
    ASSERT_TRUE(w.a->Send(to, sent.back(), {}).ok());
  }
  EXPECT_TRUE(w.at_b.headers.empty());
  w.Run();
  EXPECT_EQ(w.at_b.headers, sent);
}

TEST(Loopback, AnswersGoBackOnTheSameConnection) {
  World w;
  const EndpointId to = w.ConnectAToB();
  EXPECT_EQ(w.ConnectAToB(), to);
  ASSERT_TRUE(w.a->Send(to, "ask", {}).ok());
  w.Run();
  EXPECT_EQ(w.b->Connect(w.a->LocalAddress()).value(), w.at_b.last_from);
  ASSERT_TRUE(w.b->Send(w.at_b.last_from, "answer", {}).ok());
  w.Run();
  EXPECT_EQ(w.at_a.headers, std::vector<std::string>{"answer"});
  EXPECT_EQ(w.at_a.last_from, to);
}

TEST(Loopback, LosesDuplicatesAndReordersAsPlanned) {
  LinkPlan plan = Delays(absl::Milliseconds(1), absl::Milliseconds(2));
  plan.loss = 0.1;
  plan.duplicate = 0.2;
  plan.reorder = 0.2;
  World w(plan);
  const EndpointId to = w.ConnectAToB();
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) ASSERT_TRUE(w.a->Send(to, absl::StrCat(i), {}).ok());
  w.Run();
  std::vector<int> seen(kCount, 0);
  int late = 0, highest = -1;
  for (const std::string& header : w.at_b.headers) {
    const int i = std::stoi(header);
    ++seen[static_cast<size_t>(i)];
    late += i < highest;
    highest = std::max(highest, i);
  }
  const auto times = [&](int n) { return std::count(seen.begin(), seen.end(), n); };
  EXPECT_NEAR(static_cast<double>(times(0)), kCount * 0.1, 40);
  EXPECT_NEAR(static_cast<double>(times(2)), kCount * 0.9 * 0.2, 50);
  EXPECT_GT(late, 100);
}

TEST(Loopback, ReplaysFromItsSeed) {
  LinkPlan plan = Delays(absl::Milliseconds(1), absl::Milliseconds(9));
  plan.loss = plan.duplicate = plan.reorder = plan.fetch_late = plan.fetch_error = 0.3;
  const auto run = [&](uint64_t seed) {
    World w(plan, seed);
    const Region region = w.b->AllocateRegion(4096).value();
    const EndpointId to = w.ConnectAToB();
    std::vector<uint8_t> local(4096);
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(w.a->Send(to, absl::StrCat(i), {}).ok());
      EXPECT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
    }
    w.Run();
    std::vector<std::string> log = w.at_a.log;
    log.insert(log.end(), w.at_b.log.begin(), w.at_b.log.end());
    return log;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

TEST(Loopback, FetchReadsAnyPieceAndNothingBeyond) {
  World w(Delays(absl::Milliseconds(1), absl::Milliseconds(5)));
  const Region region = w.b->AllocateRegion(10000).value();
  for (size_t i = 0; i < region.memory.size(); ++i) {
    ASSERT_EQ(region.memory[i], 0);
    region.memory[i] = static_cast<uint8_t>(i * 7 + i / 256);
  }
  const EndpointId to = w.ConnectAToB();
  for (const size_t bytes : {0u, 1u, 63u, 64u, 65u, 4096u, 9999u, 10000u}) {
    const size_t offset = 10000 - bytes;
    std::vector<uint8_t> local(bytes);
    ASSERT_TRUE(w.a->Fetch(to, region.remote_key, offset, absl::MakeSpan(local)).ok());
    w.Run();
    ASSERT_EQ(w.at_a.log.back(), "fetch ok");
    EXPECT_TRUE(std::equal(local.begin(), local.end(),
                           region.memory.begin() + static_cast<ptrdiff_t>(offset)));
  }
  std::vector<uint8_t> local(64);
  const auto code = [&](uint64_t offset, absl::string_view key) {
    return w.a->Fetch(to, key, offset, absl::MakeSpan(local)).status().code();
  };
  EXPECT_EQ(code(10000 - 63, region.remote_key), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(~uint64_t{0} - 10, region.remote_key), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(0, "no key"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, w.a->AllocateRegion(64).value().remote_key),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(w.at_a.fetches.size(), 8u);
}

TEST(Loopback, APageThatChangesDuringAFetchIsTorn) {
  World w(Delays(absl::Milliseconds(1), absl::Milliseconds(5)));
  const Region region = w.b->AllocateRegion(4096).value();
  const EndpointId to = w.ConnectAToB();
  int torn = 0;
  for (int i = 0; i < 50; ++i) {
    std::fill(region.memory.begin(), region.memory.end(), uint8_t{1});
    std::vector<uint8_t> local(4096);
    ASSERT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
    // The first half is read at the first event; the page is recycled before the second.
    w.clock.AdvanceTo(w.network.NextEventTime());
    w.network.AdvanceTo(w.clock.Now());
    std::fill(region.memory.begin(), region.memory.end(), uint8_t{2});
    w.Run();
    const auto old = std::count(local.begin(), local.end(), 1);
    EXPECT_EQ(old + std::count(local.begin(), local.end(), 2), 4096);
    torn += old != 0 && old != 4096;
  }
  EXPECT_GT(torn, 40);
}

TEST(Loopback, CloseReportsFetchesThenTheEnd) {
  World w(Delays(absl::Milliseconds(5), absl::Milliseconds(5)));
  const Region region = w.b->AllocateRegion(4096).value();
  const EndpointId to = w.ConnectAToB();
  ASSERT_TRUE(w.a->Send(to, "hello", {}).ok());
  std::vector<uint8_t> local(64, 9);
  ASSERT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
  w.a->Close(to);
  w.a->Close(to);
  EXPECT_EQ(w.a->Send(to, "late", {}).code(), absl::StatusCode::kNotFound);
  w.Run();
  EXPECT_EQ(w.at_a.log, (std::vector<std::string>{"fetch failed", "down"}));
  EXPECT_EQ(w.at_b.log, (std::vector<std::string>{"message hello", "down"}));
  EXPECT_EQ(local, std::vector<uint8_t>(64, 9))
      << "nothing is written after the fetch was reported";
  EXPECT_NE(w.ConnectAToB(), to);
}

TEST(Loopback, MessagesOfAClosedEndpointAreNotDelivered) {
  World w;
  const EndpointId to = w.ConnectAToB();
  ASSERT_TRUE(w.a->Send(to, "one", {}).ok());
  w.Run();
  ASSERT_TRUE(w.a->Send(to, "two", {}).ok());
  w.network.AdvanceTo(w.clock.Now());
  w.b->Close(w.at_b.last_from);
  w.Run();
  EXPECT_EQ(w.at_b.log, (std::vector<std::string>{"message one", "down"}));
  EXPECT_EQ(w.at_a.log, std::vector<std::string>{"down"});
}

TEST(Loopback, ACrashIsNoticedAfterTheDetectionDelay) {
  LinkPlan plan;
  plan.detect_min = plan.detect_max = absl::Seconds(3);
  World w(plan);
  const Region region = w.b->AllocateRegion(4096).value();
  const EndpointId to = w.ConnectAToB();
  w.network.Crash(w.b->node());
  EXPECT_TRUE(w.a->Send(to, "into the void", {}).ok());
  std::vector<uint8_t> local(64);
  ASSERT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
  w.Run(absl::Seconds(2));
  EXPECT_TRUE(w.at_a.log.empty());
  w.Run(absl::Seconds(2));
  EXPECT_EQ(w.at_a.log, (std::vector<std::string>{"fetch failed", "down"}));
  EXPECT_TRUE(w.at_b.log.empty());
  EXPECT_FALSE(w.b->Connect(w.a->LocalAddress()).ok());
  region.memory[0] = 1;  // a crashed node's memory stays mapped for whoever still holds it here
}

TEST(Loopback, ALostNoticeLeavesFetchesToClose) {
  LinkPlan plan;
  plan.down_lost = 1;
  World w(plan);
  const Region region = w.b->AllocateRegion(4096).value();
  const EndpointId to = w.ConnectAToB();
  w.network.Crash(w.b->node());
  std::vector<uint8_t> local(64);
  ASSERT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
  w.Run();
  EXPECT_TRUE(w.at_a.log.empty());
  w.a->Close(to);
  w.Run();
  EXPECT_EQ(w.at_a.log, (std::vector<std::string>{"fetch failed", "down"}));
}

TEST(Loopback, WhoMissedTheEndLearnsItBySending) {
  World w;
  const EndpointId to = w.ConnectAToB();
  ASSERT_TRUE(w.a->Send(to, "hello", {}).ok());
  w.Run();
  // The news of the close is lost on a cut link.
  w.network.Cut(w.b->node(), w.a->node());
  w.b->Close(w.at_b.last_from);
  w.Run();
  w.network.Mend(w.b->node(), w.a->node());
  EXPECT_TRUE(w.at_a.log.empty());
  ASSERT_TRUE(w.a->Send(to, "anybody?", {}).ok());
  w.Run();
  EXPECT_EQ(w.at_a.log, (std::vector<std::string>{"down"}));

  LinkPlan deaf;
  deaf.down_lost = 1;
  World broken(deaf);
  const EndpointId other = broken.ConnectAToB();
  broken.network.Disconnect(broken.a->node(), broken.b->node());
  broken.Run();
  EXPECT_TRUE(broken.at_a.log.empty());
  broken.network.SetLink(broken.b->node(), broken.a->node(), LinkPlan());
  ASSERT_TRUE(broken.a->Send(other, "anybody?", {}).ok());
  broken.Run();
  EXPECT_EQ(broken.at_a.log, (std::vector<std::string>{"down"}));
}

TEST(Loopback, ACloggedLinkHoldsAndACutLinkLoses) {
  World w;
  const Region region = w.b->AllocateRegion(4096).value();
  const EndpointId to = w.ConnectAToB();
  w.network.Clog(w.a->node(), w.b->node());
  std::vector<uint8_t> local(64);
  ASSERT_TRUE(w.a->Send(to, "one", {}).ok());
  ASSERT_TRUE(w.a->Send(to, "two", {}).ok());
  ASSERT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
  w.Run();
  EXPECT_TRUE(w.at_a.log.empty() && w.at_b.log.empty());
  w.network.Unclog(w.a->node(), w.b->node());
  w.Run();
  EXPECT_EQ(w.at_b.headers, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(w.at_a.log, std::vector<std::string>{"fetch ok"});

  // One way only: b hears nothing, a still hears b; a fetch by either needs both directions.
  w.network.Cut(w.a->node(), w.b->node());
  ASSERT_TRUE(w.a->Send(to, "lost", {}).ok());
  ASSERT_TRUE(w.b->Send(w.at_b.last_from, "heard", {}).ok());
  ASSERT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
  w.Run();
  w.network.Mend(w.a->node(), w.b->node());
  w.Run();
  EXPECT_EQ(w.at_b.headers.size(), 2u);
  EXPECT_EQ(w.at_a.log, (std::vector<std::string>{"fetch ok", "message heard"}));
  w.network.Disconnect(w.a->node(), w.b->node());
  w.Run();
  EXPECT_EQ(w.at_a.log.back(), "down");
  EXPECT_EQ(w.at_a.log[2], "fetch failed");
  EXPECT_EQ(w.at_b.log.back(), "down");
}

TEST(Loopback, APausedNodeGetsEverythingLater) {
  World w;
  const EndpointId to = w.ConnectAToB();
  w.network.SetPaused(w.b->node(), true);
  ASSERT_TRUE(w.a->Send(to, "one", {}).ok());
  w.Run();
  EXPECT_TRUE(w.at_b.log.empty());
  EXPECT_TRUE(w.b->PrepareSleep());
  w.network.SetPaused(w.b->node(), false);
  EXPECT_FALSE(w.b->PrepareSleep());
  w.Run();
  EXPECT_EQ(w.at_b.headers.size(), 1u);
}

TEST(Loopback, QueuesAreBounded) {
  Limits limits;
  limits.message_bytes_max = 100;
  limits.send_queue_messages_max = 3;
  limits.fetches_max = 2;
  limits.endpoints_max = 1;
  limits.regions_max = 1;
  World w({}, 1, limits);
  const Region region = w.b->AllocateRegion(64).value();
  EXPECT_EQ(w.b->AllocateRegion(64).status().code(), absl::StatusCode::kResourceExhausted);
  const EndpointId to = w.ConnectAToB();
  EXPECT_EQ(w.a->Send(to, std::string(60, 'x'), std::vector<uint8_t>(41)).code(),
            absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(w.a->Send(to, "x", {}).ok());
  EXPECT_EQ(w.a->Send(to, "x", {}).code(), absl::StatusCode::kResourceExhausted);
  std::vector<uint8_t> local(64);
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());
  EXPECT_EQ(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).status().code(),
            absl::StatusCode::kResourceExhausted);
  auto c = w.network.CreateTransport().value();
  EXPECT_EQ(w.a->Connect(c->LocalAddress()).status().code(), absl::StatusCode::kResourceExhausted);
  w.Run();
  EXPECT_TRUE(w.a->Send(to, "x", {}).ok());
  EXPECT_TRUE(w.a->Fetch(to, region.remote_key, 0, absl::MakeSpan(local)).ok());

  // b has no endpoint left for c, which is told so.
  Recorder at_c;
  const EndpointId c_to_b = c->Connect(w.b->LocalAddress()).value();
  ASSERT_TRUE(c->Send(c_to_b, "x", {}).ok());
  w.Run();
  c->Poll(at_c);
  EXPECT_EQ(at_c.log, std::vector<std::string>{"down"});
}

TEST(Loopback, RefusesForeignAddresses) {
  World w;
  for (const std::string& address :
       {std::string(), std::string("x"), std::string(16, '\0'), std::string(5000, 'a')}) {
    EXPECT_EQ(w.a->Connect(address).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(w.a->Connect(w.a->LocalAddress()).status().code(), absl::StatusCode::kInvalidArgument);
}

// One end on a loop of its own: answers every message with the bytes it fetched from the sender.
class LoopEnd final : public Events {
 public:
  LoopEnd(LoopbackNetwork& network, const Clock& clock, absl::string_view name)
      : loop_(ThreadLoop::Start(name, clock, 64).value()),
        transport_(network.CreateTransport().value()),
        region_(transport_->AllocateRegion(1 << 16).value()) {
    std::fill(region_.memory.begin(), region_.memory.end(), uint8_t{7});
    OnLoop([this] {
      EXPECT_TRUE(
          loop_->WatchReadable(transport_->EventFd(), [this] { transport_->Poll(*this); }).ok());
      loop_->SetBeforeSleep([this] {
        if (transport_->PrepareSleep()) return false;
        transport_->Poll(*this);
        return true;
      });
    });
  }
  ~LoopEnd() override { loop_->Stop(); }

  void OnLoop(ThreadLoop::Task task) { EXPECT_TRUE(loop_->Post(std::move(task))); }
  std::string address() const { return transport_->LocalAddress(); }
  const std::string& key() const { return region_.remote_key; }
  // On the loop.
  void Start(const std::string& peer, const std::string& peer_key, int rounds) {
    peer_key_ = peer_key;
    rounds_ = rounds;
    FetchFrom(transport_->Connect(peer).value());
  }
  void ExpectKey(const std::string& peer_key) { peer_key_ = peer_key; }
  BoundedQueue<int>& finished() { return finished_; }

  void OnMessage(EndpointId from, absl::string_view /*header*/,
                 absl::Span<const uint8_t> payload) override {
    EXPECT_EQ(payload.size(), local_.size());
    if (rounds_ > 0 && --rounds_ == 0) {
      finished_.TryPush(1);
    } else {
      FetchFrom(from);
    }
  }
  void OnFetchDone(FetchId /*fetch*/, const absl::Status& status) override {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(std::count(local_.begin(), local_.end(), 7), static_cast<ptrdiff_t>(local_.size()));
    EXPECT_TRUE(transport_->Send(peer_, "fetched", local_).ok());
  }
  void OnPeerDown(EndpointId /*endpoint*/, const absl::Status& /*reason*/) override {}

 private:
  void FetchFrom(EndpointId peer) {
    peer_ = peer;
    EXPECT_TRUE(transport_->Fetch(peer, peer_key_, 0, absl::MakeSpan(local_)).ok());
  }

  std::unique_ptr<ThreadLoop> loop_;
  std::unique_ptr<LoopbackTransport> transport_;
  const Region region_;
  std::vector<uint8_t> local_ = std::vector<uint8_t>(1 << 16);
  std::string peer_key_;
  EndpointId peer_;
  int rounds_ = 0;
  BoundedQueue<int> finished_{1};
};

TEST(Loopback, SelfDrivenItServesThreads) {
  SystemClock clock;
  LoopbackNetwork::Options options;
  options.self_driven = true;
  LoopbackNetwork network(options, clock);
  LoopEnd a(network, clock, "a"), b(network, clock, "b");
  const std::string address = b.address();
  // A loop may take a message before a task that was posted earlier, so `a` starts only once `b`
  // knows whose memory it will read.
  b.OnLoop([&] {
    b.ExpectKey(a.key());
    a.OnLoop([&] { a.Start(address, b.key(), 200); });
  });
  EXPECT_TRUE(a.finished().PopFor(absl::Seconds(60)).has_value());
}

}  // namespace
}  // namespace sluice::transport
