#include "engine/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/page_tag/page_tag.h"

namespace sluice::engine {

Sequence::Sequence(SequenceSpec spec, uint64_t arrival, const ModelInfo& model)
    : spec_(std::move(spec)),
      arrival_(arrival),
      layout_(model.layout),
      tokens_(spec_.prompt),
      sampler_(spec_.sampling, model.eos_tokens, spec_.prompt) {
  if (spec_.kind != SequenceKind::kPrefill) {
    for (TokenId token : spec_.emitted) AddOutput(token);
  }
  reported = spec_.held_blocks;
  if (spec_.kind == SequenceKind::kDecode) {
    AddPages(std::exchange(spec_.pages, {}));
    computed_ = computed_once_ = prompt_tokens();
  }
}

uint32_t Sequence::PagesMissing() const {
  const size_t needed = layout_.PagesFor(static_cast<uint32_t>(tokens_.size()));
  return static_cast<uint32_t>(needed - std::min(needed, pages_.size()));
}

void Sequence::AddPages(std::vector<kv::PageLease> pages) {
  const size_t total = pages_.size() + pages.size();
  page_data_.resize(total);
  page_tags_.resize(total);
  generations_.resize(total);
  for (kv::PageLease& page : pages) {
    pages_.emplace_back();
    ReplacePage(pages_.size() - 1, std::move(page));
  }
}

void Sequence::ReplacePage(size_t block, kv::PageLease page) {
  page_data_[block] = page.data();
  page_tags_[block] = reinterpret_cast<const std::byte*>(page.data());
  generations_[block] = page.ref().generation.value();
  pages_[block] = std::move(page);
}

void Sequence::AdoptPrefix(std::vector<kv::PageLease> pages) {
  SLUICE_CHECK(pages_.empty() && computed_ == 0);
  if (pages.empty()) return;
  const auto blocks = static_cast<uint32_t>(pages.size());
  AddPages(std::move(pages));
  computed_ = blocks * layout_.page_tokens() - layout_.spec().sink_rows;
  computed_once_ = std::max(computed_once_, computed_);
  published = blocks;
  SLUICE_CHECK(remaining() > 0);
}

void Sequence::DropPages() {
  pages_.clear();
  page_data_.clear();
  page_tags_.clear();
  generations_.clear();
  computed_ = 0;
  published = 0;
}

bool Sequence::TagsMatch() const {
  return kernels::FirstTagMismatch(page_tags_.data(), generations_.data(),
                                   static_cast<int64_t>(page_tags_.size())) < 0;
}

void Sequence::Advance(uint32_t count) {
  const uint32_t begin = computed_;
  const uint32_t end = begin + count;
  SLUICE_CHECK(end <= tokens_.size());
  // Length of [begin, end) that also lies in [low, high).
  const auto overlap = [&](uint32_t low, uint32_t high) {
    const uint32_t from = std::max(begin, low);
    const uint32_t to = std::min(end, high);
    return to > from ? to - from : 0;
  };
  const uint32_t fresh = std::max(begin, computed_once_);
  const auto emitted = static_cast<uint32_t>(spec_.emitted.size());
  stats.recomputed_tokens += overlap(0, computed_once_);
  stats.computed_tokens += overlap(fresh, prompt_tokens());
  // The last emitted token was never computed anywhere.
  if (emitted > 0) {
    stats.recomputed_tokens +=
        overlap(std::max(fresh, prompt_tokens()), prompt_tokens() + emitted - 1);
  }
  computed_ = end;
  computed_once_ = std::max(computed_once_, end);
}

void Sequence::AddOutput(TokenId token) {
  tokens_.push_back(token);
  sampler_.AddOutput(token);
}

uint32_t Sequence::FinalBlocks(uint32_t computed) const {
  if (computed >= prompt_tokens()) return layout_.PagesFor(prompt_tokens());
  return (computed + layout_.spec().sink_rows) / layout_.page_tokens();
}

bool Sequence::OvertakenBy(const Sequence& other) const {
  return spec_.priority > other.spec_.priority ||
         std::make_pair(turn.end, arrival_) < std::make_pair(other.turn.end, other.arrival_);
}

SequenceView Sequence::View() const {
  SequenceView view;
  view.arrival = arrival_;
  view.priority = spec_.priority;
  view.turn = turn.end;
  view.remaining = remaining();
  view.pages_missing = PagesMissing();
  // Pages that a taker is fetching stay pinned.
  const size_t pinned = spec_.offer_pages ? reported : 0;
  view.pages_freeable = static_cast<uint32_t>(pages_.size() - std::min(pages_.size(), pinned));
  view.stream = streams();
  view.readmitted = readmitted;
  view.blocked = blocked;
  view.overtaken = overtaken;
  view.last_turn = last_turn;
  return view;
}

}  // namespace sluice::engine
