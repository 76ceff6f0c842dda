// The seam between the runner and what its layers are made of. A unit serves all layers of its
// kind; it reads the normed rows in PassContext::input and writes PassContext::y.
//
// A new kind of attention or feed-forward is one class here, one alternative of
// model::LayerWeights, and one case in transformer_runner.cc.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/transformer/workspace.h"

namespace sluice::engine {

// Units declare their buffers in the constructor. Row exactness (model_runner.h) is theirs to keep.
class AttentionUnit {
 public:
  virtual ~AttentionUnit() = default;
  // How the first matrices of `layer` read the normed rows.
  virtual ActivationKinds InputKinds(int layer) const = 0;
  // Scratch that each worker needs.
  virtual size_t scratch_bytes() const = 0;
  // Once per pass, when plan and workspace are ready. RESOURCE_EXHAUSTED when memory is short.
  virtual absl::Status BeginPass() = 0;
  // Writes keys and values of all rows to their pages, calls `stored`, and attends.
  virtual void Forward(int layer, absl::FunctionRef<void()> stored) = 0;
};

class FeedForwardUnit {
 public:
  virtual ~FeedForwardUnit() = default;
  virtual ActivationKinds InputKinds(int layer) const = 0;
  virtual void Forward(int layer) = 0;
};

}  // namespace sluice::engine
