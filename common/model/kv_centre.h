// The centre of a model's keys and values: fixed vectors that centred page formats subtract before
// they quantise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"

namespace sluice::model {

// One vector per layer and KV head for keys (after norm and rotation) and one for values. They are
// the model's, not a file's: every weight format of a model shares them, so that its workers can
// exchange pages. Plain value.
struct KvCentre {
  uint64_t layers = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  // [layers][kv_heads][head_dim], every value representable in bf16. Empty: there is no centre.
  std::vector<float> k;
  std::vector<float> v;

  bool empty() const { return k.empty(); }
  // 16 bytes over shape and values, part of the page layout's identity; "" without a centre.
  std::string Digest() const;
};

// Where the centre of the model at `model_path` lies unless somebody says otherwise:
// FOLDER/kv_centre.safetensors, or NAME.kv_centre.safetensors beside NAME.gguf.
std::string KvCentrePath(absl::string_view model_path);

// Reads a file of WriteKvCentre. Errors: NOT_FOUND; INVALID_ARGUMENT when it is damaged, holds
// infinities or NaN, or is of a model of another shape.
absl::StatusOr<KvCentre> ReadKvCentre(absl::string_view path, const ModelConfig& config);

// Writes safetensors: "k_centre" and "v_centre", BF16 [layers, kv_heads, head_dim]; all or nothing,
// replacing a file that is there.
absl::Status WriteKvCentre(absl::string_view path, const KvCentre& centre);

}  // namespace sluice::model
