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
// the tenant; perhaps with a public part, where the blocks of a prompt's beginning are kept for
// all.
class CacheDomain {
 public:
  // What bytes() gave. Errors: INVALID_ARGUMENT unless there are 32, or 68 with a public part.
  static absl::StatusOr<CacheDomain> FromBytes(absl::string_view bytes);
  // HMAC of tenant and salt under the operator's secret; a salt only narrows.
  static CacheDomain Derive(absl::string_view operator_secret, const TenantId& tenant,
                            absl::string_view salt);
  // The one that all tenants of `group` have. No group meets a tenant, whatever their names are.
  static CacheDomain DeriveShared(absl::string_view operator_secret, absl::string_view group,
                                  absl::string_view salt);
  // This one, but blocks that lie wholly in the first `tokens` tokens of a prompt are those of
  // everybody under the same secret. Only for prompts whose first `tokens` tokens were declared
  // public.
  CacheDomain WithPublicPrefix(absl::string_view operator_secret, uint32_t tokens) const;

  // Key, and if there is a public part its key and number of tokens.
  std::string bytes() const;
  const std::string& key() const { return key_; }
  // 0: no public part.
  uint32_t public_tokens() const { return public_tokens_; }
  const std::string& public_key() const { return public_key_; }

 private:
  explicit CacheDomain(std::string key) : key_(std::move(key)) {}
  std::string key_;
  std::string public_key_;
  uint32_t public_tokens_ = 0;
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
// block. HMAC-SHA-256 chain cut to 128 bits, every field length-prefixed; the blocks of the public
// part come first, and the chain goes on from them under the domain's own key. Cost: one HMAC a
// block.
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
