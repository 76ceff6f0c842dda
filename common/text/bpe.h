// Byte-pair merging of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer_spec.h"

namespace sluice::text {

// What a call needs while it works; reused from piece to piece. `queue_operations` counts all the
// work that could grow faster than the text does.
struct BpeWorkspace {
  struct Symbol {
    TokenId id;
    int32_t previous;  // -1 at the beginning
    int32_t next;      // -1 at the end
    bool alive;
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> queue;  // A heap of merges to try: rank << 32 | position, smallest first.
  uint64_t queue_operations = 0;
};

// Immutable. Does not keep the spec.
class Bpe {
 public:
  // INVALID_ARGUMENT for merges that do not join their parts or name tokens that do not exist.
  static absl::StatusOr<Bpe> Create(const TokenizerSpec& spec);

  // Appends the ids of `piece` to `ids`. At most 3 queue insertions per byte, so O(n log n)
  // whatever the text. INVALID_ARGUMENT for a byte that no token and no `unknown` stands for.
  absl::Status Encode(absl::string_view piece, BpeWorkspace* workspace,
                      std::vector<TokenId>* ids) const;

 private:
  struct Target {
    int32_t rank;
    TokenId result;
  };
  Bpe() = default;
  absl::Status AddMerges(const TokenizerSpec& spec);
  const Target* Find(TokenId left, TokenId right) const;
  void Offer(int32_t position, BpeWorkspace* workspace) const;
  void MergeAll(BpeWorkspace* workspace) const;

  std::array<TokenId, 256> byte_ids_{};  // -1 where there is none
  absl::flat_hash_map<uint64_t, Target> merges_;
  absl::flat_hash_map<std::string, TokenId> whole_pieces_;  // filled if merges are ignored for them
};

}  // namespace sluice::text
