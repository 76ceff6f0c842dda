#include "identity/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace sluice::identity {

std::string Sha256(absl::string_view data) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  SLUICE_CHECK(EVP_Digest(data.data(), data.size(), digest, &bytes, EVP_sha256(), nullptr) == 1);
  SLUICE_CHECK(bytes == 32);
  return std::string(reinterpret_cast<const char*>(digest), bytes);
}

bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool DecodeBase64Url(absl::string_view text, std::string* out) {
  constexpr absl::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  if (text.find_first_not_of(kAlphabet) != absl::string_view::npos) return false;
  // What decodes but is not what encoding gives has stray bits in its last letter.
  return absl::WebSafeBase64Unescape(text, out) && EncodeBase64Url(*out) == text;
}

std::string EncodeBase64Url(absl::string_view bytes) {
  std::string text;
  absl::WebSafeBase64Escape(bytes, &text);  // without padding
  return text;
}

}  // namespace sluice::identity
