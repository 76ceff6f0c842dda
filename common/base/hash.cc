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

std::string HmacSha256(absl::string_view key, absl::string_view message) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest, &bytes);
  SLUICE_CHECK(made != nullptr && bytes == 32);
  return std::string(reinterpret_cast<const char*>(digest), bytes);
}

Id128 HmacSha256_128(absl::string_view key, absl::string_view message) {
  Id128 id;
  SLUICE_CHECK(Id128::FromBytes(absl::string_view(HmacSha256(key, message)).substr(0, 16), &id));
  return id;
}

void AppendU32(std::string* out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

void AppendField(std::string* out, absl::string_view field) {
  AppendU32(out, static_cast<uint32_t>(field.size()));
  out->append(field.data(), field.size());
}

}  // namespace sluice
