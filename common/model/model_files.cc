#include "model/model_files.h"

#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "formats/json.h"
#include "formats/safetensors.h"

namespace sluice::model {
namespace {

using kernels::WeightFormat;

constexpr uint64_t kMaxConfigBytes = 4u << 20;

struct RoleRow {
  TensorRole role;
  bool per_layer;
  bool vector;
  absl::string_view hf;    // after "model.layers.N." when per layer
  absl::string_view gguf;  // after "blk.N." when per layer
};
constexpr RoleRow kRoles[] = {
    {TensorRole::kEmbedding, false, false, "model.embed_tokens.weight", "token_embd.weight"},
    {TensorRole::kOutput, false, false, "lm_head.weight", "output.weight"},
    {TensorRole::kFinalNorm, false, true, "model.norm.weight", "output_norm.weight"},
    {TensorRole::kAttnNorm, true, true, "input_layernorm.weight", "attn_norm.weight"},
    {TensorRole::kQ, true, false, "self_attn.q_proj.weight", "attn_q.weight"},
    {TensorRole::kK, true, false, "self_attn.k_proj.weight", "attn_k.weight"},
    {TensorRole::kV, true, false, "self_attn.v_proj.weight", "attn_v.weight"},
    {TensorRole::kQNorm, true, true, "self_attn.q_norm.weight", "attn_q_norm.weight"},
    {TensorRole::kKNorm, true, true, "self_attn.k_norm.weight", "attn_k_norm.weight"},
    {TensorRole::kO, true, false, "self_attn.o_proj.weight", "attn_output.weight"},
    {TensorRole::kFfnNorm, true, true, "post_attention_layernorm.weight", "ffn_norm.weight"},
    {TensorRole::kGate, true, false, "mlp.gate_proj.weight", "ffn_gate.weight"},
    {TensorRole::kUp, true, false, "mlp.up_proj.weight", "ffn_up.weight"},
    {TensorRole::kDown, true, false, "mlp.down_proj.weight", "ffn_down.weight"},
};

constexpr bool RolesAreInOrder() {
  for (size_t i = 0; i < std::size(kRoles); ++i) {
    if (static_cast<size_t>(kRoles[i].role) != i) return false;
  }
  return true;
}
static_assert(RolesAreInOrder());

const RoleRow& RowOf(TensorRole role) { return kRoles[static_cast<size_t>(role)]; }

struct Shape {
  int64_t rows;
  int64_t columns;
};

Shape ShapeOf(TensorRole role, const ModelConfig& config) {
  switch (role) {
    case TensorRole::kEmbedding:
    case TensorRole::kOutput:
      return {config.vocabulary, config.hidden};
    case TensorRole::kFinalNorm:
    case TensorRole::kAttnNorm:
    case TensorRole::kFfnNorm:
      return {1, config.hidden};
    case TensorRole::kQ:
      return {config.q_width(), config.hidden};
    case TensorRole::kK:
    case TensorRole::kV:
      return {config.kv_width(), config.hidden};
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return {1, config.head_dim};
    case TensorRole::kO:
      return {config.hidden, config.q_width()};
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {config.intermediate, config.hidden};
    case TensorRole::kDown:
      return {config.hidden, config.intermediate};
  }
  return {0, 0};
}

bool Exists(TensorRole role, const ModelConfig& config) {
  if (role == TensorRole::kOutput) return !config.tied_embeddings;
  if (role == TensorRole::kQNorm || role == TensorRole::kKNorm) return config.has_qk_norm();
  return true;
}

// Calls `visit(role, layer)` for every tensor of the model, in one fixed order, until it fails.
template <typename Visit>
absl::Status ForEachTensor(const ModelConfig& config, Visit visit) {
  for (const RoleRow& row : kRoles) {
    if (!Exists(row.role, config)) continue;
    for (int32_t layer = 0; layer < (row.per_layer ? config.layers : 1); ++layer) {
      SLUICE_RETURN_IF_ERROR(visit(row.role, layer));
    }
  }
  return absl::OkStatus();
}

std::optional<WeightFormat> FormatOf(formats::SafetensorsType type) {
  switch (type) {
    case formats::SafetensorsType::kF32:
      return WeightFormat::kF32;
    case formats::SafetensorsType::kF16:
      return WeightFormat::kF16;
    case formats::SafetensorsType::kBF16:
      return WeightFormat::kBf16;
    default:
      return std::nullopt;
  }
}

// A tensor that this project would have to add somewhere but does not know.
absl::Status RefuseBias(absl::string_view source, absl::string_view name) {
  if (!absl::EndsWith(name, ".bias")) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(source, ": tensor '", name, "': biases are not built for this family"));
}

absl::Status NotPresent(absl::string_view source, absl::string_view name) {
  return absl::NotFoundError(absl::StrCat(source, ": tensor '", name, "' is missing"));
}

class GgufModelFiles : public ModelFiles {
 public:
  GgufModelFiles(ModelConfig config, formats::GgufFile file)
      : ModelFiles(std::move(config)), file_(std::move(file)) {}

 protected:
  absl::StatusOr<TensorView> FindByName(const std::string& name) const override {
    const formats::GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return NotPresent(file_.source(), name);
    TensorView view;
    view.name = name;
    view.format = WeightFormatOf(tensor->type);
    view.rows = static_cast<int64_t>(tensor->rows());
    view.columns = static_cast<int64_t>(tensor->row_elements());
    view.data = tensor->data;
    return view;
  }
  std::string NameOf(TensorRole role, int32_t layer) const override {
    const RoleRow& row = RowOf(role);
    return row.per_layer ? absl::StrCat("blk.", layer, ".", row.gguf) : std::string(row.gguf);
  }
  bool interleaves_rotation() const override { return config().family == Family::kLlama; }

 private:
  const formats::GgufFile file_;
};

class HfModelFiles : public ModelFiles {
 public:
  HfModelFiles(ModelConfig config, std::string folder, formats::Safetensors tensors)
      : ModelFiles(std::move(config)), folder_(std::move(folder)), tensors_(std::move(tensors)) {}

 protected:
  absl::StatusOr<TensorView> FindByName(const std::string& name) const override {
    const formats::SafetensorsTensor* tensor = tensors_.Find(name);
    if (tensor == nullptr) return NotPresent(folder_, name);
    const std::optional<WeightFormat> format = FormatOf(tensor->type);
    if (!format.has_value()) {
      return absl::UnimplementedError(absl::StrCat(folder_, ": tensor '", name, "' is ",
                                                   formats::NameOf(tensor->type),
                                                   "; read are F32, F16 and BF16"));
    }
    if (tensor->shape.empty() || tensor->shape.size() > 2 || tensor->data.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder_, ": tensor '", name, "' is neither a vector nor a matrix"));
    }
    TensorView view;
    view.name = name;
    view.format = *format;
    view.columns = static_cast<int64_t>(tensor->shape.back());
    view.rows = static_cast<int64_t>(tensor->elements()) / view.columns;
    view.data = tensor->data;
    return view;
  }
  std::string NameOf(TensorRole role, int32_t layer) const override {
    const RoleRow& row = RowOf(role);
    return row.per_layer ? absl::StrCat("model.layers.", layer, ".", row.hf) : std::string(row.hf);
  }
  bool interleaves_rotation() const override { return false; }

 private:
  const std::string folder_;
  const formats::Safetensors tensors_;
};

// The last part of the path, for people.
absl::string_view BaseName(absl::string_view path) {
  while (path.size() > 1) {
    if (!absl::ConsumeSuffix(&path, "/")) break;
  }
  const size_t slash = path.rfind('/');
  return slash == absl::string_view::npos ? path : path.substr(slash + 1);
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const formats::GgufFile& file, absl::string_view path) {
  return ConfigFromGguf(file, absl::StripSuffix(BaseName(path), ".gguf"));
}

absl::StatusOr<ModelConfig> ReadHfConfig(absl::string_view folder) {
  const std::string config_path = absl::StrCat(folder, "/config.json");
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          formats::ReadTextFile(config_path, kMaxConfigBytes));
  SLUICE_ASSIGN_OR_RETURN(const formats::JsonValue config, formats::ParseJson(text, config_path));
  const std::string generation_path = absl::StrCat(folder, "/generation_config.json");
  const auto generation_text = formats::ReadTextFile(generation_path, kMaxConfigBytes);
  if (absl::IsNotFound(generation_text.status())) {
    return ConfigFromHf(config, nullptr, BaseName(folder));
  }
  SLUICE_RETURN_IF_ERROR(generation_text.status());
  SLUICE_ASSIGN_OR_RETURN(const formats::JsonValue generation,
                          formats::ParseJson(*generation_text, generation_path));
  return ConfigFromHf(config, &generation, BaseName(folder));
}

}  // namespace

WeightFormat WeightFormatOf(formats::GgmlType type) {
  using formats::GgmlType;
  switch (type) {
    case GgmlType::kF32:
      return WeightFormat::kF32;
    case GgmlType::kF16:
      return WeightFormat::kF16;
    case GgmlType::kBF16:
      return WeightFormat::kBf16;
    case GgmlType::kQ8_0:
      return WeightFormat::kQ8_0;
    case GgmlType::kQ4_0:
      return WeightFormat::kQ4_0;
    case GgmlType::kQ4_1:
      return WeightFormat::kQ4_1;
    case GgmlType::kQ5_0:
      return WeightFormat::kQ5_0;
    case GgmlType::kQ5_1:
      return WeightFormat::kQ5_1;
    case GgmlType::kQ4_K:
      return WeightFormat::kQ4_K;
    case GgmlType::kQ5_K:
      return WeightFormat::kQ5_K;
    case GgmlType::kQ6_K:
      return WeightFormat::kQ6_K;
  }
  SLUICE_CHECK(false) << "type=" << static_cast<uint32_t>(type);
  return WeightFormat::kF32;
}

const uint8_t* TensorView::Row(int64_t i) const {
  const int64_t row_bytes = kernels::RowBytes(format, columns);
  if (interleaved_head_dim != 0) {
    const int64_t half = interleaved_head_dim / 2;
    const int64_t in_head = i % interleaved_head_dim;
    i = i - in_head + 2 * (in_head % half) + in_head / half;
  }
  return data.data() + i * row_bytes;
}

absl::StatusOr<std::unique_ptr<ModelFiles>> ModelFiles::Open(absl::string_view path) {
  std::unique_ptr<ModelFiles> files;
  if (IsGgufPath(path)) {
    SLUICE_ASSIGN_OR_RETURN(formats::GgufFile file, formats::GgufFile::Open(path));
    for (const formats::GgufTensor& tensor : file.tensors()) {
      SLUICE_RETURN_IF_ERROR(RefuseBias(path, tensor.name));
    }
    SLUICE_ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(file, path));
    files = std::make_unique<GgufModelFiles>(std::move(config), std::move(file));
  } else {
    SLUICE_ASSIGN_OR_RETURN(ModelConfig config, ReadHfConfig(path));
    SLUICE_ASSIGN_OR_RETURN(formats::Safetensors tensors, formats::Safetensors::OpenFolder(path));
    for (const formats::SafetensorsTensor& tensor : tensors.tensors()) {
      SLUICE_RETURN_IF_ERROR(RefuseBias(path, tensor.name));
    }
    files =
        std::make_unique<HfModelFiles>(std::move(config), std::string(path), std::move(tensors));
  }
  SLUICE_RETURN_IF_ERROR(files->CheckTensors());
  return files;
}

absl::StatusOr<TensorView> ModelFiles::Find(TensorRole role, int32_t layer) const {
  const std::string name = NameOf(role, layer);
  if (!Exists(role, config_) || layer < 0 || layer >= config_.layers) {
    return absl::NotFoundError(absl::StrCat(config_.name, " has no tensor '", name, "'"));
  }
  SLUICE_ASSIGN_OR_RETURN(TensorView view, FindByName(name));
  const Shape shape = ShapeOf(role, config_);
  if (view.rows != shape.rows || view.columns != shape.columns) {
    return absl::InvalidArgumentError(
        absl::StrCat(config_.name, ": tensor '", name, "' has ", view.rows, " rows of ",
                     view.columns, ", the config asks for ", shape.rows, " of ", shape.columns));
  }
  if (interleaves_rotation() && (role == TensorRole::kQ || role == TensorRole::kK)) {
    view.interleaved_head_dim = config_.head_dim;
  }
  return view;
}

absl::Status ModelFiles::CheckTensors() const {
  return ForEachTensor(
      config_, [this](TensorRole role, int32_t layer) { return Find(role, layer).status(); });
}

uint64_t ModelFiles::tensor_bytes() const {
  uint64_t bytes = 0;
  // Open has checked that every Find succeeds.
  static_cast<void>(ForEachTensor(config_, [&](TensorRole role, int32_t layer) {
    bytes += Find(role, layer)->data.size();
    return absl::OkStatus();
  }));
  return bytes;
}

Id128 ModelFiles::Digest() const {
  Id128 digest = ConfigDigest(config_);
  static_cast<void>(ForEachTensor(config_, [&](TensorRole role, int32_t layer) {
    const TensorView view = *Find(role, layer);
    const Id128 bytes = Hash128(view.data.data(), view.data.size());
    const std::string text = absl::StrCat(digest.ToHex(), ";", static_cast<int>(role), ";", layer,
                                          ";", kernels::WeightFormatName(view.format), ";",
                                          view.interleaved_head_dim, ";", bytes.ToHex());
    digest = Hash128(text.data(), text.size());
    return absl::OkStatus();
  }));
  return digest;
}

absl::StatusOr<ModelConfig> ReadModelConfig(absl::string_view path) {
  if (!IsGgufPath(path)) return ReadHfConfig(path);
  SLUICE_ASSIGN_OR_RETURN(const formats::GgufFile file, formats::GgufFile::Open(path));
  return ReadGgufConfig(file, path);
}

bool IsGgufPath(absl::string_view path) {
  std::error_code error;
  return absl::EndsWithIgnoreCase(path, ".gguf") || std::filesystem::is_regular_file(std::string(path), error);
}

}  // namespace sluice::model
