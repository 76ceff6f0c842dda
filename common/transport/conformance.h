// What the tests of all backends share: two transports in this process. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/certificates/trial_folder.h"
#include "base/clock.h"
#include "transport/factory.h"
#include "transport/loopback.h"
#include "transport/recorder.h"
#include "transport/transport.h"
#include "transport/wait.h"

namespace sluice::transport {

class Conformance : public testing::TestWithParam<std::string> {
 protected:
  Conformance() : network_({1, {}, {}, /*self_driven=*/true}, clock_) {}

  std::unique_ptr<Transport> Create(const Limits& limits = {}) {
    TransportOptions options;
    options.backends = {GetParam()};
    options.trusted_network = true;
    options.limits = limits;
    options.loopback = &network_;
    options.certificates = certificates_.Of(ServiceRole::kDecode);
    auto transport = CreateTransport(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return transport.ok() ? std::move(*transport) : nullptr;
  }
  void SetUp() override {
    a_ = Create();
    b_ = Create();
    ASSERT_TRUE(a_ != nullptr && b_ != nullptr);
  }
  void PollOnce() {
    std::vector<Transport*> all;
    bool any = a_->Poll(at_a_);
    all.push_back(a_.get());
    if (b_ != nullptr) {
      any = b_->Poll(at_b_) || any;
      all.push_back(b_.get());
    }
    if (!any) WaitForWork(all, absl::Milliseconds(100));
  }
  // Polls until `done`; fails the test after half a minute.
  bool Until(const std::function<bool()>& done) {
    const absl::Time deadline = clock_.Now() + absl::Seconds(30);
    while (!done()) {
      if (clock_.Now() > deadline) return false;
      PollOnce();
    }
    return true;
  }
  EndpointId ConnectAToB() { return a_->Connect(b_->LocalAddress()).value(); }
  // a and b know each other afterwards; returns a's and b's endpoint.
  std::pair<EndpointId, EndpointId> Introduce() {
    const EndpointId to_b = ConnectAToB();
    EXPECT_TRUE(a_->Send(to_b, "hello", {}).ok());
    EXPECT_TRUE(Until([&] { return !at_b_.messages.empty(); }));
    const EndpointId to_a = at_b_.messages.back().from;
    at_b_.messages.clear();
    return {to_b, to_a};
  }
  bool CanFetch() const { return a_->capabilities().true_get; }

  SystemClock clock_;
  const TrialFolder certificates_ = TrialFolder::Create().value();
  LoopbackNetwork network_;
  std::unique_ptr<Transport> a_;
  std::unique_ptr<Transport> b_;
  Recorder at_a_;
  Recorder at_b_;
};

// The built backends for which `wanted` holds, as parameters of a test suite.
inline std::vector<std::string> BackendsThat(
    const std::function<bool(const std::string&)>& wanted) {
  std::vector<std::string> names;
  for (const Backend& backend : BuiltBackends()) {
    if (wanted(backend.name)) names.push_back(backend.name);
  }
  return names;
}

inline std::string TestName(const testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace sluice::transport
