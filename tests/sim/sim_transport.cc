#include "tests/sim/sim_transport.h"

#include <utility>

#include "base/check.h"

namespace sluice::sim {

absl::string_view KindOf(const v1::MoveMessage& message) {
  switch (message.body_case()) {
    case v1::MoveMessage::kOffer:
      return "offer";
    case v1::MoveMessage::kCommit:
      return "commit";
    case v1::MoveMessage::kRenew:
      return "renew";
    case v1::MoveMessage::kRenewAck:
      return "renew_ack";
    case v1::MoveMessage::kReleased:
      return "released";
    case v1::MoveMessage::kReleasedAck:
      return "released_ack";
    case v1::MoveMessage::kWithdrawn:
      return "withdrawn";
    case v1::MoveMessage::BODY_NOT_SET:
      break;
  }
  return "nothing";
}

// Sees what has ended before the worker does.
class SimTransport::Inbound final : public transport::Events {
 public:
  Inbound(SimTransport& owner, transport::Events& events) : owner_(owner), events_(events) {}
  void OnMessage(transport::EndpointId from, absl::string_view header,
                 absl::Span<const uint8_t> payload) override {
    events_.OnMessage(from, header, payload);
  }
  void OnFetchDone(transport::FetchId fetch, const absl::Status& status) override {
    const auto found = owner_.reads_.find(fetch);
    SLUICE_CHECK(found != owner_.reads_.end());
    if (status.ok()) owner_.Flip(found->second);
    owner_.reads_.erase(found);
    const Treatment treatment =
        owner_.script_ ? owner_.script_("read", v1::MoveMessage()) : Treatment();
    if (treatment.delay == absl::ZeroDuration()) return events_.OnFetchDone(fetch, status);
    const absl::Time due = owner_.loop_.clock().Now() + treatment.delay;
    owner_.late_.push_back({due, fetch, status});
    owner_.loop_.RunAt(due, owner_.poll_);
  }
  void OnPeerDown(transport::EndpointId endpoint, const absl::Status& reason) override {
    events_.OnPeerDown(endpoint, reason);
  }

 private:
  SimTransport& owner_;
  transport::Events& events_;
};

SimTransport::SimTransport(std::unique_ptr<transport::LoopbackTransport> inner,
                           const TransportPlan& plan, Loop& loop, RandomSource& random,
                           std::function<void()> poll)
    : inner_(std::move(inner)),
      plan_(plan),
      loop_(loop),
      random_(random),
      poll_(std::move(poll)),
      capabilities_{inner_->capabilities().name, plan.true_get,
                    inner_->capabilities().message_bytes_max} {}

void SimTransport::Flip(absl::Span<uint8_t> bytes) {
  if (plan_.flip <= 0 || bytes.empty() || random_.Unit() >= plan_.flip) return;
  bytes[random_.Below(bytes.size())] ^= static_cast<uint8_t>(1u << random_.Below(8));
  ++flips_;
}

absl::Status SimTransport::Send(transport::EndpointId to, absl::string_view header,
                                absl::Span<const uint8_t> payload) {
  std::vector<uint8_t> bytes(payload.begin(), payload.end());
  Flip(absl::MakeSpan(bytes));
  Treatment treatment;
  if (script_) {
    v1::MoveMessage message;
    SLUICE_CHECK(message.ParseFromArray(header.data(), static_cast<int>(header.size())));
    treatment = script_(KindOf(message), message);
  }
  absl::Status status;
  for (int i = 0; i < treatment.copies && status.ok(); ++i) {
    if (treatment.delay == absl::ZeroDuration()) {
      status = inner_->Send(to, header, bytes);
      continue;
    }
    loop_.RunAt(loop_.clock().Now() + treatment.delay,
                [this, to, header = std::string(header), bytes] {
                  inner_->Send(to, header, bytes).IgnoreError();
                });
  }
  return status;
}

absl::StatusOr<transport::FetchId> SimTransport::Fetch(transport::EndpointId from,
                                                       absl::string_view remote_key,
                                                       uint64_t offset, absl::Span<uint8_t> local) {
  SLUICE_CHECK(capabilities_.true_get);
  absl::StatusOr<transport::FetchId> fetch = inner_->Fetch(from, remote_key, offset, local);
  if (fetch.ok()) reads_[*fetch] = local;
  return fetch;
}

bool SimTransport::Poll(transport::Events& events) {
  Inbound inbound(*this, events);
  bool any = inner_->Poll(inbound);
  const absl::Time now = loop_.clock().Now();
  for (const LateRead& late : std::exchange(late_, {})) {
    if (late.due > now) {
      late_.push_back(late);
      continue;
    }
    any = true;
    events.OnFetchDone(late.fetch, late.status);
  }
  return any;
}

}  // namespace sluice::sim
