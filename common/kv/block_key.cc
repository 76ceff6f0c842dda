#include "kv/block_key.h"

#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace sluice::kv {
namespace {

void AppendU32(std::string* out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

// Length-prefixed, so that no two lists of fields read alike.
void AppendField(std::string* out, absl::string_view field) {
  AppendU32(out, static_cast<uint32_t>(field.size()));
  out->append(field.data(), field.size());
}

}  // namespace

absl::StatusOr<CacheDomain> CacheDomain::FromBytes(absl::string_view key) {
  if (key.size() != 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache domain: ", key.size(), " bytes; it must have 32"));
  }
  return CacheDomain(std::string(key));
}

CacheDomain CacheDomain::Derive(absl::string_view operator_secret, const TenantId& tenant,
                                absl::string_view salt) {
  std::string message = "sluice cache domain";
  AppendField(&message, tenant.value());
  AppendField(&message, salt);
  // Two halves of 128 bits, told apart by a last byte.
  return CacheDomain(HmacSha256_128(operator_secret, absl::StrCat(message, "1")).ToBytes() +
                     HmacSha256_128(operator_secret, absl::StrCat(message, "2")).ToBytes());
}

std::vector<BlockKey> BlockKeys(const CacheDomain& domain, const KeyContext& context,
                                absl::Span<const int32_t> tokens, uint32_t page_tokens) {
  std::string root = "sluice block root";
  AppendField(&root, context.model_digest.ToBytes());
  AppendField(&root, context.numerics_id.ToBytes());
  AppendField(&root, context.layout_hash.ToBytes());
  AppendField(&root, context.adapter);
  AppendU32(&root, page_tokens);
  Id128 parent = HmacSha256_128(domain.bytes(), root);

  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / page_tokens);
  std::string message;
  for (size_t begin = 0; begin + page_tokens <= tokens.size(); begin += page_tokens) {
    message = parent.ToBytes();
    for (int32_t token : tokens.subspan(begin, page_tokens))
      AppendU32(&message, static_cast<uint32_t>(token));
    parent = HmacSha256_128(domain.bytes(), message);
    keys.emplace_back(parent);
  }
  return keys;
}

const std::vector<BlockKey>& PromptKeys::Of(const CacheDomain& domain, const KeyContext& context,
                                            absl::Span<const int32_t> tokens,
                                            uint32_t page_tokens) {
  for (const List& list : lists_) {
    if (list.page_tokens == page_tokens && list.context == context) return list.keys;
  }
  return lists_
      .emplace_back(List{context, page_tokens, BlockKeys(domain, context, tokens, page_tokens)})
      .keys;
}

}  // namespace sluice::kv
