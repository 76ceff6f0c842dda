// Who may call whom over mTLS, and what strangers get.
#include "rpc/tls.h"

#include <sys/socket.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bounded_queue.h"
#include "base/certificates/trial_folder.h"
#include "base/clock.h"
#include "grpc/support/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "rpc/channel_pool.h"
#include "rpc/library.h"
#include "rpc/server.h"
#include "sluice/v1/decode.grpc.pb.h"
#include "transport/tls/tcp_socket.h"

namespace sluice::rpc {
namespace {

using transport::DialTcp;
using transport::SocketAddress;
using transport::UniqueFd;

constexpr absl::Duration kWait = absl::Seconds(30);
// What answers when a call was let in: this server implements nothing.
constexpr auto kLetIn = grpc::StatusCode::UNIMPLEMENTED;

std::shared_ptr<const Tls> Load(const CertificateFiles& files) {
  auto tls = Tls::Load(files, absl::Seconds(1));
  EXPECT_TRUE(tls.ok()) << tls.status();
  return std::move(tls).value();
}

// The end of one call with an empty message.
grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
  // Shared with the callback, which may come when nobody waits any more.
  struct State {
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1};
    grpc::ByteBuffer response;
    BoundedQueue<grpc::Status> ends{1};
  };
  const auto state = std::make_shared<State>();
  state->context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(20, GPR_TIMESPAN)));
  grpc::GenericStub stub(channel);
  stub.UnaryCall(&state->context, method, grpc::StubOptions(), &state->request, &state->response,
                 [state](grpc::Status status) { state->ends.TryPush(std::move(status)); });
  auto end = state->ends.PopFor(kWait);
  return end.has_value() ? *end : grpc::Status(grpc::StatusCode::UNKNOWN, "no end");
}

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    ServerOptions options;
    options.tls = Load(trial_.Of(ServiceRole::kDecode));
    tls_ = options.tls;
    auto server = Server::Start(options, {{v1::Decode::service_full_name(), &service_}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = std::move(server).value();
  }
  std::shared_ptr<grpc::Channel> Channel(const CertificateFiles& files,
                                         ServiceRoles servers = {ServiceRole::kDecode}) const {
    ChannelOptions options;
    options.tls = Load(files);
    options.servers = servers;
    return MakeChannel(server_->address(), options);
  }
  grpc::Status CallAs(ServiceRole role, const std::string& method) const {
    return Call(Channel(trial_.Of(role)), method);
  }

  const TrialFolder trial_ = TrialFolder::Create("test").value();
  v1::Decode::CallbackService service_;
  std::shared_ptr<const Tls> tls_;
  std::unique_ptr<Server> server_;
};

TEST_F(TlsTest, AMethodIsForItsCallersOnly) {
  struct Row {
    std::string method;
    ServiceRoles callers;
  };
  const Row rows[] = {
      {"/sluice.v1.Decode/Reserve", {ServiceRole::kRouter}},
      {"/sluice.v1.Prefill/Run", {ServiceRole::kRouter}},
      {"/sluice.v1.CacheManager/Attach", {ServiceRole::kPrefill, ServiceRole::kDecode}},
      {"/sluice.v1.CacheManager/Lookup", {ServiceRole::kRouter}},
      {"/sluice.v1.RateLeases/Lease", {ServiceRole::kRouter}},
      {"/sluice.v1.CacheManager/WatchWorkers", {ServiceRole::kRouter, ServiceRole::kOperator}},
      {"/sluice.v1.Admin/Drain", {ServiceRole::kOperator}},
      {"/sluice.v1.Another/Method", {}},
  };
  uint64_t refused = 0;
  for (const ServiceRole role : kServiceRoles) {
    const auto channel = Channel(trial_.Of(role));
    for (const Row& row : rows) {
      const grpc::Status status = Call(channel, row.method);
      const std::string what =
          absl::StrCat(ServiceRoleName(role), " ", row.method, ": ", status.error_message());
      if (row.callers.Contains(role)) {
        EXPECT_EQ(status.error_code(), kLetIn) << what;
        continue;
      }
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << what;
      EXPECT_TRUE(absl::StrContains(what, ServiceIdentity({role, "test"}).ToUri())) << what;
      EXPECT_TRUE(absl::StrContains(what, row.callers.empty() ? "nobody" : row.callers.Describe()))
          << what;
      EXPECT_EQ(tls_->refused_calls(), ++refused);
    }
    EXPECT_NE(Call(channel, "/grpc.health.v1.Health/Check").error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
}

TEST_F(TlsTest, AServerMustBeWhoWasMeant) {
  const grpc::Status status =
      Call(Channel(trial_.Of(ServiceRole::kRouter), {ServiceRole::kCacheManager}),
           "/sluice.v1.CacheManager/Lookup");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "sluice://decode/test") &&
              absl::StrContains(status.error_message(), "sluice://cache-manager/"))
      << status.error_message();
}

TEST_F(TlsTest, StrangersAreRefusedAndCountedWhileHonestCallsGoOn) {
  const uint64_t before = RefusedHandshakes();
  const auto honest = Channel(trial_.Of(ServiceRole::kRouter));
  EXPECT_EQ(Call(honest, "/sluice.v1.Decode/Reserve").error_code(), kLetIn);

  const TrialFolder foreign = TrialFolder::Create("stranger").value();
  CertificateFiles trusting = foreign.Of(ServiceRole::kRouter);
  trusting.authorities = trial_.Of(ServiceRole::kRouter).authorities;
  for (const CertificateFiles& files : {foreign.Of(ServiceRole::kRouter), trusting}) {
    EXPECT_EQ(Call(Channel(files), "/sluice.v1.Decode/Reserve").error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(Call(MakeChannel(server_->address(), {}), "/sluice.v1.Decode/Reserve").error_code(),
            grpc::StatusCode::UNAVAILABLE);

  // Silence, noise, and a flood of what looks like a large record.
  const SocketAddress address = SocketAddress::Parse(server_->address()).value();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(DialTcp(address).value());
    const std::string noise =
        i % 2 == 0 ? std::string(70000, static_cast<char>(i)) : "\x16\x03\x01\xff\xff";
    if (i >= 10)
      static_cast<void>(send(strangers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL));
    EXPECT_EQ(Call(honest, "/sluice.v1.Decode/Reserve").error_code(), kLetIn);
  }
  // Those that are silent are given up by the handshake's timeout.
  const SystemClock clock;
  const absl::Time deadline = clock.Now() + kWait;
  BoundedQueue<int> never(1);
  while (RefusedHandshakes() < before + 23 && clock.Now() < deadline) {
    never.PopFor(absl::Milliseconds(50));
  }
  EXPECT_GE(RefusedHandshakes(), before + 23);
  EXPECT_EQ(Call(honest, "/sluice.v1.Decode/Reserve").error_code(), kLetIn);
}

TEST_F(TlsTest, NewCertificatesAreUsedWithoutARestart) {
  const auto running = Channel(trial_.Of(ServiceRole::kRouter));
  EXPECT_EQ(Call(running, "/sluice.v1.Decode/Reserve").error_code(), kLetIn);
  const TrialFolder next = TrialFolder::Create("next").value();
  for (const char* name : {"/tls.key", "/tls.crt", "/ca.crt"}) {
    std::filesystem::copy_file(next.FolderOf(ServiceRole::kDecode) + name,
                               trial_.FolderOf(ServiceRole::kDecode) + name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  const SystemClock clock;
  const absl::Time deadline = clock.Now() + kWait;
  grpc::Status status;
  BoundedQueue<int> never(1);
  do {
    never.PopFor(absl::Milliseconds(100));
    status = Call(Channel(next.Of(ServiceRole::kRouter)), "/sluice.v1.Decode/Reserve");
  } while (status.error_code() != kLetIn && clock.Now() < deadline);
  EXPECT_EQ(status.error_code(), kLetIn) << status.error_message();
  EXPECT_EQ(Call(running, "/sluice.v1.Decode/Reserve").error_code(), kLetIn);
  EXPECT_EQ(CallAs(ServiceRole::kRouter, "/sluice.v1.Decode/Reserve").error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, CertificatesAllowListeningBeyondLoopback) {
  v1::Decode::CallbackService service;
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  const auto refused = Server::Start(options, {{v1::Decode::service_full_name(), &service}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "service.tls")) << refused.status();
  options.tls = tls_;
  EXPECT_TRUE(Server::Start(options, {{v1::Decode::service_full_name(), &service}}).ok());
}

TEST(Tls, SaysWhichFileIsWrong) {
  const TrialFolder trial = TrialFolder::Create().value();
  CertificateFiles files = trial.Of(ServiceRole::kDecode);
  files.key = trial.Of(ServiceRole::kRouter).key;
  const absl::Status mismatch = Tls::Load(files).status();
  EXPECT_EQ(mismatch.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(mismatch.message(), files.key)) << mismatch;
  files = trial.Of(ServiceRole::kDecode);
  files.authorities = "/nonexistent/ca.crt";
  EXPECT_TRUE(absl::StrContains(Tls::Load(files).status().message(), files.authorities));
}

}  // namespace
}  // namespace sluice::rpc
