#include "kernels/page_tag/page_tag.h"

namespace sluice::kernels {
namespace {

// Lines asked for ahead of use: enough to keep a core's miss buffers busy.
constexpr int64_t kAhead = 32;

uint64_t Generation(const std::byte* page) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(page), __ATOMIC_RELAXED);
}

void PrefetchAhead(const std::byte* const* pages, int64_t i, int64_t count) {
  if (i + kAhead < count) __builtin_prefetch(pages[i + kAhead]);
}

}  // namespace

int64_t FirstTagMismatch(const std::byte* const* pages, const uint64_t* expected, int64_t count) {
  for (int64_t i = 0; i < count && i < kAhead; ++i) __builtin_prefetch(pages[i]);
  for (int64_t i = 0; i < count; ++i) {
    PrefetchAhead(pages, i, count);
    if (Generation(pages[i]) != expected[i]) return i;
  }
  return -1;
}

int64_t FindTagMismatches(const std::byte* const* pages, const uint64_t* expected, int64_t count,
                          uint64_t* mismatches) {
  for (int64_t i = 0; i < count && i < kAhead; ++i) __builtin_prefetch(pages[i]);
  int64_t found = 0;
  for (int64_t word = 0; word * 64 < count; ++word) {
    uint64_t bits = 0;
    for (int64_t i = word * 64; i < count && i < word * 64 + 64; ++i) {
      PrefetchAhead(pages, i, count);
      const bool differs = Generation(pages[i]) != expected[i];
      bits |= uint64_t{differs} << (i % 64);
      found += differs;
    }
    mismatches[word] = bits;
  }
  return found;
}

}  // namespace sluice::kernels
