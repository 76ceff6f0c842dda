#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/splitter.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// Words repeat: within one call their ids are copied instead of merged again. Bounds memory, not
// results.
constexpr size_t kCachedPieces = 65536;
constexpr size_t kCachedPieceBytes = 64;

struct Range {
  size_t begin;
  size_t end;
};

absl::Status CheckId(absl::string_view what, std::optional<TokenId> id, size_t size) {
  if (!id.has_value() || (*id >= 0 && static_cast<size_t>(*id) < size)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer: ", what, " ", *id, " is outside the vocabulary of ", size));
}

// Brings added tokens into the vocabulary and checks ids.
absl::Status Complete(TokenizerSpec* spec, std::vector<bool>* special) {
  if (spec->added.size() > kAddedTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: ", spec->added.size(),
                                                   " added tokens; at most ", kAddedTokensMax));
  }
  absl::flat_hash_set<std::string> contents;
  for (const AddedToken& token : spec->added) {
    SLUICE_RETURN_IF_ERROR(CheckId("added token", token.id, kVocabularyMax));
    if (token.content.empty() || token.content.size() > kAddedTokenBytesMax ||
        !IsValidUtf8(token.content) || !contents.insert(token.content).second) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer: added token ", token.id,
                                                     " is empty, longer than ", kAddedTokenBytesMax,
                                                     " bytes, not UTF-8 or listed twice"));
    }
    const size_t index = static_cast<size_t>(token.id);
    if (spec->vocabulary.size() <= index) spec->vocabulary.resize(index + 1);
  }
  const size_t size = spec->vocabulary.size();
  if (size == 0 || size > kVocabularyMax) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: vocabulary of ", size,
                                                   " tokens; allowed are 1 to ", kVocabularyMax));
  }
  if (spec->merges.size() > kMergesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: ", spec->merges.size(), " merges; at most ", kMergesMax));
  }
  SLUICE_RETURN_IF_ERROR(CheckId("bos", spec->bos, size));
  SLUICE_RETURN_IF_ERROR(CheckId("pad", spec->pad, size));
  SLUICE_RETURN_IF_ERROR(CheckId("unknown token", spec->unknown, size));
  for (const TokenId id : spec->eos) SLUICE_RETURN_IF_ERROR(CheckId("eos", id, size));
  if (spec->add_bos && !spec->bos.has_value()) {
    return absl::InvalidArgumentError("tokenizer: add_bos is set but there is no bos token");
  }
  special->assign(size, false);
  for (const AddedToken& token : spec->added) {
    if (token.special) (*special)[static_cast<size_t>(token.id)] = true;
  }
  return absl::OkStatus();
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerSpec s, std::vector<bool> sp, Bpe b, Splitter split)
      : spec(std::move(s)),
        special(std::move(sp)),
        bpe(std::move(b)),
        splitter(std::move(split)),
        added(spec.added) {}

  // Encodes text without markers.
  absl::Status EncodeRun(absl::string_view run, BpeWorkspace* workspace,
                         std::vector<TokenId>* ids) const;
  // Encodes `text`, looking for markers inside the ranges `trusted`, which are in order.
  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              absl::Span<const Range> trusted) const;

  TokenizerSpec spec;  // `merges` is emptied: `bpe` has them.
  std::vector<bool> special;
  Bpe bpe;
  Splitter splitter;
  AddedTokens added;
};

absl::Status Tokenizer::Impl::EncodeRun(absl::string_view run, BpeWorkspace* workspace,
                                        std::vector<TokenId>* ids) const {
  if (run.empty()) return absl::OkStatus();
  std::string normalised;
  if (spec.nfc) {
    SLUICE_ASSIGN_OR_RETURN(normalised, ToNfc(run));
    run = normalised;
  }
  SLUICE_ASSIGN_OR_RETURN(const auto pieces, splitter.Split(run));
  absl::flat_hash_map<absl::string_view, Range> cache;  // piece -> where its ids are in `ids`
  for (const absl::string_view piece : pieces) {
    const bool cacheable = piece.size() > 1 && piece.size() <= kCachedPieceBytes;
    if (cacheable) {
      const auto it = cache.find(piece);
      if (it != cache.end()) {
        for (size_t i = it->second.begin; i < it->second.end; ++i) ids->push_back((*ids)[i]);
        continue;
      }
    }
    const size_t begin = ids->size();
    SLUICE_RETURN_IF_ERROR(bpe.Encode(piece, workspace, ids));
    if (cacheable && cache.size() < kCachedPieces) cache.emplace(piece, Range{begin, ids->size()});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Impl::Encode(
    absl::string_view text, absl::Span<const Range> trusted) const {
  if (text.size() > kEncodeBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("text of ", text.size(), " bytes; at most ", kEncodeBytesMax));
  }
  std::vector<TokenId> ids;
  BpeWorkspace workspace;
  size_t run_begin = 0;
  for (const Range& range : trusted) {
    const absl::string_view visible = text.substr(0, range.end);
    size_t from = range.begin;
    while (const auto match = added.FindNext(visible, from)) {
      SLUICE_RETURN_IF_ERROR(
          EncodeRun(text.substr(run_begin, match->begin - run_begin), &workspace, &ids));
      ids.push_back(match->id);
      run_begin = from = match->end;
    }
  }
  SLUICE_RETURN_IF_ERROR(EncodeRun(text.substr(run_begin), &workspace, &ids));
  return ids;
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  std::vector<bool> special;
  SLUICE_RETURN_IF_ERROR(Complete(&spec, &special));
  // A special token has no bytes while merges are read: no text may turn into one.
  for (const AddedToken& token : spec.added) {
    if (token.special) spec.vocabulary[static_cast<size_t>(token.id)].clear();
  }
  SLUICE_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(spec));
  SLUICE_ASSIGN_OR_RETURN(Splitter splitter,
                          Splitter::Create(spec.splits, spec.run_characters_max));
  for (const AddedToken& token : spec.added) {
    spec.vocabulary[static_cast<size_t>(token.id)] = token.content;
  }
  spec.merges = {};
  return std::unique_ptr<const Tokenizer>(new Tokenizer(std::make_unique<const Impl>(
      std::move(spec), std::move(special), std::move(bpe), std::move(splitter))));
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(absl::string_view text, bool trusted) const {
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("text is not valid UTF-8");
  if (!trusted) return impl_->Encode(text, {});
  return impl_->Encode(text, {Range{0, text.size()}});
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodeSegments(
    absl::Span<const Segment> segments) const {
  std::string text;
  std::vector<Range> trusted;
  for (const Segment& segment : segments) {
    if (!IsValidUtf8(segment.text)) return absl::InvalidArgumentError("text is not valid UTF-8");
    const size_t begin = text.size();
    text += segment.text;
    if (!segment.trusted) continue;
    if (!trusted.empty() && trusted.back().end == begin) {
      trusted.back().end = text.size();
    } else {
      trusted.push_back({begin, text.size()});
    }
  }
  return impl_->Encode(text, trusted);
}

absl::string_view Tokenizer::TokenBytes(TokenId id) const {
  const auto& vocabulary = impl_->spec.vocabulary;
  if (id < 0 || static_cast<size_t>(id) >= vocabulary.size()) return {};
  return vocabulary[static_cast<size_t>(id)];
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() &&
         impl_->special[static_cast<size_t>(id)];
}

bool Tokenizer::IsEos(TokenId id) const {
  const auto& eos = impl_->spec.eos;
  return std::find(eos.begin(), eos.end(), id) != eos.end();
}

std::optional<TokenId> Tokenizer::FindAdded(absl::string_view content) const {
  return impl_->added.Find(content);
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->spec.vocabulary.size()); }
const std::vector<TokenId>& Tokenizer::eos_ids() const { return impl_->spec.eos; }
std::optional<TokenId> Tokenizer::bos_id() const { return impl_->spec.bos; }
std::optional<TokenId> Tokenizer::pad_id() const { return impl_->spec.pad; }
bool Tokenizer::add_bos() const { return impl_->spec.add_bos; }

}  // namespace sluice::text
