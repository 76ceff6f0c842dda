// The real programs: command line, start, hand-off between processes, drain, ends.
#include <csignal>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "kv/block_key.h"
#include "rpc/channel_pool.h"
#include "rpc/domain.h"
#include "rpc/error.h"
#include "rpc/status_map.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/cache.grpc.pb.h"
#include "sluice/v1/decode.grpc.pb.h"
#include "sluice/v1/prefill.grpc.pb.h"
#include "tests/support/child_process.h"

namespace sluice::services {
namespace {

using sluice::testing::ChildProcess;

// The value of a text field in the one-line JSON object of a ready file.
std::string JsonField(const std::string& json, const std::string& name) {
  const std::string key = absl::StrCat("\"", name, "\":\"");
  const size_t begin = json.find(key);
  if (begin == std::string::npos) return "";
  const size_t end = json.find('"', begin + key.size());
  return json.substr(begin + key.size(), end - begin - key.size());
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A started service and where it is.
struct Service {
  std::unique_ptr<ChildProcess> child;
  std::string ready_file;
  std::string grpc;
  std::string admin;
};

class BinariesTest : public ::testing::Test {
 protected:
  static std::string Binary(const std::string& name) {
    return absl::StrCat(SLUICE_BINARIES, "/", name);
  }

  Service Start(const std::string& name, std::vector<std::string> arguments) {
    Service service;
    service.ready_file =
        absl::StrCat(::testing::TempDir(), "/", getpid(), "-", ++started_, ".json");
    arguments.push_back("--set");
    arguments.push_back("service.ready_file=" + service.ready_file);
    service.child = std::make_unique<ChildProcess>(Binary(name), std::move(arguments));
    EXPECT_TRUE(service.child->WaitFor(" ready")) << service.child->output();
    const std::string json = ReadFile(service.ready_file);
    EXPECT_TRUE(absl::StrContains(json, absl::StrCat("\"pid\":", service.child->pid()))) << json;
    service.grpc = JsonField(json, "grpc");
    service.admin = JsonField(json, "admin");
    return service;
  }
  Service StartWorker(const std::string& role, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"--model", "toy",   "--threads",
                                          "1",       "--set", "engine.kv_pool_mib=8"};
    if (!manager_.grpc.empty())
      arguments.insert(arguments.end(), {"--cache-manager", manager_.grpc});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Start("sluice-" + role, std::move(arguments));
  }

  // What the manager knows of a role's worker, once it does.
  v1::WorkerInfo InfoOf(v1::WorkerRole role) {
    grpc::ClientContext context;
    const auto stub = v1::CacheManager::NewStub(channels_.Get(manager_.grpc));
    const auto stream = stub->WatchWorkers(&context, {});
    v1::WorkerView view;
    while (stream->Read(&view)) {
      for (const v1::WorkerEntry& worker : view.workers()) {
        if (worker.info().role() != role) continue;
        context.TryCancel();
        return worker.info();
      }
    }
    return {};
  }

  template <typename Request>
  static void Fill(Request* request) {
    request->set_request_id("r");
    request->set_attempt(1);
    request->set_tenant("default");
    request->set_cache_domain(kv::CacheDomain::Derive("secret", TenantId("t"), "").bytes());
  }
  static v1::SamplingSpec Sampling(uint32_t max_tokens) {
    request::SamplingParams params;
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    return rpc::ToProto(params);
  }
  static std::vector<int32_t> Prompt() {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 200; ++i) prompt.push_back((i * 17) % 250);
    return prompt;
  }

  absl::StatusOr<v1::Grant> Reserve(const Service& decode, const v1::WorkerInfo& holder) {
    v1::ReserveRequest request;
    Fill(&request);
    rpc::AddTokens(Prompt(), request.mutable_prompt());
    request.set_max_tokens(16);
    request.set_holder_incarnation(holder.incarnation());
    request.set_holder_layout_hash(holder.layout_hash());
    request.set_holder_layout(rpc::FromProto(holder.layout())->Describe());
    request.set_holder_numerics_id(holder.numerics_id());
    v1::ReserveReply reply;
    grpc::ClientContext context;
    const absl::Status status = rpc::FromGrpc(
        v1::Decode::NewStub(channels_.Get(decode.grpc))->Reserve(&context, request, &reply));
    if (!status.ok()) return status;
    return reply.grant();
  }

  absl::StatusOr<std::vector<uint32_t>> Generate(const Service& decode, const std::string& lease,
                                                 uint32_t max_tokens) {
    v1::DecodeRequest request;
    Fill(&request);
    request.set_lease_id(lease);
    if (lease.empty()) rpc::AddTokens(Prompt(), request.mutable_prompt());
    *request.mutable_sampling() = Sampling(max_tokens);
    grpc::ClientContext context;
    const auto stub = v1::Decode::NewStub(channels_.Get(decode.grpc));
    const auto stream = stub->Generate(&context, request);
    std::vector<uint32_t> tokens;
    v1::TokenBatch batch;
    while (stream->Read(&batch)) {
      for (const v1::SampledToken& token : batch.tokens()) tokens.push_back(token.token());
    }
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    if (!status.ok()) return status;
    return tokens;
  }

  // Prompt on one process, tokens from another; the first token comes from the prefill worker.
  absl::StatusOr<std::vector<uint32_t>> Split(const Service& prefill, const Service& decode,
                                              uint32_t max_tokens, uint64_t* transferred_bytes) {
    const auto stub = v1::Prefill::NewStub(channels_.Get(prefill.grpc));
    v1::AdmitRequest admit;
    admit.set_prompt_tokens(200);
    v1::AdmitReply credit;
    grpc::ClientContext admit_context;
    const grpc::Status admitted = stub->Admit(&admit_context, admit, &credit);
    if (!admitted.ok()) return rpc::FromGrpc(admitted);
    const auto grant = Reserve(decode, InfoOf(v1::PREFILL));
    if (!grant.ok()) return grant.status();
    v1::PrefillRequest request;
    Fill(&request);
    request.set_credit_id(credit.credit_id());
    rpc::AddTokens(Prompt(), request.mutable_prompt());
    *request.mutable_sampling() = Sampling(max_tokens);
    *request.mutable_grant() = *grant;
    grpc::ClientContext context;
    const auto stream = stub->Run(&context, request);
    auto tokens = Generate(decode, grant->lease_id(), max_tokens);
    v1::PrefillEvent event;
    std::vector<uint32_t> first;
    while (stream->Read(&event)) {
      if (event.has_first_token()) first.push_back(event.first_token().token().token());
      if (event.has_done()) *transferred_bytes = event.done().transferred_bytes();
    }
    const grpc::Status ended = stream->Finish();
    if (!ended.ok()) return rpc::FromGrpc(ended);
    if (tokens.ok() && tokens->size() < max_tokens)
      tokens->insert(tokens->begin(), first.begin(), first.end());
    return tokens;
  }

  Service manager_;
  rpc::ChannelPool channels_;
  int started_ = 0;
};

TEST_F(BinariesTest, BadUsageEndsWithTwoAndSaysWhy) {
  struct Case {
    std::string binary;
    std::vector<std::string> arguments;
    const char* expected;
  };
  const Case cases[] = {
      {"sluice-decode", {}, "model.path is missing"},
      {"sluice-decode", {"--nonsense"}, "--nonsense"},
      {"sluice-prefill", {"--model", "toy", "--set", "engine.thread=1"}, "did you mean threads?"},
      {"sluice-prefill", {"--config", "/no/such.yaml"}, "/no/such.yaml"},
      {"sluice-prefill", {"--model", "/no/such.gguf"}, "/no/such.gguf"},
      {"sluice-decode", {"--model", "toy", "--listen", "0.0.0.0:0"}, "insecure_listen_anywhere"},
      {"sluice-decode",
       {"--model", "toy", "--set", "transport.backends=[ucx-tcp]"},
       "trusted_network"},
      {"sluice-cache-manager", {"--set", "heartbeat_ms=1"}, "50..60000"},
  };
  for (const Case& bad : cases) {
    ChildProcess child(Binary(bad.binary), bad.arguments);
    EXPECT_EQ(child.Wait(), 2) << child.output();
    EXPECT_TRUE(absl::StrContains(child.output(), bad.expected)) << child.output();
  }
}

TEST_F(BinariesTest, PrintedConfigurationIsAccepted) {
  ChildProcess print(Binary("sluice-prefill"), {"--model", "toy", "--print-config"});
  EXPECT_EQ(print.Wait(), 0);
  const std::string path = absl::StrCat(::testing::TempDir(), "/", getpid(), "-printed.yaml");
  std::ofstream(path) << print.output();
  ChildProcess again(Binary("sluice-prefill"), {"--config", path, "--print-config"});
  EXPECT_EQ(again.Wait(), 0);
  EXPECT_EQ(again.output(), print.output());
  ChildProcess check(Binary("sluice-prefill"), {"--config", path, "--check-config"});
  EXPECT_EQ(check.Wait(), 0);
}

TEST_F(BinariesTest, PortInUseNamesTheOtherProcess) {
  manager_ = Start("sluice-cache-manager", {});
  ChildProcess second(Binary("sluice-cache-manager"), {"--listen", manager_.grpc});
  EXPECT_EQ(second.Wait(), 2);
  EXPECT_TRUE(absl::StrContains(second.output(),
                                absl::StrCat("pid ", manager_.child->pid(), " (sluice-cache-ma)")))
      << second.output();
}

TEST_F(BinariesTest, TwoProcessesEqualOneOverEveryTransport) {
  manager_ = Start("sluice-cache-manager", {});
  const Service both = StartWorker("decode", {"--set", "role=both", "--set", "service.name=both"});
  const auto local = Generate(both, "", 12);
  ASSERT_TRUE(local.ok()) << local.status();
  ASSERT_EQ(local->size(), 12u);
  for (const std::string backend : {"ucx-shm", "ucx-tcp"}) {
    const std::vector<std::string> transport = {"--set",
                                                absl::StrCat("transport.backends=[", backend, "]"),
                                                "--set", "transport.trusted_network=true"};
    const Service prefill = StartWorker("prefill", transport);
    const Service decode = StartWorker("decode", transport);
    uint64_t transferred = 0;
    const auto split = Split(prefill, decode, 12, &transferred);
    ASSERT_TRUE(split.ok()) << split.status() << "\n"
                            << prefill.child->output() << decode.child->output();
    EXPECT_EQ(*split, *local) << backend;
    EXPECT_GT(transferred, 0u);
    for (const Service* service : {&prefill, &decode}) {
      service->child->Signal(SIGTERM);
      EXPECT_EQ(service->child->Wait(), 0);
      EXPECT_TRUE(absl::StrContains(service->child->output(), "backend=" + backend))
          << service->child->output();
    }
  }
}

TEST_F(BinariesTest, AnotherLayoutIsRefusedBetweenProcesses) {
  manager_ = Start("sluice-cache-manager", {});
  const Service prefill = StartWorker("prefill", {"--kv", "bf16"});
  const Service decode = StartWorker("decode");
  const auto grant = Reserve(decode, InfoOf(v1::PREFILL));
  EXPECT_EQ(rpc::DetailOf(grant.status()).reason(), v1::LAYOUT_MISMATCH) << grant.status();
  EXPECT_TRUE(absl::StrContains(grant.status().message(), "format bf16")) << grant.status();
  EXPECT_TRUE(absl::StrContains(grant.status().message(), "format gqa_fp8")) << grant.status();
}

TEST_F(BinariesTest, TerminationFinishesStreamsAndASecondSignalDoesNotWait) {
  const Service worker = StartWorker("decode", {"--set", "role=both"});
  const auto admin = v1::Admin::NewStub(channels_.Get(worker.admin));
  v1::GetStatusReply status;
  grpc::ClientContext status_context;
  ASSERT_TRUE(admin->GetStatus(&status_context, {}, &status).ok());
  EXPECT_TRUE(status.ready());
  EXPECT_TRUE(absl::StrContains(status.config(), "path: \"toy\""));

  // A stream that stands still: it is running when the signal comes, and never ends by itself.
  v1::DecodeRequest request;
  Fill(&request);
  rpc::AddTokens(Prompt(), request.mutable_prompt());
  *request.mutable_sampling() = Sampling(5000);
  grpc::ClientContext context;
  const auto stub = v1::Decode::NewStub(channels_.Get(worker.grpc));
  const auto stream = stub->Generate(&context, request);
  v1::TokenBatch batch;
  ASSERT_TRUE(stream->Read(&batch));
  v1::ArmFaultRequest pause;
  pause.set_point("engine.before_forward");
  pause.set_kind(v1::ArmFaultRequest::PAUSE);
  v1::ArmFaultReply armed;
  grpc::ClientContext pause_context;
  ASSERT_TRUE(admin->ArmFault(&pause_context, pause, &armed).ok());
  worker.child->Signal(SIGTERM);
  ASSERT_TRUE(worker.child->WaitFor("draining")) << worker.child->output();
  EXPECT_EQ(rpc::DetailOf(Generate(worker, "", 1).status()).reason(), v1::DRAINING);
  worker.child->Signal(SIGTERM);
  EXPECT_EQ(worker.child->Wait(), 130) << worker.child->output();
  context.TryCancel();
  while (stream->Read(&batch)) {
  }
  stream->Finish();
}

}  // namespace
}  // namespace sluice::services
