#include "config/config.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "config/yaml.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "sluice/v1/tenants.pb.h"

namespace sluice::config {
namespace {

std::string WriteFile(const std::string& text) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/",
                   testing::UnitTest::GetInstance()->current_test_info()->name(), ".yaml");
  std::ofstream(path) << text;
  return path;
}

absl::StatusOr<v1::WorkerConfig> Worker(const std::string& yaml,
                                        std::vector<std::string> overrides = {}) {
  return LoadWorkerConfig({WriteFile(yaml), std::move(overrides)}, "decode");
}

TEST(Config, ReadsAFileFillsDefaultsAndAppliesOverridesLast) {
  const auto config = Worker(
      "# a comment\n"
      "model:\n  path: /models/SmolLM2.Q4_1.gguf\n"
      "engine: {threads: 2, kv_format: bf16}\n"
      "transport:\n  backends: [ucx-shm, loopback]\n"
      "service:\n  name: d0\n  log_json: true\n",
      {"engine.threads=3", "service.listen=127.0.0.1:7000"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model().served_name(), "SmolLM2.Q4_1");
  EXPECT_EQ(config->engine().threads(), 3u);
  EXPECT_EQ(config->engine().kv_format(), "bf16");
  EXPECT_FALSE(config->engine().has_page_tokens());
  EXPECT_EQ(config->transport().backends_size(), 2);
  EXPECT_EQ(config->service().name(), "d0");
  EXPECT_TRUE(config->service().log_json());
  EXPECT_EQ(config->service().listen(), "127.0.0.1:7000");
  EXPECT_EQ(config->service().metrics_listen(), "127.0.0.1:0");
  EXPECT_EQ(config->service().drain_s(), 30u);
  EXPECT_EQ(config->role(), "decode");
}

TEST(Config, NoFileIsFineWhenOverridesSayEnough) {
  const auto config = LoadWorkerConfig({"", {"model.path=toy"}}, "prefill");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model().served_name(), "toy");
  EXPECT_EQ(config->handoff().lease_ms(), 10000u);
  EXPECT_EQ(config->transport().backends(0), "ucx-shm");
}

struct Bad {
  const char* yaml;
  const char* expected;  // part of the message
};

TEST(Config, EveryMistakeIsNamed) {
  const Bad cases[] = {
      {"model: {path: toy}\nengin: {}\n", ":2:1: engin is no setting; did you mean engine?"},
      {"model: {path: toy}\nengine: {thread: 2}\n",
       "engine.thread is no setting; did you mean threads?"},
      {"model: {path: toy}\nengine: {threads: many}\n",
       "engine.threads must be a whole number, 0 or more, not \"many\""},
      {"model: {path: toy}\nengine: {threads: -1}\n", "engine.threads must be a whole number"},
      {"model: {path: toy}\nengine: {threads: 1.5}\n", "engine.threads must be a whole number"},
      {"model: {path: toy}\nengine: {threads: [1]}\n", "engine.threads must be a whole number"},
      {"model: {path: toy}\nengine: {threads: 257}\n",
       "engine.threads is 257; it must be in 1..256"},
      {"model: {path: toy}\nengine: {threads: 0}\n", "it must be in 1..256"},
      {"model: {path: toy}\nengine: {kv_format: fp4}\n",
       "it must be one of auto, f32, bf16, gqa_fp8, gqa_fp8c, gqa_int8c, mla_fp8, mla_fp8_656"},
      {"model: {path: toy}\nengine: {page_tokens: 33}\n", "must be a multiple of 16"},
      {"model: {path: toy}\nengine: 5\n", "engine must be a group of settings"},
      {"model: {path: toy}\nservice: {log_json: yes}\n", "must be true or false, not \"yes\""},
      {"model: {path: toy}\nservice: {listen: \"8080\"}\n",
       "service.listen is \"8080\"; it must be host:port"},
      {"model: {path: toy}\nservice: {name: a, name: b}\n", "service.name is there twice"},
      {"model: {path: toy}\ntransport: {backends: ucx-shm}\n", "transport.backends must be a list"},
      {"model: {path: toy}\ntransport: {backends: [rdma]}\n",
       "must be one of ucx-shm, ucx-rdma, ucx-tcp, tls, loopback"},
      {"model: {path: toy}\ntransport: {backends: [ucx-tcp]}\n", "names ucx-tcp"},
      {"model: {path: toy}\ntransport: {backends: [ucx-shm, ucx-rdma]}\n", "names ucx-rdma"},
      {"model: {path: toy}\nservice: {tls: {cert_file: a}}\n", "service.tls.key_file is missing"},
      {"model: {path: toy}\nservice: {tls: {cert_file: a, ca_file: b}}\n",
       "service.tls.key_file is missing"},
      {"model: {path: toy}\nservice: {tls: {ca_file: b}}\n", "service.tls.cert_file is missing"},
      {"engine: {threads: 2}\n", "model.path is missing"},
      {"model: {path: [\n", "yaml:"},
      {"- a\n- b\n", "must be a group of settings"},
  };
  for (const Bad& bad : cases) {
    const auto config = Worker(bad.yaml);
    ASSERT_FALSE(config.ok()) << bad.yaml;
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(config.status().message(), bad.expected))
        << config.status() << " lacks " << bad.expected;
  }
}

TEST(Config, BadOverridesAndMissingFiles) {
  EXPECT_TRUE(absl::StrContains(
      LoadWorkerConfig({"", {"engine.threads"}}, "decode").status().message(), "path=value"));
  EXPECT_TRUE(absl::StrContains(
      LoadWorkerConfig({"", {"engine.treads=2"}}, "decode").status().message(), "threads"));
  EXPECT_TRUE(absl::StrContains(
      LoadWorkerConfig({"", {"model.path=toy", "role=router"}}, "decode").status().message(),
      "prefill, decode, both"));
  EXPECT_EQ(LoadWorkerConfig({"/no/such/file.yaml", {}}, "decode").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Config, RouterRefusesOpenDoorsAndNeedsWorkers) {
  EXPECT_TRUE(LoadRouterConfig({"", {"cache_manager=127.0.0.1:1", "no_auth=true"}}).ok());
  EXPECT_TRUE(absl::StrContains(LoadRouterConfig({"", {}}).status().message(), "cache_manager"));
  EXPECT_TRUE(absl::StrContains(
      LoadRouterConfig(
          {"", {"workers=[127.0.0.1:1]", "no_auth=true", "insecure_clients_anywhere=true"}})
          .status()
          .message(),
      "everybody"));
  EXPECT_TRUE(absl::StrContains(
      LoadRouterConfig(
          {"", {"workers=[127.0.0.1:1]", "no_auth=true", "service.insecure_listen_anywhere=true"}})
          .status()
          .message(),
      "everybody"));
  const auto refused = [](std::vector<std::string> more) {
    more.push_back("workers=[127.0.0.1:1]");
    return std::string(LoadRouterConfig({"", std::move(more)}).status().message());
  };
  EXPECT_TRUE(absl::StrContains(refused({"no_auth=true", "tenants_file=t"}), "drop one of them"));
  EXPECT_TRUE(absl::StrContains(refused({"tenants_file=t"}), "needs claim_key_file"));
  EXPECT_EQ(refused({"tenants_file=t", "claim_key_file=k"}), "");
  EXPECT_TRUE(
      absl::StrContains(refused({"client_tls.cert_file=c"}), "client_tls.key_file is missing"));
}

TEST(Config, PagesTakeTheWayThatTheServiceSuggests) {
  const auto plain = Worker("model: {path: toy}\n");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->transport().backends(0), "ucx-shm");
  EXPECT_EQ(plain->transport().listen(), "127.0.0.1:0");
  const auto secure = Worker(
      "model: {path: toy}\nservice: {listen: \"0.0.0.0:8081\", advertise: \"10.0.0.7:8081\", "
      "tls: {cert_file: a, key_file: b, ca_file: c}}\n");
  ASSERT_TRUE(secure.ok()) << secure.status();
  EXPECT_EQ(secure->transport().backends(0), "tls");
  EXPECT_EQ(secure->transport().listen(), "0.0.0.0:0");
  EXPECT_EQ(secure->transport().advertise(), "10.0.0.7");
}

template <typename T>
void ExpectRoundTrip(const T& config) {
  T again;
  ASSERT_TRUE(MergeYaml(ToYaml(config), "printed", &again).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(config, again)) << ToYaml(config);
}

TEST(Config, PrintedConfigurationReadsBackEqual) {
  const auto worker = Worker("model: {path: \"a: \\\"b\\\" #c\"}\nservice: {name: \"true\"}\n");
  ASSERT_TRUE(worker.ok()) << worker.status();
  ExpectRoundTrip(*worker);
  const auto router = LoadRouterConfig({"", {"workers=[127.0.0.1:1, 127.0.0.1:2]"}});
  ASSERT_TRUE(router.ok()) << router.status();
  ExpectRoundTrip(*router);
  ExpectRoundTrip(*LoadCacheManagerConfig({}));
}

TEST(ConfigRules, EveryFieldHasOneRuleAndDefaultsAreInRange) {
  std::vector<const google::protobuf::Descriptor*> messages;
  for (const auto* file :
       {v1::WorkerConfig::descriptor()->file(), v1::TenantsFile::descriptor()->file()}) {
    for (int i = 0; i < file->message_type_count(); ++i) messages.push_back(file->message_type(i));
  }
  size_t fields = 0;
  for (const auto* message : messages) {
    for (int j = 0; j < message->field_count(); ++j, ++fields) {
      const auto* field = message->field(j);
      int rules = 0;
      for (const FieldRule& rule : AllRules()) {
        if (message->name() != rule.message || field->name() != rule.field) continue;
        ++rules;
        const bool number =
            field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT32 ||
            field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT64;
        EXPECT_EQ(number, rule.max > 0)
            << field->full_name() << ": numbers, and only they, have a range";
      }
      EXPECT_EQ(rules, 1) << field->full_name();
    }
  }
  EXPECT_EQ(fields, AllRules().size());
}

}  // namespace
}  // namespace sluice::config
