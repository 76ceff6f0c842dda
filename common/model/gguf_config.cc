#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/byte_reader.h"
#include "model/config.h"

namespace sluice::model {
namespace {

using formats::GgufFile;
using formats::GgufTensor;

// Metadata of one architecture: keys are "<arch>.<name>".
class ArchKeys {
 public:
  ArchKeys(const GgufFile& file, absl::string_view arch) : file_(file), arch_(arch) {}

  std::string Key(absl::string_view name) const { return absl::StrCat(arch_, ".", name); }
  bool Has(absl::string_view name) const { return file_.Has(Key(name)); }

  absl::StatusOr<int32_t> Count(absl::string_view name) const {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t value, file_.GetU32(Key(name)));
    if (value > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.source(), ": '", Key(name), "' is ", value, ", out of range"));
    }
    return static_cast<int32_t>(value);
  }
  absl::StatusOr<int32_t> CountOr(absl::string_view name, int32_t fallback) const {
    if (!Has(name)) return fallback;
    return Count(name);
  }

 private:
  const GgufFile& file_;
  const absl::string_view arch_;
};

absl::Status ParseShape(const GgufFile& file, const ArchKeys& keys, ModelConfig* out) {
  SLUICE_ASSIGN_OR_RETURN(out->layers, keys.Count("block_count"));
  SLUICE_ASSIGN_OR_RETURN(out->context_tokens, keys.Count("context_length"));
  SLUICE_ASSIGN_OR_RETURN(out->hidden, keys.Count("embedding_length"));
  SLUICE_ASSIGN_OR_RETURN(out->intermediate, keys.Count("feed_forward_length"));
  SLUICE_ASSIGN_OR_RETURN(out->heads, keys.Count("attention.head_count"));
  SLUICE_ASSIGN_OR_RETURN(out->kv_heads, keys.CountOr("attention.head_count_kv", out->heads));
  const int32_t default_dim = out->heads > 0 ? out->hidden / out->heads : 0;
  SLUICE_ASSIGN_OR_RETURN(out->head_dim, keys.CountOr("attention.key_length", default_dim));
  SLUICE_ASSIGN_OR_RETURN(const int32_t value_dim,
                          keys.CountOr("attention.value_length", out->head_dim));
  SLUICE_ASSIGN_OR_RETURN(const int32_t rope_dim,
                          keys.CountOr("rope.dimension_count", out->head_dim));
  if (value_dim != out->head_dim || rope_dim != out->head_dim) {
    return absl::UnimplementedError(
        absl::StrCat(file.source(), ": head dimensions of keys ", out->head_dim, ", values ",
                     value_dim, " and rope ", rope_dim, " differ; that is not built"));
  }
  SLUICE_ASSIGN_OR_RETURN(const double eps,
                          file.GetF64(keys.Key("attention.layer_norm_rms_epsilon")));
  out->norm_eps = static_cast<float>(eps);
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.source(), ": tensor 'token_embd.weight' is missing"));
  }
  out->vocabulary = static_cast<int32_t>(
      std::min<uint64_t>(embedding->rows(), std::numeric_limits<int32_t>::max()));
  out->tied_embeddings = file.FindTensor("output.weight") == nullptr;
  return absl::OkStatus();
}

absl::Status ParseRope(const GgufFile& file, const ArchKeys& keys, RopeConfig* rope) {
  if (keys.Has("rope.freq_base")) {
    SLUICE_ASSIGN_OR_RETURN(rope->theta, file.GetF64(keys.Key("rope.freq_base")));
  }
  if (keys.Has("rope.scaling.type")) {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view type,
                            file.GetString(keys.Key("rope.scaling.type")));
    if (type != "none") {
      return absl::UnimplementedError(
          absl::StrCat(file.source(), ": rope scaling '", type, "' is not built"));
    }
  }
  const GgufTensor* divisors = file.FindTensor("rope_freqs.weight");
  if (divisors == nullptr) return absl::OkStatus();
  if (divisors->type != formats::GgmlType::kF32 || divisors->dims.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.source(), ": tensor 'rope_freqs.weight' is no vector of F32"));
  }
  for (uint64_t i = 0; i < divisors->row_elements(); ++i) {
    rope->divisors.push_back(
        formats::LoadUnaligned<float>(divisors->data.data() + i * sizeof(float)));
  }
  return absl::OkStatus();
}

absl::Status AddToken(const GgufFile& file, absl::string_view key, std::vector<int32_t>* out) {
  if (!file.Has(key)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const uint32_t token, file.GetU32(key));
  // Out of range becomes -1, which ValidateConfig refuses.
  const bool fits = token <= static_cast<uint32_t>(std::numeric_limits<int32_t>::max());
  out->push_back(fits ? static_cast<int32_t>(token) : -1);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file, absl::string_view name) {
  ModelConfig out;
  out.name = std::string(name);
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view arch, file.GetString("general.architecture"));
  if (arch == "llama") {
    out.family = Family::kLlama;
  } else if (arch == "qwen3") {
    out.family = Family::kQwen3;
    out.qk_norm = true;
  } else {
    return absl::UnimplementedError(
        absl::StrCat(file.source(), ": architecture '", arch, "'; built are 'llama' and 'qwen3'"));
  }
  const ArchKeys keys(file, arch);
  SLUICE_RETURN_IF_ERROR(ParseShape(file, keys, &out));
  SLUICE_RETURN_IF_ERROR(ParseRope(file, keys, &out.rope));
  SLUICE_RETURN_IF_ERROR(AddToken(file, "tokenizer.ggml.bos_token_id", &out.bos_tokens));
  for (absl::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                "tokenizer.ggml.eom_token_id"}) {
    SLUICE_RETURN_IF_ERROR(AddToken(file, key, &out.eos_tokens));
  }
  std::sort(out.eos_tokens.begin(), out.eos_tokens.end());
  out.eos_tokens.erase(std::unique(out.eos_tokens.begin(), out.eos_tokens.end()),
                       out.eos_tokens.end());
  const absl::Status status = ValidateConfig(out);
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(file.source(), ": ", status.message()));
  }
  return out;
}

}  // namespace sluice::model
