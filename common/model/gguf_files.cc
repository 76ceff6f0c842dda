// Tensors of a GGUF file.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/model_file_kinds.h"

namespace sluice::model {
namespace {

class GgufModelFiles final : public ModelFiles {
 public:
  GgufModelFiles(ModelConfig config, formats::GgufFile file)
      : ModelFiles(std::move(config)), file_(std::move(file)) {}

 protected:
  absl::StatusOr<TensorView> FindByName(const std::string& name) const override {
    const formats::GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(absl::StrCat(file_.source(), ": tensor '", name, "' is missing"));
    }
    TensorView view;
    view.name = name;
    view.format = WeightFormatOf(tensor->type);
    view.rows = static_cast<int64_t>(tensor->rows());
    view.columns = static_cast<int64_t>(tensor->row_elements());
    view.data = tensor->data;
    return view;
  }
  std::string NameOf(TensorId id) const override { return GgufTensorName(id); }
  // Converters of llama permute q and k; those of qwen3 do not.
  bool Interleaves(TensorRole role) const override {
    return config().family == Family::kLlama && (role == TensorRole::kQ || role == TensorRole::kK);
  }

 private:
  const formats::GgufFile file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFiles>> OpenGgufFiles(ModelConfig config,
                                                          formats::GgufFile file) {
  for (const formats::GgufTensor& tensor : file.tensors()) {
    if (!absl::EndsWith(tensor.name, ".bias")) continue;
    return absl::UnimplementedError(absl::StrCat(file.source(), ": tensor '", tensor.name,
                                                 "': biases are not built for this family"));
  }
  return std::make_unique<GgufModelFiles>(std::move(config), std::move(file));
}

kernels::WeightFormat WeightFormatOf(formats::GgmlType type) {
  using formats::GgmlType;
  using kernels::WeightFormat;
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

}  // namespace sluice::model
