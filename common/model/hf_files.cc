// Tensors of a Hugging Face folder.
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "model/hf_tensor.h"
#include "model/model_file_kinds.h"

namespace sluice::model {
namespace {

// How the tensors of the language model are called in this checkpoint: multimodal wrappers put a
// prefix before them, and some drop "model." behind it.
class Naming {
 public:
  explicit Naming(const formats::Safetensors& tensors) {
    constexpr absl::string_view kWrapper = "language_model.";
    if (tensors.Find("model.embed_tokens.weight") != nullptr) return;
    if (tensors.Find(absl::StrCat(kWrapper, "model.embed_tokens.weight")) != nullptr) {
      prefix_ = std::string(kWrapper);
    } else if (tensors.Find(absl::StrCat(kWrapper, "embed_tokens.weight")) != nullptr) {
      prefix_ = std::string(kWrapper);
      drops_model_ = true;
    }
  }
  std::string InFile(absl::string_view name) const {
    if (drops_model_) absl::ConsumePrefix(&name, "model.");
    return absl::StrCat(prefix_, name);
  }
  // The layer of a tensor in the file, or -1 when it belongs to none of the language model's.
  int32_t LayerOf(absl::string_view name) const {
    if (!absl::ConsumePrefix(&name, InFile("model.layers."))) return -1;
    int32_t layer = -1;
    return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) ? layer : -1;
  }

 private:
  std::string prefix_;
  bool drops_model_ = false;
};

class HfModelFiles final : public ModelFiles {
 public:
  HfModelFiles(ModelConfig config, absl::string_view folder, formats::Safetensors tensors)
      : ModelFiles(std::move(config)),
        folder_(folder),
        tensors_(std::move(tensors)),
        naming_(tensors_) {}

  // A bias of one of our layers that no role asks for would have to be added somewhere.
  absl::Status RefuseUnknownBiases() const {
    absl::flat_hash_set<std::string> known;
    SLUICE_RETURN_IF_ERROR(ForEachTensor(config(), [&](TensorId id) {
      std::string name = NameOf(id);
      if (absl::EndsWith(name, ".bias")) known.insert(std::move(name));
      return absl::OkStatus();
    }));
    for (const formats::SafetensorsTensor& tensor : tensors_.tensors()) {
      const int32_t layer = naming_.LayerOf(tensor.name);
      if (!absl::EndsWith(tensor.name, ".bias") || known.contains(tensor.name) || layer < 0 ||
          layer >= config().layers) {
        continue;
      }
      return absl::UnimplementedError(absl::StrCat(folder_, ": tensor '", tensor.name,
                                                   "': biases are not built for this family"));
    }
    return absl::OkStatus();
  }

 protected:
  absl::StatusOr<TensorView> FindByName(const std::string& name) const override {
    return ReadHfTensor(tensors_, folder_, name);
  }
  std::string NameOf(TensorId id) const override { return naming_.InFile(HfTensorName(id)); }
  bool Interleaves(TensorRole role) const override {
    switch (role) {
      case TensorRole::kQ:  // without latent attention a file that interleaves is refused
      case TensorRole::kQB:
      case TensorRole::kKvA:
        return config().rope.interleaved;
      case TensorRole::kIndexQ:
      case TensorRole::kIndexK:
        return config().dsa->rope_interleaved;
      default:
        return false;
    }
  }

 private:
  const std::string folder_;
  const formats::Safetensors tensors_;
  const Naming naming_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFiles>> OpenHfFiles(ModelConfig config,
                                                        absl::string_view folder,
                                                        formats::Safetensors tensors) {
  auto files = std::make_unique<HfModelFiles>(std::move(config), folder, std::move(tensors));
  SLUICE_RETURN_IF_ERROR(files->RefuseUnknownBiases());
  return files;
}

}  // namespace sluice::model
