#include "text/vocabulary_builder.h"

#include "absl/strings/str_cat.h"
#include "text/byte_level.h"

namespace sluice::text {

absl::Status VocabularyBuilder::AddToken(absl::string_view encoded, int64_t id) {
  if (id < 0 || id >= static_cast<int64_t>(kVocabularyMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: token id ", id, " is outside 0..", kVocabularyMax - 1));
  }
  if (encoded.empty()) return absl::OkStatus();  // A hole: reserved ids without text.
  auto& vocabulary = spec_->vocabulary;
  const size_t index = static_cast<size_t>(id);
  if (vocabulary.size() <= index) vocabulary.resize(index + 1);
  if (!vocabulary[index].empty() || !ids_.try_emplace(encoded, static_cast<TokenId>(id)).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: token id ", id, " or its text is listed twice"));
  }
  vocabulary[index] = DecodeByteLevel(encoded).value_or(std::string(encoded));
  return absl::OkStatus();
}

absl::Status VocabularyBuilder::AddMerge(absl::string_view left, absl::string_view right) {
  const size_t rank = spec_->merges.size();
  if (rank >= kMergesMax) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: more than ", kMergesMax, " merges"));
  }
  const Merge merge{Find(left), Find(right), Find(absl::StrCat(left, right)),
                    static_cast<int32_t>(rank)};
  if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: merge ", rank, " '",
                                                   left.substr(0, 64), "' '", right.substr(0, 64),
                                                   "' names a token outside the vocabulary"));
  }
  spec_->merges.push_back(merge);
  return absl::OkStatus();
}

absl::Status VocabularyBuilder::AddMergeLine(absl::string_view line) {
  const size_t space = line.find(' ');
  if (space == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: merge ", spec_->merges.size(), " has no space between its parts"));
  }
  return AddMerge(line.substr(0, space), line.substr(space + 1));
}

TokenId VocabularyBuilder::Find(absl::string_view encoded) const {
  const auto it = ids_.find(encoded);
  return it == ids_.end() ? -1 : it->second;
}

absl::StatusOr<TokenId> ResolveToken(const TokenizerSpec& spec, absl::string_view role,
                                     absl::string_view content) {
  for (const AddedToken& token : spec.added) {
    if (token.content == content) return token.id;
  }
  for (size_t i = 0; i < spec.vocabulary.size(); ++i) {
    if (spec.vocabulary[i] == content) return static_cast<TokenId>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer: ", role, " '", content.substr(0, 64), "' is not in the vocabulary"));
}

}  // namespace sluice::text
