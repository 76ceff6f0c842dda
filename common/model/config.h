// The shape and constants of a model: read from config.json or GGUF metadata, checked, and the same
// for both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "formats/gguf.h"
#include "formats/json.h"

namespace sluice::model {

enum class Family {
  kLlama,  // RMSNorm, GQA, SwiGLU
  kQwen3,  // the same with an RMSNorm over each head of q and k before rotation
};
// "llama", "qwen3".
absl::string_view FamilyName(Family family);

// Rotary embedding: angle of pair i at position p is float32(p) * inverse_frequency[i]; the pairs
// are (i, i + d/2). Rows of q and k that a file stores for pairs (2i, 2i+1) are put into this order
// when they are loaded.
struct RopeConfig {
  enum class Scaling { kNone, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  // Of kLlama3: long wavelengths are stretched by `factor`, short ones are left, in between is a
  // ramp.
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_context = 8192.0;
  // GGUF files carry the result of such a scaling instead: divisors of the inverse frequencies,
  // head_dim / 2 of them, or empty.
  std::vector<float> divisors;
};

// Invariants after parsing: all counts positive and within sane bounds, heads a multiple of
// kv_heads, head_dim even.
struct ModelConfig {
  std::string name;  // for people: folder, file or general.name
  Family family = Family::kLlama;
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocabulary = 0;
  int32_t context_tokens = 0;
  float norm_eps = 1e-5f;
  RopeConfig rope;
  bool tied_embeddings = false;     // the output matrix is the embedding
  std::vector<int32_t> bos_tokens;  // none or one
  std::vector<int32_t> eos_tokens;  // any of them ends a sequence; sorted, distinct

  bool has_qk_norm() const { return family == Family::kQwen3; }
  int32_t q_width() const { return heads * head_dim; }
  int32_t kv_width() const { return kv_heads * head_dim; }
};

// Reads the text of a Hugging Face config.json, old and new spelling (rope_theta + rope_scaling
// {type | rope_type} or rope_parameters). `generation_json` is the parsed generation_config.json or
// null; its end tokens are added. INVALID_ARGUMENT names the key and value at fault; UNIMPLEMENTED
// for a family or option that is not built.
absl::StatusOr<ModelConfig> ConfigFromHf(const formats::JsonValue& config,
                                         const formats::JsonValue* generation,
                                         absl::string_view name);

// Reads the metadata of a GGUF file with architecture llama or qwen3. Errors as above.
absl::StatusOr<ModelConfig> ConfigFromGguf(const formats::GgufFile& file, absl::string_view name);

// Checks the invariants; for the parsers.
absl::Status ValidateConfig(const ModelConfig& config);

// Inverse frequencies of the head_dim / 2 pairs, scaling applied.
std::vector<float> InverseFrequencies(const ModelConfig& config);

// Hash of every field that changes logits (name, context and special tokens do not).
Id128 ConfigDigest(const ModelConfig& config);

}  // namespace sluice::model
