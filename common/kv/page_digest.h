// Digests of page bytes: whether what is attended is what was written.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "base/hash.h"

namespace sluice::kv {

// How many are checked: none, one in 16, all.
enum class DigestMode { kOff, kSampled, kFull };
inline constexpr uint64_t kDigestSampledEvery = 16;

// XXH3; never 0, which means "no digest".
inline uint64_t BytesDigest(absl::Span<const uint8_t> bytes) {
  return std::max<uint64_t>(Hash64(bytes.data(), bytes.size()), 1);
}

}  // namespace sluice::kv
