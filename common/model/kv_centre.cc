#include "model/kv_centre.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "formats/byte_reader.h"
#include "formats/safetensors.h"
#include "kernels/fp/fp.h"
#include "model/model_files.h"

namespace sluice::model {
namespace {

constexpr absl::string_view kFileName = "kv_centre.safetensors";
constexpr absl::string_view kKeys = "k_centre";
constexpr absl::string_view kValues = "v_centre";

std::vector<uint16_t> Codes(const std::vector<float>& values) {
  std::vector<uint16_t> codes;
  codes.reserve(values.size());
  for (float value : values) codes.push_back(kernels::FloatToBf16(value));
  return codes;
}

absl::StatusOr<std::vector<float>> Read(const formats::Safetensors& file, absl::string_view name,
                                        const std::vector<uint64_t>& shape,
                                        absl::string_view path) {
  const formats::SafetensorsTensor* tensor = file.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no tensor '", name, "'; write it with: sluice calibrate"));
  }
  if (tensor->type != formats::SafetensorsType::kBF16 || tensor->shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": '", name, "' is ", formats::NameOf(tensor->type), " [",
        absl::StrJoin(tensor->shape, ","), "], the model needs BF16 [", absl::StrJoin(shape, ","),
        "] (layers, KV heads, head dimension); write it with: sluice calibrate"));
  }
  std::vector<float> values;
  values.reserve(tensor->elements());
  for (uint64_t i = 0; i < tensor->elements(); ++i) {
    values.push_back(
        kernels::Bf16ToFloat(formats::LoadUnaligned<uint16_t>(tensor->data.data() + 2 * i)));
    if (std::isfinite(values.back())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": element ", i, " of '", name, "' is ", values.back()));
  }
  return values;
}

}  // namespace

std::string KvCentre::Digest() const {
  if (empty()) return "";
  const uint64_t shape[] = {layers, kv_heads, head_dim};
  std::string bytes(reinterpret_cast<const char*>(shape), sizeof(shape));
  for (const std::vector<float>* values : {&k, &v}) {
    const std::vector<uint16_t> codes = Codes(*values);
    bytes.append(reinterpret_cast<const char*>(codes.data()), codes.size() * sizeof(uint16_t));
  }
  return Hash128(bytes.data(), bytes.size()).ToBytes();
}

std::string KvCentrePath(absl::string_view model_path) {
  const std::filesystem::path path{std::string(model_path)};
  if (!IsGgufPath(model_path)) return path / std::string(kFileName);
  std::filesystem::path stem = path;
  if (absl::EndsWithIgnoreCase(model_path, ".gguf")) stem.replace_extension();
  return absl::StrCat(stem.string(), ".", kFileName);
}

absl::StatusOr<KvCentre> ReadKvCentre(absl::string_view path, const ModelConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(const formats::Safetensors file, formats::Safetensors::OpenFile(path));
  KvCentre centre;
  centre.layers = static_cast<uint64_t>(config.layers);
  centre.kv_heads = static_cast<uint64_t>(config.kv_heads);
  centre.head_dim = static_cast<uint64_t>(config.head_dim);
  const std::vector<uint64_t> shape = {centre.layers, centre.kv_heads, centre.head_dim};
  SLUICE_ASSIGN_OR_RETURN(centre.k, Read(file, kKeys, shape, path));
  SLUICE_ASSIGN_OR_RETURN(centre.v, Read(file, kValues, shape, path));
  return centre;
}

absl::Status WriteKvCentre(absl::string_view path, const KvCentre& centre) {
  const uint64_t count = centre.layers * centre.kv_heads * centre.head_dim;
  SLUICE_CHECK(centre.k.size() == count && centre.v.size() == count && count > 0)
      << centre.k.size() << " and " << centre.v.size() << " values for " << count;
  std::vector<formats::SafetensorsEntry> entries;
  for (absl::string_view name : {kKeys, kValues}) {
    entries.push_back({std::string(name),
                       formats::SafetensorsType::kBF16,
                       {centre.layers, centre.kv_heads, centre.head_dim}});
  }
  SLUICE_ASSIGN_OR_RETURN(auto writer, formats::SafetensorsWriter::Create(path, entries));
  for (const std::vector<float>* values : {&centre.k, &centre.v}) {
    const std::vector<uint16_t> codes = Codes(*values);
    writer.Append(codes.data(), codes.size() * sizeof(uint16_t));
  }
  return writer.Finish();
}

}  // namespace sluice::model
