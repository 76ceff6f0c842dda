#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/certificates/certificate_check.h"
#include "base/status_macros.h"
#include "formats/json.h"
#include "identity/digest.h"
#include "identity/jwt.h"

namespace sluice::identity {
namespace {

constexpr size_t kKidBytesMax = 256;
constexpr size_t kRsaBytesMin = 256;   // 2048 bits
constexpr size_t kRsaBytesMax = 1024;  // 8192 bits
constexpr size_t kExponentBytesMax = 4;
constexpr size_t kCoordinateBytes = 32;  // of P-256 and Ed25519

template <typename T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* value) const { kFree(value); }
};
using BigNumber = std::unique_ptr<BIGNUM, Freed<BIGNUM, BN_free>>;
using ParamBuilder = std::unique_ptr<OSSL_PARAM_BLD, Freed<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free>>;
using Params = std::unique_ptr<OSSL_PARAM, Freed<OSSL_PARAM, OSSL_PARAM_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX, EVP_PKEY_CTX_free>>;
using PublicKey = std::shared_ptr<EVP_PKEY>;

const unsigned char* Bytes(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// The decoded member `name`. Errors: INVALID_ARGUMENT unless it has `bytes_min` to `bytes_max`.
absl::StatusOr<std::string> Member(const formats::JsonValue& jwk, absl::string_view name,
                                   size_t bytes_min, size_t bytes_max) {
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view text, jwk.GetString(name));
  std::string bytes;
  if (!DecodeBase64Url(text, &bytes) || bytes.size() < bytes_min || bytes.size() > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is no base64url of ", bytes_min, " to ", bytes_max, " bytes"));
  }
  return bytes;
}

absl::StatusOr<PublicKey> FromParams(const char* type, OSSL_PARAM_BLD* builder) {
  const Params params(OSSL_PARAM_BLD_to_param(builder));
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (params == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("no ", type, " key: ", OpenSslReason()));
  }
  const PublicKey made(key, EVP_PKEY_free);
  // A point that is not on the curve, a modulus that is even: refused here, not at a request.
  const KeyContext check(EVP_PKEY_CTX_new_from_pkey(nullptr, key, nullptr));
  if (check == nullptr || EVP_PKEY_public_check(check.get()) != 1)
    return absl::InvalidArgumentError(absl::StrCat("no ", type, " key: ", OpenSslReason()));
  return made;
}

absl::StatusOr<PublicKey> RsaKey(const formats::JsonValue& jwk) {
  SLUICE_ASSIGN_OR_RETURN(const std::string n, Member(jwk, "n", kRsaBytesMin, kRsaBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const std::string e, Member(jwk, "e", 1, kExponentBytesMax));
  const BigNumber modulus(BN_bin2bn(Bytes(n), static_cast<int>(n.size()), nullptr));
  const BigNumber exponent(BN_bin2bn(Bytes(e), static_cast<int>(e.size()), nullptr));
  if (modulus == nullptr || BN_num_bits(modulus.get()) < static_cast<int>(kRsaBytesMin) * 8)
    return absl::InvalidArgumentError("\"n\" has fewer than 2048 bits");
  const ParamBuilder builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr || exponent == nullptr ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get()) != 1) {
    return absl::InternalError(OpenSslReason());
  }
  return FromParams("RSA", builder.get());
}

absl::StatusOr<PublicKey> EcKey(const formats::JsonValue& jwk) {
  SLUICE_ASSIGN_OR_RETURN(const std::string x,
                          Member(jwk, "x", kCoordinateBytes, kCoordinateBytes));
  SLUICE_ASSIGN_OR_RETURN(const std::string y,
                          Member(jwk, "y", kCoordinateBytes, kCoordinateBytes));
  const std::string point = absl::StrCat("\x04", x, y);  // uncompressed
  const ParamBuilder builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                       point.size()) != 1) {
    return absl::InternalError(OpenSslReason());
  }
  return FromParams("EC", builder.get());
}

absl::StatusOr<PublicKey> EdKey(const formats::JsonValue& jwk) {
  SLUICE_ASSIGN_OR_RETURN(const std::string x,
                          Member(jwk, "x", kCoordinateBytes, kCoordinateBytes));
  PublicKey key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, Bytes(x), x.size()),
                EVP_PKEY_free);
  if (key == nullptr) return absl::InvalidArgumentError(OpenSslReason());
  return key;
}

// What a key is for; empty: for nothing that is known here.
std::string AlgorithmOf(const formats::JsonValue& jwk) {
  const absl::string_view type = jwk.GetString("kty").value_or("");
  const absl::string_view curve = jwk.GetString("crv").value_or("");
  std::string algorithm;
  if (type == "RSA") algorithm = "RS256";
  if (type == "EC" && curve == "P-256") algorithm = "ES256";
  if (type == "OKP" && curve == "Ed25519") algorithm = "EdDSA";
  const bool says_so = jwk.Find("alg") == nullptr || jwk.GetString("alg").value_or("") == algorithm;
  const bool signs = jwk.Find("use") == nullptr || jwk.GetString("use").value_or("") == "sig";
  return says_so && signs ? algorithm : "";
}

absl::StatusOr<PublicKey> KeyOf(const std::string& algorithm, const formats::JsonValue& jwk) {
  if (algorithm == "RS256") return RsaKey(jwk);
  return algorithm == "ES256" ? EcKey(jwk) : EdKey(jwk);
}

}  // namespace

absl::StatusOr<JwtKeys> JwtKeys::Parse(absl::string_view json, absl::string_view source) {
  SLUICE_ASSIGN_OR_RETURN(
      const formats::JsonValue root,
      formats::ParseJson(json, source, {.max_bytes = kJwksBytesMax, .max_depth = 8}));
  const auto wrong = [source](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", what...));
  };
  const formats::JsonValue* list = root.Find("keys");
  if (list == nullptr || !list->is_array() || list->array().size() > kJwksKeysMax)
    return wrong("no key set: {\"keys\": [...]} with at most ", kJwksKeysMax, " keys");
  JwtKeys keys;
  for (size_t i = 0; i < list->array().size(); ++i) {
    const formats::JsonValue& jwk = list->array()[i];
    const absl::string_view kid = jwk.GetString("kid").value_or("");
    std::string algorithm = AlgorithmOf(jwk);
    if (algorithm.empty() || kid.empty()) continue;
    if (kid.size() > kKidBytesMax)
      return wrong("keys[", i, "].kid has ", kid.size(), " bytes; at most ", kKidBytesMax,
                   " are allowed");
    auto key = KeyOf(algorithm, jwk);
    if (!key.ok()) return wrong("keys[", i, "]: ", key.status().message());
    if (!keys.keys_.emplace(std::string(kid), Key{std::move(algorithm), *std::move(key)}).second)
      return wrong("keys[", i, "].kid is there twice");
  }
  if (keys.keys_.empty())
    return wrong("no key that could be used: RS256, ES256 or EdDSA, with a kid, for signing");
  return keys;
}

const JwtKeys::Key* JwtKeys::Find(absl::string_view kid) const {
  const auto found = keys_.find(kid);
  return found == keys_.end() ? nullptr : &found->second;
}

}  // namespace sluice::identity
