// The shape and constants of a model: read from config.json or GGUF metadata, checked, and the same
// for both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "formats/gguf.h"
#include "formats/json.h"

namespace sluice::model {

enum class Family {
  kLlama,        // RMSNorm, GQA, SwiGLU
  kQwen3,        // the same with an RMSNorm over each head of q and k before rotation
  kQwen3Moe,     // Qwen3 with routed experts
  kDeepseekV3,   // MLA, routed and shared experts; Kimi K2 and its successors too
  kGlm4Moe,      // GLM-4.5, 4.6, 4.7 and Air: GQA with biases, half of each head rotated, experts
  kGlm4MoeLite,  // GLM-4.7-Flash: MLA, experts
  kGlmMoeDsa,    // GLM-5: MLA over the positions that an indexer picks, experts
};
// "llama", "qwen3", "qwen3_moe", ...: the model_type of config.json.
absl::string_view FamilyName(Family family);

// Rotary embedding: angle of pair i at position p is float32(p) * inverse_frequency[i]; the pairs
// are (i, i + d/2). Rows that a file stores for pairs (2i, 2i+1) are put into this order when they
// are loaded.
struct RopeConfig {
  enum class Scaling { kNone, kLlama3, kYarn };
  double theta = 10000.0;
  // The file stores pairs (2i, 2i+1) next to each other (GGUF's llama is known by its name
  // instead).
  bool interleaved = false;
  // Share of a head's width that is rotated, from its start; GQA only.
  double partial = 1.0;
  Scaling scaling = Scaling::kNone;
  // Of kLlama3 and kYarn: long wavelengths are stretched by `factor`, short ones are left, in
  // between is a ramp.
  double factor = 1.0;
  double original_context = 8192.0;
  double low_freq_factor = 1.0;  // kLlama3
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;  // kYarn: rotations over the original context where the ramp begins
  double beta_slow = 1.0;
  // kYarn: cos and sin are multiplied by `magnitude`, the scale of the softmax by `softmax_factor`.
  double magnitude = 1.0;
  double softmax_factor = 1.0;
  // GGUF files carry the result of such a scaling instead: divisors of the inverse frequencies, one
  // per pair, or empty.
  std::vector<float> divisors;
};

// Multi-head latent attention: keys and values of all heads come from one latent row and one
// rotated key per token.
struct MlaConfig {
  int32_t q_lora_rank = 0;  // 0: queries come from the hidden row directly
  int32_t kv_lora_rank = 0;
  int32_t qk_nope_head_dim = 0;
  int32_t qk_rope_head_dim = 0;
  int32_t v_head_dim = 0;
};

// The indexer that picks the positions which MLA attends.
struct DsaConfig {
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t topk = 0;
  bool rope_interleaved = true;
  // Per layer: whether it runs its own indexer; others reuse the picks of the last one that did.
  std::vector<bool> computes;
};

enum class Scoring { kSigmoid, kSoftmax };

// Routed experts of the layers that have them.
struct MoeConfig {
  int32_t experts = 0;
  int32_t experts_per_token = 0;
  int32_t intermediate = 0;         // of one routed expert
  int32_t shared_intermediate = 0;  // of the shared expert; 0: there is none
  Scoring scoring = Scoring::kSigmoid;
  bool correction_bias = false;  // added to the scores for the choice, not for the weights
  int32_t groups = 1;            // only experts of the best topk_groups groups can be chosen
  int32_t topk_groups = 1;
  bool normalize = true;     // weights of the chosen are divided by their sum
  float scaling = 1.0f;      // and multiplied by this
  std::vector<bool> sparse;  // per layer: experts instead of a dense feed-forward
};

// Invariants after parsing: all counts positive and within sane bounds, heads a multiple of
// kv_heads, widths that are rotated even, lists per layer as long as there are layers.
struct ModelConfig {
  std::string name;  // for people: folder, file or general.name
  Family family = Family::kLlama;
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;  // of a dense feed-forward
  int32_t heads = 0;
  int32_t kv_heads = 0;  // with MLA: heads
  int32_t head_dim = 0;  // of q and k; with MLA: qk_nope_head_dim + qk_rope_head_dim
  int32_t vocabulary = 0;
  int32_t context_tokens = 0;
  float norm_eps = 1e-5f;
  bool qk_norm = false;   // RMSNorm over each head of q and k; not with MLA
  bool qkv_bias = false;  // not with MLA
  RopeConfig rope;
  std::optional<MlaConfig> mla;
  std::optional<DsaConfig> dsa;
  std::optional<MoeConfig> moe;
  bool multimodal = false;          // a vision tower lies beside the language model; not read
  int32_t mtp_layers = 0;           // draft layers behind the others; not read
  bool tied_embeddings = false;     // the output matrix is the embedding
  std::vector<int32_t> bos_tokens;  // none or one
  std::vector<int32_t> eos_tokens;  // any of them ends a sequence; sorted, distinct

  int32_t q_width() const { return heads * head_dim; }
  int32_t kv_width() const { return kv_heads * head_dim; }
  // Elements of a head that are rotated: its first ones, with MLA the rope part.
  int32_t rotary_dim() const;
  // What multiplies q . k.
  float softmax_scale() const;
  bool is_sparse(int32_t layer) const { return moe && moe->sparse[static_cast<size_t>(layer)]; }
  bool has_indexer(int32_t layer) const { return dsa && dsa->computes[static_cast<size_t>(layer)]; }
};

// Reads the text of a Hugging Face config.json, old and new spelling (rope_theta + rope_scaling
// {type | rope_type} or rope_parameters); of a multimodal wrapper its text_config. `generation` is
// the parsed generation_config.json or null; its end tokens are added. INVALID_ARGUMENT names the
// key and value at fault; UNIMPLEMENTED for a family or option that is not built.
absl::StatusOr<ModelConfig> ConfigFromHf(const formats::JsonValue& config,
                                         const formats::JsonValue* generation,
                                         absl::string_view name);

// Reads the metadata of a GGUF file with architecture llama or qwen3. Errors as above.
absl::StatusOr<ModelConfig> ConfigFromGguf(const formats::GgufFile& file, absl::string_view name);

// Checks the invariants; for the parsers.
absl::Status ValidateConfig(const ModelConfig& config);

// Inverse frequencies of the rotary_dim / 2 pairs, scaling applied.
std::vector<float> InverseFrequencies(const ModelConfig& config);

// Hash of every field that changes logits (name, context and special tokens do not).
Id128 ConfigDigest(const ModelConfig& config);

}  // namespace sluice::model
