// An issuer of tokens for tests: fresh keys, their JSON Web Keys, and tokens signed by them.
#pragma once

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "identity/digest.h"

namespace sluice::identity {

class TestIssuer {
 public:
  // `algorithm`: "RS256", "ES256" or "EdDSA".
  TestIssuer(std::string algorithm, std::string kid)
      : algorithm_(std::move(algorithm)), kid_(std::move(kid)) {
    EVP_PKEY* key = algorithm_ == "RS256"   ? EVP_RSA_gen(2048)
                    : algorithm_ == "ES256" ? EVP_EC_gen("P-256")
                                            : EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
    SLUICE_CHECK(key != nullptr);
    key_.reset(key, EVP_PKEY_free);
  }

  // `more` goes into the object: ",\"use\":\"enc\"".
  std::string Jwk(const std::string& more = "") const {
    if (algorithm_ == "RS256")
      return absl::StrCat("{\"kty\":\"RSA\",\"kid\":\"", kid_, "\",\"n\":\"",
                          Number(OSSL_PKEY_PARAM_RSA_N), "\",\"e\":\"",
                          Number(OSSL_PKEY_PARAM_RSA_E), "\"", more, "}");
    if (algorithm_ == "ES256") {
      size_t size = 0;
      std::string point(133, '\0');
      SLUICE_CHECK(EVP_PKEY_get_octet_string_param(key_.get(), OSSL_PKEY_PARAM_PUB_KEY,
                                                   reinterpret_cast<unsigned char*>(point.data()),
                                                   point.size(), &size) == 1);
      SLUICE_CHECK(size == 65);
      return absl::StrCat("{\"kty\":\"EC\",\"crv\":\"P-256\",\"kid\":\"", kid_, "\",\"x\":\"",
                          EncodeBase64Url(point.substr(1, 32)), "\",\"y\":\"",
                          EncodeBase64Url(point.substr(33, 32)), "\"", more, "}");
    }
    size_t size = 32;
    std::string raw(size, '\0');
    SLUICE_CHECK(EVP_PKEY_get_raw_public_key(
                     key_.get(), reinterpret_cast<unsigned char*>(raw.data()), &size) == 1);
    return absl::StrCat("{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"", kid_, "\",\"x\":\"",
                        EncodeBase64Url(raw), "\"", more, "}");
  }

  // A token with this header (JSON) and payload (JSON), signed by the key.
  std::string SignRaw(const std::string& header, const std::string& payload) const {
    const std::string text = absl::StrCat(EncodeBase64Url(header), ".", EncodeBase64Url(payload));
    return absl::StrCat(text, ".", EncodeBase64Url(Signature(text)));
  }
  std::string Sign(const std::string& payload) const {
    return SignRaw(
        absl::StrCat("{\"alg\":\"", algorithm_, "\",\"typ\":\"JWT\",\"kid\":\"", kid_, "\"}"),
        payload);
  }

 private:
  std::string Number(const char* name) const {
    BIGNUM* number = nullptr;
    SLUICE_CHECK(EVP_PKEY_get_bn_param(key_.get(), name, &number) == 1);
    std::string bytes(static_cast<size_t>(BN_num_bytes(number)), '\0');
    BN_bn2bin(number, reinterpret_cast<unsigned char*>(bytes.data()));
    BN_free(number);
    return EncodeBase64Url(bytes);
  }

  std::string Signature(const std::string& text) const {
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                     EVP_MD_CTX_free);
    const auto* data = reinterpret_cast<const unsigned char*>(text.data());
    const EVP_MD* digest = algorithm_ == "EdDSA" ? nullptr : EVP_sha256();
    SLUICE_CHECK(EVP_DigestSignInit(context.get(), nullptr, digest, nullptr, key_.get()) == 1);
    size_t size = 0;
    SLUICE_CHECK(EVP_DigestSign(context.get(), nullptr, &size, data, text.size()) == 1);
    std::string signature(size, '\0');
    SLUICE_CHECK(EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()),
                                &size, data, text.size()) == 1);
    signature.resize(size);
    if (algorithm_ != "ES256") return signature;
    const auto* der = reinterpret_cast<const unsigned char*>(signature.data());
    const std::unique_ptr<ECDSA_SIG, void (*)(ECDSA_SIG*)> parts(
        d2i_ECDSA_SIG(nullptr, &der, static_cast<long>(signature.size())), ECDSA_SIG_free);
    std::string raw(64, '\0');
    auto* out = reinterpret_cast<unsigned char*>(raw.data());
    SLUICE_CHECK(BN_bn2binpad(ECDSA_SIG_get0_r(parts.get()), out, 32) == 32);
    SLUICE_CHECK(BN_bn2binpad(ECDSA_SIG_get0_s(parts.get()), out + 32, 32) == 32);
    return raw;
  }

  std::string algorithm_;
  std::string kid_;
  std::shared_ptr<EVP_PKEY> key_;
};

inline std::string JwksOf(const std::vector<std::string>& keys) {
  return absl::StrCat("{\"keys\":[", absl::StrJoin(keys, ","), "]}");
}

}  // namespace sluice::identity
