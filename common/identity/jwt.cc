#include "identity/jwt.h"

#include <openssl/bn.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "formats/json.h"
#include "identity/digest.h"

namespace sluice::identity {
namespace {

constexpr size_t kClaimBytesMax = 512;
constexpr size_t kCurveBytes = 32;  // half a signature of ES256 and EdDSA
constexpr formats::JsonLimits kLimits = {
    .max_bytes = kJwtBytesMax, .max_depth = 8, .max_values = 1024};
// Seconds since 1970 that are taken for a date: until the year 9999.
constexpr double kDateMax = 253402300799;

absl::Status Refused(absl::string_view reason) { return absl::UnauthenticatedError(reason); }

// The two halves of a raw signature as the structure that OpenSSL verifies; empty on failure.
std::string DerOf(absl::string_view raw) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(raw.data());
  const std::unique_ptr<ECDSA_SIG, void (*)(ECDSA_SIG*)> signature(ECDSA_SIG_new(), ECDSA_SIG_free);
  BIGNUM* r = BN_bin2bn(bytes, kCurveBytes, nullptr);
  BIGNUM* s = BN_bin2bn(bytes + kCurveBytes, kCurveBytes, nullptr);
  if (signature == nullptr || r == nullptr || s == nullptr ||
      ECDSA_SIG_set0(signature.get(), r, s) != 1) {
    BN_free(r);
    BN_free(s);
    return "";
  }
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(signature.get(), &der);
  if (size <= 0) return "";
  std::string out(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return out;
}

bool Verifies(const JwtKeys::Key& key, absl::string_view signed_text, std::string signature) {
  const bool rsa = key.algorithm == "RS256";
  if (!rsa && signature.size() != 2 * kCurveBytes) return false;
  if (key.algorithm == "ES256") signature = DerOf(signature);
  const EVP_MD* digest = key.algorithm == "EdDSA" ? nullptr : EVP_sha256();
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  const bool good =
      context != nullptr && !signature.empty() &&
      EVP_DigestVerifyInit(context.get(), nullptr, digest, nullptr, key.key.get()) == 1 &&
      EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                       signature.size(), reinterpret_cast<const unsigned char*>(signed_text.data()),
                       signed_text.size()) == 1;
  ERR_clear_error();
  return good;
}

absl::StatusOr<formats::JsonValue> Decode(absl::string_view part, absl::string_view name) {
  std::string json;
  if (!DecodeBase64Url(part, &json))
    return Refused(absl::StrCat("the token's ", name, " is no base64url"));
  auto value = formats::ParseJson(json, name, kLimits);
  if (!value.ok() || !value->is_object())
    return Refused(absl::StrCat("the token's ", name, " is no JSON object"));
  return value;
}

// The moment in claim `name`. Errors: UNAUTHENTICATED unless it is a sane number.
absl::StatusOr<absl::Time> Moment(const formats::JsonValue& claims, absl::string_view name) {
  const auto seconds = claims.GetDouble(name);
  if (!seconds.ok() || !std::isfinite(*seconds) || *seconds < 0 || *seconds > kDateMax)
    return Refused(absl::StrCat("\"", name, "\" is missing or no date"));
  return absl::UnixEpoch() + absl::Seconds(*seconds);
}

bool Names(const formats::JsonValue& claims, absl::string_view audience) {
  const formats::JsonValue* aud = claims.Find("aud");
  if (aud == nullptr) return false;
  if (aud->is_string()) return *aud->AsString() == audience;
  const auto& list = aud->array();
  return std::any_of(list.begin(), list.end(), [audience](const formats::JsonValue& entry) {
    return entry.is_string() && *entry.AsString() == audience;
  });
}

absl::StatusOr<std::string> CheckClaims(const formats::JsonValue& claims, const JwtRules& rules,
                                        absl::Time wall_now) {
  if (claims.GetString("iss").value_or("") != rules.issuer) return Refused("\"iss\" is another");
  if (!Names(claims, rules.audience)) return Refused("\"aud\" is another");
  SLUICE_ASSIGN_OR_RETURN(const absl::Time expires, Moment(claims, "exp"));
  if (wall_now >= expires + kJwtSkew) return Refused("the token has expired");
  if (claims.Find("nbf") != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const absl::Time begins, Moment(claims, "nbf"));
    if (wall_now < begins - kJwtSkew) return Refused("the token is not valid yet");
  }
  const absl::string_view value = claims.GetString(rules.tenant_claim).value_or("");
  if (value.empty() || value.size() > kClaimBytesMax)
    return Refused(absl::StrCat("\"", rules.tenant_claim, "\" is missing or no text of at most ",
                                kClaimBytesMax, " bytes"));
  return std::string(value);
}

}  // namespace

absl::StatusOr<std::string> VerifyJwt(absl::string_view token, const JwtKeys& keys,
                                      const JwtRules& rules, absl::Time wall_now) {
  if (token.size() > kJwtBytesMax)
    return Refused(absl::StrCat("the token has more than ", kJwtBytesMax, " bytes"));
  const std::vector<absl::string_view> parts = absl::StrSplit(token, absl::MaxSplits('.', 3));
  if (parts.size() != 3) return Refused("the token has not three parts");
  SLUICE_ASSIGN_OR_RETURN(const formats::JsonValue header, Decode(parts[0], "header"));
  // Extensions that must be understood are not.
  if (header.Find("crit") != nullptr) return Refused("the token's header has \"crit\"");
  const JwtKeys::Key* key = keys.Find(header.GetString("kid").value_or(""));
  if (key == nullptr) return Refused("no key has the token's kid");
  if (header.GetString("alg").value_or("") != key->algorithm)
    return Refused(absl::StrCat("the key is for ", key->algorithm, ", the token says otherwise"));
  std::string signature;
  if (!DecodeBase64Url(parts[2], &signature)) return Refused("the signature is no base64url");
  const absl::string_view signed_text = token.substr(0, parts[0].size() + 1 + parts[1].size());
  if (!Verifies(*key, signed_text, std::move(signature))) return Refused("the signature is wrong");
  SLUICE_ASSIGN_OR_RETURN(const formats::JsonValue claims, Decode(parts[1], "payload"));
  return CheckClaims(claims, rules, wall_now);
}

bool LooksLikeJwt(absl::string_view token) {
  return std::count(token.begin(), token.end(), '.') == 2;
}

}  // namespace sluice::identity
