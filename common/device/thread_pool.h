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

  int workers() const { return static_cast<int>(parts_.size()); }

  // Runs `body` over all of [0, n), n < 2^32, on all workers; returns when every index is done and
  // its writes are visible. `body` must not throw. Chunks hold at least `min_chunk` indices: choose
  // it so that a chunk takes more than a microsecond. Work that fits in one chunk runs on the
  // caller without waking anybody. A worker that is late (asleep or preempted) is not waited for
  // unless it holds a chunk.
  void ParallelFor(int64_t n, Body body, int64_t min_chunk = 1);

  // Memory of one worker, 2 MiB aligned; its contents do not survive from one body call to the
  // next.
  absl::Span<std::byte> scratch(int worker) {
    return scratch_[static_cast<size_t>(worker)].memory();
  }

 private:
  // What is left of one worker's part of the current job: next index in the low half, end in the
  // high half.
  struct alignas(64) Part {
    std::atomic<uint64_t> range{0};
  };

  explicit ThreadPool(int spin_pauses) : spin_pauses_(spin_pauses) {}
  void WorkerLoop(int worker);
  bool Join();
  void Leave();
  void RunParts(int worker);
  bool TakeChunk(Part& part, bool from_front, int64_t* begin, int64_t* end) const;

  const int spin_pauses_;
  std::vector<Part> parts_;
  std::vector<HugePageArena> scratch_;
  std::vector<std::thread> threads_;

  // Counts jobs; idle workers sleep on it.
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
  // Open bit and the number of workers inside the job. Only an open job can be joined, so a late
  // worker never sees the fields below change under it.
  alignas(64) std::atomic<uint32_t> gate_{0};
  // The job: written by the caller while the gate is shut and nobody is inside.
  const Body* body_ = nullptr;
  uint32_t chunk_ = 1;
  std::atomic<bool> in_use_{false};
};

}  // namespace sluice::device
