// What probes and load balancers see of a process through its life.
#include "services/process/service_process.h"

#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "base/bounded_queue.h"
#include "base/certificates/certificate_check.h"
#include "base/certificates/trial_folder.h"
#include "base/check.h"
#include "base/loop.h"
#include "config/config.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"
#include "rpc/channel_pool.h"
#include "services/process/descriptor_limit.h"

namespace sluice::services {
namespace {

constexpr absl::Duration kWait = absl::Seconds(30);

// grpc.health.v1.Health/Check as bytes: Debian ships no generated code for it.
std::string HealthOf(const std::string& address, const std::string& service) {
  grpc::GenericStub stub(rpc::MakeChannel(address, {}));
  const std::string encoded = std::string("\x0a") + static_cast<char>(service.size()) + service;
  const grpc::Slice slice(encoded);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::ClientContext context;
  const auto done = std::make_shared<BoundedQueue<grpc::Status>>(1);
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &reply,
                 [done](const grpc::Status& status) { done->TryPush(grpc::Status(status)); });
  const auto status = done->PopFor(kWait);
  SLUICE_CHECK(status.has_value());
  if (!status->ok()) return "unknown";
  grpc::Slice answer;
  SLUICE_CHECK(reply.DumpToSingleSlice(&answer).ok());
  const std::string bytes(reinterpret_cast<const char*>(answer.begin()), answer.size());
  return bytes == "\x08\x01" ? "serving" : "not serving";
}

class ServiceProcessTest : public ::testing::Test {
 protected:
  ServiceProcessTest()
      : process_({"cache-manager", config::LoadCacheManagerConfig({})->service(), ""}) {}

  std::string Health(const std::string& service) {
    return HealthOf(process_.grpc_address(), service);
  }
  void ExpectHealth(const std::string& startup, const std::string& readiness,
                    const std::string& liveness) {
    EXPECT_EQ(Health("startup"), startup);
    EXPECT_EQ(Health("readiness"), readiness);
    EXPECT_EQ(Health(""), readiness);
    EXPECT_EQ(Health("liveness"), liveness);
  }

  ServiceProcess process_;
};

TEST_F(ServiceProcessTest, HealthHasANamePerConcern) {
  ASSERT_TRUE(process_.Serve({}).ok());
  ExpectHealth("not serving", "not serving", "serving");
  ASSERT_TRUE(process_.SetUp({}).ok());
  ExpectHealth("serving", "not serving", "serving");
  process_.state().SetReady(true);
  ExpectHealth("serving", "serving", "serving");
  process_.state().SetReady(false);
  ExpectHealth("serving", "not serving", "serving");
  EXPECT_EQ(Health("no such concern"), "unknown");
}

TEST_F(ServiceProcessTest, ADrainingProcessIsAliveAndNotReady) {
  ASSERT_TRUE(process_.Serve({}).ok());
  ASSERT_TRUE(process_.SetUp({}).ok());
  process_.state().SetReady(true);
  {
    const auto request = process_.state().Admit();
    process_.state().BeginDrain();
    ExpectHealth("serving", "not serving", "serving");
  }
  EXPECT_TRUE(process_.WaitForDrain());
}

TEST_F(ServiceProcessTest, LivenessFollowsTheCheckOfTheService) {
  process_.SetLiveCheck([] { return absl::UnavailableError("stuck"); });
  ASSERT_TRUE(process_.Serve({}).ok());
  ASSERT_TRUE(process_.SetUp({}).ok());
  const absl::Time deadline = process_.clock().Now() + kWait;
  while (Health("liveness") != "not serving" && process_.clock().Now() < deadline) continue;
  EXPECT_EQ(Health("liveness"), "not serving");
  EXPECT_EQ(Health("startup"), "serving");
}

TEST(DescriptorLimit, TheSoftLimitBecomesTheHardOne) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max - 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (const uint64_t before : {limit.rlim_max - 1, limit.rlim_max}) {
    const auto raised = RaiseDescriptorLimit();
    ASSERT_TRUE(raised.ok()) << raised.status();
    EXPECT_EQ(raised->before, before);
    EXPECT_EQ(raised->now, limit.rlim_max);
    rlimit now{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, limit.rlim_max);
  }
}

// Seconds of Unix time that a scrape shows; -1 without the metric.
double CertificateExpiry(ServiceProcess& process) {
  const std::string text = process.metrics().Serialize();
  const std::string name = "\nsluice_certificate_expiry_timestamp_seconds ";
  const size_t at = text.find(name);
  double seconds = -1;
  if (at == std::string::npos) return seconds;
  const size_t value = at + name.size();
  SLUICE_CHECK(absl::SimpleAtod(text.substr(value, text.find('\n', value) - value), &seconds));
  return seconds;
}

TEST_F(ServiceProcessTest, WithoutACertificateNoneExpires) {
  ASSERT_TRUE(process_.Prepare().ok());
  EXPECT_EQ(CertificateExpiry(process_), 0);
}

TEST(ServiceProcess, TheExpiryIsThatOfTheCertificateNewConnectionsUse) {
  const auto trial = [](absl::Duration valid_for) {
    CertificateOptions options;
    options.valid_for = valid_for;
    return TrialFolder::Create("trial", options).value();
  };
  const auto end_of = [](const CertificateFiles& files) {
    return absl::ToDoubleSeconds(CheckCertificateFiles(files)->not_after - absl::UnixEpoch());
  };
  const TrialFolder first = trial(absl::Hours(1)), second = trial(absl::Hours(48));
  const CertificateFiles files = first.Of(ServiceRole::kCacheManager);
  const CertificateFiles renewed = second.Of(ServiceRole::kCacheManager);
  v1::ServiceConfig config = config::LoadCacheManagerConfig({})->service();
  config.mutable_tls()->set_cert_file(files.certificate);
  config.mutable_tls()->set_key_file(files.key);
  config.mutable_tls()->set_ca_file(files.authorities);
  ServiceProcess process({"cache-manager", config, ""});
  const absl::Status prepared = process.Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared;
  const double before = end_of(files);
  EXPECT_EQ(CertificateExpiry(process), before);
  std::filesystem::rename(renewed.certificate, files.certificate);
  EXPECT_EQ(CertificateExpiry(process), before) << "the key is not this certificate's yet";
  std::filesystem::rename(renewed.key, files.key);
  EXPECT_EQ(CertificateExpiry(process), end_of(files));
  EXPECT_GT(CertificateExpiry(process), before + 3600);
}

TEST_F(ServiceProcessTest, WatchedLoopsMayStopAfterTheProcess) {
  const auto loop = ThreadLoop::Start("work", process_.clock(), 16);
  ASSERT_TRUE(loop.ok());
  process_.Watch("work", **loop);
  ASSERT_TRUE(process_.Serve({}).ok());
  EXPECT_EQ(Health("liveness"), "serving");
  process_.Stop();
  (*loop)->Stop();
}

}  // namespace
}  // namespace sluice::services
