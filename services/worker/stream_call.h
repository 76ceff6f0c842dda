// A server-stream call of a worker: admitted, converted, handed to the worker, ended once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rpc/server_stream.h"
#include "services/worker/call_frame.h"

namespace sluice::services {

// Answers one call. In flight until it is dropped.
template <typename Message>
class StreamCall {
 public:
  StreamCall(const WorkerFrame& frame, absl::string_view method, std::string request_id,
             grpc::CallbackServerContext* context, rpc::InFlight in_flight)
      : frame_(frame),
        method_(method),
        request_id_(std::move(request_id)),
        stream_(std::make_shared<rpc::ServerStream<Message>>(context)),
        in_flight_(std::move(in_flight)) {}

  const std::shared_ptr<rpc::ServerStream<Message>>& stream() const { return stream_; }
  const std::string& request_id() const { return request_id_; }
  void Write(Message message) { stream_->Write(std::move(message)); }
  // Counts the call and ends its stream, with a typed error unless `status` is OK.
  void End(const absl::Status& status) {
    frame_.metrics.CallEnded(method_, status);
    stream_->Close(TypedError(status, frame_.source, request_id_));
  }

 private:
  const WorkerFrame& frame_;
  const absl::string_view method_;
  std::string request_id_;
  std::shared_ptr<rpc::ServerStream<Message>> stream_;
  rpc::InFlight in_flight_;
};

// Serves one call of `method`, a literal: `to_call` checks and converts the request, `start` hands
// the result and the StreamCall to the worker and returns its call id. The work is cancelled when
// the client goes. Returns what the handler gives to gRPC.
template <typename Message, typename Request, typename ToCall, typename Start>
grpc::ServerWriteReactor<Message>* ServeStream(const WorkerFrame& frame, absl::string_view method,
                                               grpc::CallbackServerContext* context,
                                               const Request& request, ToCall to_call,
                                               Start start) {
  std::optional<rpc::InFlight> in_flight = frame.state.Admit();
  auto call = in_flight.has_value() ? to_call(request) : DrainingError();
  StreamCall<Message> answer(frame, method, request.request_id(), context,
                             std::move(in_flight).value_or(rpc::InFlight()));
  const std::shared_ptr<rpc::ServerStream<Message>> stream = answer.stream();
  auto* reactor = stream->reactor();
  if (!call.ok()) {
    answer.End(call.status());
    return reactor;
  }
  const handoff::CallId id = start(*std::move(call), std::move(answer));
  stream->OnGone([&worker = frame.worker, id] { worker.Cancel(id); });
  return reactor;
}

}  // namespace sluice::services
