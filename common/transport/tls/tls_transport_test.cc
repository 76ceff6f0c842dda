// Who is let in by the tls backend, what it does with strangers, and that honest peers notice
// nothing of them.
#include "transport/tls/tls_transport.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/certificates/service_identity.h"
#include "base/certificates/trial_authority.h"
#include "base/certificates/trial_folder.h"
#include "base/clock.h"
#include "base/random.h"
#include "transport/recorder.h"
#include "transport/tls/tcp_socket.h"
#include "transport/tls/tls_connection.h"
#include "transport/tls/tls_context.h"
#include "transport/tls/tls_wire.h"
#include "transport/wait.h"

namespace sluice::transport {
namespace {

TlsOptions OptionsWith(const CertificateFiles& files) {
  TlsOptions options;
  options.files = files;
  return options;
}

class TlsTransportTest : public testing::Test {
 protected:
  // A transport with the certificate of `role`; polled by Until.
  struct Node {
    std::unique_ptr<TlsTransport> transport;
    Recorder seen;
  };

  Node& Add(const TlsOptions& options) {
    nodes_.push_back(std::make_unique<Node>());
    auto created = TlsTransport::Create(options);
    EXPECT_TRUE(created.ok()) << created.status();
    nodes_.back()->transport = std::move(created).value();
    return *nodes_.back();
  }
  Node& Add(ServiceRole role) { return Add(OptionsWith(trial_.Of(role))); }

  bool Until(const std::function<bool()>& done) {
    const absl::Time deadline = clock_.Now() + absl::Seconds(30);
    while (!done()) {
      if (clock_.Now() > deadline) return false;
      bool any = false;
      std::vector<Transport*> all;
      for (const auto& node : nodes_) {
        any = node->transport->Poll(node->seen) || any;
        all.push_back(node->transport.get());
      }
      if (!any) WaitForWork(all, absl::Milliseconds(50));
    }
    return true;
  }
  // `from` sends `count` messages to `to`, and all of them arrive.
  void ExpectTransfer(Node& from, Node& to, size_t count = 1) {
    const size_t before = to.seen.messages.size();
    const EndpointId endpoint = from.transport->Connect(to.transport->LocalAddress()).value();
    for (size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(from.transport->Send(endpoint, "honest", Bytes(100000, i)).ok());
    }
    ASSERT_TRUE(Until([&] { return to.seen.messages.size() == before + count; }));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(to.seen.messages[before + i].payload, Bytes(100000, i));
    }
  }
  // Connects `from` to `to` and returns why that ended.
  absl::Status ConnectInVain(Node& from, Node& to) {
    from.transport->Connect(to.transport->LocalAddress()).value();
    if (!Until([&] { return !from.seen.down.empty(); })) return absl::OkStatus();
    return from.seen.reasons.back();
  }
  // A plain TCP connection to `to`.
  static UniqueFd Dial(const Node& to) {
    const TlsAddress address = TlsAddress::Decode(to.transport->LocalAddress()).value();
    return DialTcp({address.host, address.port}).value();
  }
  static void SendRaw(const UniqueFd& fd, const std::string& bytes) {
    while (send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && errno == EAGAIN) {
    }
  }

  SystemClock clock_;
  const TrialFolder trial_ = TrialFolder::Create("test").value();
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(TlsTransportTest, WorkersMayAndNobodyElse) {
  Node& decode = Add(ServiceRole::kDecode);
  ExpectTransfer(Add(ServiceRole::kPrefill), decode);
  ExpectTransfer(Add(ServiceRole::kDecode), decode);
  uint64_t refused = 0;
  for (const ServiceRole role :
       {ServiceRole::kRouter, ServiceRole::kCacheManager, ServiceRole::kOperator}) {
    const absl::Status why = ConnectInVain(Add(role), decode);
    EXPECT_EQ(why.code(), absl::StatusCode::kPermissionDenied) << why;
    const std::string presented = absl::StrCat("sluice://", ServiceRoleName(role), "/test");
    EXPECT_TRUE(absl::StrContains(why.message(), presented)) << why;
    EXPECT_TRUE(absl::StrContains(why.message(), "sluice://prefill/")) << why;
    EXPECT_EQ(decode.transport->refused(Refusal::kForbidden), ++refused);
  }
}

TEST_F(TlsTransportTest, AnotherAuthorityIsRefusedByBothEnds) {
  const TrialFolder foreign = TrialFolder::Create("stranger").value();
  Node& decode = Add(ServiceRole::kDecode);
  Node& stranger = Add(OptionsWith(foreign.Of(ServiceRole::kPrefill)));
  const absl::Status why = ConnectInVain(stranger, decode);
  EXPECT_EQ(why.code(), absl::StatusCode::kUnauthenticated) << why;
  EXPECT_TRUE(absl::StrContains(why.message(), "sluice://decode/test")) << why;

  // It trusts us, we do not trust it.
  CertificateFiles files = foreign.Of(ServiceRole::kPrefill);
  files.authorities = trial_.Of(ServiceRole::kPrefill).authorities;
  EXPECT_FALSE(ConnectInVain(Add(OptionsWith(files)), decode).ok());
  ASSERT_TRUE(Until([&] { return decode.transport->refused(Refusal::kUnauthenticated) == 2; }));
  ExpectTransfer(Add(ServiceRole::kPrefill), decode);
}

TEST_F(TlsTransportTest, AnExpiredCertificateIsRefused) {
  CertificateOptions expired;
  expired.backdated = absl::Hours(2);
  expired.valid_for = absl::Hours(1);
  // Its authority is in time; only the certificate of the worker is not.
  const TrialAuthority authority = TrialAuthority::Create("a", absl::Hours(1)).value();
  expired.uris = {"sluice://prefill/late"};
  const std::string late = trial_.path() + "/late", good = trial_.path() + "/good";
  const std::string& ca = authority.own().certificate_pem;
  ASSERT_TRUE(WriteCertificateFolder(late, authority.Issue(expired).value(), ca).ok());
  CertificateOptions in_time;
  in_time.uris = {"sluice://decode/d0"};
  ASSERT_TRUE(WriteCertificateFolder(good, authority.Issue(in_time).value(), ca).ok());
  Node& decode = Add(OptionsWith(CertificateFilesIn(good)));
  EXPECT_FALSE(ConnectInVain(Add(OptionsWith(CertificateFilesIn(late))), decode).ok());
  ASSERT_TRUE(Until([&] { return decode.transport->refused(Refusal::kUnauthenticated) == 1; }));
}

TEST_F(TlsTransportTest, WhoAnswersMustBeWhoWasMeant) {
  Node& prefill = Add(ServiceRole::kPrefill);
  Node& decode = Add(ServiceRole::kDecode);
  TlsAddress address = TlsAddress::Decode(decode.transport->LocalAddress()).value();
  address.identity = "sluice://decode/another";
  prefill.transport->Connect(address.Encode()).value();
  ASSERT_TRUE(Until([&] { return !prefill.seen.down.empty(); }));
  const absl::Status why = prefill.seen.reasons.back();
  EXPECT_EQ(why.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(why.message(), "sluice://decode/test") &&
              absl::StrContains(why.message(), "sluice://decode/another"))
      << why;
  // The process behind an address was replaced: the id tells.
  address.identity = "sluice://decode/test";
  address.transport = {1, 2};
  prefill.transport->Connect(address.Encode()).value();
  ASSERT_TRUE(Until([&] { return prefill.seen.down.size() == 2; }));
  EXPECT_TRUE(absl::StrContains(prefill.seen.reasons.back().message(), "not here any more"))
      << prefill.seen.reasons.back();
}

TEST_F(TlsTransportTest, StrangersAreRefusedAndCountedWhileHonestTransfersGoOn) {
  TlsOptions options = OptionsWith(trial_.Of(ServiceRole::kDecode));
  options.handshake_timeout = absl::Milliseconds(400);
  options.handshakes_max = 16;
  Node& decode = Add(options);
  Node& prefill = Add(ServiceRole::kPrefill);
  const auto refused = [&](Refusal reason) { return decode.transport->refused(reason); };
  ExpectTransfer(prefill, decode);

  // Connections that say nothing: more than there is room for, then a few until they are too old.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(Dial(decode));
    ExpectTransfer(prefill, decode);
  }
  ASSERT_TRUE(Until([&] { return refused(Refusal::kTimeout) == 16; }));
  EXPECT_EQ(refused(Refusal::kCrowded), 24u);

  // Other protocols and noise.
  SeededRandom random(11);
  const uint64_t before = refused(Refusal::kUnauthenticated);
  for (uint64_t i = 0; i < 20; ++i) {
    std::string bytes = i == 0 ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n" : std::string(3000, '\0');
    for (size_t b = 0; i > 0 && b < bytes.size(); ++b)
      bytes[b] = static_cast<char>(random.Below(256));
    const UniqueFd stranger = Dial(decode);
    SendRaw(stranger, bytes);
    ASSERT_TRUE(Until([&] {
      return refused(Refusal::kUnauthenticated) + refused(Refusal::kLeft) == before + i + 1 ||
             refused(Refusal::kTimeout) > 16;
    }));
  }
  EXPECT_GT(refused(Refusal::kUnauthenticated), before + 10);

  // A connection that leaves at once.
  const uint64_t left = refused(Refusal::kLeft);
  Dial(decode);
  ASSERT_TRUE(Until([&] { return refused(Refusal::kLeft) == left + 1; }));
  ExpectTransfer(prefill, decode, 20);
  EXPECT_TRUE(prefill.seen.down.empty() && decode.seen.down.empty());
}

TEST_F(TlsTransportTest, ARecordedConversationIsWorthNothing) {
  TlsOptions options = OptionsWith(trial_.Of(ServiceRole::kDecode));
  options.handshake_timeout = absl::Milliseconds(200);
  Node& decode = Add(options);
  Node& prefill = Add(ServiceRole::kPrefill);
  // Something in the middle records what an honest dialer begins with.
  SocketAddress here = {"127.0.0.1", 0};
  const UniqueFd listener = ListenTcp(here).value();
  TlsAddress address = TlsAddress::Decode(decode.transport->LocalAddress()).value();
  address.port = here.port;
  prefill.transport->Connect(address.Encode()).value();
  UniqueFd caught;
  std::string recorded(4096, '\0');
  ssize_t bytes = -1;
  ASSERT_TRUE(Until([&] {
    if (!caught) caught = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
    if (caught) bytes = recv(caught.get(), recorded.data(), recorded.size(), 0);
    return bytes > 0;
  }));
  recorded.resize(static_cast<size_t>(bytes));
  const UniqueFd replay = Dial(decode);
  SendRaw(replay, recorded);
  ASSERT_TRUE(Until([&] { return decode.transport->refused(Refusal::kTimeout) == 1; }));
  EXPECT_TRUE(decode.seen.messages.empty());
}

// A peer whose certificate is good and who does not keep to the protocol.
class TlsInsiderTest : public TlsTransportTest {
 protected:
  // Dials `to` and runs the handshake.
  std::unique_ptr<TlsConnection> Enter(const Node& to) {
    insider_ = TlsContext::Create(trial_.Of(ServiceRole::kPrefill)).value();
    auto connection =
        TlsConnection::Create(Dial(to), TlsConnection::Side::kDialer, insider_->Current(), buffers_)
            .value();
    EXPECT_TRUE(Until([&] {
      const auto done = connection->Handshake();
      EXPECT_TRUE(done.ok()) << done.status();
      return !done.ok() || *done;
    }));
    return connection;
  }
  static void Put(TlsConnection& connection, TlsFrame frame, const std::string& body) {
    const auto head = frame.Encode();
    std::string bytes(head.begin(), head.end());
    bytes += body;
    size_t written = 0;
    ASSERT_TRUE(
        connection.Write({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, written)
            .ok());
    ASSERT_TRUE(connection.Flush().ok());
  }
  static void PutHello(TlsConnection& connection, const TlsHello& hello) {
    const std::string body = hello.Encode();
    Put(connection, {TlsFrame::Kind::kHello, static_cast<uint32_t>(body.size()), 0}, body);
  }
  TlsHello GoodHello(const Node& to) {
    return {{7, 7},
            TlsAddress::Decode(to.transport->LocalAddress()).value().transport,
            1,
            Limits().message_bytes_max};
  }

  BufferPool buffers_{1 << 20};
  std::unique_ptr<TlsContext> insider_;
};

TEST_F(TlsInsiderTest, WhatIsNoProtocolIsRefusedAndCounted) {
  Node& decode = Add(ServiceRole::kDecode);
  const uint64_t most = Limits().message_bytes_max;
  TlsHello wrong_limit = GoodHello(decode), self = GoodHello(decode);
  wrong_limit.message_bytes_max = 1;
  self.sender = self.receiver;
  using Kind = TlsFrame::Kind;
  const std::vector<std::function<void(TlsConnection&)>> lies = {
      [](TlsConnection& c) {
        Put(c, {Kind::kData, 1, 0}, "x");
      },  // before the hello
      [](TlsConnection& c) {
        Put(c, {Kind::kHello, 3, 0}, "abc");
      },  // no hello
      [](TlsConnection& c) {
        Put(c, {Kind::kYield, 0, 0}, "");
      },  // not its part
      [](TlsConnection& c) {
        Put(c, {Kind::kHello, 2000, 0}, "");
      },  // oversize
      [](TlsConnection& c) {
        Put(c, {Kind{99}, 0, 0}, "");
      },  // unknown
      [&](TlsConnection& c) { PutHello(c, wrong_limit); },
      [&](TlsConnection& c) { PutHello(c, self); },
      [&](TlsConnection& c) {
        PutHello(c, GoodHello(decode));
        Put(c, {Kind::kData, 1, most}, "");  // oversize once let in
      },
      [&](TlsConnection& c) {
        PutHello(c, GoodHello(decode));
        Put(c, {Kind::kData, ~uint32_t{0}, ~uint64_t{0} - 10}, "");  // wraps around
      },
      [&](TlsConnection& c) {
        PutHello(c, GoodHello(decode));
        PutHello(c, GoodHello(decode));
      },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    const auto connection = Enter(decode);
    lies[i](*connection);
    ASSERT_TRUE(Until([&] { return decode.transport->refused(Refusal::kMalformed) == i + 1; }))
        << "lie " << i;
  }
  EXPECT_TRUE(decode.seen.messages.empty());
  ExpectTransfer(Add(ServiceRole::kPrefill), decode);
}

TEST_F(TlsInsiderTest, NobodyTakesTheConnectionOfAnother) {
  Node& decode = Add(ServiceRole::kDecode);
  Node& other = Add(ServiceRole::kDecode);
  ExpectTransfer(other, decode);
  // A prefill worker claims to be the transport of that decode worker, connecting anew.
  TlsHello hello = GoodHello(decode);
  hello.sender = TlsAddress::Decode(other.transport->LocalAddress()).value().transport;
  hello.epoch = 1000;
  const auto connection = Enter(decode);
  PutHello(*connection, hello);
  ASSERT_TRUE(Until([&] { return decode.transport->refused(Refusal::kForbidden) == 1; }));
  EXPECT_TRUE(decode.seen.down.empty());
  ExpectTransfer(other, decode);
}

TEST_F(TlsTransportTest, NewCertificatesAreUsedWithoutARestart) {
  Node& decode = Add(ServiceRole::kDecode);
  Node& prefill = Add(ServiceRole::kPrefill);
  ExpectTransfer(prefill, decode);
  const TrialFolder next = TrialFolder::Create("next").value();
  const std::string from = next.FolderOf(ServiceRole::kDecode);
  const std::string to = trial_.FolderOf(ServiceRole::kDecode);
  const auto replace = [&](const std::string& name) {
    std::filesystem::copy_file(from + name, to + name,
                               std::filesystem::copy_options::overwrite_existing);
  };
  // Half of a rotation: a key that is not the certificate's. What is in use stays.
  replace("/tls.key");
  ExpectTransfer(Add(ServiceRole::kPrefill), decode);
  // The whole: the next connections show and ask for the new ones, those that run go on.
  replace("/tls.crt");
  replace("/ca.crt");
  ExpectTransfer(Add(OptionsWith(next.Of(ServiceRole::kPrefill))), decode);
  EXPECT_FALSE(ConnectInVain(Add(ServiceRole::kPrefill), decode).ok());
  ExpectTransfer(prefill, decode);
  EXPECT_TRUE(prefill.seen.down.empty());
}

TEST_F(TlsTransportTest, SaysWhichFileIsWrong) {
  CertificateFiles files = trial_.Of(ServiceRole::kDecode);
  files.key = trial_.Of(ServiceRole::kPrefill).key;
  const absl::Status mismatch = TlsTransport::Create(OptionsWith(files)).status();
  EXPECT_EQ(mismatch.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(mismatch.message(), files.key)) << mismatch;
  files = trial_.Of(ServiceRole::kDecode);
  files.authorities = "/nonexistent/ca.crt";
  const absl::Status missing = TlsTransport::Create(OptionsWith(files)).status();
  EXPECT_TRUE(absl::StrContains(missing.message(), "/nonexistent/ca.crt")) << missing;
  TlsOptions everywhere = OptionsWith(trial_.Of(ServiceRole::kDecode));
  everywhere.listen = "0.0.0.0:0";
  const absl::Status nowhere = TlsTransport::Create(everywhere).status();
  EXPECT_TRUE(absl::StrContains(nowhere.message(), "transport.advertise")) << nowhere;
}

}  // namespace
}  // namespace sluice::transport
