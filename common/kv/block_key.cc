#include "kv/block_key.h"

#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace sluice::kv {
namespace {

constexpr size_t kDomainBytes = 32;
constexpr size_t kCountBytes = 4;

// 256 bits from two HMACs of 128, told apart by a last byte. `what` and the scope say for whom.
std::string DeriveKey(absl::string_view operator_secret, absl::string_view what,
                      absl::string_view scope, absl::string_view salt) {
  std::string message(what);
  AppendField(&message, scope);
  AppendField(&message, salt);
  return HmacSha256_128(operator_secret, absl::StrCat(message, "1")).ToBytes() +
         HmacSha256_128(operator_secret, absl::StrCat(message, "2")).ToBytes();
}

}  // namespace

absl::StatusOr<CacheDomain> CacheDomain::FromBytes(absl::string_view bytes) {
  constexpr size_t kWithPublic = 2 * kDomainBytes + kCountBytes;
  if (bytes.size() != kDomainBytes && bytes.size() != kWithPublic) {
    return absl::InvalidArgumentError(absl::StrCat("cache domain: ", bytes.size(),
                                                   " bytes; it must have ", kDomainBytes, " or ",
                                                   kWithPublic));
  }
  CacheDomain domain{std::string(bytes.substr(0, kDomainBytes))};
  if (bytes.size() == kDomainBytes) return domain;
  domain.public_key_ = std::string(bytes.substr(kDomainBytes, kDomainBytes));
  for (size_t i = 0; i < kCountBytes; ++i) {
    domain.public_tokens_ |= uint32_t{static_cast<unsigned char>(bytes[2 * kDomainBytes + i])}
                             << (8 * i);
  }
  if (domain.public_tokens_ == 0)
    return absl::InvalidArgumentError("cache domain: a public part of no tokens");
  return domain;
}

CacheDomain CacheDomain::Derive(absl::string_view operator_secret, const TenantId& tenant,
                                absl::string_view salt) {
  return CacheDomain(DeriveKey(operator_secret, "sluice cache domain", tenant.value(), salt));
}

CacheDomain CacheDomain::DeriveShared(absl::string_view operator_secret, absl::string_view group,
                                      absl::string_view salt) {
  return CacheDomain(DeriveKey(operator_secret, "sluice shared cache domain", group, salt));
}

CacheDomain CacheDomain::WithPublicPrefix(absl::string_view operator_secret,
                                          uint32_t tokens) const {
  CacheDomain domain(key_);
  if (tokens == 0) return domain;
  domain.public_key_ = DeriveKey(operator_secret, "sluice public cache domain", "", "");
  domain.public_tokens_ = tokens;
  return domain;
}

std::string CacheDomain::bytes() const {
  std::string bytes = key_ + public_key_;
  if (public_tokens_ > 0) AppendU32(&bytes, public_tokens_);
  return bytes;
}

std::vector<BlockKey> BlockKeys(const CacheDomain& domain, const KeyContext& context,
                                absl::Span<const int32_t> tokens, uint32_t page_tokens) {
  std::string root = "sluice block root";
  AppendField(&root, context.model_digest.ToBytes());
  AppendField(&root, context.numerics_id.ToBytes());
  AppendField(&root, context.layout_hash.ToBytes());
  AppendField(&root, context.adapter);
  AppendU32(&root, page_tokens);
  const size_t public_blocks = domain.public_tokens() / page_tokens;
  const bool begins_public = public_blocks > 0;
  Id128 parent = HmacSha256_128(begins_public ? domain.public_key() : domain.key(), root);

  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / page_tokens);
  std::string message;
  for (size_t begin = 0; begin + page_tokens <= tokens.size(); begin += page_tokens) {
    message = parent.ToBytes();
    for (int32_t token : tokens.subspan(begin, page_tokens))
      AppendU32(&message, static_cast<uint32_t>(token));
    const bool is_public = keys.size() < public_blocks;
    parent = HmacSha256_128(is_public ? domain.public_key() : domain.key(), message);
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
