#include "text/detokenizer.h"

#include "text/utf8.h"

namespace sluice::text {

void StreamDetokenizer::Append(TokenId id, std::string* out) {
  if (options_.skip_special_tokens && tokenizer_->IsSpecial(id)) return;
  const absl::string_view bytes = tokenizer_->TokenBytes(id);
  if (bytes.empty()) return;
  pending_.append(bytes.data(), bytes.size());
  absl::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = DecodeUtf8(rest);
    if (step.state == Utf8State::kIncomplete) break;
    const absl::string_view text =
        step.state == Utf8State::kValid ? rest.substr(0, step.length) : kReplacementCharacter;
    out->append(text.data(), text.size());
    rest.remove_prefix(step.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
}

void StreamDetokenizer::Flush(std::string* out) {
  if (pending_.empty()) return;
  out->append(kReplacementCharacter.data(), kReplacementCharacter.size());
  pending_.clear();
}

std::string Detokenize(const Tokenizer& tokenizer, absl::Span<const TokenId> ids,
                       DetokenizerOptions options) {
  StreamDetokenizer detokenizer(tokenizer, options);
  std::string text;
  for (const TokenId id : ids) detokenizer.Append(id, &text);
  detokenizer.Flush(&text);
  return text;
}

}  // namespace sluice::text
