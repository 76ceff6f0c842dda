#include "handoff/dispatch.h"

#include <limits>

namespace sluice::handoff {

void MoveDispatcher::OnMessage(transport::EndpointId from, absl::string_view header,
                               absl::Span<const uint8_t> payload) {
  v1::MoveMessage message;
  if (header.size() > std::numeric_limits<int>::max() ||
      !message.ParseFromArray(header.data(), static_cast<int>(header.size()))) {
    ++counters_.invalid_messages;
    return;
  }
  switch (message.body_case()) {
    case v1::MoveMessage::kOffer:
      return taker_.OnOffer(from, message.offer(), payload);
    case v1::MoveMessage::kCommit:
      return taker_.OnCommit(from, message.commit());
    case v1::MoveMessage::kRenewAck:
      return taker_.OnRenewAck(from, message.renew_ack());
    case v1::MoveMessage::kWithdrawn:
      return taker_.OnWithdrawn(from, message.withdrawn());
    case v1::MoveMessage::kReleasedAck:
      return taker_.OnReleasedAck(from, message.released_ack());
    case v1::MoveMessage::kRenew:
      return source_.OnRenew(from, message.renew());
    case v1::MoveMessage::kReleased:
      return source_.OnReleased(from, message.released());
    case v1::MoveMessage::BODY_NOT_SET:
      break;
  }
  ++counters_.invalid_messages;
}

void MoveDispatcher::OnFetchDone(transport::FetchId fetch, const absl::Status& status) {
  taker_.OnFetchDone(fetch, status);
}

void MoveDispatcher::OnPeerDown(transport::EndpointId endpoint, const absl::Status& reason) {
  source_.OnPeerDown(endpoint, reason);
  taker_.OnPeerDown(endpoint, reason);
}

}  // namespace sluice::handoff
