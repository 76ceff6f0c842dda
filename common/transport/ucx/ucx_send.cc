// What leaves: messages, fetches, and the end of each.
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

absl::Status NotConnected(EndpointId id) {
  return absl::NotFoundError(absl::StrCat("endpoint ", id.value(), " is not connected"));
}

}  // namespace

void UcxTransport::SendHello(UcxEndpoint& endpoint) {
  UcxPrefix prefix;
  prefix.kind = UcxPrefix::Kind::kHello;
  SendMessage(endpoint, std::move(prefix), {});
}

absl::Status UcxTransport::Send(EndpointId to, absl::string_view header,
                                absl::Span<const uint8_t> payload) {
  UcxEndpoint* endpoint = FindOpen(to);
  if (endpoint == nullptr) return NotConnected(to);
  const size_t bytes = header.size() + payload.size();
  SLUICE_RETURN_IF_ERROR(
      CheckSend(options_.limits, to, bytes, endpoint->queued_messages, endpoint->queued_bytes));
  PooledBuffer data = buffers_.Take(bytes);
  if (!header.empty()) std::memcpy(data.data(), header.data(), header.size());
  if (!payload.empty()) std::memcpy(data.data() + header.size(), payload.data(), payload.size());
  UcxPrefix prefix;
  prefix.kind = UcxPrefix::Kind::kData;
  prefix.sequence = endpoint->send_sequence++;
  prefix.header_bytes = static_cast<uint32_t>(header.size());
  SendMessage(*endpoint, std::move(prefix), std::move(data));
  return absl::OkStatus();
}

void UcxTransport::SendMessage(UcxEndpoint& endpoint, UcxPrefix prefix, PooledBuffer data) {
  prefix.sender = id_;
  prefix.epoch = endpoint.epoch;
  prefix.to_epoch = endpoint.peer_epoch;
  if (endpoint.peer_epoch == 0) prefix.address = LocalAddress();
  auto operation = std::make_unique<UcxOperation>();
  operation->kind = UcxOperation::Kind::kSend;
  operation->endpoint = &endpoint;
  operation->prefix = prefix.Encode();
  operation->data = std::move(data);
  ++endpoint.outstanding;
  if (!endpoint.closing) ++queued_messages_;
  ++endpoint.queued_messages;
  endpoint.queued_bytes += operation->data.size();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = Callbacks::OnDone;
  param.user_data = operation.get();
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint.ep, kMessageId, operation->prefix.data(), operation->prefix.size(),
                      operation->data.data(), operation->data.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(operation.release());  // OnDone takes it back
    return;
  }
  Complete(std::move(operation), UcxError("cannot send", UCS_PTR_STATUS(request)));
}

absl::StatusOr<UcxRemoteRegion*> UcxTransport::FindRegion(UcxEndpoint& endpoint,
                                                          absl::string_view remote_key) {
  const auto it = endpoint.regions.find(remote_key);
  if (it != endpoint.regions.end()) return it->second.get();
  SLUICE_ASSIGN_OR_RETURN(const UcxKey key, UcxKey::Decode(remote_key));
  if (key.transport != endpoint.peer) {
    return absl::InvalidArgumentError(absl::StrCat("the key belongs to transport ",
                                                   key.transport.ToHex(), ", the endpoint to ",
                                                   endpoint.peer.ToHex()));
  }
  if (endpoint.regions.size() >= options_.limits.regions_max) {
    return absl::ResourceExhaustedError(absl::StrCat("endpoint ", endpoint.id.value(), " uses ",
                                                     endpoint.regions.size(), " regions already"));
  }
  auto region = std::make_unique<UcxRemoteRegion>();
  region->base = key.base;
  region->bytes = key.bytes;
  const ucs_status_t status = ucp_ep_rkey_unpack(endpoint.ep, key.rkey.data(), &region->rkey);
  if (status != UCS_OK) return UcxError("the peer's memory cannot be reached", status);
  return (endpoint.regions[std::string(remote_key)] = std::move(region)).get();
}

absl::StatusOr<FetchId> UcxTransport::Fetch(EndpointId from, absl::string_view remote_key,
                                            uint64_t offset, absl::Span<uint8_t> local) {
  if (!capabilities_.true_get) {
    return absl::UnimplementedError(
        absl::StrCat(capabilities_.name, " cannot fetch; offers carry their bytes"));
  }
  UcxEndpoint* endpoint = FindOpen(from);
  if (endpoint == nullptr) return NotConnected(from);
  SLUICE_ASSIGN_OR_RETURN(UcxRemoteRegion * region, FindRegion(*endpoint, remote_key));
  if (offset > region->bytes || local.size() > region->bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat("a fetch of ", local.size(), " bytes at ", offset,
                                              " from a region of ", region->bytes, " bytes"));
  }
  if (fetches_ >= options_.limits.fetches_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.limits.fetches_max, " fetches are outstanding"));
  }
  const FetchId fetch(++last_fetch_);
  auto operation = std::make_unique<UcxOperation>();
  operation->kind = UcxOperation::Kind::kFetch;
  operation->endpoint = endpoint;
  operation->fetch = fetch;
  ++endpoint->outstanding;
  ++endpoint->fetches;
  ++fetches_;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = Callbacks::OnDone;
  param.user_data = operation.get();
  const ucs_status_ptr_t request = local.empty()
                                       ? nullptr
                                       : ucp_get_nbx(endpoint->ep, local.data(), local.size(),
                                                     region->base + offset, region->rkey, &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(operation.release());  // OnDone takes it back
  } else {
    Complete(std::move(operation), UcxError("cannot fetch", UCS_PTR_STATUS(request)));
  }
  return fetch;
}

void UcxTransport::Callbacks::OnDone(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  std::unique_ptr<UcxOperation> operation(static_cast<UcxOperation*>(user_data));
  UcxTransport* transport = operation->endpoint->transport;
  transport->Complete(std::move(operation), UcxError("the operation failed", status));
}

void UcxTransport::Complete(std::unique_ptr<UcxOperation> operation, const absl::Status& status) {
  UcxEndpoint& endpoint = *operation->endpoint;
  ++activity_;
  --endpoint.outstanding;
  switch (operation->kind) {
    case UcxOperation::Kind::kSend:
      if (!endpoint.closing) --queued_messages_;
      --endpoint.queued_messages;
      endpoint.queued_bytes -= operation->data.size();
      break;
    case UcxOperation::Kind::kFetch: {
      --endpoint.fetches;
      Report report;
      report.kind = Report::Kind::kFetchDone;
      report.endpoint = endpoint.id;
      report.fetch = operation->fetch;
      report.status = status;
      reports_.push_back(std::move(report));
      return;  // one read may fail alone
    }
    case UcxOperation::Kind::kReceive: {
      const auto slot = endpoint.slots.find(operation->sequence);
      if (slot == endpoint.slots.end() || !status.ok()) break;
      slot->second.arrival = std::move(operation->arrival);
      DeliverInOrder(endpoint);
      break;
    }
  }
  // A message that is lost breaks the order of all that follow.
  if (!status.ok()) Fail(endpoint, status);
}

}  // namespace sluice::transport
