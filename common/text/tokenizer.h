// Text to token ids and back: byte-level BPE, exactly as the published tokenizers do it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "text/segment.h"
#include "text/tokenizer_spec.h"

namespace sluice::text {

inline constexpr size_t kEncodeBytesMax = size_t{64} << 20;

// Immutable and thread-safe.
class Tokenizer {
 public:
  // INVALID_ARGUMENT if the spec contradicts itself or one of its patterns does not compile.
  // Cost: one pass over vocabulary and merges, a few hundred milliseconds for the largest
  // vocabularies.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Encodes `text`, without bos. Trusted: the longest added token at each place becomes its id.
  // Otherwise markers are text like any other. INVALID_ARGUMENT for invalid UTF-8, more than
  // kEncodeBytesMax bytes, a byte that the vocabulary cannot express, or an absurd run of combining
  // marks. Cost: O(n log n) for any input.
  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text, bool trusted = false) const;

  // Encodes a rendered template: the ids of the concatenated text, but added tokens are recognised
  // only where they lie wholly inside trusted text.
  absl::StatusOr<std::vector<TokenId>> EncodeSegments(absl::Span<const Segment> segments) const;

  // The bytes of a token, possibly a fragment of a UTF-8 character. Empty for ids without text,
  // also for ids outside the vocabulary: models pad theirs, so a sampler may produce such ids.
  // Lives as long as the tokenizer.
  absl::string_view TokenBytes(TokenId id) const;
  // Whether skip_special_tokens drops it.
  bool IsSpecial(TokenId id) const;
  bool IsEos(TokenId id) const;
  // The id of an added token by its exact text, such as "<|im_end|>".
  std::optional<TokenId> FindAdded(absl::string_view content) const;

  // One more than the largest id.
  int vocab_size() const;
  const std::vector<TokenId>& eos_ids() const;
  std::optional<TokenId> bos_id() const;
  std::optional<TokenId> pad_id() const;
  // Whether a raw (not template-rendered) prompt has to be prefixed with bos_id().
  bool add_bos() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace sluice::text
