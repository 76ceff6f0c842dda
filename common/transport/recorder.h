// What a transport reported, kept for tests. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "transport/transport.h"

namespace sluice::transport {

struct Received {
  EndpointId from;
  std::string header;
  std::vector<uint8_t> payload;
};

class Recorder final : public Events {
 public:
  void OnMessage(EndpointId from, absl::string_view header,
                 absl::Span<const uint8_t> payload) override {
    EXPECT_FALSE(IsDown(from)) << "a message after the end";
    messages.push_back({from, std::string(header), {payload.begin(), payload.end()}});
  }
  void OnFetchDone(FetchId fetch, const absl::Status& status) override {
    for (const auto& [other, ended] : fetches) EXPECT_NE(other, fetch) << "reported twice";
    fetches.emplace_back(fetch, status);
    fetches_after_down += !down.empty();
  }
  void OnPeerDown(EndpointId endpoint, const absl::Status& reason) override {
    EXPECT_FALSE(IsDown(endpoint)) << "reported twice";
    EXPECT_FALSE(reason.ok());
    down.push_back(endpoint);
    reasons.push_back(reason);
  }
  bool IsDown(EndpointId endpoint) const {
    return std::find(down.begin(), down.end(), endpoint) != down.end();
  }

  std::vector<Received> messages;
  std::vector<std::pair<FetchId, absl::Status>> fetches;
  std::vector<EndpointId> down;
  std::vector<absl::Status> reasons;  // of `down`
  int fetches_after_down = 0;
};

inline std::vector<uint8_t> Bytes(size_t size, uint64_t seed) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<uint8_t>(Mix64(seed + i / 7) >> (i % 7 * 8));
  return bytes;
}

}  // namespace sluice::transport
