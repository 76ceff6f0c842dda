// The state machine of one server stream, without gRPC: bounded queue, one write outstanding, one
// finish, cancel, overflow.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace sluice::rpc {

// Thread-safe. Every call returns the step that the caller must carry out, at once and on its own
// thread; at most one step is outstanding at any time, so steps of different threads never overlap:
//   kWrite   start writing `*message`, which stays valid until OnWriteDone
//   kFinish  end the stream with `status`; comes exactly once and is the last step
template <typename T>
class StreamQueue {
 public:
  struct Step {
    enum class Kind { kNothing, kWrite, kFinish };
    Kind kind = Kind::kNothing;
    const T* message = nullptr;
    absl::Status status;
  };
  enum class Pushed {
    kQueued,
    kOverflow,  // does not fit: the queue is dropped and the stream ends with `overflow`
    kClosed,    // the stream has ended, or will with a status that is fixed already
  };

  // `bytes_max` bounds the messages that wait, the one being written not counted. A single message
  // always fits.
  StreamQueue(size_t bytes_max, absl::Status overflow)
      : bytes_max_(bytes_max), overflow_(std::move(overflow)) {}

  Pushed Push(T message, size_t bytes, Step* step) {
    MutexLock lock(mutex_);
    if (end_.has_value()) return Pushed::kClosed;
    if (!waiting_.empty() && waiting_bytes_ + bytes > bytes_max_) {
      DropAndEnd(overflow_);
      *step = NextStep();
      return Pushed::kOverflow;
    }
    waiting_.push_back({std::move(message), bytes});
    waiting_bytes_ += bytes;
    *step = NextStep();
    return Pushed::kQueued;
  }

  // Ends the stream after what is queued. The first end wins; later ones are ignored.
  Step Close(absl::Status status) {
    MutexLock lock(mutex_);
    if (!end_.has_value()) end_ = std::move(status);
    return NextStep();
  }

  // Ends the stream at once, without what is queued: for a reader that does not read it.
  Step Drop(absl::Status status) {
    MutexLock lock(mutex_);
    DropAndEnd(std::move(status));
    return NextStep();
  }

  // The write of the last kWrite step has ended. `ok` false: the peer is gone.
  Step OnWriteDone(bool ok) {
    MutexLock lock(mutex_);
    writing_.reset();
    if (!ok) DropAndEnd(absl::CancelledError("the peer closed the stream"));
    return NextStep();
  }

  // The peer cancelled: nothing is written any more.
  Step OnCancel() {
    MutexLock lock(mutex_);
    DropAndEnd(absl::CancelledError("the peer cancelled the call"));
    return NextStep();
  }

  // Keeps kFinish back, so that the call's objects stay alive meanwhile. False when the stream has
  // finished.
  bool Hold() {
    MutexLock lock(mutex_);
    if (finished_) return false;
    ++holds_;
    return true;
  }
  Step Release() {
    MutexLock lock(mutex_);
    --holds_;
    return NextStep();
  }

  size_t waiting_bytes() const {
    MutexLock lock(mutex_);
    return waiting_bytes_;
  }

 private:
  struct Item {
    T message;
    size_t bytes;
  };

  void DropAndEnd(absl::Status status) SLUICE_REQUIRES(mutex_) {
    waiting_.clear();
    waiting_bytes_ = 0;
    if (!end_.has_value()) end_ = std::move(status);
  }

  Step NextStep() SLUICE_REQUIRES(mutex_) {
    if (writing_.has_value() || finished_) return {};
    if (!waiting_.empty()) {
      writing_.emplace(std::move(waiting_.front()));
      waiting_.pop_front();
      waiting_bytes_ -= writing_->bytes;
      return {Step::Kind::kWrite, &writing_->message, absl::OkStatus()};
    }
    if (!end_.has_value() || holds_ > 0) return {};
    finished_ = true;
    return {Step::Kind::kFinish, nullptr, *end_};
  }

  const size_t bytes_max_;
  const absl::Status overflow_;
  mutable Mutex mutex_;
  std::deque<Item> waiting_ SLUICE_GUARDED_BY(mutex_);
  size_t waiting_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::optional<Item> writing_ SLUICE_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ SLUICE_GUARDED_BY(mutex_);
  int holds_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool finished_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::rpc
