// Preloaded into a service by a scenario: its wall clock, and no other clock, is off by what the
// file beside this library says, whose name is this one's with ".offset" behind it: eight bytes,
// nanoseconds, which the scenario changes while the service runs. Without it the clock is the
// machine's.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <string>

namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;

const std::atomic<int64_t>* MapOffset() {
  Dl_info self;
  if (dladdr(reinterpret_cast<const void*>(&MapOffset), &self) == 0) return nullptr;
  const int file = open((std::string(self.dli_fname) + ".offset").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const page = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return page == MAP_FAILED ? nullptr : static_cast<const std::atomic<int64_t>*>(page);
}

int64_t OffsetNanos() {
  static const std::atomic<int64_t>* const offset = MapOffset();
  return offset == nullptr ? 0 : offset->load(std::memory_order_relaxed);
}

timespec Shifted(timespec real) {
  const int64_t nanos = real.tv_sec * kNanosPerSecond + real.tv_nsec + OffsetNanos();
  const int64_t seconds = nanos / kNanosPerSecond;
  return {static_cast<time_t>(seconds), static_cast<long>(nanos - seconds * kNanosPerSecond)};
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, out));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    *out = Shifted(*out);
  return result;
}

int gettimeofday(timeval* __restrict out, void* __restrict) noexcept {
  timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  *out = {now.tv_sec, static_cast<suseconds_t>(now.tv_nsec / 1000)};
  return 0;
}

time_t time(time_t* out) noexcept {
  timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
