// One worker's engine: admits sequences, plans steps, runs the model, samples, and reports. Knows
// nothing of networks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/ids.h"
#include "engine/model_runner.h"
#include "kv/block_key.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "request/sampling.h"

namespace sluice::engine {

enum class SequenceKind {
  kPrefill,  // compute the prompt, sample one token, hand the pages over
  kLocal,    // compute the prompt here and go on decoding here
  kDecode,   // pages of the prompt arrived from elsewhere; decode
};

// What to do for one sequence.
struct SequenceSpec {
  SequenceId id;      // unique within the engine
  RequestId request;  // for logs
  TenantId tenant;
  int32_t priority = 0;
  uint32_t weight = 1;  // of the tenant, > 0: see TenantTurns
  SequenceKind kind = SequenceKind::kLocal;
  std::vector<TokenId> prompt;  // at least one token
  // Output tokens the client has already (or the first token sampled elsewhere): fed, never sampled
  // again. kDecode needs at least one. With kPrefill and a non-empty list no token is sampled.
  std::vector<TokenId> emitted;
  request::SamplingParams sampling;
  absl::Time deadline = absl::InfiniteFuture();
  // Namespace for prefix reuse; empty: neither look up nor publish.
  std::optional<kv::CacheDomain> domain;
  // kPrefill: the taker holds this many leading blocks; pages from there on are reported by
  // OnPagesFinal.
  uint32_t held_blocks = 0;
  // kPrefill: false when nothing is to be handed over.
  bool offer_pages = false;
  // kDecode: pages for positions [0, prompt.size()), verified, with room for growth or not.
  std::vector<kv::PageLease> pages;
  // kDecode: this engine would have computed the same bytes. Otherwise the prompt is never
  // recomputed here, and its blocks are never found under this engine's keys.
  bool own_numerics = true;
};

// A page whose bytes in some layers are final, pinned by its own lease until the receiver drops it.
struct FinalPage {
  uint32_t block = 0;  // ordinal in the prompt
  kv::PageLease pin;
};

struct SequenceStats {
  uint32_t cached_tokens = 0;      // prompt tokens found in the prefix index
  uint32_t computed_tokens = 0;    // prompt tokens computed here
  uint32_t recomputed_tokens = 0;  // tokens computed again: emitted ones, or all after a preemption
  uint32_t preemptions = 0;
  bool tag_mismatch = false;  // ended because a page was not its own any more
};

// Called on the engine's loop, in order per sequence. Must not call back into the engine except
// through its loop.
class EngineEvents {
 public:
  virtual ~EngineEvents() = default;
  virtual void OnStarted(SequenceId sequence, uint32_t cached_tokens) = 0;
  // Layers [layer_begin, layer_end) of these pages hold all their prompt tokens. Also called for
  // pages found in the cache (all layers at once). Each (block, layer) from held_blocks on is
  // reported exactly once before OnPromptDone.
  virtual void OnPagesFinal(SequenceId sequence, std::vector<FinalPage> pages, int layer_begin,
                            int layer_end) = 0;
  // kPrefill: all pages were reported. `first` is empty when the spec had emitted tokens.
  virtual void OnPromptDone(SequenceId sequence, const std::optional<request::SampledToken>& first,
                            request::FinishReason finish) = 0;
  // kLocal and kDecode: one output token. `position` counts output tokens from 0.
  virtual void OnToken(SequenceId sequence, uint32_t position, const request::SampledToken& token,
                       request::FinishReason finish) = 0;
  // The last event of a sequence, exactly once: OK after its finish, else CANCELLED,
  // DEADLINE_EXCEEDED, ABORTED (tag mismatch, preempted where the prompt cannot be recomputed),
  // RESOURCE_EXHAUSTED, INTERNAL. Its pages are released.
  virtual void OnFinished(SequenceId sequence, const absl::Status& status,
                          const SequenceStats& stats) = 0;
};

struct EngineOptions {
  uint32_t step_tokens_max = 512;  // tokens computed in one step
  uint32_t batch_max = 64;         // sequences decoded in one step
  uint32_t waiting_max = 256;      // sequences submitted but not started
  absl::Duration itl_target = absl::Milliseconds(50);
  // Layers after which final pages are reported; 0: the fewest whose piece reaches 64 KiB.
  uint32_t layer_group = 0;
  // Prompts that this engine could compute may be recomputed here after a preemption.
  bool may_recompute_prompts = true;
#ifdef SLUICE_FAULTS_ENABLED
  bool check_tags = true;  // test builds can show that the check is needed
#else
  static constexpr bool check_tags = true;
#endif
};

struct EngineLoad {
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t prefill_tokens = 0;  // prompt tokens accepted but not computed
  uint64_t decode_tokens = 0;   // tokens of context of running sequences
  double prefill_tokens_per_s = 0;
  double decode_step_ms = 0;
};

// Owned by one loop; not thread-safe.
class Engine {
 public:
  // All references must outlive the engine. `faults` may be null.
  static std::unique_ptr<Engine> Create(const EngineOptions& options, ModelRunner& model,
                                        kv::PagePool& pool, kv::PrefixIndex& index,
                                        const Clock& clock, EngineEvents& events,
                                        FaultInjector* faults);
  virtual ~Engine() = default;

  // Errors: RESOURCE_EXHAUSTED when waiting_max is reached or the prompt can never fit the pool;
  // INVALID_ARGUMENT for a prompt over the context, an id in use, or tokens outside the vocabulary.
  // No event follows an error.
  virtual absl::Status Submit(SequenceSpec spec) = 0;
  // OnFinished(CANCELLED) follows within one step. Unknown ids are ignored.
  virtual void Cancel(SequenceId sequence) = 0;
  // May be called from another thread: makes a running prefill of the sequence stop between two
  // layers, if nobody else is in its batch. Cancel must follow on the loop. Thread-safe.
  virtual void Interrupt(SequenceId sequence) = 0;

  virtual bool HasWork() const = 0;
  // Plans and runs one step. Returns the number of tokens computed; 0 with HasWork() means: waiting
  // for pages.
  virtual uint32_t Step() = 0;

  virtual EngineLoad load() const = 0;
  // Time of the last Step or idle Tick: liveness.
  virtual absl::Time last_progress() const = 0;
};

}  // namespace sluice::engine
