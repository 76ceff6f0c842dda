// Asynchronous client calls: a function starts a call, callbacks report it, a handle cancels it. No
// reactor outside this file. Callbacks run on gRPC's few threads and must not block; calls for one
// call are never concurrent.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "rpc/status_map.h"

namespace sluice::rpc {

struct CallOptions {
  // Counted from the start of the call; infinite: none.
  absl::Duration timeout = absl::InfiniteDuration();
  std::vector<std::pair<std::string, std::string>> metadata = {};
  // Wait for a connection instead of failing at once while the peer cannot be reached.
  bool wait_for_ready = false;
};

// A call that was started. Dropping it does not end the call. Thread-safe.
class ClientCall {
 public:
  explicit ClientCall(const CallOptions& options);
  // Ends the call with CANCELLED, unless it has ended. The final callback still follows.
  void Cancel() { context_.TryCancel(); }
  grpc::ClientContext* context() { return &context_; }

 private:
  grpc::ClientContext context_;
};

// Starts a unary call. `start(context, request, response, done)` must call the stub, e.g.
//   [&](auto* c, auto* q, auto* r, auto done) { stub->async()->Admit(c, q, r, std::move(done)); }
template <typename Request, typename Response, typename Start>
std::shared_ptr<ClientCall> StartUnary(Request request, const CallOptions& options, Start&& start,
                                       absl::AnyInvocable<void(absl::StatusOr<Response>)> done) {
  struct State {
    State(const CallOptions& o, Request q, absl::AnyInvocable<void(absl::StatusOr<Response>)> d)
        : call(o), request(std::move(q)), done(std::move(d)) {}
    ClientCall call;
    Request request;
    Response response;
    absl::AnyInvocable<void(absl::StatusOr<Response>)> done;
  };
  auto state = std::make_shared<State>(options, std::move(request), std::move(done));
  start(state->call.context(), &state->request, &state->response,
        [state](const grpc::Status& status) {
          auto callback = std::move(state->done);
          if (status.ok()) {
            callback(std::move(state->response));
          } else {
            callback(FromGrpc(status));
          }
        });
  return std::shared_ptr<ClientCall>(state, &state->call);
}

// Receives one server stream.
template <typename Response>
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  virtual void OnMessage(Response message) = 0;
  // The last call.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Starts a server-stream call; the reader is kept until OnEnd has returned. `start(context,
// request, reactor)` must call the stub: [&](auto* c, auto* q, auto* reactor) {
// stub->async()->Run(c, q, reactor); }
template <typename Request, typename Response, typename Start>
std::shared_ptr<ClientCall> StartServerStream(Request request, const CallOptions& options,
                                              Start&& start,
                                              std::unique_ptr<StreamReader<Response>> reader) {
  struct Reactor final : grpc::ClientReadReactor<Response> {
    Reactor(Request q, const CallOptions& o, std::unique_ptr<StreamReader<Response>> r)
        : call(o), request(std::move(q)), reader(std::move(r)) {}
    void OnReadDone(bool ok) override {
      if (!ok) return;
      reader->OnMessage(std::move(message));
      message.Clear();
      this->StartRead(&message);
    }
    void OnDone(const grpc::Status& status) override {
      const std::shared_ptr<Reactor> keep = std::move(self);
      reader->OnEnd(FromGrpc(status));
      reader.reset();
    }
    ClientCall call;
    Request request;
    Response message;
    std::unique_ptr<StreamReader<Response>> reader;
    std::shared_ptr<Reactor> self;  // gRPC's reference
  };
  auto reactor = std::make_shared<Reactor>(std::move(request), options, std::move(reader));
  reactor->self = reactor;
  start(reactor->call.context(), &reactor->request, reactor.get());
  reactor->StartRead(&reactor->message);
  reactor->StartCall();
  return std::shared_ptr<ClientCall>(reactor, &reactor->call);
}

}  // namespace sluice::rpc
