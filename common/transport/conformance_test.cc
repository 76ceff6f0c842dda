// What every backend must do. Two transports in this process; for those that reach further, also
// one in another process.
#include "transport/conformance.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/random.h"
#include "transport/factory.h"
#include "transport/wait.h"

extern char** environ;

namespace sluice::transport {
namespace {

struct Received {
  EndpointId from;
  std::string header;
  std::vector<uint8_t> payload;
};

class Recorder final : public Events {
 public:
  void OnMessage(EndpointId from, absl::string_view header,
                 absl::Span<const uint8_t> payload) override {
    EXPECT_FALSE(IsDown(from)) << "a message after the end";
    messages.push_back({from, std::string(header), {payload.begin(), payload.end()}});
  }
  void OnFetchDone(FetchId fetch, const absl::Status& status) override {
    for (const auto& [other, ended] : fetches) EXPECT_NE(other, fetch) << "reported twice";
    fetches.emplace_back(fetch, status);
    fetches_after_down += !down.empty();
  }
  void OnPeerDown(EndpointId endpoint, const absl::Status& reason) override {
    EXPECT_FALSE(IsDown(endpoint)) << "reported twice";
    EXPECT_FALSE(reason.ok());
    down.push_back(endpoint);
  }
  bool IsDown(EndpointId endpoint) const {
    return std::find(down.begin(), down.end(), endpoint) != down.end();
  }

  std::vector<Received> messages;
  std::vector<std::pair<FetchId, absl::Status>> fetches;
  std::vector<EndpointId> down;
  int fetches_after_down = 0;
};

std::vector<uint8_t> Bytes(size_t size, uint64_t seed) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<uint8_t>(Mix64(seed + i / 7) >> (i % 7 * 8));
  return bytes;
}

class Conformance : public testing::TestWithParam<std::string> {
 protected:
  Conformance() : network_({1, {}, {}, /*self_driven=*/true}, clock_) {}

  std::unique_ptr<Transport> Create(const Limits& limits = {}) {
    TransportOptions options;
    options.backends = {GetParam()};
    options.trusted_network = true;
    options.limits = limits;
    options.loopback = &network_;
    auto transport = CreateTransport(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return transport.ok() ? std::move(*transport) : nullptr;
  }
  void SetUp() override {
    a_ = Create();
    b_ = Create();
    ASSERT_TRUE(a_ != nullptr && b_ != nullptr);
  }
  void PollOnce() {
    std::vector<Transport*> all;
    bool any = a_->Poll(at_a_);
    all.push_back(a_.get());
    if (b_ != nullptr) {
      any = b_->Poll(at_b_) || any;
      all.push_back(b_.get());
    }
    if (!any) WaitForWork(all, absl::Milliseconds(100));
  }
  // Polls until `done`; fails the test after half a minute.
  bool Until(const std::function<bool()>& done) {
    const absl::Time deadline = clock_.Now() + absl::Seconds(30);
    while (!done()) {
      if (clock_.Now() > deadline) return false;
      PollOnce();
    }
    return true;
  }
  EndpointId ConnectAToB() { return a_->Connect(b_->LocalAddress()).value(); }
  // a and b know each other afterwards; returns a's and b's endpoint.
  std::pair<EndpointId, EndpointId> Introduce() {
    const EndpointId to_b = ConnectAToB();
    EXPECT_TRUE(a_->Send(to_b, "hello", {}).ok());
    EXPECT_TRUE(Until([&] { return !at_b_.messages.empty(); }));
    const EndpointId to_a = at_b_.messages.back().from;
    at_b_.messages.clear();
    return {to_b, to_a};
  }
  bool CanFetch() const { return a_->capabilities().true_get; }

  SystemClock clock_;
  LoopbackNetwork network_;
  std::unique_ptr<Transport> a_;
  std::unique_ptr<Transport> b_;
  Recorder at_a_;
  Recorder at_b_;
};

TEST_P(Conformance, SaysWhatItIs) {
  EXPECT_EQ(a_->capabilities().name, GetParam());
  EXPECT_LE(a_->LocalAddress().size(), kAddressBytesMax);
  EXPECT_NE(a_->LocalAddress(), b_->LocalAddress());
  EXPECT_EQ(a_->capabilities().message_bytes_max, Limits().message_bytes_max);
}

TEST_P(Conformance, MessagesOfEverySizeArriveInOrder) {
  const EndpointId to = ConnectAToB();
  EXPECT_EQ(ConnectAToB(), to);
  // Small ones follow large ones, which travel differently inside UCX.
  const size_t sizes[] = {0,    1,     7,     64,     100,    1000,   4096,
                          8192, 10000, 65536, 100000, 300000, 1 << 20};
  size_t count = 0;
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : sizes) {
      for (const size_t payload : {size, size_t{3}}) {
        const std::string header =
            absl::StrCat(count, " ", std::string(round == 1 ? 20000 : 5, 'h'));
        ASSERT_TRUE(a_->Send(to, header, Bytes(payload, count)).ok());
        ++count;
      }
    }
  }
  ASSERT_TRUE(Until([&] { return at_b_.messages.size() == count; }))
      << at_b_.messages.size() << " of " << count;
  for (size_t i = 0; i < count; ++i) {
    const Received& m = at_b_.messages[i];
    ASSERT_EQ(m.header.substr(0, m.header.find(' ')), absl::StrCat(i));
    ASSERT_EQ(m.payload, Bytes(m.payload.size(), i)) << "message " << i;
    ASSERT_EQ(m.payload.size(), i % 2 == 1 ? 3 : sizes[i / 2 % std::size(sizes)]);
    ASSERT_EQ(m.from, at_b_.messages[0].from);
  }
}

TEST_P(Conformance, BothEndsMayTalkAndConnect) {
  const EndpointId to_b = ConnectAToB();
  const EndpointId to_a = b_->Connect(a_->LocalAddress()).value();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(a_->Send(to_b, absl::StrCat("a", i), Bytes(1000, 1)).ok());
    ASSERT_TRUE(b_->Send(to_a, absl::StrCat("b", i), Bytes(20000, 2)).ok());
  }
  ASSERT_TRUE(Until([&] { return at_a_.messages.size() == 100 && at_b_.messages.size() == 100; }));
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(at_a_.messages[i].header, absl::StrCat("b", i));
    EXPECT_EQ(at_a_.messages[i].from, to_b);
    EXPECT_EQ(at_b_.messages[i].header, absl::StrCat("a", i));
    EXPECT_EQ(at_b_.messages[i].from, to_a);
  }
  EXPECT_TRUE(at_a_.down.empty() && at_b_.down.empty());
}

TEST_P(Conformance, FetchesAnyPieceOfTheRegion) {
  const Region region = b_->AllocateRegion(kPeerRegionBytes).value();
  ASSERT_EQ(region.memory.size(), kPeerRegionBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region.memory.data()) % 64, 0u);
  for (size_t i = 0; i < kPeerRegionBytes; ++i) {
    ASSERT_EQ(region.memory[i], 0);
    region.memory[i] = PatternByte(i);
  }
  const EndpointId from = ConnectAToB();
  std::vector<uint8_t> local(kPeerRegionBytes + 2, 0xee);
  const auto fetch = [&](uint64_t offset, size_t bytes) {
    return a_->Fetch(from, region.remote_key, offset, absl::MakeSpan(local).subspan(1, bytes))
        .status()
        .code();
  };
  if (!CanFetch()) {
    EXPECT_EQ(fetch(0, 64), absl::StatusCode::kUnimplemented);
    return;
  }
  size_t count = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, size_t{65536},
                             size_t{1} << 20, kPeerRegionBytes}) {
    for (const size_t offset : {size_t{0}, size_t{1}, size_t{4095}, (kPeerRegionBytes - bytes) / 2,
                                kPeerRegionBytes - bytes}) {
      if (offset + bytes > kPeerRegionBytes) continue;
      std::fill(local.begin(), local.end(), uint8_t{0xee});
      ASSERT_EQ(fetch(offset, bytes), absl::StatusCode::kOk);
      ++count;
      ASSERT_TRUE(Until([&] { return at_a_.fetches.size() == count; }));
      ASSERT_TRUE(at_a_.fetches.back().second.ok()) << at_a_.fetches.back().second;
      ASSERT_EQ(local[0], 0xee);
      ASSERT_EQ(local[bytes + 1], 0xee) << "nothing is written beyond the piece";
      for (size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(local[1 + i], PatternByte(offset + i)) << offset << " + " << i;
    }
  }
  EXPECT_EQ(fetch(kPeerRegionBytes, 1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(fetch(kPeerRegionBytes - 1, 2), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(fetch(~uint64_t{0}, 2), absl::StatusCode::kOutOfRange);
}

TEST_P(Conformance, ManyFetchesAtOnceAndTheRegionMayChangeBetween) {
  if (!CanFetch()) GTEST_SKIP() << "no true get";
  const Region region = b_->AllocateRegion(1 << 20).value();
  const EndpointId from = ConnectAToB();
  for (uint8_t value = 1; value <= 3; ++value) {
    std::fill(region.memory.begin(), region.memory.end(), value);
    std::vector<uint8_t> local(1 << 20);
    at_a_.fetches.clear();
    for (size_t i = 0; i < 64; ++i) {
      ASSERT_TRUE(a_->Fetch(from, region.remote_key, i << 14,
                            absl::MakeSpan(local).subspan(i << 14, 1 << 14))
                      .ok());
    }
    ASSERT_TRUE(Until([&] { return at_a_.fetches.size() == 64; }));
    EXPECT_EQ(local, std::vector<uint8_t>(1 << 20, value));
  }
}

TEST_P(Conformance, RefusesForeignAddressesAndKeys) {
  SeededRandom random(7);
  std::string address = b_->LocalAddress();
  std::vector<std::string> bad = {"", "x", std::string(5000, 'a'), address.substr(1),
                                  address + "x"};
  for (int i = 0; i < 200; ++i) {
    std::string flipped = address;
    char& c = flipped[random.Below(flipped.size())];
    c = static_cast<char>(c ^ (1 << random.Below(8)));
    bad.push_back(flipped);
  }
  for (const std::string& bytes : bad) {
    EXPECT_EQ(a_->Connect(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(a_->Connect(a_->LocalAddress()).status().code(), absl::StatusCode::kInvalidArgument);
  if (!CanFetch()) return;
  const EndpointId from = ConnectAToB();
  const std::string key = b_->AllocateRegion(4096).value().remote_key;
  EXPECT_LE(key.size(), kRemoteKeyBytesMax);
  std::vector<uint8_t> local(64);
  bad = {"",
         "x",
         std::string(5000, 'a'),
         key.substr(1),
         key + "x",
         a_->AllocateRegion(4096).value().remote_key};
  for (size_t i = 0; i < key.size() * 8; ++i) {
    bad.push_back(key);
    char& c = bad.back()[i / 8];
    c = static_cast<char>(c ^ (1 << (i % 8)));
  }
  for (const std::string& bytes : bad) {
    EXPECT_EQ(a_->Fetch(from, bytes, 0, absl::MakeSpan(local)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(Conformance, CloseEndsBothSidesAndAllowsANewConnection) {
  for (int round = 0; round < 5; ++round) {
    const auto [to_b, to_a] = Introduce();
    ASSERT_TRUE(b_->Send(to_a, "dropped by the close", {}).ok());
    a_->Close(to_b);
    a_->Close(to_b);
    EXPECT_EQ(a_->Send(to_b, "late", {}).code(), absl::StatusCode::kNotFound);
    std::vector<uint8_t> local(64);
    if (CanFetch()) {
      EXPECT_EQ(a_->Fetch(to_b, "any", 0, absl::MakeSpan(local)).status().code(),
                absl::StatusCode::kNotFound);
    }
    ASSERT_TRUE(Until([&, a = to_b, b = to_a] { return at_a_.IsDown(a) && at_b_.IsDown(b); }))
        << "round " << round;
    EXPECT_EQ(b_->Send(to_a, "late", {}).code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(at_a_.messages.empty());
  }
  EXPECT_EQ(at_a_.down.size(), 5u);
  EXPECT_EQ(at_b_.down.size(), 5u);
}

TEST_P(Conformance, CloseWithMuchUnderWayReportsItAllOnce) {
  const Region region = b_->AllocateRegion(1 << 20).value();
  const EndpointId to_b = Introduce().first;
  std::vector<uint8_t> local(1 << 20);
  size_t fetches = 0;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(a_->Send(to_b, "large", Bytes(1 << 20, 1)).ok());
    if (CanFetch()) {
      ASSERT_TRUE(a_->Fetch(to_b, region.remote_key, 0, absl::MakeSpan(local)).ok());
      ++fetches;
    }
  }
  a_->Close(to_b);
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to_b) && at_b_.down.size() == 1; }));
  EXPECT_EQ(at_a_.fetches.size(), fetches);
  EXPECT_EQ(at_a_.fetches_after_down, 0);
  Introduce();
}

TEST_P(Conformance, ATransportThatIsDestroyedIsDown) {
  const EndpointId to_b = Introduce().first;
  b_.reset();
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to_b); }));
}

TEST_P(Conformance, AFullQueueRefusesAndLosesNothing) {
  const EndpointId to_b = Introduce().first;
  const size_t most = a_->capabilities().message_bytes_max;
  const std::vector<uint8_t> large = Bytes(most, 1);
  EXPECT_EQ(a_->Send(to_b, "x", large).code(), absl::StatusCode::kInvalidArgument);
  size_t accepted = 0;
  absl::Status status;
  while (status.ok() && accepted < 100) {
    status = a_->Send(to_b, {}, large);
    accepted += status.ok();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(accepted, Limits().send_queue_bytes_max / most);
  ASSERT_TRUE(Until([&] { return at_b_.messages.size() == accepted; }));
  for (const Received& message : at_b_.messages) ASSERT_EQ(message.payload, large);
  EXPECT_TRUE(a_->Send(to_b, "again", {}).ok());
}

INSTANTIATE_TEST_SUITE_P(All, Conformance, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Backend& backend : BuiltBackends()) {
                             if (backend.name != "ucx-rdma")
                               names.push_back(backend.name);  // needs an adapter
                           }
                           return names;
                         }()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A peer in a process of its own. Killed in the destructor if it still runs.
class PeerProcess {
 public:
  explicit PeerProcess(const std::string& backend) {
    int out[2];
    if (pipe(out) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    std::string program = SLUICE_TRANSPORT_PEER, name = backend;
    char* arguments[] = {program.data(), name.data(), nullptr};
    const bool spawned =
        posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    if (!spawned) pid_ = -1;
    std::string line;
    char c = 0;
    while (read(out[0], &c, 1) == 1 && c != '\n') line += c;
    close(out[0]);
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    address_ = absl::HexStringToBytes(words[0]);
    key_ = words.size() > 1 ? absl::HexStringToBytes(words[1]) : "";
  }
  ~PeerProcess() {
    if (pid_ > 0) Kill();
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Waits for the end that it was asked for.
  int Join() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  const std::string& address() const { return address_; }
  const std::string& key() const { return key_; }

 private:
  pid_t pid_ = -1;
  std::string address_;
  std::string key_;
};

class TwoProcesses : public Conformance {
 protected:
  void SetUp() override {
    a_ = Create();
    ASSERT_NE(a_, nullptr);
  }
  EndpointId ConnectTo(const PeerProcess& peer) {
    auto endpoint = a_->Connect(peer.address());
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    return endpoint.value_or(EndpointId());
  }
};

TEST_P(TwoProcesses, EchoAndFetch) {
  PeerProcess peer(GetParam());
  const EndpointId to = ConnectTo(peer);
  std::vector<uint8_t> local(kPeerRegionBytes);
  if (CanFetch()) {  // also before any message
    ASSERT_TRUE(a_->Fetch(to, peer.key(), 0, absl::MakeSpan(local)).ok());
    ASSERT_TRUE(Until([&] { return at_a_.fetches.size() == 1; }));
    ASSERT_TRUE(at_a_.fetches[0].second.ok()) << at_a_.fetches[0].second;
    for (size_t i = 0; i < local.size(); ++i) ASSERT_EQ(local[i], PatternByte(i));
  }
  for (size_t i = 0; i < 50; ++i)
    ASSERT_TRUE(a_->Send(to, absl::StrCat(i), Bytes(i * i * 400, i)).ok());
  ASSERT_TRUE(Until([&] { return at_a_.messages.size() == 50; }));
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(at_a_.messages[i].header, absl::StrCat(i));
    EXPECT_EQ(at_a_.messages[i].payload, Bytes(i * i * 400, i));
  }
  ASSERT_TRUE(a_->Send(to, "exit", {}).ok());
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to); }));
  EXPECT_EQ(peer.Join(), 0);
}

TEST_P(TwoProcesses, APeerThatClosesIsDownAndCanBeReachedAgain) {
  PeerProcess peer(GetParam());
  for (int i = 0; i < 3; ++i) {
    const EndpointId to = ConnectTo(peer);
    ASSERT_TRUE(a_->Send(to, "close", {}).ok());
    ASSERT_TRUE(Until([&] { return at_a_.IsDown(to); }));
  }
}

TEST_P(TwoProcesses, AKilledIdlePeerIsDown) {
  PeerProcess peer(GetParam());
  const EndpointId to = ConnectTo(peer);
  ASSERT_TRUE(a_->Send(to, "hello", {}).ok());
  ASSERT_TRUE(Until([&] { return at_a_.messages.size() == 1; }));
  peer.Kill();
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to); }));
  EXPECT_EQ(a_->Send(to, "late", {}).code(), absl::StatusCode::kNotFound);
}

TEST_P(TwoProcesses, APeerKilledInTheMiddleEndsEverything) {
  PeerProcess peer(GetParam());
  const EndpointId to = ConnectTo(peer);
  std::vector<uint8_t> local(kPeerRegionBytes);
  size_t fetches = 0, sent = 0;
  const auto more = [&] {
    if (sent < 200 && a_->Send(to, "bulk", Bytes(300000, sent)).ok()) ++sent;
    if (CanFetch() && fetches < 200 && a_->Fetch(to, peer.key(), 0, absl::MakeSpan(local)).ok())
      ++fetches;
    return at_a_.messages.size() >= 5;
  };
  ASSERT_TRUE(Until(more));
  peer.Kill();
  while (fetches < 300 && CanFetch() && a_->Fetch(to, peer.key(), 0, absl::MakeSpan(local)).ok())
    ++fetches;
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to); }));
  EXPECT_EQ(at_a_.fetches.size(), fetches);
  EXPECT_EQ(at_a_.fetches_after_down, 0);
  PeerProcess next(GetParam());
  const EndpointId again = ConnectTo(next);
  at_a_.messages.clear();
  ASSERT_TRUE(a_->Send(again, "hello", {}).ok());
  ASSERT_TRUE(Until([&] { return at_a_.messages.size() == 1; }));
}

TEST_P(TwoProcesses, ConnectingToTheDeadEnds) {
  PeerProcess peer(GetParam());
  peer.Kill();
  const absl::StatusOr<EndpointId> to = a_->Connect(peer.address());
  if (!to.ok()) {
    EXPECT_EQ(to.status().code(), absl::StatusCode::kUnavailable) << to.status();
    return;
  }
  static_cast<void>(a_->Send(*to, "anybody?", Bytes(100000, 1)));
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(*to); }));
}

INSTANTIATE_TEST_SUITE_P(Ucx, TwoProcesses, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Backend& backend : BuiltBackends()) {
                             if (backend.name == "ucx-shm" || backend.name == "ucx-tcp")
                               names.push_back(backend.name);
                           }
                           return names;
                         }()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TwoProcesses);

}  // namespace
}  // namespace sluice::transport
