// Real servers and clients over loopback.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bounded_queue.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "rpc/admin_service.h"
#include "rpc/channel_pool.h"
#include "rpc/client_call.h"
#include "rpc/error.h"
#include "rpc/server.h"
#include "rpc/server_stream.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/decode.grpc.pb.h"

namespace sluice::rpc {
namespace {

constexpr absl::Duration kWait = absl::Seconds(30);

// Hands the stream of each call to the test.
class StreamService final : public v1::Decode::CallbackService {
 public:
  explicit StreamService(const StreamOptions& options) : options_(options) {}
  grpc::ServerWriteReactor<v1::TokenBatch>* Generate(grpc::CallbackServerContext* context,
                                                     const v1::DecodeRequest*) override {
    auto stream = std::make_unique<ServerStream<v1::TokenBatch>>(context, options_);
    auto* reactor = stream->reactor();
    streams.TryPush(std::move(stream));
    return reactor;
  }
  BoundedQueue<std::unique_ptr<ServerStream<v1::TokenBatch>>> streams{16};

 private:
  const StreamOptions options_;
};

// Shared with callbacks, which may still be inside a push when the test has what it waited for.
template <typename T>
using SharedQueue = std::shared_ptr<BoundedQueue<T>>;
template <typename T>
SharedQueue<T> MakeQueue() {
  return std::make_shared<BoundedQueue<T>>(100000);
}

class Recorder final : public StreamReader<v1::TokenBatch> {
 public:
  Recorder(SharedQueue<v1::TokenBatch> messages, SharedQueue<absl::Status> ends)
      : messages_(std::move(messages)), ends_(std::move(ends)) {}
  void OnMessage(v1::TokenBatch message) override { messages_->TryPush(std::move(message)); }
  void OnEnd(const absl::Status& status) override { ends_->TryPush(absl::Status(status)); }

 private:
  const SharedQueue<v1::TokenBatch> messages_;
  const SharedQueue<absl::Status> ends_;
};

class StreamTest : public testing::Test {
 protected:
  void Serve(const StreamOptions& options, const ServerOptions& server_options = {}) {
    service_ = std::make_unique<StreamService>(options);
    auto server =
        Server::Start(server_options, {{v1::Decode::service_full_name(), service_.get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Decode::NewStub(pool_.Get(server_->address()));
  }
  std::shared_ptr<ClientCall> Call(const CallOptions& options = {}) {
    return StartServerStream<v1::DecodeRequest, v1::TokenBatch>(
        v1::DecodeRequest(), options,
        [&](auto* context, auto* request, auto* reactor) {
          stub_->async()->Generate(context, request, reactor);
        },
        std::make_unique<Recorder>(messages_, ends_));
  }

  ChannelPool pool_;
  std::unique_ptr<StreamService> service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Decode::Stub> stub_;
  const SharedQueue<v1::TokenBatch> messages_ = MakeQueue<v1::TokenBatch>();
  const SharedQueue<absl::Status> ends_ = MakeQueue<absl::Status>();
};

v1::TokenBatch Batch(uint32_t position, size_t padding = 0) {
  v1::TokenBatch batch;
  batch.set_position(position);
  batch.set_finish_reason(std::string(padding, 'x'));
  return batch;
}

TEST_F(StreamTest, DeliversInOrderAndEndsWithTheTypedStatus) {
  Serve({});
  const auto call = Call();
  auto stream = service_->streams.PopFor(kWait);
  ASSERT_TRUE(stream.has_value());
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_TRUE((*stream)->Write(Batch(i)));
  (*stream)->Close(MakeError(v1::WORKER_FAILED, "gone"));
  const auto end = ends_->PopFor(kWait);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(DetailOf(*end).reason(), v1::WORKER_FAILED);
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(messages_->TryPop()->position(), i);
  EXPECT_FALSE((*stream)->Write(Batch(0)));
}

TEST_F(StreamTest, ClientCancelReachesTheProducerOnce) {
  Serve({});
  const auto call = Call();
  auto stream = service_->streams.PopFor(kWait);
  ASSERT_TRUE(stream.has_value());
  const auto gone = MakeQueue<int>();
  (*stream)->OnGone([gone] { gone->TryPush(1); });
  (*stream)->Write(Batch(0));
  ASSERT_TRUE(messages_->PopFor(kWait).has_value());
  call->Cancel();
  ASSERT_TRUE(gone->PopFor(kWait).has_value());
  EXPECT_EQ(ends_->PopFor(kWait)->code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE((*stream)->Write(Batch(1)));
  EXPECT_EQ(gone->size(), 0u);
}

TEST_F(StreamTest, DeadlineOfTheClientReachesTheProducer) {
  Serve({});
  // A busy machine may need longer to deliver the call than a short deadline leaves.
  std::optional<std::unique_ptr<ServerStream<v1::TokenBatch>>> stream;
  std::shared_ptr<ClientCall> call;
  for (absl::Duration timeout = absl::Milliseconds(50); !stream.has_value(); timeout *= 2) {
    ASSERT_LT(timeout, kWait);
    call = Call({.timeout = timeout});
    stream = service_->streams.PopFor(timeout);
    if (!stream.has_value()) {
      ASSERT_TRUE(ends_->PopFor(kWait).has_value());
    }
  }
  const auto gone = MakeQueue<int>();
  (*stream)->OnGone([gone] { gone->TryPush(1); });
  ASSERT_TRUE(gone->PopFor(kWait).has_value());
  EXPECT_EQ(ends_->PopFor(kWait)->code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(StreamTest, DroppedStreamEndsWithInternal) {
  Serve({});
  const auto call = Call();
  { auto stream = service_->streams.PopFor(kWait); }
  EXPECT_EQ(ends_->PopFor(kWait)->code(), absl::StatusCode::kInternal);
}

// A client that reads only when told to: flow control fills up meanwhile.
struct StuckReader final : grpc::ClientReadReactor<v1::TokenBatch> {
  explicit StuckReader(SharedQueue<absl::Status> ends_in) : ends(std::move(ends_in)) {}
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&message);
  }
  void OnDone(const grpc::Status& status) override {
    const SharedQueue<absl::Status> queue =
        ends;  // the test may destroy this object once it has the end
    queue->TryPush(FromGrpc(status));
  }
  const SharedQueue<absl::Status> ends;
  grpc::ClientContext context;
  v1::DecodeRequest request;
  v1::TokenBatch message;
};

TEST_F(StreamTest, SlowReaderGetsWhatWasSentAndATypedEnd) {
  Serve({.queue_bytes_max = 64 << 10});
  StuckReader reader(ends_);
  stub_->async()->Generate(&reader.context, &reader.request, &reader);
  reader.AddHold();
  reader.StartCall();
  auto stream = service_->streams.PopFor(kWait);
  ASSERT_TRUE(stream.has_value());
  uint32_t accepted = 0;
  while (accepted < 100000 && (*stream)->Write(Batch(accepted, 1024))) ++accepted;
  EXPECT_LT(accepted, 100000u) << "100 MB were taken for a client that does not read";
  reader.StartRead(&reader.message);
  reader.RemoveHold();
  const auto end = ends_->PopFor(kWait);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(DetailOf(*end).reason(), v1::SLOW_CONSUMER) << *end;
}

TEST_F(StreamTest, ReaderThatStallsAWriteIsResetAfterTheTimeout) {
  Serve({.queue_bytes_max = 64 << 10, .stall_timeout = absl::Milliseconds(20)});
  StuckReader reader(ends_);
  stub_->async()->Generate(&reader.context, &reader.request, &reader);
  reader.StartCall();
  auto stream = service_->streams.PopFor(kWait);
  ASSERT_TRUE(stream.has_value());
  const auto gone = MakeQueue<int>();
  (*stream)->OnGone([gone] { gone->TryPush(1); });
  constexpr size_t kBeyondAnyWindow = size_t{16} << 20;
  EXPECT_TRUE((*stream)->Write(Batch(0, kBeyondAnyWindow)));
  EXPECT_TRUE((*stream)->Write(Batch(1, kBeyondAnyWindow)));
  EXPECT_FALSE((*stream)->Write(Batch(2)));
  EXPECT_TRUE(gone->PopFor(kWait).has_value()) << "the write in progress was not given up";
  reader.context.TryCancel();  // a client that reads nothing does not notice the reset by itself
  ASSERT_TRUE(ends_->PopFor(kWait).has_value());
}

TEST_F(StreamTest, IdleConnectionsAreClosedAndChannelsConnectAgain) {
  Serve({}, {.connection_idle_max = absl::Milliseconds(100)});
  const auto channel = pool_.Get(server_->address());
  for (int round = 0; round < 2; ++round) {
    const auto call = Call();
    auto stream = service_->streams.PopFor(kWait);
    ASSERT_TRUE(stream.has_value());
    // Longer than an idle connection may last: one with a call on it stays.
    EXPECT_FALSE(ends_->PopFor(absl::Milliseconds(400)).has_value());
    EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
    (*stream)->Close(absl::OkStatus());
    const auto end = ends_->PopFor(kWait);
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->ok()) << *end;
    const gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_millis(absl::ToInt64Milliseconds(kWait), GPR_TIMESPAN));
    EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, deadline));
    EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_IDLE);
  }
}

TEST_F(StreamTest, ShutdownThatHasBegunSendsClientsElsewhereAndLetsStreamsGoOn) {
  Serve({});
  const auto call = Call();
  auto stream = service_->streams.PopFor(kWait);
  ASSERT_TRUE(stream.has_value());
  server_->BeginShutdown();
  server_->BeginShutdown();
  // A call may still be taken by the connection that is being closed; then it reaches the service.
  const auto ends_of_refused = MakeQueue<absl::Status>();
  for (bool refused = false; !refused;) {
    ChannelPool fresh;
    const auto stub = v1::Decode::NewStub(fresh.Get(server_->address()));
    const auto other = StartServerStream<v1::DecodeRequest, v1::TokenBatch>(
        v1::DecodeRequest(), {.timeout = kWait},
        [&](auto* context, auto* request, auto* reactor) {
          stub->async()->Generate(context, request, reactor);
        },
        std::make_unique<Recorder>(MakeQueue<v1::TokenBatch>(), ends_of_refused));
    auto taken = service_->streams.PopFor(absl::Milliseconds(10));
    if (taken.has_value()) (*taken)->Close(absl::OkStatus());
    const auto end = ends_of_refused->PopFor(kWait);
    ASSERT_TRUE(end.has_value());
    refused = absl::IsUnavailable(*end);
  }
  ASSERT_TRUE((*stream)->Write(Batch(7)));
  EXPECT_EQ(messages_->PopFor(kWait)->position(), 7u);
  server_->Shutdown(absl::Milliseconds(10));
  EXPECT_FALSE(ends_->PopFor(kWait)->ok()) << "the grace is over";
  EXPECT_FALSE((*stream)->Write(Batch(8)));
}

TEST(Server, PortInUseNamesTheProcess) {
  StreamService service({});
  auto first = Server::Start({}, {{v1::Decode::service_full_name(), &service}});
  ASSERT_TRUE(first.ok()) << first.status();
  StreamService other({});
  const auto second =
      Server::Start({.listen = (*first)->address()}, {{v1::Decode::service_full_name(), &other}});
  ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(second.status().message(), absl::StrCat("pid ", getpid())))
      << second.status();
}

TEST_F(StreamTest, MessagesAndMetadataOverTheLimitsAreRefused) {
  service_ = std::make_unique<StreamService>(StreamOptions{});
  auto server =
      Server::Start({.public_facing = true}, {{v1::Decode::service_full_name(), service_.get()}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::Decode::NewStub(pool_.Get((*server)->address()));
  const auto code_of = [&](size_t message_bytes, size_t metadata_bytes) {
    v1::ReleaseRequest request;
    request.set_lease_id(std::string(message_bytes, 'x'));
    v1::ReleaseReply reply;
    grpc::ClientContext context;
    context.AddMetadata("x-padding", std::string(metadata_bytes, 'x'));
    return stub->Release(&context, request, &reply).error_code();
  };
  EXPECT_EQ(code_of(10, 10), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(code_of(size_t{4} << 20, 10), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code_of(10, 9 << 10), grpc::StatusCode::RESOURCE_EXHAUSTED);
  (*server)->Shutdown(absl::ZeroDuration());
}

TEST_F(StreamTest, ARequestThatIsNoMessageIsAnInvalidArgument) {
  Serve({});
  grpc::GenericStub raw(pool_.Get(server_->address()));
  const auto status_of = [&](const std::string& method, const std::string& bytes) {
    grpc::ClientContext context;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    const auto ends = MakeQueue<absl::Status>();
    raw.UnaryCall(&context, method, {}, &request, &reply,
                  [ends](const grpc::Status& status) { ends->TryPush(FromGrpc(status)); });
    return ends->PopFor(kWait).value_or(absl::UnknownError("no answer"));
  };
  for (const std::string method : {"/sluice.v1.Decode/Release", "/sluice.v1.Decode/Generate"}) {
    const absl::Status status = status_of(method, "\xff\xff\xff");
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(DetailOf(status).reason(), v1::INVALID_FIELD);
    EXPECT_TRUE(absl::StrContains(status.message(), method)) << status;
  }
  EXPECT_TRUE(service_->streams.TryPop() == std::nullopt) << "the handler was asked";
  // What nobody serves is still told apart from what cannot be read.
  EXPECT_TRUE(absl::IsUnimplemented(status_of("/sluice.v1.Decode/Release", "")));
  EXPECT_TRUE(absl::IsUnimplemented(status_of("/sluice.v1.Decode/Nothing", "")));
}

TEST(Server, AdminDrainsReportsAndArms) {
  ServiceState state;
  state.SetReady(true);
  FaultInjector faults;
  auto admin = MakeAdminService(
      {.state = &state, .faults = &faults, .status = [](v1::GetStatusReply* reply) {
         reply->set_service("test");
       }});
  auto server = Server::Start({}, {{v1::Admin::service_full_name(), admin.get()}});
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::Admin::NewStub(MakeChannel((*server)->address(), {}));
  const auto replies = MakeQueue<absl::StatusOr<v1::GetStatusReply>>();
  StartUnary<v1::GetStatusRequest, v1::GetStatusReply>(
      {}, {.timeout = kWait},
      [&](auto* c, auto* q, auto* r, auto done) {
        stub->async()->GetStatus(c, q, r, std::move(done));
      },
      [replies](absl::StatusOr<v1::GetStatusReply> reply) { replies->TryPush(std::move(reply)); });
  const auto reply = replies->PopFor(kWait);
  ASSERT_TRUE(reply.has_value() && reply->ok());
  EXPECT_TRUE((*reply)->ready());
  EXPECT_EQ((*reply)->service(), "test");

  v1::ArmFaultRequest arm;
  arm.set_point("x");
  arm.set_kind(v1::ArmFaultRequest::FAIL);
  v1::ArmFaultReply armed;
  grpc::ClientContext context;
  ASSERT_TRUE(stub->ArmFault(&context, arm, &armed).ok());
  EXPECT_FALSE(faults.Hit("x").ok());
  arm.set_kind(v1::ArmFaultRequest::DISARM);
  grpc::ClientContext context2;
  ASSERT_TRUE(stub->ArmFault(&context2, arm, &armed).ok());
  EXPECT_TRUE(faults.Hit("x").ok());
  EXPECT_EQ(armed.hits(), 1u);

  v1::DrainReply drained;
  grpc::ClientContext context3;
  ASSERT_TRUE(stub->Drain(&context3, {}, &drained).ok());
  EXPECT_TRUE(state.draining());
}

}  // namespace
}  // namespace sluice::rpc
