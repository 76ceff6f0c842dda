#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::text {
namespace {

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(const TokenizerSpec& spec) {
  Bpe bpe;
  bpe.byte_ids_.fill(spec.unknown.value_or(-1));
  for (size_t i = 0; i < spec.vocabulary.size(); ++i) {
    const std::string& token = spec.vocabulary[i];
    if (token.empty()) continue;
    if (token.size() == 1) bpe.byte_ids_[static_cast<uint8_t>(token[0])] = static_cast<TokenId>(i);
    if (spec.ignore_merges) bpe.whole_pieces_.emplace(token, static_cast<TokenId>(i));
  }
  SLUICE_RETURN_IF_ERROR(bpe.AddMerges(spec));
  return bpe;
}

absl::Status Bpe::AddMerges(const TokenizerSpec& spec) {
  const auto bytes = [&](TokenId id) -> absl::string_view {
    if (id < 0 || static_cast<size_t>(id) >= spec.vocabulary.size()) return {};
    return spec.vocabulary[static_cast<size_t>(id)];
  };
  merges_.reserve(spec.merges.size());
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const Merge& m = spec.merges[i];
    const absl::string_view left = bytes(m.left), right = bytes(m.right), result = bytes(m.result);
    const bool joins = !left.empty() && !right.empty() &&
                       result.size() == left.size() + right.size() &&
                       result.substr(0, left.size()) == left && result.substr(left.size()) == right;
    if (!joins || m.rank < 0) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer merge ", i, " (", m.left, " + ",
                                                     m.right, " -> ", m.result, ", rank ", m.rank,
                                                     ") does not join its parts"));
    }
    merges_[PairKey(m.left, m.right)] = Target{m.rank, m.result};
  }
  return absl::OkStatus();
}

const Bpe::Target* Bpe::Find(TokenId left, TokenId right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

absl::Status Bpe::Encode(absl::string_view piece, BpeWorkspace* workspace,
                         std::vector<TokenId>* ids) const {
  if (!whole_pieces_.empty()) {
    const auto it = whole_pieces_.find(piece);
    if (it != whole_pieces_.end()) {
      ids->push_back(it->second);
      return absl::OkStatus();
    }
  }
  auto& symbols = workspace->symbols;
  symbols.clear();
  const int32_t count = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < count; ++i) {
    const uint8_t byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    if (byte_ids_[byte] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "text holds the byte 0x", absl::Hex(byte, absl::kZeroPad2),
          ", which the vocabulary of this model cannot express; remove that character"));
    }
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1, true});
  }
  MergeAll(workspace);
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids->push_back(symbols[static_cast<size_t>(i)].id);
  }
  return absl::OkStatus();
}

// Puts the merge of the symbol at `position` with its successor into the queue, if there is one.
void Bpe::Offer(int32_t position, BpeWorkspace* workspace) const {
  if (position < 0) return;
  const auto& symbol = workspace->symbols[static_cast<size_t>(position)];
  if (symbol.next < 0) return;
  const Target* target = Find(symbol.id, workspace->symbols[static_cast<size_t>(symbol.next)].id);
  if (target == nullptr) return;
  const uint64_t order = static_cast<uint64_t>(static_cast<uint32_t>(target->rank)) << 32 |
                         static_cast<uint32_t>(position);
  workspace->queue.push_back(order);
  ++workspace->queue_operations;
}

void Bpe::MergeAll(BpeWorkspace* workspace) const {
  auto& symbols = workspace->symbols;
  auto& queue = workspace->queue;
  queue.clear();
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) Offer(i, workspace);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto offer = [&](int32_t position) {
    const size_t before = queue.size();
    Offer(position, workspace);
    if (queue.size() > before) std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    const uint64_t top = queue.front();
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    queue.pop_back();
    ++workspace->queue_operations;
    const int32_t position = static_cast<int32_t>(top & 0xFFFFFFFFu);
    auto& symbol = symbols[static_cast<size_t>(position)];
    if (!symbol.alive || symbol.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(symbol.next)];
    // A neighbour may have grown since. Then this is another, longer pair, of another rank.
    const Target* target = Find(symbol.id, right.id);
    if (target == nullptr || static_cast<uint32_t>(target->rank) != top >> 32) continue;
    symbol.id = target->result;
    symbol.next = right.next;
    right.alive = false;
    if (right.next >= 0) symbols[static_cast<size_t>(right.next)].previous = position;
    offer(symbol.previous);
    offer(position);
  }
}

}  // namespace sluice::text
