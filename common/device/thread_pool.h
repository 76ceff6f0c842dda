// Fork-join pool for kernels: a few microseconds to start work on every core, no queue, no
// allocation per call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/huge_page_arena.h"

namespace sluice::device {

struct ThreadPoolOptions {
  // Threads that compute, the caller included: 1 starts no thread. 1..kMaxWorkers.
  int workers = 1;
  // Bytes of scratch of each worker, on pages of its own: neighbours in one page cost half the
  // speed of two cores.
  size_t scratch_bytes = size_t{4} << 20;
  // Pauses (tens of cycles each) before an idle worker sleeps. About 10 us: longer than the serial
  // work between two kernels of a step, short enough that an idle process uses no core.
  int spin_pauses = 500;
};

// ParallelFor splits [0, n) into one contiguous part per worker. Each worker takes chunks from the
// front of its own part, so that the same worker meets the same weights in every step, then steals
// from the far end of the others' parts. Which worker runs an index changes from call to call: a
// result may depend on the index only, never on the worker or on where chunks begin and end. Then
// it does not depend on the number of threads either.
//
// Threads: owned by one caller at a time (CHECKed); ParallelFor does not nest. The destructor
// joins.
class ThreadPool {
 public:
  static constexpr int kMaxWorkers = 1024;
  using Body = absl::FunctionRef<void(int64_t begin, int64_t end, int worker)>;

  // RESOURCE_EXHAUSTED when scratch or threads cannot be had; INVALID_ARGUMENT for options out of
  // range.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(const ThreadPoolOptions& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const { return static_cast<int>(slots_.size()); }

  // Runs `body` over all of [0, n), n < 2^24, on all workers; returns when every index is done and
  // its writes are visible. `body` must not throw. Chunks hold at least `min_chunk` indices: choose
  // it so that a chunk takes more than a microsecond. Work that fits in one chunk runs on the
  // caller without waking anybody. A worker that is late (asleep or preempted) is not waited for
  // unless it holds a chunk.
  // `next`: memory that the call after this one will read, in the same parts: whoever waits fetches
  // the beginning of its part meanwhile. It need not be there any more when it is fetched.
  void ParallelFor(int64_t n, Body body, int64_t min_chunk = 1,
                   absl::Span<const uint8_t> next = {});

  // Memory of one worker, 2 MiB aligned; its contents do not survive from one body call to the
  // next.
  absl::Span<std::byte> scratch(int worker) {
    return scratch_[static_cast<size_t>(worker)].memory();
  }

 private:
  // What the caller and one worker say to each other, on one cache line: a line takes a third of a
  // microsecond from core to core, and a small job lasts three.
  struct alignas(64) Slot {
    // What is left of this worker's part of a job: job number (16 bits), end, next (24 bits each).
    // Whoever takes a chunk holds the job open, so that what follows stays as it is meanwhile.
    std::atomic<uint64_t> range{0};
    std::atomic<const Body*> body{nullptr};
    std::atomic<uint32_t> chunk{1};
    std::atomic<uint32_t> next_bytes{0};
    std::atomic<const uint8_t*> next{nullptr};
    // Indices that this worker has run since it was started, from any part. Its own to write.
    std::atomic<uint64_t> done{0};
    std::atomic<bool> asleep{false};
  };
  static_assert(sizeof(Slot) == 64);

  explicit ThreadPool(int spin_pauses) : spin_pauses_(spin_pauses) {}
  void WorkerLoop(int worker);
  // Waits for a job other than `seen`; false: the pool ends.
  bool AwaitJob(Slot& slot, uint64_t seen);
  void Sleep(Slot& slot, uint64_t seen);
  void Publish(int64_t n, const Body* body, uint32_t chunk, absl::Span<const uint8_t> next);
  void AwaitOthers(uint64_t done);
  uint64_t DoneByOthers() const;
  // Runs what is left of `part` if it is of job `job`; returns the indices run.
  uint64_t RunPart(Slot& part, uint64_t job, bool from_front, int worker);
  uint64_t RunParts(uint64_t job, int worker);

  const int spin_pauses_;
  std::vector<Slot> slots_;
  std::vector<HugePageArena> scratch_;
  std::vector<std::thread> threads_;

  uint64_t job_ = 0;       // number of the job under way; the caller's
  uint64_t all_done_ = 0;  // indices that others have run in all jobs before it; the caller's
  std::atomic<bool> in_use_{false};
  // Sleeping workers wait on this one, a sleeping caller on the other.
  alignas(64) std::atomic<uint32_t> wake_workers_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> wake_caller_{0};
  std::atomic<bool> caller_asleep_{false};
};

}  // namespace sluice::device
