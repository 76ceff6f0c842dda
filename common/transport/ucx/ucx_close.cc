// How connections end: told by UCX, by the peer or by the owner.
#include <iterator>
#include <utility>

#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/ucx_wire.h"
#include "transport/ucx/ucx_worker.h"

namespace sluice::transport {

void UcxTransport::Callbacks::OnError(void* argument, ucp_ep_h /*ep*/, ucs_status_t status) {
  auto* endpoint = static_cast<UcxEndpoint*>(argument);
  endpoint->failed = true;
  endpoint->transport->Fail(*endpoint, UcxError("the peer is gone", status));
}

void UcxTransport::Callbacks::OnClosed(void* request, ucs_status_t /*status*/, void* endpoint) {
  ucp_request_free(request);
  auto* ended = static_cast<UcxEndpoint*>(endpoint);
  ended->closed = true;
  ++ended->transport->activity_;
}

void UcxTransport::Fail(UcxEndpoint& endpoint, const absl::Status& reason) {
  if (endpoint.closing || !endpoint.reason.ok()) return;
  endpoint.reason = reason;
  failed_.push_back(endpoint.id);
}

void UcxTransport::CloseFailed() {
  const std::vector<EndpointId> failed = std::exchange(failed_, {});
  for (const EndpointId id : failed) {
    const auto it = endpoints_.find(id);
    if (it != endpoints_.end() && !it->second->closing) BeginClose(*it->second, it->second->reason);
  }
}

void UcxTransport::Close(EndpointId id) {
  const auto it = endpoints_.find(id);
  if (it == endpoints_.end() || it->second->closing) return;
  std::erase_if(reports_, [&](const Report& report) {
    return report.kind == Report::Kind::kMessage && report.endpoint == id;
  });
  BeginClose(*it->second, absl::CancelledError("closed here"));
}

void UcxTransport::BeginClose(UcxEndpoint& endpoint, const absl::Status& reason) {
  queued_messages_ -= endpoint.queued_messages;
  endpoint.closing = true;
  if (!endpoint.failed) {
    UcxPrefix prefix;
    prefix.kind = UcxPrefix::Kind::kBye;
    SendMessage(endpoint, std::move(prefix), {});
  }
  endpoint.reason = reason;
  endpoint.slots.clear();
  open_.erase(endpoint.peer);
  ++closing_;
  idle_looks_ = 0;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // The peer may be dead: nothing waits for it. UCX ends the outstanding operations.
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = Callbacks::OnClosed;
  param.user_data = &endpoint;
  if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(endpoint.ep, &param))) endpoint.closed = true;
}

// A dead peer's full queue can hold sends for good (UCX 1.13, shared memory): they keep their
// buffers, but nobody waits for them. Only fetches touch memory of the owner.
void UcxTransport::FinishClosed() {
  if (closing_ == 0) return;
  for (auto it = endpoints_.begin(); it != endpoints_.end();) {
    UcxEndpoint& endpoint = *it->second;
    if (endpoint.closing && !endpoint.down && endpoint.fetches == 0) {
      endpoint.down = true;
      Report report;
      report.kind = Report::Kind::kPeerDown;
      report.endpoint = endpoint.id;
      report.status = endpoint.reason;
      reports_.push_back(std::move(report));
    }
    if (endpoint.closed && endpoint.down && endpoint.outstanding == 0) {
      --closing_;
      it = endpoints_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace sluice::transport
