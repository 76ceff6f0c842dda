// Backends that reach other processes: a peer that answers, closes, dies.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "transport/conformance.h"
#include "transport/pattern.h"

extern char** environ;

namespace sluice::transport {
namespace {

// A peer in a process of its own. Killed in the destructor if it still runs.
class PeerProcess {
 public:
  PeerProcess(const std::string& backend, const std::string& certificates) {
    int out[2];
    if (pipe(out) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    std::string program = SLUICE_TRANSPORT_PEER, name = backend, folder = certificates;
    char* arguments[] = {program.data(), name.data(), folder.data(), nullptr};
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
  PeerProcess peer(GetParam(), certificates_.FolderOf(ServiceRole::kPrefill));
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
  PeerProcess peer(GetParam(), certificates_.FolderOf(ServiceRole::kPrefill));
  for (int i = 0; i < 3; ++i) {
    const EndpointId to = ConnectTo(peer);
    ASSERT_TRUE(a_->Send(to, "close", {}).ok());
    ASSERT_TRUE(Until([&] { return at_a_.IsDown(to); }));
  }
}

TEST_P(TwoProcesses, AKilledIdlePeerIsDown) {
  PeerProcess peer(GetParam(), certificates_.FolderOf(ServiceRole::kPrefill));
  const EndpointId to = ConnectTo(peer);
  ASSERT_TRUE(a_->Send(to, "hello", {}).ok());
  ASSERT_TRUE(Until([&] { return at_a_.messages.size() == 1; }));
  peer.Kill();
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to); }));
  EXPECT_EQ(a_->Send(to, "late", {}).code(), absl::StatusCode::kNotFound);
}

TEST_P(TwoProcesses, APeerKilledInTheMiddleEndsEverything) {
  PeerProcess peer(GetParam(), certificates_.FolderOf(ServiceRole::kPrefill));
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
  PeerProcess next(GetParam(), certificates_.FolderOf(ServiceRole::kPrefill));
  const EndpointId again = ConnectTo(next);
  at_a_.messages.clear();
  ASSERT_TRUE(a_->Send(again, "hello", {}).ok());
  ASSERT_TRUE(Until([&] { return at_a_.messages.size() == 1; }));
}

TEST_P(TwoProcesses, ConnectingToTheDeadEnds) {
  PeerProcess peer(GetParam(), certificates_.FolderOf(ServiceRole::kPrefill));
  peer.Kill();
  const absl::StatusOr<EndpointId> to = a_->Connect(peer.address());
  if (!to.ok()) {
    EXPECT_EQ(to.status().code(), absl::StatusCode::kUnavailable) << to.status();
    return;
  }
  static_cast<void>(a_->Send(*to, "anybody?", Bytes(100000, 1)));
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(*to); }));
}

INSTANTIATE_TEST_SUITE_P(All, TwoProcesses,
                         testing::ValuesIn(BackendsThat([](const std::string& name) {
                           return name == "ucx-shm" || name == "ucx-tcp" || name == "tls";
                         })),
                         TestName);

}  // namespace
}  // namespace sluice::transport
