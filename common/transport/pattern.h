// The region that the other process of the conformance tests offers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::transport {

inline constexpr size_t kPeerRegionBytes = (2u << 20) + 4096;

// Differs between neighbours, pages and megabytes.
inline uint8_t PatternByte(size_t i) {
  return static_cast<uint8_t>(i * 31 + (i >> 8) * 7 + (i >> 20) * 3 + 1);
}

}  // namespace sluice::transport
