// One id for everything that decides the bits of keys, values and logits.
#pragma once

#include "absl/strings/string_view.h"
#include "base/ids.h"

namespace sluice::model {

struct NumericsInputs {
  Id128 model_digest;          // ModelFiles::Digest: config, weight formats, weights
  absl::string_view isa_path;  // IsaPathName and what else is said of the arithmetic
  Id128 layout_hash;           // kv::PageLayout::hash
  Id128 probe_logits;          // hash of the logits of a fixed probe, run at start
};

// Two workers with equal ids compute equal bytes: a cached block or a stream may move between them.
Id128 NumericsId(const NumericsInputs& inputs);

}  // namespace sluice::model
