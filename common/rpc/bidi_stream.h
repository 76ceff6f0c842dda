// Streams in both directions: one reactor for each side, built on the same queue as ServerStream.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/server_callback.h"
#include "rpc/client_call.h"
#include "rpc/error.h"
#include "rpc/status_map.h"
#include "rpc/stream_queue.h"

namespace sluice::rpc {

inline constexpr size_t kBidiQueueBytesMax = size_t{64} << 20;

// The client's end. Thread-safe; nothing blocks. Dropping it cancels the call.
template <typename Request, typename Response>
class BidiCall {
 public:
  // `start(context, reactor)` must call the stub: [&](auto* c, auto* r) { stub->async()->Attach(c,
  // r); } The reader's calls are never concurrent; it is destroyed after OnEnd.
  template <typename Start>
  BidiCall(const CallOptions& options, Start&& start,
           std::unique_ptr<StreamReader<Response>> reader)
      : reactor_(std::make_shared<Reactor>(options, std::move(reader))) {
    reactor_->self = reactor_;
    start(reactor_->call.context(), reactor_.get());
    reactor_->AddHold();  // for writes from other threads; given back by the queue's last step
    reactor_->StartRead(&reactor_->response);
    reactor_->StartCall();
  }
  ~BidiCall() { Cancel(); }
  BidiCall(const BidiCall&) = delete;
  BidiCall& operator=(const BidiCall&) = delete;

  // False when the call has ended or too much waits already (which ends it).
  bool Write(Request message) {
    const size_t bytes = message.ByteSizeLong();
    typename Queue::Step step;
    const auto pushed = reactor_->queue.Push(std::move(message), bytes, &step);
    reactor_->Run(step);
    return pushed == Queue::Pushed::kQueued;
  }
  // OnEnd follows, unless it was called before.
  void Cancel() { reactor_->call.Cancel(); }

 private:
  using Queue = StreamQueue<Request>;

  struct Reactor final : grpc::ClientBidiReactor<Request, Response> {
    Reactor(const CallOptions& options, std::unique_ptr<StreamReader<Response>> r)
        : call(options),
          reader(std::move(r)),
          queue(kBidiQueueBytesMax, absl::ResourceExhaustedError("queue full")) {}
    void Run(const typename Queue::Step& step) {
      if (step.kind == Queue::Step::Kind::kWrite) this->StartWrite(step.message);
      if (step.kind == Queue::Step::Kind::kFinish) {
        call.Cancel();  // no effect if the peer has ended the call
        this->RemoveHold();
      }
    }
    void OnReadDone(bool ok) override {
      if (!ok) return Run(queue.OnCancel());
      reader->OnMessage(std::move(response));
      response.Clear();
      this->StartRead(&response);
    }
    void OnWriteDone(bool ok) override { Run(queue.OnWriteDone(ok)); }
    void OnDone(const grpc::Status& status) override {
      const std::shared_ptr<Reactor> keep = std::move(self);
      reader->OnEnd(FromGrpc(status));
      reader.reset();
    }
    ClientCall call;
    std::unique_ptr<StreamReader<Response>> reader;
    Queue queue;
    Response response;
    std::shared_ptr<Reactor> self;  // gRPC's reference
  };

  const std::shared_ptr<Reactor> reactor_;
};

// The server's end of one call. Thread-safe; nothing blocks. Dropping it without Close ends the
// call with CANCELLED.
template <typename Request, typename Response>
class BidiServerStream {
 public:
  // The reader's OnEnd comes once, when the peer has finished or is gone; the owner then closes.
  // Calls are never concurrent.
  explicit BidiServerStream(std::unique_ptr<StreamReader<Request>> reader)
      : reactor_(std::make_shared<Reactor>(std::move(reader))) {
    reactor_->self = reactor_;
    reactor_->StartRead(&reactor_->request);
  }
  ~BidiServerStream() { Close(absl::CancelledError("the server ended the stream")); }
  BidiServerStream(const BidiServerStream&) = delete;
  BidiServerStream& operator=(const BidiServerStream&) = delete;

  // What the service method returns to gRPC.
  grpc::ServerBidiReactor<Request, Response>* reactor() { return reactor_.get(); }

  bool Write(Response message) {
    const size_t bytes = message.ByteSizeLong();
    typename Queue::Step step;
    const auto pushed = reactor_->queue.Push(std::move(message), bytes, &step);
    reactor_->Run(step);
    return pushed == Queue::Pushed::kQueued;
  }
  void Close(const absl::Status& status) { reactor_->Run(reactor_->queue.Close(status)); }

 private:
  using Queue = StreamQueue<Response>;

  struct Reactor final : grpc::ServerBidiReactor<Request, Response> {
    explicit Reactor(std::unique_ptr<StreamReader<Request>> r)
        : reader(std::move(r)),
          queue(kBidiQueueBytesMax, MakeError(v1::SLOW_CONSUMER, "the peer reads too slowly")) {}
    void Run(const typename Queue::Step& step) {
      if (step.kind == Queue::Step::Kind::kWrite) this->StartWrite(step.message);
      if (step.kind == Queue::Step::Kind::kFinish) this->Finish(ToGrpc(step.status));
    }
    void OnReadDone(bool ok) override {
      if (!ok) return reader->OnEnd(absl::OkStatus());
      reader->OnMessage(std::move(request));
      request.Clear();
      this->StartRead(&request);
    }
    void OnWriteDone(bool ok) override { Run(queue.OnWriteDone(ok)); }
    void OnCancel() override { Run(queue.OnCancel()); }
    void OnDone() override {
      const std::shared_ptr<Reactor> keep = std::move(self);
      reader.reset();
    }
    std::unique_ptr<StreamReader<Request>> reader;
    Queue queue;
    Request request;
    std::shared_ptr<Reactor> self;  // gRPC's reference
  };

  const std::shared_ptr<Reactor> reactor_;
};

}  // namespace sluice::rpc
