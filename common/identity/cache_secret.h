// The operator's secret behind all cache namespaces, and the beginnings of prompts that all share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "identity/tenant_table.h"
#include "kv/block_key.h"
#include "sluice/v1/tenants.pb.h"

namespace sluice::identity {

// Immutable, so any thread may use it. Another secret, or the same with another tag, makes other
// domains: what was cached before is never found again and ages out.
class CacheSecret {
 public:
  // The first line of its file: "SECRET" or "SECRET TAG". Errors: INVALID_ARGUMENT naming `source`
  // unless the secret has kSecretBytesMin characters and the line at most two words.
  static absl::StatusOr<CacheSecret> Parse(absl::string_view text, absl::string_view source);

  // 8 digits that tell one secret and tag from another, and nothing about them: for logs, to see
  // whether all routers have the same.
  const std::string& fingerprint() const { return fingerprint_; }

  // Where blocks of `tenant` are kept: a sharing group has one domain, tenants without one have
  // their own. A salt only narrows: it leads to a part of that domain which nothing else finds.
  kv::CacheDomain DomainOf(const Tenant& tenant, absl::string_view salt) const;

  // The same, with the first `public_tokens` tokens in the domain of all.
  kv::CacheDomain DomainOf(const Tenant& tenant, uint32_t public_tokens) const;

 private:
  CacheSecret() = default;
  std::string secret_;  // derived from the operator's and the tag
  std::string fingerprint_;
};

// The public prefixes of one tenants file, by digest. Immutable.
class PublicPrefixes {
 public:
  PublicPrefixes() = default;
  explicit PublicPrefixes(const v1::TenantsFile& file);

  // Tokens of the longest declared prefix that `prompt` begins with; 0: none. Cost: one SHA-256
  // over the longest declared length, 4 bytes a token.
  uint32_t Match(absl::Span<const int32_t> prompt) const;
  bool empty() const { return prefixes_.empty(); }

  // What `tokens` are declared by.
  static std::string DigestOf(absl::Span<const int32_t> tokens);

 private:
  struct Prefix {
    uint32_t tokens;
    std::string digest;
  };
  std::vector<Prefix> prefixes_;  // shortest first
};

}  // namespace sluice::identity
