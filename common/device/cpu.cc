#include "device/cpu.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace sluice::device {
namespace {

// Four independent streams of 64-byte values: enough loads in flight to reach the rate of memory.
uint64_t ReadAll(const std::byte* data, size_t bytes) {
  typedef uint64_t Line __attribute__((vector_size(64)));
  Line sums[4] = {};
  for (size_t at = 0; at + sizeof(sums) <= bytes; at += sizeof(sums)) {
    for (size_t i = 0; i < 4; ++i) {
      Line line;
      std::memcpy(&line, data + at + i * sizeof(Line), sizeof(Line));
      sums[i] += line;
    }
  }
  const Line sum = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t total = 0;
  for (int i = 0; i < 8; ++i) total += sum[i];
  return total;
}

}  // namespace

int CpusOfQuota(absl::string_view cpu_max) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(absl::StripAsciiWhitespace(cpu_max), ' ', absl::SkipEmpty());
  int64_t quota = 0;
  int64_t period = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota) ||
      !absl::SimpleAtoi(words[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<int>(std::min<int64_t>(quota / period + (quota % period != 0), 1 << 20));
}

int UsableCpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) cpus = CPU_COUNT(&mask);
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string line;
  if (std::getline(file, line)) {
    const int quota = CpusOfQuota(line);
    if (quota > 0) cpus = std::min(cpus, quota);
  }
  return std::max(cpus, 1);
}

absl::StatusOr<double> MeasureReadBandwidth(ThreadPool& pool, const Clock& clock, size_t bytes,
                                            int rounds) {
  SLUICE_ASSIGN_OR_RETURN(HugePageArena arena, HugePageArena::Create(bytes));
  constexpr size_t kPiece = size_t{1} << 20;
  const absl::Span<std::byte> memory = arena.memory();
  const auto pieces = static_cast<int64_t>((bytes + kPiece - 1) / kPiece);
  const auto piece = [&](int64_t i) {
    return memory.subspan(static_cast<size_t>(i) * kPiece, kPiece);
  };
  // Touched by the worker that will read it most, and written, so that no two pages share one page
  // of zeros.
  pool.ParallelFor(pieces, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) std::memset(piece(i).data(), 1, piece(i).size());
  });
  std::atomic<uint64_t> sum{0};
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const absl::Time start = clock.Now();
    pool.ParallelFor(pieces, [&](int64_t begin, int64_t end, int) {
      uint64_t local = 0;
      for (int64_t i = begin; i < end; ++i) local += ReadAll(piece(i).data(), piece(i).size());
      // Keeps the reads: a sum nobody looks at would be removed.
      sum.fetch_add(local, std::memory_order_relaxed);
    });
    const double seconds = absl::ToDoubleSeconds(clock.Now() - start);
    if (seconds > 0) best = std::max(best, static_cast<double>(bytes) / seconds * 1e-9);
  }
  return best;
}

}  // namespace sluice::device
