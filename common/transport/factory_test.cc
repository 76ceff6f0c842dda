// The factory says what it cannot make and why. Holds with and without UCX.
#include "transport/factory.h"

#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"

namespace sluice::transport {
namespace {

TransportOptions Options(std::vector<std::string> backends) {
  TransportOptions options;
  options.backends = std::move(backends);
  return options;
}

bool IsBuilt(const std::string& name) {
  for (const Backend& backend : BuiltBackends()) {
    if (backend.name == name) return true;
  }
  return false;
}

TEST(Factory, NamesWhatThereIs) {
  for (const Backend& backend : BuiltBackends()) EXPECT_FALSE(backend.description.empty());
  const absl::Status unknown = CreateTransport(Options({"pigeon"})).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  for (const Backend& backend : BuiltBackends()) {
    EXPECT_NE(unknown.message().find(backend.name), std::string::npos) << unknown;
  }
  EXPECT_EQ(CreateTransport(Options({})).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Factory, LoopbackNeedsANetwork) {
  EXPECT_EQ(CreateTransport(Options({"loopback"})).status().code(), absl::StatusCode::kUnavailable);
  SystemClock clock;
  LoopbackNetwork network({}, clock);
  TransportOptions options = Options({"loopback"});
  options.loopback = &network;
  EXPECT_EQ(CreateTransport(options).value()->capabilities().name, "loopback");
}

TEST(Factory, ARefusalSaysWhatIsMissingAndOnlyWhatElseThereIs) {
  const absl::Status refused = CreateTransport(Options({"tls"})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  const std::string message(refused.message());
  EXPECT_NE(message.find("tls: it needs certificates: set service.tls"), std::string::npos)
      << message;
  const size_t others = message.find("not configured: ");
  ASSERT_NE(others, std::string::npos) << message;
  EXPECT_EQ(message.find("tls", others), std::string::npos) << message;
  EXPECT_NE(message.find("loopback", others), std::string::npos) << message;
}

TEST(Factory, UntrustedNetworksGetNoOpenPort) {
  for (const std::string name : {"ucx-tcp", "ucx-rdma"}) {
    if (!IsBuilt(name)) continue;  // a build without UCX opens nothing
    const absl::Status refused = CreateTransport(Options({name})).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(refused.message().find("trusted_network"), std::string::npos) << refused;
  }
}

TEST(Factory, TakesTheFirstThatWorks) {
  if (!IsBuilt("ucx-shm")) return;  // there is only one to choose from
  EXPECT_EQ(CreateTransport(Options({"ucx-tcp", "ucx-shm"})).value()->capabilities().name,
            "ucx-shm");
  TransportOptions options = Options({"ucx-tcp"});
  options.trusted_network = true;
  options.net_devices = "no-such-device0";
  const absl::Status absent = CreateTransport(options).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(absent.message().find("no-such-device0"), std::string::npos) << absent;
}

}  // namespace
}  // namespace sluice::transport
