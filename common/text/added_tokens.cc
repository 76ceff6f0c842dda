#include "text/added_tokens.h"

#include "text/utf8.h"

namespace sluice::text {
namespace {

uint64_t EdgeKey(int32_t node, char byte) {
  return static_cast<uint64_t>(static_cast<uint32_t>(node)) << 8 | static_cast<uint8_t>(byte);
}

// Where the white space that ends at `end` begins, not before `from`.
size_t SpaceBegin(absl::string_view text, size_t from, size_t end) {
  while (end > from) {
    size_t begin = end - 1;
    while (begin > from && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!IsWhiteSpace(DecodeUtf8(text.substr(begin, end - begin)).code_point)) break;
    end = begin;
  }
  return end;
}

size_t SpaceEnd(absl::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = DecodeUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.code_point)) break;
    begin += step.length;
  }
  return begin;
}

}  // namespace

AddedTokens::AddedTokens(absl::Span<const AddedToken> tokens)
    : tokens_(tokens.begin(), tokens.end()), nodes_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    int32_t node = 0;
    begins_[static_cast<uint8_t>(tokens_[i].content[0])] = true;
    for (const char byte : tokens_[i].content) {
      const auto [it, inserted] =
          edges_.try_emplace(EdgeKey(node, byte), static_cast<int32_t>(nodes_.size()));
      if (inserted) nodes_.emplace_back();
      node = it->second;
    }
    nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(i);
  }
}

std::optional<AddedTokenMatch> AddedTokens::MatchAt(absl::string_view text, size_t at,
                                                    size_t from) const {
  int32_t node = 0, longest = -1;
  for (size_t i = at; i < text.size(); ++i) {
    const auto it = edges_.find(EdgeKey(node, text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    const int32_t token = nodes_[static_cast<size_t>(node)].token;
    if (token >= 0) longest = token;
  }
  if (longest < 0) return std::nullopt;
  const AddedToken& token = tokens_[static_cast<size_t>(longest)];
  AddedTokenMatch match{token.id, at, at + token.content.size()};
  if (token.lstrip) match.begin = SpaceBegin(text, from, match.begin);
  if (token.rstrip) match.end = SpaceEnd(text, match.end);
  return match;
}

std::optional<AddedTokenMatch> AddedTokens::FindNext(absl::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<uint8_t>(text[at])]) continue;
    if (auto match = MatchAt(text, at, from)) return match;
  }
  return std::nullopt;
}

std::optional<TokenId> AddedTokens::Find(absl::string_view content) const {
  int32_t node = 0;
  for (const char byte : content) {
    const auto it = edges_.find(EdgeKey(node, byte));
    if (it == edges_.end()) return std::nullopt;
    node = it->second;
  }
  const int32_t token = nodes_[static_cast<size_t>(node)].token;
  if (token < 0) return std::nullopt;
  return tokens_[static_cast<size_t>(token)].id;
}

}  // namespace sluice::text
