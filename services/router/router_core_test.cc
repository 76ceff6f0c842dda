// The router with the real gRPC client against workers that cannot serve: what its clients hear.
#include "services/router/router_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/bounded_queue.h"
#include "base/thread_loop.h"
#include "engine/toy_model.h"
#include "grpcpp/channel.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "grpcpp/support/server_callback.h"
#include "rpc/channel_pool.h"
#include "rpc/domain.h"
#include "rpc/error.h"
#include "rpc/server.h"
#include "services/router/grpc_worker_client.h"
#include "services/router/inference_service.h"
#include "services/router/telemetry_metrics.h"
#include "services/router/tenants.h"
#include "sluice/v1/prefill.grpc.pb.h"

namespace sluice::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Answers every call with one status that no Sluice service made.
class RefusingWorker final : public v1::Prefill::CallbackService {
 public:
  explicit RefusingWorker(grpc::Status status) : status_(std::move(status)) {}
  grpc::ServerUnaryReactor* Admit(grpc::CallbackServerContext* context, const v1::AdmitRequest*,
                                  v1::AdmitReply*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(status_);
    return reactor;
  }

 private:
  const grpc::Status status_;
};

class QueueSink final : public rpc::GenerationSink {
 public:
  explicit QueueSink(BoundedQueue<absl::Status>& ends) : ends_(ends) {}
  bool OnMessage(v1::GenerateResponse) override { return true; }
  void OnEnd(const absl::Status& status) override { ends_.TryPush(absl::Status(status)); }

 private:
  BoundedQueue<absl::Status>& ends_;
};

class RouterCoreTest : public testing::Test {
 protected:
  RouterCoreTest() { Start(*Tenants::Load({"", "", true}, clock_)); }

  void Start(std::shared_ptr<const Tenants> tenants) {
    RouterOptions options;
    options.tenants = std::move(tenants);
    options.placement.split = cluster::SplitMode::kAlways;
    options.retry.backoff_max = absl::Milliseconds(50);
    options.queue = queue_;
    core_ = std::make_unique<RouterCore>(
        std::move(options), *loop_, *text_loop_, random_, *metrics_, state_,
        [this](cluster::Directory& directory) {
          return MakeGrpcWorkerClient(
              loop_, directory, [](const WorkerId&, Incarnation, const cluster::LoadReport&) {});
        });
  }
  ~RouterCoreTest() override {
    text_loop_->Stop();
    loop_->Stop();
  }

  // Two workers of each role, all at one address.
  void ShowWorkers(const std::string& address, uint64_t version = 1) {
    v1::WorkerView view;
    view.set_version(version);
    const auto model = *engine::CreateToyModel({});
    for (const char* name : {"prefill-0", "prefill-1", "decode-0", "decode-1"}) {
      v1::WorkerEntry* entry = view.add_workers();
      v1::WorkerInfo* info = entry->mutable_info();
      info->set_worker_id(name);
      info->set_incarnation(1);
      info->set_role(name[0] == 'p' ? v1::PREFILL : v1::DECODE);
      info->set_grpc_address(address);
      info->set_model("toy");
      info->set_model_path("toy");
      info->set_model_digest(model->info().model_digest.ToBytes());
      info->set_numerics_id(model->info().numerics_id.ToBytes());
      *info->mutable_layout() = rpc::ToProto(model->info().layout);
      entry->set_ready(true);
    }
    loop_->Post([this, view] { core_->OnView(view, true); });
    // The model's text side is loaded on the text loop; a task behind it says when that is done.
    BoundedQueue<int> loaded(1);
    loop_->Post([&] { text_loop_->Post([&] { loaded.TryPush(1); }); });
    ASSERT_TRUE(loaded.PopFor(absl::Seconds(30)).has_value());
  }

  static v1::GenerateRequest Hello() {
    v1::GenerateRequest request;
    request.set_request_id("r1");
    request.set_text("hello");
    request.set_max_tokens(4);
    return request;
  }

  absl::Status Ask(v1::GenerateRequest request = Hello(), const char* tenant = nullptr) {
    core_->Generate(std::move(request), {TenantId(tenant == nullptr ? tenant_ : tenant)},
                    std::make_unique<QueueSink>(ends_));
    auto end = ends_.PopFor(absl::Seconds(60));
    return end ? *end : absl::UnknownError("the request has not ended");
  }

  void ExpectWorkerFailed(const absl::Status& status, const std::string& cause) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    const v1::ErrorDetail detail = rpc::DetailOf(status);
    EXPECT_EQ(detail.reason(), v1::WORKER_FAILED);
    EXPECT_TRUE(detail.retryable());
    EXPECT_EQ(detail.request_id(), "r1");
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr("3 attempts on"));
    EXPECT_THAT(message, HasSubstr(cause));
    for (const char* raw : {"ipv4", "addresses", "recvmsg", "grpc"})
      EXPECT_THAT(message, Not(HasSubstr(raw)));
  }

  const SystemClock clock_;
  const std::shared_ptr<ThreadLoop> loop_ = *ThreadLoop::Start("router", clock_, 1000);
  const std::unique_ptr<ThreadLoop> text_loop_ = *ThreadLoop::Start("text", clock_, 1000);
  SecureRandom random_;
  telemetry::Registry registry_;
  const std::unique_ptr<RouterMetrics> metrics_ = MakeTelemetryMetrics(registry_, {});
  rpc::ServiceState state_;
  BoundedQueue<absl::Status> ends_{16};
  const char* tenant_ = "default";
  cluster::FairQueueOptions queue_;
  std::unique_ptr<RouterCore> core_;
};

TEST_F(RouterCoreTest, WorkersThatCannotBeReachedAreNamedWithoutTheWordsOfGrpc) {
  ShowWorkers("127.0.0.1:1");
  ExpectWorkerFailed(Ask(), "cannot be reached");
}

// Each field by its name, and by the value that was sent.
TEST_F(RouterCoreTest, WhatAClientNamesIsBounded) {
  using Spoil = void (*)(v1::GenerateRequest&);
  const struct {
    const char* field;
    const char* says;
    Spoil spoil;
  } cases[] = {
      {"session_affinity", "has 257 bytes; at most 256",
       [](auto& r) { r.set_session_affinity(std::string(257, 's')); }},
      {"cache_salt", "has 257 bytes; at most 256",
       [](auto& r) { r.set_cache_salt(std::string(257, 's')); }},
      {"request_id", "has 129 bytes", [](auto& r) { r.set_request_id(std::string(129, 'r')); }},
      {"request_id", "letters, digits and -_.:", [](auto& r) { r.set_request_id("a\nb"); }},
      {"request_id",
       "letters, digits and -_.:", [](auto& r) { r.set_request_id(std::string("a\0b", 3)); }},
      {"stop_token_ids", "has 257 entries; at most 256",
       [](auto& r) { r.mutable_stop_token_ids()->Resize(257, 1); }},
      {"stop_token_ids", "token 4294967295", [](auto& r) { r.add_stop_token_ids(UINT32_MAX); }},
      {"logit_bias", "token 4294967295",
       [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[UINT32_MAX] = 1; }},
      {"logprobs", "logprobs is 4294967295", [](auto& r) { r.set_logprobs(UINT32_MAX); }},
      {"logprobs", "logprobs is 21", [](auto& r) { r.set_logprobs(21); }},
  };
  ShowWorkers("127.0.0.1:1");
  for (const auto& wrong : cases) {
    v1::GenerateRequest request = Hello();
    wrong.spoil(request);
    const absl::Status status = Ask(std::move(request));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong.field << ": " << status;
    EXPECT_EQ(rpc::DetailOf(status).field(), wrong.field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says));
  }
}

// n counts as often as there are choices, and what was refused or never began is given back.
TEST_F(RouterCoreTest, RatesAreHeldAndWhatIsNotServedIsGivenBack) {
  const std::string file = absl::StrCat(testing::TempDir(), "/rates.yaml");
  std::ofstream(file) << "tenants:\n  - id: t\n    limits: {tokens_per_min: 600, concurrency: 3}\n";
  Start(*Tenants::Load({file, "", false}, clock_));
  tenant_ = "t";
  ShowWorkers("127.0.0.1:1");
  v1::GenerateRequest large = Hello();
  large.set_choices(3);
  large.set_max_tokens(300);  // 5 + 900 tokens: more than a minute's, so only from a full budget
  for (int i = 0; i < 3; ++i) ExpectWorkerFailed(Ask(large), "cannot be reached");
  RefusingWorker waits(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room"));
  const auto server = *rpc::Server::Start({}, {{v1::Prefill::service_full_name(), &waits}});
  ShowWorkers(server->address(), 2);
  core_->Generate(large, {TenantId("t")}, std::make_unique<QueueSink>(ends_));
  const absl::Status refused = Ask();
  EXPECT_EQ(rpc::DetailOf(refused).reason(), v1::RATE_LIMITED) << refused;
  EXPECT_EQ(rpc::DetailOf(refused).field(), "concurrency");
  EXPECT_EQ(rpc::DetailOf(refused).rate_limits().tokens().limit(), 600u);
  EXPECT_EQ(rpc::DetailOf(refused).rate_limits().tokens().remaining(), 0u);
  EXPECT_GT(rpc::DetailOf(refused).retry_after_ms(), 0u);
  core_->CancelAll();
  EXPECT_TRUE(ends_.PopFor(absl::Seconds(60)).has_value());
  const absl::Status gone = Ask(Hello(), "somebody");
  EXPECT_TRUE(absl::IsUnauthenticated(gone)) << gone;
}

// Whoever would be refused anyway hears so before the text is looked at: what is wrong with it is
// found only when there is room.
TEST_F(RouterCoreTest, AFullQueueRefusesBeforeItReads) {
  queue_.running_max = queue_.waiting_max = 1;
  Start(*Tenants::Load({"", "", true}, clock_));
  RefusingWorker waits(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room"));
  const auto server = *rpc::Server::Start({}, {{v1::Prefill::service_full_name(), &waits}});
  ShowWorkers(server->address());
  v1::GenerateRequest unreadable = Hello();
  unreadable.clear_input();
  EXPECT_EQ(rpc::DetailOf(Ask(unreadable)).reason(), v1::INVALID_FIELD);
  for (int i = 0; i < 2; ++i)
    core_->Generate(Hello(), {TenantId(tenant_)}, std::make_unique<QueueSink>(ends_));
  // In order behind the two on both loops.
  EXPECT_EQ(rpc::DetailOf(Ask()).reason(), v1::OVERLOADED);
  const absl::Status refused = Ask(unreadable);
  EXPECT_EQ(rpc::DetailOf(refused).reason(), v1::OVERLOADED) << refused;
  EXPECT_EQ(rpc::DetailOf(refused).retry_after_ms(), 1000u);
  core_->CancelAll();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ends_.PopFor(absl::Seconds(60)).has_value());
  EXPECT_EQ(rpc::DetailOf(Ask(unreadable)).reason(), v1::INVALID_FIELD);
}

// A method that is added without a check of its caller fails here.
TEST_F(RouterCoreTest, EveryMethodRefusesStrangers) {
  const std::string file = absl::StrCat(testing::TempDir(), "/strangers.yaml");
  std::ofstream(file) << "tenants: [{id: t}]\n";
  Start(*Tenants::Load({file, "", false}, clock_));
  tenant_ = "t";
  InferenceService service(*core_, clock_);
  const auto server = *rpc::Server::Start({}, {{v1::Inference::service_full_name(), &service}});
  rpc::ChannelPool channels;
  const auto channel = channels.Get(server->address());
  const auto* methods = v1::GenerateRequest::descriptor()->file()->FindServiceByName("Inference");
  ASSERT_GE(methods->method_count(), 4);
  for (int i = 0; i < methods->method_count(); ++i) {
    const std::string name = absl::StrCat("/sluice.v1.Inference/", methods->method(i)->name());
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer wrong");
    context.AddMetadata("x-sluice-tenant", "t");
    v1::ListModelsRequest request;
    v1::ListModelsResponse response;
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<v1::ListModelsRequest, v1::ListModelsResponse>(
            channel.get(),
            grpc::internal::RpcMethod(name.c_str(), grpc::internal::RpcMethod::NORMAL_RPC),
            &context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << name;
    EXPECT_EQ(status.error_message(), "the credentials are not valid");
  }
  EXPECT_THAT(registry_.Serialize(), HasSubstr("sluice_auth_failures_total{reason=\"key\"} 4"));
}

TEST_F(RouterCoreTest, CodesBetweenServicesDoNotReachTheClient) {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::NOT_FOUND, grpc::StatusCode::FAILED_PRECONDITION,
        grpc::StatusCode::ABORTED}) {
    RefusingWorker worker(grpc::Status(code, "grpc frame 7 of ipv4:1.2.3.4"));
    const auto server = *rpc::Server::Start({}, {{v1::Prefill::service_full_name(), &worker}});
    ShowWorkers(server->address());
    ExpectWorkerFailed(Ask(), "broke the connection");
  }
}

}  // namespace
}  // namespace sluice::router
