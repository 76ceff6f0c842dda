// The two kinds of model files behind ModelFiles. Internal to this folder.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/model_files.h"

namespace sluice::model {

// UNIMPLEMENTED for a bias tensor that the config does not ask for: it would have to be added
// somewhere.
absl::StatusOr<std::unique_ptr<ModelFiles>> OpenGgufFiles(ModelConfig config,
                                                          formats::GgufFile file);
absl::StatusOr<std::unique_ptr<ModelFiles>> OpenHfFiles(ModelConfig config,
                                                        absl::string_view folder,
                                                        formats::Safetensors tensors);

}  // namespace sluice::model
