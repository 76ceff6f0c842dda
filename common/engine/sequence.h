// One sequence inside the engine: its tokens, its pages, and how far it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/tenant_turns.h"
#include "kv/block_key.h"
#include "kv/page_pool.h"

namespace sluice::engine {

// Owned by the engine's loop. Invariants: computed < tokens.size() outside a step; pages cover [0,
// computed); the three page arrays have equal length; keys name leading full blocks of tokens.
class Sequence {
 public:
  // `spec.pages` become the sequence's pages. `model` must outlive the sequence.
  Sequence(SequenceSpec spec, uint64_t arrival, const ModelInfo& model);

  const SequenceSpec& spec() const { return spec_; }
  SequenceId id() const { return spec_.id; }
  uint64_t arrival() const { return arrival_; }
  // Whether `other` is less important or its prompt's turn is later.
  bool OvertakenBy(const Sequence& other) const;
  const std::vector<TokenId>& tokens() const { return tokens_; }
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(spec_.prompt.size()); }
  // Tokens of the output so far; those of a prefill are not counted.
  uint32_t output_tokens() const { return static_cast<uint32_t>(tokens_.size()) - prompt_tokens(); }
  uint32_t computed() const { return computed_; }
  uint32_t remaining() const { return static_cast<uint32_t>(tokens_.size()) - computed_; }
  bool samples() const { return spec_.kind != SequenceKind::kPrefill || spec_.emitted.empty(); }
  // Its client reads tokens from here.
  bool streams() const { return spec_.kind != SequenceKind::kPrefill; }

  // Pages.
  size_t page_count() const { return pages_.size(); }
  absl::Span<uint8_t* const> page_data() const { return page_data_; }
  const kv::PageLease& page(size_t block) const { return pages_[block]; }
  // Pages to allocate before all known tokens can be computed.
  uint32_t PagesMissing() const;
  void AddPages(std::vector<kv::PageLease> pages);
  // The first pages, found in the prefix index: their tokens count as computed.
  void AdoptPrefix(std::vector<kv::PageLease> pages);
  // Another page with the same bytes takes the place of a block's page.
  void ReplacePage(size_t block, kv::PageLease page);
  // Gives up all pages; everything is to be computed again.
  void DropPages();
  // False if a page was given to somebody else or overwritten.
  bool TagsMatch() const;

  // The next `count` tokens were computed.
  void Advance(uint32_t count);
  void AddOutput(TokenId token);
  // Leading blocks whose prompt tokens are all there once `computed` tokens are.
  uint32_t FinalBlocks(uint32_t computed) const;
  // Blocks that may be published: all their tokens, and so their key, are known.
  uint32_t FullBlocks() const { return computed_ / layout_.page_tokens(); }

  Sampler& sampler() { return sampler_; }
  const Sampler& sampler() const { return sampler_; }
  SequenceView View() const;

  // Fields of the engine's own book-keeping.
  std::vector<kv::BlockKey> keys;  // of leading full blocks; empty without a cache domain
  uint32_t published = 0;          // blocks handed to the prefix index
  uint32_t reported = 0;           // blocks that OnPagesFinal need not report any more
  uint32_t overtaken = 0;          // see SequenceView
  uint64_t last_turn = 0;          // see SequenceView
  TenantTurns::Turn turn;          // of its prompt
  bool started = false;
  bool running = false;
  bool cancelled = false;
  bool readmitted = false;  // since its last preemption it has made no progress
  bool blocked = false;     // not to be admitted in this step
  absl::Status refused;     // there are pages, but not for its tenant
  SequenceStats stats;

 private:
  SequenceSpec spec_;
  const uint64_t arrival_;
  const kv::PageLayout& layout_;
  std::vector<TokenId> tokens_;  // what is to be computed: the prompt, then the output
  uint32_t computed_ = 0;
  uint32_t computed_once_ = 0;  // the farthest that computed_ has been
  std::vector<kv::PageLease> pages_;
  std::vector<uint8_t*> page_data_;
  std::vector<const std::byte*> page_tags_;
  std::vector<uint64_t> generations_;
  Sampler sampler_;
};

}  // namespace sluice::engine
