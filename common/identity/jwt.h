// JSON Web Tokens: signatures by the keys of a local set, and the claims that every token must
// have. Nothing is fetched, and nothing in a token says how it is to be checked: its key id picks a
// key, and each key has one algorithm.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

struct evp_pkey_st;  // OpenSSL's EVP_PKEY

namespace sluice::identity {

inline constexpr size_t kJwtBytesMax = 8192;
inline constexpr size_t kJwksBytesMax = size_t{1} << 20;
inline constexpr size_t kJwksKeysMax = 256;
// Clocks of issuer and router may differ by this much.
inline constexpr absl::Duration kJwtSkew = absl::Seconds(60);

// The public keys of one JSON Web Key Set (RFC 7517). Immutable, so any thread may use it.
class JwtKeys {
 public:
  // Takes the signing keys for RS256 (2048 to 8192 bits), ES256 and EdDSA (Ed25519) that have a
  // "kid"; others are left out. Errors: INVALID_ARGUMENT naming `source` for what is no key set,
  // has a damaged key of these kinds, one kid twice, or no key at all that could be used.
  static absl::StatusOr<JwtKeys> Parse(absl::string_view json, absl::string_view source);

  struct Key {
    std::string algorithm;  // "RS256", "ES256" or "EdDSA": the only one it verifies
    std::shared_ptr<evp_pkey_st> key;
  };
  // Null when there is none.
  const Key* Find(absl::string_view kid) const;
  size_t size() const { return keys_.size(); }

 private:
  JwtKeys() = default;
  absl::flat_hash_map<std::string, Key> keys_;  // by kid
};

struct JwtRules {
  std::string issuer;
  std::string audience;
  std::string tenant_claim = "sub";
};

// The text of the tenant claim of a valid token: signed by one of `keys`, for `rules`, with "exp"
// ahead and "nbf", if any, behind of `wall_now`. Errors: UNAUTHENTICATED, with a reason for the
// operator's log that holds nothing of the token; clients must not be told it. Cost: one signature
// check, 30 to 150 us.
absl::StatusOr<std::string> VerifyJwt(absl::string_view token, const JwtKeys& keys,
                                      const JwtRules& rules, absl::Time wall_now);

// Whether a bearer token has the form of a JWT rather than that of an API key.
bool LooksLikeJwt(absl::string_view token);

}  // namespace sluice::identity
