// Shared by the readers of vocabulary files: collects tokens by their encoded text, then resolves
// merges.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer_spec.h"

namespace sluice::text {

class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(TokenizerSpec* spec) : spec_(spec) {}

  // `encoded` is in the byte-level alphabet; text outside it stands for itself, as in added tokens.
  absl::Status AddToken(absl::string_view encoded, int64_t id);
  // Merges apply in the order in which they are added.
  absl::Status AddMerge(absl::string_view left, absl::string_view right);
  // "left right".
  absl::Status AddMergeLine(absl::string_view line);
  // -1 if there is no such token.
  TokenId Find(absl::string_view encoded) const;

 private:
  TokenizerSpec* spec_;
  absl::flat_hash_map<std::string, TokenId> ids_;
};

// The id of a token by its text, looking at added tokens first; INVALID_ARGUMENT naming `role` if
// there is none.
absl::StatusOr<TokenId> ResolveToken(const TokenizerSpec& spec, absl::string_view role,
                                     absl::string_view content);

}  // namespace sluice::text
