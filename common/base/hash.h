// Non-cryptographic hashing (XXH3) for digests of pages and pieces, and HMAC-SHA-256 for keys that
// strangers must not forge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/ids.h"

namespace sluice {

// XXH3, 64 and 128 bits. `seed` separates uses. Cost: about 10 GB/s a core from cache.
uint64_t Hash64(const void* data, size_t bytes, uint64_t seed = 0);
Id128 Hash128(const void* data, size_t bytes, uint64_t seed = 0);

// 32 bytes.
std::string HmacSha256(absl::string_view key, absl::string_view message);
// Its first 128 bits.
Id128 HmacSha256_128(absl::string_view key, absl::string_view message);

// Appends `value`, little-endian.
void AppendU32(std::string* out, uint32_t value);
// Appends `field` behind its length, so that no two lists of fields read alike.
void AppendField(std::string* out, absl::string_view field);

}  // namespace sluice
