// Takes what the transport delivers apart and hands it to the side it is for.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "handoff/move.h"
#include "handoff/source.h"
#include "handoff/taker.h"
#include "transport/transport.h"

namespace sluice::handoff {

// Owned by the move loop. What cannot be parsed is counted and dropped.
class MoveDispatcher final : public transport::Events {
 public:
  // All outlive the dispatcher.
  MoveDispatcher(HandoffSource& source, HandoffTaker& taker, MoveCounters& counters)
      : source_(source), taker_(taker), counters_(counters) {}

  void OnMessage(transport::EndpointId from, absl::string_view header,
                 absl::Span<const uint8_t> payload) override;
  void OnFetchDone(transport::FetchId fetch, const absl::Status& status) override;
  void OnPeerDown(transport::EndpointId endpoint, const absl::Status& reason) override;

 private:
  HandoffSource& source_;
  HandoffTaker& taker_;
  MoveCounters& counters_;
};

}  // namespace sluice::handoff
