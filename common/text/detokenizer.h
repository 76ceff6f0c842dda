// Token ids to text while they arrive: never a broken character.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "text/tokenizer.h"

namespace sluice::text {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
};

// Turns the bytes of successive tokens into text. What it returns is always valid UTF-8: an
// incomplete character of at most three bytes is held back, bytes that cannot be part of one become
// U+FFFD at once (one for each maximal ill-formed run, as Unicode recommends). The concatenated
// output does not depend on how the bytes were cut. Thread-compatible. The tokenizer must outlive
// it. Cost: linear in the bytes of the token.
class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {})
      : tokenizer_(&tokenizer), options_(options) {}

  // Appends to `out` the text that `id` completes. Any id is allowed; one without bytes adds
  // nothing.
  void Append(TokenId id, std::string* out);
  // Appends U+FFFD if the last character stayed incomplete. The detokenizer is as new afterwards.
  void Flush(std::string* out);
  // Bytes held back, 0..3.
  size_t pending_bytes() const { return pending_.size(); }

 private:
  const Tokenizer* tokenizer_;
  DetokenizerOptions options_;
  std::string pending_;
};

// The text of a finished sequence of ids.
std::string Detokenize(const Tokenizer& tokenizer, absl::Span<const TokenId> ids,
                       DetokenizerOptions options = {});

}  // namespace sluice::text
