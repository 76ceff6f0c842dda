#include "services/cli/model_name.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/text_model/text_model.h"

namespace sluice::cli {
namespace fs = std::filesystem;

std::string FindModel(const std::string& model, absl::string_view binary_folder) {
  std::error_code error;
  if (model.empty() || model == services::kToyModelPath || absl::StrContains(model, '/') ||
      fs::exists(model, error)) {
    return model;
  }
  for (absl::string_view models : {"models", "../../../deploy/models"}) {
    const fs::path folder =
        fs::path(absl::StrCat(binary_folder, "/", models, "/", model)).lexically_normal();
    if (fs::exists(folder / "config.json", error)) return folder.string();
  }
  return model;
}

}  // namespace sluice::cli
