// Messages of a peer that knows the lease: whatever they say, nothing crashes and no page is lost.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "handoff/move_test_support.h"

namespace sluice::handoff {
namespace {

// Puts the real lease and incarnations into a message, so that it is not refused at the door.
template <typename Message>
void Legitimate(const MoveTest& test, LeaseId lease, Message* message) {
  message->set_lease_id(lease.value().ToBytes());
  message->set_holder_incarnation(test.p.incarnation.value());
  message->set_taker_incarnation(test.d.incarnation.value());
}

void MakeLegitimate(const MoveTest& test, LeaseId lease, v1::MoveMessage* message) {
  switch (message->body_case()) {
    case v1::MoveMessage::kOffer:
      message->mutable_offer()->set_attempt(3);
      return Legitimate(test, lease, message->mutable_offer());
    case v1::MoveMessage::kCommit:
      message->mutable_commit()->set_attempt(3);
      return Legitimate(test, lease, message->mutable_commit());
    case v1::MoveMessage::kRenew:
      return Legitimate(test, lease, message->mutable_renew());
    case v1::MoveMessage::kRenewAck:
      return Legitimate(test, lease, message->mutable_renew_ack());
    case v1::MoveMessage::kReleased:
      return Legitimate(test, lease, message->mutable_released());
    case v1::MoveMessage::kWithdrawn:
      message->mutable_withdrawn()->set_attempt(3);
      return Legitimate(test, lease, message->mutable_withdrawn());
    case v1::MoveMessage::kReleasedAck:
      return Legitimate(test, lease, message->mutable_released_ack());
    case v1::MoveMessage::BODY_NOT_SET:
      return;
  }
}

// The input: messages, each with two length bytes in front and a byte that says whether bytes
// follow as its payload.
void RunInput(const uint8_t* data, size_t size) {
  MoveTest test;
  const v1::Grant grant = *test.Reserve(test.Call(test.Prompt(40, 7)));
  const LeaseId lease = MoveTest::LeaseOf(grant);
  SLUICE_CHECK(test.Open(grant, 40).ok());
  test.world.RunFor(absl::Milliseconds(1));
  const transport::EndpointId to_taker = *test.p.inner->Connect(test.d.inner->LocalAddress());
  const transport::EndpointId to_holder = *test.d.inner->Connect(test.p.inner->LocalAddress());
  size_t at = 0;
  while (at + 3 <= size) {
    const size_t length = std::min<size_t>(data[at] + size_t{data[at + 1]} * 256, size - at - 3);
    const bool payload = data[at + 2] & 1;
    const uint8_t* bytes = data + at + 3;
    at += 3 + length;
    v1::MoveMessage message;
    if (!message.ParseFromArray(bytes, static_cast<int>(length))) continue;
    MakeLegitimate(test, lease, &message);
    const std::string header = message.SerializeAsString();
    const absl::Span<const uint8_t> body(bytes, payload ? length : 0);
    test.p.inner->Send(to_taker, header, body).IgnoreError();
    test.d.inner->Send(to_holder, header, body).IgnoreError();
    test.world.RunFor(absl::Milliseconds(700));
  }
  test.On(test.p, [&] { test.p.source->Withdraw(lease, "the end"); });
  test.On(test.d, [&] { test.d.taker->Release(lease, "the end"); });
  test.world.RunFor(absl::Minutes(5));
  SLUICE_CHECK(test.p.PagesHeld() == 0 && test.d.PagesHeld() == 0);
}

}  // namespace
}  // namespace sluice::handoff

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size <= 64 << 10) sluice::handoff::RunInput(data, size);
  return 0;
}
