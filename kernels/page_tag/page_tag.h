// Batched check of page tags: is every page still the one that the sequence was given?
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::kernels {

// pages[i] is the start of a page; its first 8 bytes are its generation (u64, little endian, 8-byte
// aligned). Returns the first i of [0, count) whose generation differs from expected[i], or -1 when
// all agree. Threads: any; generations are read as relaxed atomics, so a page being recycled
// meanwhile is seen as old or new. Cost: one cache line per page, mostly a miss; lines are
// prefetched, so the pass runs at memory parallelism.
int64_t FirstTagMismatch(const std::byte* const* pages, const uint64_t* expected, int64_t count);

// The same for every page: bit i % 64 of mismatches[i / 64] is 1 where they differ; writes (count +
// 63) / 64 words. Returns the number of mismatches.
int64_t FindTagMismatches(const std::byte* const* pages, const uint64_t* expected, int64_t count,
                          uint64_t* mismatches);

}  // namespace sluice::kernels
