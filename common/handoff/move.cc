#include "handoff/move.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace sluice::handoff {
namespace {

absl::string_view RopeOrderName(kv::RopeOrder order) {
  return order == kv::RopeOrder::kHalfSplit ? "half_split" : "interleaved";
}

absl::StatusOr<kv::RopeOrder> ParseRopeOrder(absl::string_view name) {
  for (kv::RopeOrder order : {kv::RopeOrder::kHalfSplit, kv::RopeOrder::kInterleaved}) {
    if (name == RopeOrderName(order)) return order;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rope order \"", name, "\" is neither half_split nor interleaved"));
}

absl::StatusOr<kv::Shard> ShardFromProto(const v1::Shard& shard) {
  kv::Shard out;
  out.rank = shard.rank();
  out.count = shard.count();
  if (out.count == 0 || out.rank >= out.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", out.rank, " of ", out.count, " does not exist"));
  }
  if (shard.kind() != v1::Shard::KIND_HEADS && shard.kind() != v1::Shard::KIND_REPLICATED) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown shard kind ", static_cast<int>(shard.kind())));
  }
  out.kind = shard.kind() == v1::Shard::KIND_HEADS ? kv::Shard::Kind::kHeads
                                                   : kv::Shard::Kind::kReplicated;
  return out;
}

}  // namespace

bool WantsDigest(DigestMode mode, uint32_t block, uint32_t layer_begin) {
  if (mode != DigestMode::kSampled) return mode == DigestMode::kFull;
  return Mix64((static_cast<uint64_t>(block) << 32) | layer_begin) % kv::kDigestSampledEvery == 0;
}

uint64_t CommitDigest(absl::Span<const uint64_t> digests) {
  const bool any =
      std::any_of(digests.begin(), digests.end(), [](uint64_t digest) { return digest != 0; });
  return any ? std::max<uint64_t>(Hash64(digests.data(), digests.size() * sizeof(uint64_t)), 1) : 0;
}

bool ParseLease(absl::string_view bytes, LeaseId* out) {
  Id128 id;
  if (!Id128::FromBytes(bytes, &id) || id.IsZero()) return false;
  *out = LeaseId(id);
  return true;
}

v1::SampledToken ToProto(const request::SampledToken& token) {
  v1::SampledToken out;
  out.set_token(static_cast<uint32_t>(token.token));
  out.set_logprob(token.logprob);
  out.set_logits_hash(token.logits_hash);
  for (const request::TokenLogprob& entry : token.top) {
    v1::TokenLogprob* top = out.add_top();
    top->set_token(static_cast<uint32_t>(entry.token));
    top->set_logprob(entry.logprob);
  }
  return out;
}

absl::StatusOr<request::SampledToken> FromProto(const v1::SampledToken& token,
                                                request::TokenId vocabulary) {
  const auto known = [vocabulary](uint32_t id) { return id < static_cast<uint32_t>(vocabulary); };
  if (token.top_size() > request::kLogprobsMax) {
    return absl::InvalidArgumentError(absl::StrCat(token.top_size(),
                                                   " top log-probabilities, at most ",
                                                   request::kLogprobsMax, " are allowed"));
  }
  request::SampledToken out;
  if (!known(token.token()) || std::isnan(token.logprob())) {
    return absl::InvalidArgumentError(absl::StrCat("token ", token.token(),
                                                   " with log-probability ", token.logprob(),
                                                   " in a vocabulary of ", vocabulary));
  }
  out.token = static_cast<request::TokenId>(token.token());
  out.logprob = token.logprob();
  out.logits_hash = token.logits_hash();
  for (const v1::TokenLogprob& entry : token.top()) {
    if (!known(entry.token()) || std::isnan(entry.logprob())) {
      return absl::InvalidArgumentError(absl::StrCat("top token ", entry.token(),
                                                     " with log-probability ", entry.logprob(),
                                                     " in a vocabulary of ", vocabulary));
    }
    out.top.push_back({static_cast<request::TokenId>(entry.token()), entry.logprob()});
  }
  return out;
}

v1::PageLayout ToProto(const kv::PageLayout& layout) {
  const kv::LayoutSpec& spec = layout.spec();
  v1::PageLayout out;
  out.set_version(spec.version);
  out.set_format(std::string(kv::KvFormatName(spec.format)));
  out.set_page_tokens(spec.page_tokens);
  out.set_layers(spec.layers);
  out.set_kv_heads(spec.kv_heads);
  out.set_head_dim(spec.head_dim);
  out.set_rope_dim(spec.rope_dim);
  out.set_index_dim(spec.index_dim);
  out.mutable_index_layers()->Add(spec.index_layers.begin(), spec.index_layers.end());
  out.set_rope_order(std::string(RopeOrderName(spec.rope_order)));
  out.set_sink_rows(spec.sink_rows);
  out.set_centre_digest(spec.centre_digest);
  out.mutable_shard()->set_rank(spec.shard.rank);
  out.mutable_shard()->set_count(spec.shard.count);
  out.mutable_shard()->set_kind(spec.shard.kind == kv::Shard::Kind::kHeads
                                    ? v1::Shard::KIND_HEADS
                                    : v1::Shard::KIND_REPLICATED);
  out.set_page_bytes(layout.page_bytes());
  return out;
}

absl::StatusOr<kv::PageLayout> FromProto(const v1::PageLayout& layout) {
  kv::LayoutSpec spec;
  spec.version = layout.version();
  SLUICE_ASSIGN_OR_RETURN(spec.format, kv::ParseKvFormat(layout.format()));
  spec.page_tokens = layout.page_tokens();
  spec.layers = layout.layers();
  spec.kv_heads = layout.kv_heads();
  spec.head_dim = layout.head_dim();
  spec.rope_dim = layout.rope_dim();
  spec.index_dim = layout.index_dim();
  spec.index_layers.assign(layout.index_layers().begin(), layout.index_layers().end());
  SLUICE_ASSIGN_OR_RETURN(spec.rope_order, ParseRopeOrder(layout.rope_order()));
  spec.sink_rows = layout.sink_rows();
  spec.centre_digest = layout.centre_digest();
  SLUICE_ASSIGN_OR_RETURN(spec.shard, ShardFromProto(layout.shard()));
  SLUICE_ASSIGN_OR_RETURN(kv::PageLayout made, kv::PageLayout::Make(spec));
  if (made.page_bytes() != layout.page_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("a page of this layout has ", made.page_bytes(),
                                                   " bytes, not ", layout.page_bytes(), ": ",
                                                   made.Describe()));
  }
  return made;
}

}  // namespace sluice::handoff
