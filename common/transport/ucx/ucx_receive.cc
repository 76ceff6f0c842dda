// What peers send: whose it is, whether it is sound, and in which order it is reported.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/ucx_wire.h"
#include "transport/ucx/ucx_worker.h"

namespace sluice::transport {
namespace {

// What a waiting message costs beside its bytes.
constexpr size_t kSlotBytes = 256;
// Bytes worth keeping in UCX's buffer instead of copying them.
constexpr size_t kKeepBytes = 4096;

}  // namespace

ucs_status_t UcxTransport::Callbacks::OnArrival(void* self, const void* header, size_t header_bytes,
                                                void* data, size_t bytes,
                                                const ucp_am_recv_param_t* param) {
  auto* transport = static_cast<UcxTransport*>(self);
  auto arrival = std::make_unique<UcxArrival>();
  arrival->worker = transport->worker_->handle();
  arrival->prefix.assign(static_cast<const char*>(header), header_bytes);
  arrival->bytes = bytes;
  arrival->announced = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool may_keep = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  const bool keep = arrival->announced || (may_keep && bytes >= kKeepBytes);
  if (keep) {
    arrival->descriptor = data;
  } else if (bytes > 0) {
    arrival->own = transport->buffers_.Take(bytes);
    std::memcpy(arrival->own.data(), data, bytes);
  }
  transport->arrivals_.push_back(std::move(arrival));
  ++transport->activity_;
  return keep ? UCS_INPROGRESS : UCS_OK;
}

void UcxTransport::Callbacks::OnReceived(void* request, ucs_status_t status, size_t /*bytes*/,
                                         void* operation) {
  OnDone(request, status, operation);
}

void UcxTransport::HandleArrivals() {
  while (!arrivals_.empty()) {
    std::unique_ptr<UcxArrival> arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    if (!HandleArrival(std::move(arrival)).ok())
      dropped_messages_.fetch_add(1, std::memory_order_relaxed);
  }
}

absl::Status UcxTransport::HandleArrival(std::unique_ptr<UcxArrival> arrival) {
  SLUICE_ASSIGN_OR_RETURN(const UcxPrefix prefix, UcxPrefix::Decode(arrival->prefix));
  SLUICE_ASSIGN_OR_RETURN(UcxEndpoint * endpoint, EndpointOf(prefix));
  switch (prefix.kind) {
    case UcxPrefix::Kind::kHello:
      return absl::OkStatus();
    case UcxPrefix::Kind::kBye:
      BeginClose(*endpoint, absl::UnavailableError("the peer closed the connection"));
      return absl::OkStatus();
    case UcxPrefix::Kind::kData:
      break;
  }
  absl::Status accepted = Accept(*endpoint, prefix, std::move(arrival));
  if (!accepted.ok()) Fail(*endpoint, accepted);
  return accepted;
}

// The open endpoint that a message belongs to, made if it comes from a new peer.
absl::StatusOr<UcxEndpoint*> UcxTransport::EndpointOf(const UcxPrefix& prefix) {
  const auto it = open_.find(prefix.sender);
  UcxEndpoint* endpoint = it == open_.end() ? nullptr : it->second;
  if (prefix.to_epoch != 0 && (endpoint == nullptr || endpoint->epoch != prefix.to_epoch)) {
    return absl::NotFoundError("a message to a connection that has ended");
  }
  if (endpoint != nullptr && endpoint->peer_epoch != 0 && endpoint->peer_epoch != prefix.epoch) {
    if (prefix.epoch < endpoint->peer_epoch)
      return absl::NotFoundError("a message of an older connection");
    BeginClose(*endpoint, absl::UnavailableError("the peer has connected anew"));
    endpoint = nullptr;
  }
  if (endpoint != nullptr) {
    endpoint->peer_epoch = prefix.epoch;
    return endpoint;
  }
  if (prefix.kind == UcxPrefix::Kind::kBye)
    return absl::NotFoundError("the end of an unknown connection");
  SLUICE_ASSIGN_OR_RETURN(const UcxAddress address, UcxAddress::Decode(prefix.address));
  if (address.transport != prefix.sender || address.backend != capabilities_.name ||
      prefix.sender == id_) {
    return absl::InvalidArgumentError("a message with an address that is not its sender's");
  }
  SLUICE_ASSIGN_OR_RETURN(endpoint, OpenEndpoint(prefix.sender, address.worker_address));
  endpoint->peer_epoch = prefix.epoch;
  SendHello(*endpoint);
  return endpoint;
}

absl::Status UcxTransport::Accept(UcxEndpoint& endpoint, const UcxPrefix& prefix,
                                  std::unique_ptr<UcxArrival> arrival) {
  const Limits& limits = options_.limits;
  if (arrival->bytes > limits.message_bytes_max || prefix.header_bytes > arrival->bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the peer sent a message of ", arrival->bytes,
                                                   " bytes with a header of ", prefix.header_bytes,
                                                   "; the most is ", limits.message_bytes_max));
  }
  if (prefix.sequence < endpoint.receive_sequence || endpoint.slots.contains(prefix.sequence)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer sent message ", prefix.sequence, " twice"));
  }
  const size_t cost = arrival->bytes + kSlotBytes;
  if (!endpoint.slots.empty() && endpoint.slot_bytes + cost > 2 * limits.send_queue_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the peer has ", endpoint.slots.size(), " messages under way and sends more"));
  }
  UcxEndpoint::Slot& slot = endpoint.slots[prefix.sequence];
  slot.header_bytes = prefix.header_bytes;
  slot.bytes = cost;
  endpoint.slot_bytes += cost;
  if (arrival->announced) return StartReceive(endpoint, prefix.sequence, std::move(arrival));
  slot.arrival = std::move(arrival);
  DeliverInOrder(endpoint);
  return absl::OkStatus();
}

absl::Status UcxTransport::StartReceive(UcxEndpoint& endpoint, uint64_t sequence,
                                        std::unique_ptr<UcxArrival> arrival) {
  auto operation = std::make_unique<UcxOperation>();
  operation->kind = UcxOperation::Kind::kReceive;
  operation->endpoint = &endpoint;
  operation->sequence = sequence;
  operation->arrival = std::move(arrival);
  UcxArrival& message = *operation->arrival;
  message.own = buffers_.Take(message.bytes);
  ++endpoint.outstanding;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = Callbacks::OnReceived;
  param.user_data = operation.get();
  // UCX takes the descriptor, whatever comes of it.
  void* descriptor = std::exchange(message.descriptor, nullptr);
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_->handle(), descriptor,
                                                        message.own.data(), message.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(operation.release());  // the callback takes it back
  } else {
    Complete(std::move(operation), UcxError("cannot receive", UCS_PTR_STATUS(request)));
  }
  return absl::OkStatus();
}

void UcxTransport::DeliverInOrder(UcxEndpoint& endpoint) {
  while (!endpoint.slots.empty()) {
    const auto first = endpoint.slots.begin();
    if (first->first != endpoint.receive_sequence || first->second.arrival == nullptr) return;
    Report report;
    report.kind = Report::Kind::kMessage;
    report.endpoint = endpoint.id;
    report.message = std::move(first->second.arrival);
    report.header_bytes = first->second.header_bytes;
    reports_.push_back(std::move(report));
    endpoint.slot_bytes -= first->second.bytes;
    endpoint.slots.erase(first);
    ++endpoint.receive_sequence;
  }
}

}  // namespace sluice::transport
