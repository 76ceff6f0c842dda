#include "device/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace sluice::device {
namespace {

constexpr uint32_t kOpen = uint32_t{1} << 31;
// Chunks a part is cut into: small enough that stealing evens out a busy core, large enough to
// amortise the exchange.
constexpr int64_t kChunksPerPart = 8;

constexpr uint64_t PackRange(uint32_t next, uint32_t end) { return (uint64_t{end} << 32) | next; }

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(const ThreadPoolOptions& options) {
  if (options.workers < 1 || options.workers > kMaxWorkers || options.scratch_bytes == 0 ||
      options.spin_pauses < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("thread pool of ", options.workers, " workers (1..", kMaxWorkers, "), ",
                     options.scratch_bytes, " scratch bytes, ", options.spin_pauses, " pauses"));
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(options.spin_pauses));
  pool->parts_ = std::vector<Part>(static_cast<size_t>(options.workers));
  for (int worker = 0; worker < options.workers; ++worker) {
    SLUICE_ASSIGN_OR_RETURN(HugePageArena arena, HugePageArena::Create(options.scratch_bytes));
    pool->scratch_.push_back(std::move(arena));
  }
  for (int worker = 1; worker < options.workers; ++worker) {
    try {
      pool->threads_.emplace_back([raw = pool.get(), worker] { raw->WorkerLoop(worker); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start compute thread ", worker, " of ", options.workers, ": ",
                       error.what(), "; raise the process limit or lower the number of threads"));
    }
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::ParallelFor(int64_t n, Body body, int64_t min_chunk) {
  SLUICE_CHECK(n >= 0 && n < int64_t{UINT32_MAX} && min_chunk >= 1) << n << " " << min_chunk;
  SLUICE_CHECK(!in_use_.exchange(true, std::memory_order_acquire))
      << "ParallelFor nested or called by two threads at once";
  const int64_t parts = workers();
  if (n <= min_chunk || parts == 1) {
    if (n > 0) body(0, n, 0);
  } else {
    body_ = &body;
    chunk_ = static_cast<uint32_t>(std::max(min_chunk, n / (parts * kChunksPerPart)));
    for (int64_t w = 0; w < parts; ++w) {
      parts_[static_cast<size_t>(w)].range.store(
          PackRange(static_cast<uint32_t>(n * w / parts),
                    static_cast<uint32_t>(n * (w + 1) / parts)),
          std::memory_order_relaxed);
    }
    gate_.store(kOpen, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    RunParts(0);
    // Nothing is left to take: shut the gate and wait for those inside.
    uint32_t inside = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    for (int spin = 0; inside != 0; ++spin) {
      if (spin < spin_pauses_) {
        Pause();
      } else {
        gate_.wait(inside, std::memory_order_acquire);
      }
      inside = gate_.load(std::memory_order_acquire);
    }
  }
  in_use_.store(false, std::memory_order_release);
}

void ThreadPool::WorkerLoop(int worker) {
  pthread_setname_np(pthread_self(), absl::StrCat("compute-", worker).c_str());
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < spin_pauses_) {
        Pause();
      } else {
        epoch_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (Join()) {
      RunParts(worker);
      Leave();
    }
  }
}

bool ThreadPool::Join() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::Leave() {
  if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
}

void ThreadPool::RunParts(int worker) {
  const size_t parts = parts_.size();
  int64_t begin = 0;
  int64_t end = 0;
  for (size_t i = 0; i < parts; ++i) {
    Part& part = parts_[(static_cast<size_t>(worker) + i) % parts];
    while (TakeChunk(part, /*from_front=*/i == 0, &begin, &end)) (*body_)(begin, end, worker);
  }
}

bool ThreadPool::TakeChunk(Part& part, bool from_front, int64_t* begin, int64_t* end) const {
  uint64_t range = part.range.load(std::memory_order_relaxed);
  for (;;) {
    const auto next = static_cast<uint32_t>(range);
    const auto last = static_cast<uint32_t>(range >> 32);
    if (next >= last) return false;
    const uint32_t count = std::min(chunk_, last - next);
    const uint64_t left =
        from_front ? PackRange(next + count, last) : PackRange(next, last - count);
    if (part.range.compare_exchange_weak(range, left, std::memory_order_relaxed)) {
      *begin = from_front ? next : last - count;
      *end = *begin + count;
      return true;
    }
  }
}

}  // namespace sluice::device
