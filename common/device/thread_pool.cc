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

// Chunks a part is cut into: small enough that stealing evens out a busy core, large enough to
// amortise the exchange.
constexpr int64_t kChunksPerPart = 8;

// What a waiting thread fetches ahead at most: a share of its second-level cache.
constexpr int64_t kAheadBytesMax = int64_t{384} << 10;

// Longer than a store takes to become visible to other cores.
constexpr int kPausesBeforeSleep = 100;

constexpr int kIndexBits = 24;
constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;

// Job numbers wrap: a worker that sleeps through 65,535 jobs may take the next for the one it knows
// and misses it, which a late worker may.
constexpr uint64_t JobOf(uint64_t range) { return range >> (2 * kIndexBits); }
constexpr uint64_t NextJob(uint64_t job) { return (job + 1) & 0xffff; }
constexpr uint64_t PackRange(uint64_t job, uint64_t next, uint64_t end) {
  return job << (2 * kIndexBits) | end << kIndexBits | next;
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A part of memory that its owner will read soon, fetched line by line while there is nothing to
// do.
class Ahead {
 public:
  Ahead(const uint8_t* begin, int64_t bytes)
      : next_(begin), end_(begin + std::min(bytes, kAheadBytesMax)) {}
  // Some nanoseconds, whether or not anything is left.
  void Step() {
    if (next_ < end_) {
      __builtin_prefetch(next_, 0, 2);
      next_ += 64;
    } else {
      Pause();
    }
  }
  bool done() const { return next_ >= end_; }

 private:
  const uint8_t* next_;
  const uint8_t* end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(const ThreadPoolOptions& options) {
  if (options.workers < 1 || options.workers > kMaxWorkers || options.scratch_bytes == 0 ||
      options.spin_pauses < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("thread pool of ", options.workers, " workers (1..", kMaxWorkers, "), ",
                     options.scratch_bytes, " scratch bytes, ", options.spin_pauses, " pauses"));
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(options.spin_pauses));
  pool->slots_ = std::vector<Slot>(static_cast<size_t>(options.workers));
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
  stop_.store(true);
  wake_workers_.fetch_add(1);
  wake_workers_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::ParallelFor(int64_t n, Body body, int64_t min_chunk,
                             absl::Span<const uint8_t> next) {
  SLUICE_CHECK(n >= 0 && n <= static_cast<int64_t>(kIndexMask) && min_chunk >= 1)
      << n << " " << min_chunk;
  SLUICE_CHECK(!in_use_.exchange(true, std::memory_order_acquire))
      << "ParallelFor nested or called by two threads at once";
  const int64_t parts = workers();
  if (n <= min_chunk || parts == 1) {
    if (n > 0) body(0, n, 0);
  } else {
    Publish(n, &body, static_cast<uint32_t>(std::max(min_chunk, n / (parts * kChunksPerPart))),
            next);
    all_done_ += static_cast<uint64_t>(n) - RunParts(job_, 0);
    AwaitOthers(all_done_);
  }
  in_use_.store(false, std::memory_order_release);
}

void ThreadPool::Publish(int64_t n, const Body* body, uint32_t chunk,
                         absl::Span<const uint8_t> next) {
  job_ = NextJob(job_);
  const int64_t parts = workers();
  const auto bytes = static_cast<int64_t>(next.size());
  bool asleep = false;
  for (int64_t w = 0; w < parts; ++w) {
    Slot& slot = slots_[static_cast<size_t>(w)];
    const int64_t begin = bytes * w / parts / 64 * 64;
    slot.body.store(body, std::memory_order_relaxed);
    slot.chunk.store(chunk, std::memory_order_relaxed);
    slot.next.store(next.data() + begin, std::memory_order_relaxed);
    slot.next_bytes.store(
        static_cast<uint32_t>(std::min(bytes * (w + 1) / parts - begin, kAheadBytesMax)),
        std::memory_order_relaxed);
    slot.range.store(PackRange(job_, static_cast<uint64_t>(n * w / parts),
                               static_cast<uint64_t>(n * (w + 1) / parts)),
                     std::memory_order_release);
    // Not ordered with the store: a worker that falls asleep looks again a moment later.
    asleep |= slot.asleep.load(std::memory_order_relaxed);
  }
  if (!asleep) return;
  wake_workers_.fetch_add(1);
  wake_workers_.notify_all();
}

uint64_t ThreadPool::DoneByOthers() const {
  uint64_t done = 0;
  for (size_t w = 1; w < slots_.size(); ++w) done += slots_[w].done.load();
  return done;
}

void ThreadPool::AwaitOthers(uint64_t done) {
  Slot& own = slots_[0];
  Ahead ahead(own.next.load(std::memory_order_relaxed),
              own.next_bytes.load(std::memory_order_relaxed));
  for (int spin = 0; DoneByOthers() != done;) {
    if (spin < spin_pauses_) {
      if (ahead.done()) ++spin;
      ahead.Step();
      continue;
    }
    // Whoever finishes a part after this line sees it; what was finished before it is seen here.
    caller_asleep_.store(true);
    const uint32_t wake = wake_caller_.load();
    if (DoneByOthers() != done) wake_caller_.wait(wake);
    caller_asleep_.store(false);
  }
}

void ThreadPool::WorkerLoop(int worker) {
  pthread_setname_np(pthread_self(), absl::StrCat("compute-", worker).c_str());
  Slot& slot = slots_[static_cast<size_t>(worker)];
  uint64_t seen = 0;
  while (AwaitJob(slot, seen)) {
    seen = JobOf(slot.range.load(std::memory_order_acquire));
    RunParts(seen, worker);
  }
}

bool ThreadPool::AwaitJob(Slot& slot, uint64_t seen) {
  Ahead ahead(slot.next.load(std::memory_order_relaxed),
              slot.next_bytes.load(std::memory_order_relaxed));
  for (int spin = 0; JobOf(slot.range.load(std::memory_order_acquire)) == seen;) {
    if (stop_.load()) return false;
    if (spin < spin_pauses_) {
      if (ahead.done()) ++spin;
      ahead.Step();
    } else {
      Sleep(slot, seen);
    }
  }
  return !stop_.load();
}

void ThreadPool::Sleep(Slot& slot, uint64_t seen) {
  const auto idle = [&] { return !stop_.load() && JobOf(slot.range.load()) == seen; };
  const uint32_t wake = wake_workers_.load();
  slot.asleep.store(true);
  // Publish does not wait until its store of the range is seen before it reads `asleep`: that would
  // cost every job what this costs only those who sleep.
  for (int i = 0; i < kPausesBeforeSleep && idle(); ++i) Pause();
  if (idle()) wake_workers_.wait(wake);
  slot.asleep.store(false);
}

uint64_t ThreadPool::RunParts(uint64_t job, int worker) {
  const size_t parts = slots_.size();
  Slot& own = slots_[static_cast<size_t>(worker)];
  uint64_t all = 0;
  for (size_t i = 0; i < parts; ++i) {
    Slot& part = slots_[(static_cast<size_t>(worker) + i) % parts];
    const uint64_t ran = RunPart(part, job, /*from_front=*/i == 0, worker);
    all += ran;
    if (worker == 0 || ran == 0) continue;
    // Told part by part: the caller should not wait for the look at the others' parts.
    own.done.fetch_add(ran);
    if (!caller_asleep_.load()) continue;
    wake_caller_.fetch_add(1);
    wake_caller_.notify_one();
  }
  return all;
}

uint64_t ThreadPool::RunPart(Slot& part, uint64_t job, bool from_front, int worker) {
  uint64_t ran = 0;
  uint64_t range = part.range.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t next = range & kIndexMask;
    const uint64_t end = range >> kIndexBits & kIndexMask;
    if (JobOf(range) != job || next >= end) return ran;
    const uint64_t count =
        std::min<uint64_t>(part.chunk.load(std::memory_order_relaxed), end - next);
    const uint64_t left =
        from_front ? PackRange(job, next + count, end) : PackRange(job, next, end - count);
    if (!part.range.compare_exchange_weak(range, left, std::memory_order_acquire)) continue;
    // The chunk is taken: the job stays open until it is counted as done.
    const auto begin = static_cast<int64_t>(from_front ? next : end - count);
    (*part.body.load(std::memory_order_relaxed))(begin, begin + static_cast<int64_t>(count),
                                                 worker);
    ran += count;
    range = left;
  }
}

}  // namespace sluice::device
