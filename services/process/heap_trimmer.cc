#include "services/process/heap_trimmer.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace sluice::services {
namespace {

// Left alone, glibc raises both to twice and once the largest block that was ever freed, at most
// 64 and 32 MiB; and malloc_trim leaves the ends of all heaps but the first as they are.
constexpr int kHeapEndBytes = 256 << 10;
constexpr int kMappedBlockBytes = 1 << 20;

}  // namespace

HeapTrimmer::HeapTrimmer(size_t growth_bytes) : growth_bytes_(growth_bytes) {
  mallopt(M_TRIM_THRESHOLD, kHeapEndBytes);
  mallopt(M_MMAP_THRESHOLD, kMappedBlockBytes);
}

HeapTrimmer::Sizes HeapTrimmer::Measure() {
  size_t total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return {mallinfo2().fordblks, resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE))};
}

bool HeapTrimmer::Run() {
  const Sizes now = Measure();
  least_.free_bytes = std::min(least_.free_bytes, now.free_bytes);
  least_.resident_bytes = std::min(least_.resident_bytes, now.resident_bytes);
  if (now.free_bytes < least_.free_bytes + growth_bytes_ &&
      now.resident_bytes < least_.resident_bytes + growth_bytes_) {
    return false;
  }
  malloc_trim(0);
  least_ = Measure();
  return true;
}

}  // namespace sluice::services
