#include "identity/cache_secret.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/hash.h"
#include "identity/api_key.h"
#include "identity/digest.h"

namespace sluice::identity {
namespace {

// Token ids as they are hashed: 4 bytes each, lowest first.
std::string BytesOf(absl::Span<const int32_t> tokens) {
  std::string bytes;
  bytes.reserve(tokens.size() * 4);
  for (const int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8)
      bytes.push_back(static_cast<char>(static_cast<uint32_t>(token) >> shift));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<CacheSecret> CacheSecret::Parse(absl::string_view text, absl::string_view source) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text.substr(0, text.find('\n')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty() || words.size() > 2 || words[0].size() < kSecretBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, " must have a secret of at least ", kSecretBytesMin,
        " characters in its first line, alone or with a tag behind it; it has ", words.size(),
        " words",
        words.empty() ? "" : absl::StrCat(", the first of ", words[0].size(), " characters")));
  }
  CacheSecret secret;
  std::string message = "sluice cache secret";
  AppendField(&message, words.size() > 1 ? words[1] : "");
  secret.secret_ = HmacSha256(words[0], message);
  secret.fingerprint_ =
      absl::BytesToHexString(HmacSha256(secret.secret_, "sluice fingerprint").substr(0, 4));
  return secret;
}

kv::CacheDomain CacheSecret::DomainOf(const Tenant& tenant, absl::string_view salt) const {
  return tenant.sharing_group.empty()
             ? kv::CacheDomain::Derive(secret_, tenant.id, salt)
             : kv::CacheDomain::DeriveShared(secret_, tenant.sharing_group, salt);
}

kv::CacheDomain CacheSecret::DomainOf(const Tenant& tenant, uint32_t public_tokens) const {
  return DomainOf(tenant, "").WithPublicPrefix(secret_, public_tokens);
}

PublicPrefixes::PublicPrefixes(const v1::TenantsFile& file) {
  for (const v1::PublicPrefix& prefix : file.public_prefixes())
    prefixes_.push_back({prefix.tokens(), prefix.digest()});
  std::sort(prefixes_.begin(), prefixes_.end(),
            [](const Prefix& a, const Prefix& b) { return a.tokens < b.tokens; });
}

uint32_t PublicPrefixes::Match(absl::Span<const int32_t> prompt) const {
  // One pass: the state after each declared length is copied and finished.
  using Context = std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)>;
  const Context running(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const Context finished(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  SLUICE_CHECK(EVP_DigestInit_ex(running.get(), EVP_sha256(), nullptr) == 1);
  size_t hashed = 0;
  uint32_t longest = 0;
  for (const Prefix& prefix : prefixes_) {
    if (prefix.tokens > prompt.size()) break;
    const std::string bytes = BytesOf(prompt.subspan(hashed, prefix.tokens - hashed));
    hashed = prefix.tokens;
    unsigned char digest[EVP_MAX_MD_SIZE];
    SLUICE_CHECK(EVP_DigestUpdate(running.get(), bytes.data(), bytes.size()) == 1);
    SLUICE_CHECK(EVP_MD_CTX_copy_ex(finished.get(), running.get()) == 1);
    SLUICE_CHECK(EVP_DigestFinal_ex(finished.get(), digest, nullptr) == 1);
    const absl::string_view made(reinterpret_cast<const char*>(digest), 32);
    if (absl::BytesToHexString(made) == prefix.digest) longest = prefix.tokens;
  }
  return longest;
}

std::string PublicPrefixes::DigestOf(absl::Span<const int32_t> tokens) {
  return absl::BytesToHexString(Sha256(BytesOf(tokens)));
}

}  // namespace sluice::identity
