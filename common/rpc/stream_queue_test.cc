#include "rpc/stream_queue.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::rpc {
namespace {

using Queue = StreamQueue<int>;
using Kind = Queue::Step::Kind;
using Pushed = Queue::Pushed;

absl::Status Overflow() { return absl::ResourceExhaustedError("slow"); }

TEST(StreamQueue, WritesOneAtATimeInOrder) {
  Queue queue(100, Overflow());
  Queue::Step step;
  ASSERT_EQ(queue.Push(1, 10, &step), Pushed::kQueued);
  ASSERT_EQ(step.kind, Kind::kWrite);
  EXPECT_EQ(*step.message, 1);
  Queue::Step second;
  ASSERT_EQ(queue.Push(2, 10, &second), Pushed::kQueued);
  EXPECT_EQ(second.kind, Kind::kNothing);
  EXPECT_EQ(*step.message, 1) << "a message stays valid until its write is done";
  const Queue::Step next = queue.OnWriteDone(true);
  ASSERT_EQ(next.kind, Kind::kWrite);
  EXPECT_EQ(*next.message, 2);
  EXPECT_EQ(queue.OnWriteDone(true).kind, Kind::kNothing);
}

TEST(StreamQueue, FinishesOnceAfterEverythingQueued) {
  Queue queue(100, Overflow());
  Queue::Step step;
  queue.Push(1, 10, &step);
  queue.Push(2, 10, &step);
  EXPECT_EQ(queue.Close(absl::OkStatus()).kind, Kind::kNothing);
  EXPECT_EQ(queue.Push(3, 10, &step), Pushed::kClosed);
  EXPECT_EQ(queue.OnWriteDone(true).kind, Kind::kWrite);
  const Queue::Step last = queue.OnWriteDone(true);
  ASSERT_EQ(last.kind, Kind::kFinish);
  EXPECT_TRUE(last.status.ok());
  EXPECT_EQ(queue.Close(absl::InternalError("again")).kind, Kind::kNothing);
  EXPECT_EQ(queue.OnCancel().kind, Kind::kNothing);
}

TEST(StreamQueue, CancelDropsWhatWaitsAndFinishesAfterTheWriteInProgress) {
  Queue queue(100, Overflow());
  Queue::Step step;
  queue.Push(1, 10, &step);
  queue.Push(2, 10, &step);
  EXPECT_EQ(queue.OnCancel().kind, Kind::kNothing);
  EXPECT_EQ(queue.waiting_bytes(), 0u);
  const Queue::Step last = queue.OnWriteDone(false);
  ASSERT_EQ(last.kind, Kind::kFinish);
  EXPECT_EQ(last.status.code(), absl::StatusCode::kCancelled);
}

TEST(StreamQueue, FailedWriteEndsTheStream) {
  Queue queue(100, Overflow());
  Queue::Step step;
  queue.Push(1, 10, &step);
  queue.Push(2, 10, &step);
  EXPECT_EQ(queue.OnWriteDone(false).kind, Kind::kFinish);
  EXPECT_EQ(queue.Push(3, 1, &step), Pushed::kClosed);
}

TEST(StreamQueue, OverflowEndsWithItsOwnStatusAndOneMessageAlwaysFits) {
  Queue queue(15, Overflow());
  Queue::Step step;
  ASSERT_EQ(queue.Push(1, 1000, &step), Pushed::kQueued);  // being written
  ASSERT_EQ(queue.Push(2, 1000, &step), Pushed::kQueued);  // waits alone
  ASSERT_EQ(queue.Push(3, 1, &step), Pushed::kOverflow);
  EXPECT_EQ(step.kind, Kind::kNothing) << "the write in progress comes first";
  const Queue::Step last = queue.OnWriteDone(true);
  ASSERT_EQ(last.kind, Kind::kFinish);
  EXPECT_EQ(last.status, Overflow());
}

TEST(StreamQueue, HoldKeepsTheFinishBack) {
  Queue queue(100, Overflow());
  ASSERT_TRUE(queue.Hold());
  EXPECT_EQ(queue.Close(absl::OkStatus()).kind, Kind::kNothing);
  EXPECT_EQ(queue.Release().kind, Kind::kFinish);
  EXPECT_FALSE(queue.Hold());
}

// Plays gRPC: carries out the steps, completing writes on a thread of its own.
class FakeTransport {
 public:
  explicit FakeTransport(Queue& queue) : queue_(queue) {}
  void Run(const Queue::Step& step) {
    if (step.kind == Kind::kNothing) return;
    ASSERT_FALSE(busy_.exchange(true)) << "two steps at once";
    if (step.kind == Kind::kFinish) {
      ++finishes;
      return;  // busy for ever: no step may follow
    }
    received.push_back(*step.message);
    pending_.store(true);
  }
  // Completes the write in progress, if any.
  bool Complete(bool ok) {
    if (!pending_.exchange(false)) return false;
    busy_.store(false);
    Run(queue_.OnWriteDone(ok));
    return true;
  }
  std::vector<int> received;
  std::atomic<int> finishes{0};

 private:
  Queue& queue_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> pending_{false};
};

TEST(StreamQueue, StepsOfManyThreadsNeverOverlap) {
  constexpr int kRounds = 200;
  constexpr int kMessages = 50;
  for (int round = 0; round < kRounds; ++round) {
    Queue queue(1 << 20, Overflow());
    FakeTransport transport(queue);
    std::thread producer([&] {
      Queue::Step step;
      for (int i = 0; i < kMessages; ++i) {
        if (queue.Push(i, 8, &step) != Pushed::kQueued) break;
        transport.Run(step);
      }
      transport.Run(queue.Close(absl::OkStatus()));
    });
    std::thread canceller([&] {
      if (round % 2 == 1) transport.Run(queue.OnCancel());
      if (queue.Hold()) transport.Run(queue.Release());
    });
    while (transport.finishes.load() == 0) {
      if (!transport.Complete(true)) std::this_thread::yield();
    }
    producer.join();
    canceller.join();
    EXPECT_EQ(transport.finishes.load(), 1);
    for (size_t i = 0; i < transport.received.size(); ++i)
      EXPECT_EQ(transport.received[i], static_cast<int>(i));
    if (round % 2 == 0) {
      EXPECT_EQ(transport.received.size(), static_cast<size_t>(kMessages));
    }
  }
}

TEST(StreamQueue, DroppedEndsWithoutWhatWaits) {
  Queue queue(1000, Overflow());
  Queue::Step first, second;
  queue.Push(1, 10, &first);
  queue.Push(2, 10, &second);
  EXPECT_EQ(first.kind, Kind::kWrite);
  EXPECT_EQ(queue.Drop(absl::AbortedError("enough")).kind, Kind::kNothing)
      << "the write in progress ends first";
  const Queue::Step end = queue.OnWriteDone(true);
  EXPECT_EQ(end.kind, Kind::kFinish);
  EXPECT_EQ(end.status, absl::AbortedError("enough"));
}

}  // namespace
}  // namespace sluice::rpc
