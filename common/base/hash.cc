#include "base/hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <xxhash.h>

#include "base/check.h"

namespace sluice {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

Id128 Hash128(const void* data, size_t bytes, uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);
  return {hash.high64, hash.low64};
}

Id128 HmacSha256_128(absl::string_view key, absl::string_view message) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int digest_bytes = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()),
                                   message.size(), digest, &digest_bytes);
  SLUICE_CHECK(made != nullptr && digest_bytes == 32);
  Id128 id;
  SLUICE_CHECK(Id128::FromBytes({reinterpret_cast<const char*>(digest), 16}, &id));
  return id;
}

}  // namespace sluice
