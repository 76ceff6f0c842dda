// Names of cached blocks. A key cannot be made without a cache domain, so one tenant's keys never
// meet another's.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "kv/page_layout.h"

namespace sluice::kv {

// The secret of one cache namespace: 32 bytes derived by the router from the operator's secret and
// the tenant.
class CacheDomain {
 public:
  // Errors: INVALID_ARGUMENT unless `key` has 32 bytes.
  static absl::StatusOr<CacheDomain> FromBytes(absl::string_view key);
  // HMAC of tenant and salt under the operator's secret; a salt only narrows.
  static CacheDomain Derive(absl::string_view operator_secret, const TenantId& tenant,
                            absl::string_view salt);
  const std::string& bytes() const { return key_; }

 private:
  explicit CacheDomain(std::string key) : key_(std::move(key)) {}
  std::string key_;
};

using BlockKey = StrongId<struct BlockKeyTag, Id128>;

// What, beside the tokens, decides the bytes of a block.
struct KeyContext {
  Id128 model_digest;
  Id128 numerics_id;
  Id128 layout_hash;
  std::string adapter;  // empty: none
  friend bool operator==(const KeyContext&, const KeyContext&) = default;
};

// Keys of the full blocks of `tokens`, in order; each depends on all tokens up to the end of its
// block. HMAC-SHA-256 chain cut to 128 bits, every field length-prefixed. Cost: one HMAC a block.
std::vector<BlockKey> BlockKeys(const CacheDomain& domain, const KeyContext& context,
                                absl::Span<const int32_t> tokens, uint32_t page_tokens);

// Remembers the keys of one prompt in one domain, so that each kind of worker costs its HMACs once.
// Owned by one thread.
class PromptKeys {
 public:
  // As BlockKeys. `domain` and `tokens` must be the same in every call. The reference is valid
  // until the next one.
  const std::vector<BlockKey>& Of(const CacheDomain& domain, const KeyContext& context,
                                  absl::Span<const int32_t> tokens, uint32_t page_tokens);
  // Lists computed so far.
  size_t lists() const { return lists_.size(); }

 private:
  struct List {
    KeyContext context;
    uint32_t page_tokens;
    std::vector<BlockKey> keys;
  };
  std::vector<List> lists_;  // a cluster has a few kinds
};

}  // namespace sluice::kv
