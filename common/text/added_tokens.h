// Finds the added tokens of a vocabulary in trusted text.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "text/tokenizer_spec.h"

namespace sluice::text {

struct AddedTokenMatch {
  TokenId id = 0;
  size_t begin = 0;
  size_t end = 0;
};

// Immutable.
class AddedTokens {
 public:
  explicit AddedTokens(absl::Span<const AddedToken> tokens);

  // The leftmost match at or after `from`, of those the longest. Widened over white space where the
  // token asks for it, but never to before `from`. Cost: linear in the bytes passed over times the
  // length of the longest token.
  std::optional<AddedTokenMatch> FindNext(absl::string_view text, size_t from) const;
  std::optional<TokenId> Find(absl::string_view content) const;

 private:
  struct Node {
    int32_t token = -1;  // Index into tokens_ of the token that ends here.
  };
  std::optional<AddedTokenMatch> MatchAt(absl::string_view text, size_t at, size_t from) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;                       // A trie; node 0 is its root.
  absl::flat_hash_map<uint64_t, int32_t> edges_;  // (node << 8 | byte) -> node
  std::array<bool, 256> begins_{};                // Bytes that begin any token.
};

}  // namespace sluice::text
