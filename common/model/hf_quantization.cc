// quantization_config of a config.json. Weight formats are read from the tensors; here only what
// tensors do not tell is checked.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/hf_fields.h"

namespace sluice::model {
namespace {

using formats::JsonValue;

constexpr int64_t kFp8Block = 128;

absl::Status CheckFp8(const JsonValue& quantization) {
  const JsonValue* block = quantization.Find("weight_block_size");
  if (block == nullptr || block->is_null()) return absl::OkStatus();
  std::vector<int32_t> sizes;
  SLUICE_RETURN_IF_ERROR(AddTokens(quantization, "weight_block_size", &sizes));
  if (sizes == std::vector<int32_t>{kFp8Block, kFp8Block}) return absl::OkStatus();
  return absl::UnimplementedError("'weight_block_size' is not [128, 128]; only that is built");
}

// One config group of compressed-tensors.
absl::Status CheckGroup(absl::string_view name, const JsonValue& group) {
  const JsonValue* weights = group.Find("weights");
  if (weights == nullptr || !weights->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantization group '", name.substr(0, 64), "' has no object 'weights'"));
  }
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view type, weights->GetString("type"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t bits, weights->GetInt("num_bits"));
  SLUICE_ASSIGN_OR_RETURN(const bool symmetric, weights->GetBoolOr("symmetric", true));
  SLUICE_ASSIGN_OR_RETURN(const int64_t size, weights->GetIntOr("group_size", 0));
  const bool int4 = type == "int" && bits == 4 && size == 32;
  const bool nvfp4 = type == "float" && bits == 4 && size == 16;
  const bool fp8 = type == "float" && bits == 8 && (size <= 0 || size == kFp8Block);
  if (symmetric && (int4 || nvfp4 || fp8)) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("quantization group '", name.substr(0, 64),
                                               "' holds ", symmetric ? "symmetric " : "asymmetric ",
                                               type.substr(0, 32), " weights of ", bits,
                                               " bits in groups of ", size,
                                               "; built are symmetric int of 4 bits in groups of "
                                               "32, float of 4 in groups of 16 and of 8 bits"));
}

}  // namespace

absl::Status CheckQuantization(const JsonValue& config) {
  const JsonValue* quantization = config.Find("quantization_config");
  if (quantization == nullptr || quantization->is_null()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view method, quantization->GetString("quant_method"));
  if (method == "fp8") return CheckFp8(*quantization);
  if (method == "sluice-lossless") return absl::OkStatus();
  if (method == "modelopt") return ExpectString(*quantization, "quant_algo", "NVFP4");
  if (method != "compressed-tensors") {
    return absl::UnimplementedError(
        absl::StrCat("'quant_method' is '", method.substr(0, 64),
                     "'; built are 'fp8', 'compressed-tensors', 'modelopt' and 'sluice-lossless'"));
  }
  const JsonValue* groups = quantization->Find("config_groups");
  if (groups == nullptr) return absl::OkStatus();
  for (const auto& [name, group] : groups->members()) {
    SLUICE_RETURN_IF_ERROR(CheckGroup(name, group));
  }
  return absl::OkStatus();
}

}  // namespace sluice::model
