// A worker's end of the loopback network, worse than the network makes it: bytes arrive changed,
// there may be no remote reads, and a script may lose, repeat or delay single messages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/loop.h"
#include "base/random.h"
#include "sluice/v1/kv.pb.h"
#include "transport/loopback.h"

namespace sluice::sim {

struct TransportPlan {
  // False: as TCP, offers carry their bytes.
  bool true_get = true;
  // Probability that one bit of a read, or of the bytes that come with a message, is another.
  double flip = 0;
};

// What happens to one message, or to the news that a read has ended.
struct Treatment {
  int copies = 1;  // 0: lost
  absl::Duration delay;
};

// Owned by the worker's move loop.
class SimTransport final : public transport::Transport {
 public:
  // `kind` as in MoveMessage ("offer", "commit", ...), or "read" for a read that has ended.
  using Script = std::function<Treatment(absl::string_view kind, const v1::MoveMessage& message)>;

  // `loop` and `random` outlive the transport; `poll` makes somebody call Poll.
  SimTransport(std::unique_ptr<transport::LoopbackTransport> inner, const TransportPlan& plan,
               Loop& loop, RandomSource& random, std::function<void()> poll);

  transport::NodeId node() const { return inner_->node(); }
  void SetScript(Script script) { script_ = std::move(script); }
  void set_flip(double probability) { plan_.flip = probability; }
  uint64_t flips() const { return flips_; }

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override { return inner_->LocalAddress(); }
  absl::StatusOr<transport::Region> AllocateRegion(size_t bytes) override {
    return inner_->AllocateRegion(bytes);
  }
  absl::StatusOr<transport::EndpointId> Connect(absl::string_view address) override {
    return inner_->Connect(address);
  }
  absl::Status Send(transport::EndpointId to, absl::string_view header,
                    absl::Span<const uint8_t> payload) override;
  absl::StatusOr<transport::FetchId> Fetch(transport::EndpointId from, absl::string_view remote_key,
                                           uint64_t offset, absl::Span<uint8_t> local) override;
  void Close(transport::EndpointId endpoint) override { inner_->Close(endpoint); }
  bool Poll(transport::Events& events) override;
  int EventFd() const override { return -1; }
  bool PrepareSleep() override { return inner_->PrepareSleep(); }

 private:
  class Inbound;
  struct LateRead {
    absl::Time due;
    transport::FetchId fetch;
    absl::Status status;
  };
  void Flip(absl::Span<uint8_t> bytes);

  const std::unique_ptr<transport::LoopbackTransport> inner_;
  TransportPlan plan_;
  Loop& loop_;
  RandomSource& random_;
  const std::function<void()> poll_;
  const transport::Capabilities capabilities_;
  Script script_;
  std::map<transport::FetchId, absl::Span<uint8_t>> reads_;  // under way
  std::vector<LateRead> late_;
  uint64_t flips_ = 0;
};

// "offer", "commit", "renew", "renew_ack", "released", "released_ack", "withdrawn".
absl::string_view KindOf(const v1::MoveMessage& message);

}  // namespace sluice::sim
