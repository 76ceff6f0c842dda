// Whole workers with the toy model over real gRPC on loopback, joined by a network inside the
// process.
#include "services/worker/worker_process.h"

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread_loop.h"
#include "config/config.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "rpc/channel_pool.h"
#include "rpc/claims.h"
#include "rpc/domain.h"
#include "rpc/error.h"
#include "rpc/status_map.h"
#include "services/cache_manager/cache_manager_service.h"
#include "transport/loopback.h"

namespace sluice::services {
namespace {

constexpr absl::Duration kWait = absl::Seconds(60);

// The blocking API is for tests and tools only.
void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_millis(absl::ToInt64Milliseconds(kWait), GPR_TIMESPAN)));
}

// What one generation said.
struct Output {
  absl::Status status;
  std::vector<uint32_t> tokens;
  uint32_t cached_tokens = 0;
  uint64_t transferred_bytes = 0;
};

class WorkerProcessTest : public testing::Test {
 protected:
  void StartManager() {
    process_ = std::make_unique<ServiceProcess>(
        ProcessIdentity{"cache-manager", config::LoadCacheManagerConfig({})->service(), ""});
    manager_loop_ = *ThreadLoop::Start("manager", process_->clock(), 65536);
    manager_ = std::make_unique<cache_manager::CacheManagerService>(
        cache_manager::CacheManagerOptions{.heartbeat = absl::Milliseconds(50)}, *manager_loop_,
        process_->metrics());
    ASSERT_TRUE(process_->Serve({{v1::CacheManager::service_full_name(), manager_.get()}}).ok());
    manager_stub_ = v1::CacheManager::NewStub(channels_.Get(process_->grpc_address()));
  }
  void StopManager() {
    process_->Stop();
    manager_loop_->Stop();
    manager_.reset();
    process_.reset();
  }

  std::unique_ptr<WorkerProcess> StartWorker(const std::string& role,
                                             std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.begin(),
                     {"model.path=toy", "engine.threads=1", "engine.kv_pool_mib=1",
                      absl::StrCat("service.name=", role, "-", ++workers_), "role=" + role});
    if (process_) overrides.push_back(absl::StrCat("cache_manager=", process_->grpc_address()));
    const auto config = config::LoadWorkerConfig({"", overrides}, role == "both" ? "decode" : role);
    SLUICE_CHECK(config.ok()) << config.status();
    auto worker = WorkerProcess::Start(
        *config, role,
        [this](const v1::WorkerConfig&) -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
          SLUICE_ASSIGN_OR_RETURN(auto transport, network_.CreateTransport());
          return std::unique_ptr<transport::Transport>(std::move(transport));
        },
        false);
    SLUICE_CHECK(worker.ok()) << worker.status();
    return *std::move(worker);
  }

  v1::SamplingSpec Sampling(uint32_t max_tokens) {
    request::SamplingParams params;
    params.seed = 7;
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    return rpc::ToProto(params);
  }
  template <typename Request>
  void Fill(uint32_t attempt, Request* request) {
    request->set_request_id("r");
    request->set_attempt(attempt);
    request->set_tenant("default");
    request->set_cache_domain(kv::CacheDomain::Derive("secret", TenantId("t"), "").bytes());
  }

  absl::StatusOr<v1::Grant> Reserve(WorkerProcess& decode, WorkerProcess& prefill,
                                    const std::vector<int32_t>& prompt) {
    v1::ReserveRequest request;
    Fill(1, &request);
    rpc::AddTokens(prompt, request.mutable_prompt());
    request.set_max_tokens(8);
    request.set_holder_incarnation(IncarnationOf(prefill));
    request.set_holder_layout_hash(prefill.model().layout.hash().ToBytes());
    request.set_holder_layout(prefill.model().layout.Describe());
    request.set_holder_numerics_id(prefill.model().numerics_id.ToBytes());
    v1::ReserveReply reply;
    grpc::ClientContext context;
    SetDeadline(&context);
    const absl::Status status =
        rpc::FromGrpc(v1::Decode::NewStub(ChannelOf(decode))->Reserve(&context, request, &reply));
    if (!status.ok()) return status;
    return reply.grant();
  }

  // A whole request as a router would run it.
  Output Split(WorkerProcess& prefill, WorkerProcess& decode, const std::vector<int32_t>& prompt,
               uint32_t max_tokens) {
    Output output;
    const auto prefill_stub = v1::Prefill::NewStub(ChannelOf(prefill));
    v1::AdmitRequest admit;
    admit.set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
    v1::AdmitReply credit;
    grpc::ClientContext admit_context;
    SetDeadline(&admit_context);
    output.status = rpc::FromGrpc(prefill_stub->Admit(&admit_context, admit, &credit));
    if (!output.status.ok()) return output;
    const auto grant = Reserve(decode, prefill, prompt);
    if (!grant.ok()) return Output{grant.status(), {}, 0, 0};

    v1::PrefillRequest run;
    Fill(1, &run);
    run.set_credit_id(credit.credit_id());
    rpc::AddTokens(prompt, run.mutable_prompt());
    *run.mutable_sampling() = Sampling(max_tokens);
    *run.mutable_grant() = *grant;
    grpc::ClientContext run_context;
    SetDeadline(&run_context);
    const auto run_stream = prefill_stub->Run(&run_context, run);

    v1::DecodeRequest generate;
    Fill(1, &generate);
    generate.set_lease_id(grant->lease_id());
    *generate.mutable_sampling() = Sampling(max_tokens);
    const absl::Status decoded = Generate(decode, generate, &output);

    v1::PrefillEvent event;
    std::vector<uint32_t> first;
    while (run_stream->Read(&event)) {
      if (event.has_first_token()) first.push_back(event.first_token().token().token());
      if (event.has_done()) output.cached_tokens = event.done().cached_tokens();
      if (event.has_done()) output.transferred_bytes = event.done().transferred_bytes();
    }
    const absl::Status prefilled = rpc::FromGrpc(run_stream->Finish());
    // The decode worker repeats nothing: its stream begins at the position after the first token,
    // or with it.
    if (output.tokens.size() + 1 == max_tokens)
      output.tokens.insert(output.tokens.begin(), first.begin(), first.end());
    output.status = decoded.ok() ? prefilled : decoded;
    return output;
  }

  absl::Status Generate(WorkerProcess& decode, const v1::DecodeRequest& request, Output* output) {
    grpc::ClientContext context;
    SetDeadline(&context);
    const auto stub = v1::Decode::NewStub(ChannelOf(decode));
    const auto stream = stub->Generate(&context, request);
    v1::TokenBatch batch;
    while (stream->Read(&batch)) {
      for (const v1::SampledToken& token : batch.tokens()) output->tokens.push_back(token.token());
      if (batch.has_started() && request.lease_id().empty())
        output->cached_tokens = batch.started().held_tokens();
    }
    return rpc::FromGrpc(stream->Finish());
  }

  Output Local(WorkerProcess& worker, const std::vector<int32_t>& prompt, uint32_t max_tokens,
               bool no_cache = false) {
    v1::DecodeRequest request;
    Fill(1, &request);
    rpc::AddTokens(prompt, request.mutable_prompt());
    *request.mutable_sampling() = Sampling(max_tokens);
    request.set_no_cache(no_cache);
    Output output;
    output.status = Generate(worker, request, &output);
    return output;
  }

  std::shared_ptr<grpc::Channel> ChannelOf(WorkerProcess& worker) {
    return channels_.Get(worker.process().grpc_address());
  }
  uint64_t IncarnationOf(WorkerProcess& worker) {
    const v1::WorkerView view =
        WaitForView([&](const v1::WorkerView& v) { return Entry(v, worker) != nullptr; });
    return Entry(view, worker)->info().incarnation();
  }
  static const v1::WorkerEntry* Entry(const v1::WorkerView& view, WorkerProcess& worker) {
    for (const v1::WorkerEntry& entry : view.workers()) {
      if (entry.info().worker_id() == worker.process().name()) return &entry;
    }
    return nullptr;
  }
  // The first view that satisfies `wanted`.
  template <typename Wanted>
  v1::WorkerView WaitForView(Wanted wanted) {
    grpc::ClientContext context;
    SetDeadline(&context);
    const auto stream = manager_stub_->WatchWorkers(&context, {});
    v1::WorkerView view;
    while (stream->Read(&view)) {
      if (wanted(view)) {
        context.TryCancel();
        return view;
      }
    }
    ADD_FAILURE() << "no such view: " << stream->Finish().error_message();
    return {};
  }

  SystemClock clock_;
  transport::LoopbackNetwork network_{{.seed = 1, .limits = {}, .link = {}, .self_driven = true},
                                      clock_};
  rpc::ChannelPool channels_;
  std::unique_ptr<ServiceProcess> process_;
  std::unique_ptr<ThreadLoop> manager_loop_;
  std::unique_ptr<cache_manager::CacheManagerService> manager_;
  std::unique_ptr<v1::CacheManager::Stub> manager_stub_;
  int workers_ = 0;

  ~WorkerProcessTest() override {
    if (process_) StopManager();
  }
};

std::vector<int32_t> Prompt(size_t tokens, int32_t salt) {
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < tokens; ++i)
    prompt.push_back(static_cast<int32_t>((i * 31 + static_cast<size_t>(salt)) % 250));
  return prompt;
}

TEST_F(WorkerProcessTest, SplitEqualsLocalAndCountersAgree) {
  StartManager();
  const auto prefill = StartWorker("prefill");
  const auto decode = StartWorker("decode");
  const auto both = StartWorker("both");
  const std::vector<int32_t> prompt = Prompt(100, 1);
  const Output local = Local(*both, prompt, 8);
  ASSERT_TRUE(local.status.ok()) << local.status;
  ASSERT_EQ(local.tokens.size(), 8u);
  const Output split = Split(*prefill, *decode, prompt, 8);
  ASSERT_TRUE(split.status.ok()) << split.status;
  EXPECT_EQ(split.tokens, local.tokens);
  EXPECT_GT(split.transferred_bytes, 0u);

  const handoff::MoveCounters sent = prefill->worker().counters();
  const handoff::MoveCounters received = decode->worker().counters();
  EXPECT_EQ(sent.bytes_sent, split.transferred_bytes);
  EXPECT_EQ(received.bytes_received, split.transferred_bytes);
  const std::string sender = prefill->process().metrics().Serialize();
  EXPECT_TRUE(absl::StrContains(
      sender, absl::StrCat("sluice_kv_transfer_bytes_total{side=\"send\",transport=\"loopback\"} ",
                           split.transferred_bytes)))
      << sender;
  EXPECT_TRUE(absl::StrContains(sender, "sluice_recomputed_tokens_total 0"));
  const std::string receiver = decode->process().metrics().Serialize();
  EXPECT_TRUE(absl::StrContains(receiver, absl::StrCat("side=\"receive\",transport=\"loopback\"} ",
                                                       split.transferred_bytes)));
  EXPECT_TRUE(absl::StrContains(
      receiver, "sluice_worker_calls_total{code=\"OK\",method=\"Decode.Generate\"} 1"));
}

TEST_F(WorkerProcessTest, SecondTurnFindsTheFirstInTheCacheAndTheManagerKnows) {
  StartManager();
  const auto prefill = StartWorker("prefill");
  const auto decode = StartWorker("decode");
  const std::vector<int32_t> first = Prompt(100, 2);
  ASSERT_TRUE(Split(*prefill, *decode, first, 4).status.ok());
  std::vector<int32_t> second = first;
  for (int32_t token : Prompt(40, 9)) second.push_back(token);
  const Output output = Split(*prefill, *decode, second, 4);
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.cached_tokens, 96u - prefill->model().layout.spec().sink_rows)
      << "three full pages of 32 slots";

  const engine::ModelInfo& model = prefill->model();
  v1::LookupRequest lookup;
  v1::KeyList* list = lookup.add_lists();
  list->set_numerics_id(model.numerics_id.ToBytes());
  for (const kv::BlockKey& key :
       kv::BlockKeys(kv::CacheDomain::Derive("secret", TenantId("t"), ""),
                     {model.model_digest, model.numerics_id, model.layout.hash(), ""}, second,
                     model.layout.page_tokens())) {
    list->add_keys(key.value().ToBytes());
  }
  // Block events are at most a tenth of a second behind.
  uint32_t found = 0;
  const absl::Time deadline = clock_.Now() + kWait;
  while (found < 4 && clock_.Now() < deadline) {
    v1::LookupReply reply;
    grpc::ClientContext context;
    SetDeadline(&context);
    ASSERT_TRUE(manager_stub_->Lookup(&context, lookup, &reply).ok());
    for (const v1::WorkerHit& hit : reply.hits()) {
      if (hit.worker_id() == prefill->process().name()) found = hit.blocks();
    }
  }
  EXPECT_EQ(found, 4u);
}

TEST_F(WorkerProcessTest, AnotherLayoutIsRefusedWithBothDescriptions) {
  StartManager();
  const auto prefill = StartWorker("prefill", {"engine.kv_format=bf16"});
  const auto decode = StartWorker("decode");
  const auto grant = Reserve(*decode, *prefill, Prompt(50, 3));
  ASSERT_EQ(grant.status().code(), absl::StatusCode::kFailedPrecondition) << grant.status();
  EXPECT_EQ(rpc::DetailOf(grant.status()).reason(), v1::LAYOUT_MISMATCH);
  EXPECT_TRUE(absl::StrContains(grant.status().message(), prefill->model().layout.Describe()))
      << grant.status();
  EXPECT_TRUE(absl::StrContains(grant.status().message(), decode->model().layout.Describe()));
  EXPECT_EQ(rpc::DetailOf(grant.status()).source(), "decode/" + decode->process().name());
}

TEST_F(WorkerProcessTest, BadRequestsGetTypedErrorsAndTakeNothing) {
  const auto worker = StartWorker("both");
  struct Case {
    std::function<void(v1::DecodeRequest*)> spoil;
    v1::ErrorReason reason;
  };
  const Case cases[] = {
      {[](v1::DecodeRequest* r) { r->clear_prompt(); }, v1::INVALID_FIELD},
      {[](v1::DecodeRequest* r) { r->set_prompt(3, 1u << 30); }, v1::INVALID_FIELD},
      {[](v1::DecodeRequest* r) { r->set_prompt(3, 4000000000u); }, v1::INVALID_FIELD},
      {[](v1::DecodeRequest* r) {
         for (int i = 0; i < 9000; ++i) r->add_prompt(1);
       },
       v1::CONTEXT_LENGTH_EXCEEDED},
      {[](v1::DecodeRequest* r) {
         r->mutable_sampling()->set_top_p(std::numeric_limits<float>::quiet_NaN());
       },
       v1::INVALID_FIELD},
      {[](v1::DecodeRequest* r) { r->mutable_sampling()->set_temperature(-1); }, v1::INVALID_FIELD},
      {[](v1::DecodeRequest* r) { r->set_cache_domain("short"); }, v1::INVALID_FIELD},
      {[](v1::DecodeRequest* r) { r->set_request_id(std::string(1000, 'x')); }, v1::INVALID_FIELD},
      {[](v1::DecodeRequest* r) { r->set_lease_id("short"); }, v1::INVALID_FIELD},
  };
  for (const Case& bad : cases) {
    v1::DecodeRequest request;
    Fill(1, &request);
    rpc::AddTokens(Prompt(50, 4), request.mutable_prompt());
    *request.mutable_sampling() = Sampling(4);
    bad.spoil(&request);
    Output output;
    const absl::Status status = Generate(*worker, request, &output);
    EXPECT_EQ(rpc::DetailOf(status).reason(), bad.reason) << status;
    EXPECT_TRUE(output.tokens.empty());
  }
  EXPECT_EQ(worker->pool().counts().free, worker->pool().size());
  EXPECT_EQ(worker->process().state().in_flight(), 0u);
}

TEST_F(WorkerProcessTest, ACancelledCallGivesItsPagesBack) {
  const auto worker = StartWorker("both");
  v1::DecodeRequest request;
  Fill(1, &request);
  rpc::AddTokens(Prompt(100, 5), request.mutable_prompt());
  *request.mutable_sampling() = Sampling(5000);
  request.set_no_cache(true);
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto stub = v1::Decode::NewStub(ChannelOf(*worker));
  const auto stream = stub->Generate(&context, request);
  v1::TokenBatch batch;
  ASSERT_TRUE(stream->Read(&batch));
  ASSERT_TRUE(stream->Read(&batch));
  context.TryCancel();
  while (stream->Read(&batch)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(worker->process().state().WaitIdle(kWait));
  EXPECT_EQ(worker->pool().counts().free, worker->pool().size());
}

TEST_F(WorkerProcessTest, DrainingWorkersFinishWhatTheyHaveAndRefuseTheRest) {
  StartManager();
  const auto worker = StartWorker("both");
  WaitForView([&](const v1::WorkerView& view) {
    return Entry(view, *worker) && Entry(view, *worker)->ready();
  });
  v1::DecodeRequest request;
  Fill(1, &request);
  rpc::AddTokens(Prompt(100, 6), request.mutable_prompt());
  *request.mutable_sampling() = Sampling(400);
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto stub = v1::Decode::NewStub(ChannelOf(*worker));
  const auto stream = stub->Generate(&context, request);
  v1::TokenBatch batch;
  ASSERT_TRUE(stream->Read(&batch));
  worker->process().state().BeginDrain();
  EXPECT_EQ(rpc::DetailOf(Local(*worker, Prompt(10, 7), 1).status).reason(), v1::DRAINING);
  WaitForView([&](const v1::WorkerView& view) {
    return Entry(view, *worker) && Entry(view, *worker)->draining();
  });
  int tokens = 0;
  while (stream->Read(&batch)) tokens += batch.tokens_size();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(tokens, 400);
  worker->RunUntilDrained();
}

TEST_F(WorkerProcessTest, LosingTheManagerFailsNothingAndWorkersComeBack) {
  StartManager();
  const std::string address = process_->grpc_address();
  const auto worker = StartWorker("both");
  WaitForView([&](const v1::WorkerView& view) { return Entry(view, *worker) != nullptr; });
  StopManager();
  EXPECT_TRUE(Local(*worker, Prompt(64, 8), 4).status.ok());

  v1::CacheManagerConfig config =
      *config::LoadCacheManagerConfig({"", {"service.listen=" + address}});
  process_ =
      std::make_unique<ServiceProcess>(ProcessIdentity{"cache-manager", config.service(), ""});
  manager_loop_ = *ThreadLoop::Start("manager", process_->clock(), 65536);
  manager_ = std::make_unique<cache_manager::CacheManagerService>(
      cache_manager::CacheManagerOptions{}, *manager_loop_, process_->metrics());
  ASSERT_TRUE(process_->Serve({{v1::CacheManager::service_full_name(), manager_.get()}}).ok());
  WaitForView([&](const v1::WorkerView& view) {
    return Entry(view, *worker) && Entry(view, *worker)->ready();
  });
}

// Whose a call is, a worker believes a router's claim: for this worker and method, once.
TEST_F(WorkerProcessTest, TenantsComeOnlyWithARoutersClaim) {
  const auto open = StartWorker("prefill");
  v1::AdmitRequest admit;
  admit.set_request_id("r");
  admit.set_attempt(1);
  admit.set_prompt_tokens(8);
  admit.set_tenant("acme");
  const auto ask = [this, &admit](WorkerProcess& worker) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::AdmitReply reply;
    return rpc::FromGrpc(v1::Prefill::NewStub(ChannelOf(worker))->Admit(&context, admit, &reply));
  };
  const absl::Status unknown = ask(*open);
  EXPECT_TRUE(absl::IsPermissionDenied(unknown)) << unknown;
  EXPECT_TRUE(absl::StrContains(unknown.message(), "set claim_key_file")) << unknown;

  const std::string secret(32, 'k');
  const std::string path = absl::StrCat(testing::TempDir(), "/claim-key");
  std::ofstream(path) << secret << "\n";
  const auto worker = StartWorker("prefill", {absl::StrCat("claim_key_file=", path)});
  const auto keys = *identity::ClaimKeys::Parse(secret, "test");
  SecureRandom random;
  const auto sign = [&](absl::string_view method) {
    const std::string audience = rpc::ClaimAudience(worker->process().name(), method);
    *admit.mutable_claim() =
        rpc::ToProto(keys.Sign(rpc::FactsOf(admit, audience), random, SystemClock().WallNow()));
  };
  EXPECT_TRUE(absl::IsPermissionDenied(ask(*worker))) << "no claim";
  sign("Decode.Reserve");
  EXPECT_TRUE(absl::IsPermissionDenied(ask(*worker))) << "for another method";
  sign("Prefill.Admit");
  EXPECT_TRUE(ask(*worker).ok());
  const absl::Status again = ask(*worker);
  EXPECT_TRUE(absl::IsPermissionDenied(again)) << again;
  EXPECT_EQ(rpc::DetailOf(again).reason(), v1::PERMISSION_DENIED);
  sign("Prefill.Admit");
  admit.set_tenant("zeta");
  EXPECT_TRUE(absl::IsPermissionDenied(ask(*worker))) << "for another tenant";
}

}  // namespace
}  // namespace sluice::services
