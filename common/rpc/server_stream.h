// The one server-stream reactor of Sluice. Services hold a ServerStream, write messages and close
// it; they write no reactors.
#pragma once

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/server_callback.h"
#include "rpc/error.h"
#include "rpc/status_map.h"
#include "rpc/stream_queue.h"

namespace sluice::rpc {

struct StreamOptions {
  // Messages that may wait for a slow reader. Over it the stream ends with SLOW_CONSUMER.
  size_t queue_bytes_max = size_t{256} << 10;
  // After an overflow, how long the write in progress may take before the connection's stream is
  // reset.
  absl::Duration stall_timeout = absl::Seconds(10);
};

// One running server stream, seen by its producer. Thread-safe; nothing blocks. Dropping it without
// Close ends the call with INTERNAL.
template <typename T>
class ServerStream {
 public:
  explicit ServerStream(grpc::CallbackServerContext* context, const StreamOptions& options = {})
      : core_(std::make_shared<Core>(context, options)) {
    core_->reactor = Reactor::Make(core_);
  }
  ~ServerStream() { Close(absl::InternalError("the handler ended without a result")); }
  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;

  // What the service method returns to gRPC. Valid until the stream has ended.
  grpc::ServerWriteReactor<T>* reactor() { return core_->reactor; }

  // `gone` runs once if the peer cancels or its connection ends before Close; at once if that has
  // happened. On a gRPC thread, must not block. May hold the last reference to this stream. After
  // Close it is dropped.
  void OnGone(absl::AnyInvocable<void()> gone) { core_->SetGone(std::move(gone)); }

  // False when the stream has ended: the producer should stop (OnGone is called too, unless the
  // reader was too slow).
  bool Write(T message) {
    const size_t bytes = message.ByteSizeLong() + kFrameBytes;
    typename Queue::Step step;
    const auto pushed = core_->queue.Push(std::move(message), bytes, &step);
    if (pushed == Queue::Pushed::kOverflow) core_->StartStallTimer();
    core_->Run(step);
    return pushed == Queue::Pushed::kQueued;
  }

  // What waits for the reader, the message being written not counted.
  size_t backlog_bytes() const { return core_->queue.waiting_bytes(); }

  // Ends the stream after what was written. Idempotent: the first status wins.
  void Close(const absl::Status& status) {
    core_->DropGone();
    core_->Run(core_->queue.Close(status));
  }
  // Ends the stream without what waits, for a reader that does not read. The first end wins.
  void Abandon(const absl::Status& status) {
    core_->DropGone();
    core_->StartStallTimer();
    core_->Run(core_->queue.Drop(status));
  }

 private:
  using Queue = StreamQueue<T>;
  static constexpr size_t kFrameBytes = 32;
  class Reactor;

  // Shared by the producer, the reactor and the stall timer.
  struct Core : std::enable_shared_from_this<Core> {
    Core(grpc::CallbackServerContext* context_in, const StreamOptions& options_in)
        : context(context_in),
          options(options_in),
          queue(options.queue_bytes_max,
                MakeError(v1::SLOW_CONSUMER,
                          "the client reads too slowly; read faster or ask for "
                          "fewer tokens")) {}

    // Only one step exists at a time, and the reactor lives until after kFinish: no lock is needed
    // here.
    void Run(const typename Queue::Step& step) {
      if (step.kind == Queue::Step::Kind::kWrite) reactor->StartWrite(step.message);
      if (step.kind == Queue::Step::Kind::kFinish) reactor->Finish(ToGrpc(step.status));
    }

    void SetGone(absl::AnyInvocable<void()> callback) {
      {
        MutexLock lock(mutex);
        if (closed) return;
        if (!is_gone) {
          gone = std::move(callback);
          return;
        }
      }
      callback();
    }

    void DropGone() {
      absl::AnyInvocable<void()> dropped;  // dies outside the lock
      MutexLock lock(mutex);
      closed = true;
      std::swap(gone, dropped);
    }

    void Gone() {
      absl::AnyInvocable<void()> callback;
      {
        MutexLock lock(mutex);
        if (is_gone) return;
        is_gone = true;
        std::swap(callback, gone);
      }
      if (callback) callback();
    }

    void StartStallTimer() {
      MutexLock lock(mutex);
      if (done) return;
      alarm = std::make_unique<grpc::Alarm>();
      const gpr_timespec deadline = gpr_time_add(
          gpr_now(GPR_CLOCK_MONOTONIC),
          gpr_time_from_millis(absl::ToInt64Milliseconds(options.stall_timeout), GPR_TIMESPAN));
      alarm->Set(deadline, [core = this->shared_from_this()](bool expired) {
        if (!expired || !core->queue.Hold()) return;
        core->context->TryCancel();
        core->Run(core->queue.Release());
      });
    }

    grpc::CallbackServerContext* const context;  // alive until the reactor's OnDone
    const StreamOptions options;
    Queue queue;
    Reactor* reactor = nullptr;
    Mutex mutex;
    absl::AnyInvocable<void()> gone SLUICE_GUARDED_BY(mutex);
    bool is_gone SLUICE_GUARDED_BY(mutex) = false;
    bool closed SLUICE_GUARDED_BY(mutex) = false;
    std::unique_ptr<grpc::Alarm> alarm SLUICE_GUARDED_BY(mutex);
    bool done SLUICE_GUARDED_BY(mutex) = false;  // the reactor is gone, and the context with it
  };

  class Reactor final : public grpc::ServerWriteReactor<T> {
   public:
    explicit Reactor(std::shared_ptr<Core> core) : core_(std::move(core)) {}
    static Reactor* Make(std::shared_ptr<Core> core) {
      auto reactor = std::make_unique<Reactor>(std::move(core));
      Reactor* raw = reactor.get();
      raw->self_ = std::move(reactor);
      return raw;
    }
    void OnWriteDone(bool ok) override {
      const std::shared_ptr<Core> core = core_;
      core->Run(core->queue.OnWriteDone(ok));
      if (!ok) core->Gone();
    }
    void OnCancel() override {
      const std::shared_ptr<Core> core = core_;
      core->Run(core->queue.OnCancel());
      core->Gone();
    }
    void OnDone() override {
      const std::unique_ptr<Reactor> self = std::move(self_);
      std::unique_ptr<grpc::Alarm>
          alarm;  // cancelled outside the lock; its callback holds the core
      MutexLock lock(core_->mutex);
      core_->done = true;
      alarm = std::move(core_->alarm);
    }

   private:
    const std::shared_ptr<Core> core_;
    std::unique_ptr<Reactor> self_;  // gRPC calls it until OnDone, whoever else has let go
  };

  const std::shared_ptr<Core> core_;
};

}  // namespace sluice::rpc
