#include "model/model_files.h"

#include <bit>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "formats/json.h"
#include "model/model_file_kinds.h"

namespace sluice::model {
namespace {

constexpr uint64_t kMaxConfigBytes = 4u << 20;

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

int64_t TensorView::FileRow(int64_t i) const {
  if (interleaved.count == 0) return i;
  const int64_t rotated = i % interleaved.head_rows - interleaved.first;
  if (rotated < 0 || rotated >= interleaved.count) return i;
  const int64_t half = interleaved.count / 2;
  return i + 2 * (rotated % half) + rotated / half - rotated;
}

kernels::WeightRow TensorView::Row(int64_t i) const {
  i = FileRow(i);
  kernels::WeightRow row;
  row.data = data.data() + i * kernels::RowBytes(format, columns);
  if (scale_type == kernels::ScaleType::kNone) return row;
  const int64_t scale_row = rows_per_scale == 0 ? 0 : i / rows_per_scale;
  row.scales = scales.data() + scale_row * scale_row_bytes;
  row.scale_type = scale_type;
  row.factor = factor;
  return row;
}

absl::StatusOr<std::unique_ptr<ModelFiles>> ModelFiles::Open(absl::string_view path) {
  std::unique_ptr<ModelFiles> files;
  if (IsGgufPath(path)) {
    SLUICE_ASSIGN_OR_RETURN(formats::GgufFile file, formats::GgufFile::Open(path));
    SLUICE_ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(file, path));
    SLUICE_ASSIGN_OR_RETURN(files, OpenGgufFiles(std::move(config), std::move(file)));
  } else {
    SLUICE_ASSIGN_OR_RETURN(ModelConfig config, ReadHfConfig(path));
    SLUICE_ASSIGN_OR_RETURN(formats::Safetensors tensors, formats::Safetensors::OpenFolder(path));
    SLUICE_ASSIGN_OR_RETURN(files, OpenHfFiles(std::move(config), path, std::move(tensors)));
  }
  SLUICE_RETURN_IF_ERROR(files->CheckTensors());
  return files;
}

absl::StatusOr<TensorView> ModelFiles::Find(TensorId id) const {
  const std::string name = NameOf(id);
  if (!TensorExists(id, config_)) {
    return absl::NotFoundError(absl::StrCat(config_.name, " has no tensor '", name, "'"));
  }
  SLUICE_ASSIGN_OR_RETURN(TensorView view, FindByName(name));
  const TensorShape shape = TensorShapeOf(id.role, config_);
  if (view.rows != shape.rows || view.columns != shape.columns) {
    return absl::InvalidArgumentError(
        absl::StrCat(config_.name, ": tensor '", view.name, "' has ", view.rows, " rows of ",
                     view.columns, ", the config asks for ", shape.rows, " of ", shape.columns));
  }
  if (Interleaves(id.role)) view.interleaved = RotatedRowsOf(id.role, config_);
  return view;
}

absl::Status ModelFiles::CheckTensors() const {
  return ForEachTensor(config_, [this](TensorId id) { return Find(id).status(); });
}

uint64_t ModelFiles::tensor_bytes() const {
  uint64_t bytes = 0;
  // Open has checked that every Find succeeds.
  static_cast<void>(ForEachTensor(config_, [&](TensorId id) {
    const TensorView view = *Find(id);
    bytes += view.data.size() + view.scales.size();
    return absl::OkStatus();
  }));
  return bytes;
}

Id128 ModelFiles::Digest() const {
  Id128 digest = ConfigDigest(config_);
  static_cast<void>(ForEachTensor(config_, [&](TensorId id) {
    const TensorView view = *Find(id);
    const Id128 bytes = Hash128(view.data.data(), view.data.size());
    const Id128 scales =
        Hash128(view.scales.data(), view.scales.size(), std::bit_cast<uint32_t>(view.factor));
    const std::string text =
        absl::StrCat(digest.ToHex(), ";", static_cast<int>(id.role), ";", id.layer, ";", id.expert,
                     ";", kernels::WeightFormatName(view.format), ";", view.interleaved.count, ";",
                     bytes.ToHex(), ";", scales.ToHex());
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
  return absl::EndsWithIgnoreCase(path, ".gguf") ||
         std::filesystem::is_regular_file(std::string(path), error);
}

}  // namespace sluice::model
