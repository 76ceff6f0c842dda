// The seam between scheduling and computing: one forward pass over a batch of segments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "kv/page_layout.h"
#include "request/sampling.h"

namespace sluice::engine {

using request::TokenId;

// What the rest of the system needs to know about a loaded model.
struct ModelInfo {
  std::string name;
  TokenId vocabulary = 0;
  int32_t context_tokens = 0;
  int layers = 0;
  // Tokens that end a sequence unless ignore_eos.
  std::vector<TokenId> eos_tokens;
  // Layout of the pages that Forward reads and writes.
  kv::PageLayout layout;
  // Hash of everything that decides the bits of K, V and logits: weights, formats, ISA path,
  // layout, probe logits.
  Id128 numerics_id;
  Id128 model_digest;
};

enum class LogitsWanted { kNone, kLast, kAll };

// Consecutive tokens of one sequence, computed in one pass. Their K and V are written into the
// pages, then attended from there.
struct Segment {
  absl::Span<const TokenId> tokens;  // at least one
  int32_t first_position = 0;        // position of tokens[0] in the sequence
  // Base addresses of the sequence's pages in order; they cover slots 0 ..
  // SlotOfPosition(first_position + tokens.size() - 1). Positions before first_position hold valid
  // keys and values.
  absl::Span<uint8_t* const> pages;
  LogitsWanted logits = LogitsWanted::kLast;
};

// Called during a pass, on the calling thread.
class ForwardHooks {
 public:
  virtual ~ForwardHooks() = default;
  // Layers [begin, end) of every token of the batch are written to their pages and will not change.
  virtual void LayersDone(int begin, int end) = 0;
  // True once nobody wants the result any more; asked between layers. The pass then returns
  // CANCELLED.
  virtual bool Cancelled() = 0;
};

// Owned by the engine loop; one Forward at a time. Implementations may use a thread pool inside.
//
// Exactness: the logits of a row and the bytes it writes depend only on the sequence's tokens up to
// it and on the model, never on how the sequence was cut into segments, what else is in the batch,
// or which thread computed it.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const ModelInfo& info() const = 0;

  // logits: [rows, vocabulary] float32, rows in order of segments: 0, 1 or tokens.size() rows each,
  // as asked. `logits` must have room for exactly those rows. `hooks` may be null. Errors:
  // CANCELLED (pages of the segments then hold unspecified bytes at the segments' positions);
  // INTERNAL.
  virtual absl::Status Forward(absl::Span<const Segment> segments, ForwardHooks* hooks,
                               absl::Span<float> logits) = 0;

  // Bytes of weights read since construction; counts one read per matrix and pass, whatever the
  // batch.
  virtual uint64_t weight_bytes_read() const = 0;
};

}  // namespace sluice::engine
