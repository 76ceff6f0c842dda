#include "services/local_model/local_model.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "device/cpu.h"
#include "engine/toy_model.h"
#include "engine/transformer/transformer_runner.h"
#include "kv/page_layout.h"
#include "model/kv_centre.h"
#include "model/model_files.h"
#include "services/text_model/text_model.h"

namespace sluice::services {
namespace {

absl::StatusOr<model::KvCentre> LoadCentre(const LocalModelOptions& options,
                                           const model::ModelConfig& config) {
  if (options.kv_centre == "none") return model::KvCentre();
  if (!options.kv_centre.empty()) return model::ReadKvCentre(options.kv_centre, config);
  const std::string path = model::KvCentrePath(options.path);
  absl::StatusOr<model::KvCentre> centre = model::ReadKvCentre(path, config);
  if (!absl::IsNotFound(centre.status())) return centre;
  SLUICE_LOG(kInfo)
      << "keys and values are not centred; sluice calibrate would make their errors smaller"
      << Field("missing", path);
  return model::KvCentre();
}

absl::StatusOr<model::BlockActivations> ParseActivations(absl::string_view name) {
  if (name == "int8") return model::BlockActivations::kInt8;
  if (name == "int16") return model::BlockActivations::kInt16;
  return absl::InvalidArgumentError(absl::StrCat("activations is '", name, "'; use int8 or int16"));
}

}  // namespace

absl::StatusOr<LocalModel> LoadLocalModel(const LocalModelOptions& options) {
  LocalModel model;
  const auto path = kernels::ParseIsaPath(options.kernels);
  if (!path) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernels is '", options.kernels, "'; use auto, reference, avx2 or avx512"));
  }
  model.path = *path;
  if (options.exactness != "strict" && options.exactness != "fast") {
    return absl::InvalidArgumentError(
        absl::StrCat("exactness is '", options.exactness, "'; use strict or fast"));
  }
  SLUICE_ASSIGN_OR_RETURN(const model::BlockActivations activations,
                          ParseActivations(options.activations));
  std::optional<kernels::KvFormat> format;
  if (options.kv_format != "auto") {
    SLUICE_ASSIGN_OR_RETURN(format, kv::ParseKvFormat(options.kv_format));
  }
  const int workers =
      options.threads > 0 ? static_cast<int>(options.threads) : device::UsableCpus();
  SLUICE_ASSIGN_OR_RETURN(model.threads, device::ThreadPool::Create({.workers = workers}));
  if (options.path == kToyModelPath) {
    engine::ToyModelOptions toy;
    toy.layout = engine::ToyLayoutSpec(format.value_or(kv::DefaultKvFormat(kv::KvKind::kHeads)));
    if (options.page_tokens > 0) toy.layout.page_tokens = options.page_tokens;
    SLUICE_ASSIGN_OR_RETURN(model.runner, engine::CreateToyModel(toy));
    return model;
  }
  SLUICE_ASSIGN_OR_RETURN(const auto files, model::ModelFiles::Open(options.path));
  model.weight_bytes = files->tensor_bytes();
  engine::TransformerOptions runner;
  runner.path = *path;
  runner.kv_format = format;
  runner.page_tokens = options.page_tokens;
  runner.torch_length = options.torch_length;
  runner.activations = activations;
  if (options.exactness == "fast") runner.exactness = engine::Exactness::kFast;
  const kv::KvKind kind = files->config().mla ? kv::KvKind::kLatent : kv::KvKind::kHeads;
  if (kernels::IsCentred(format.value_or(kv::DefaultKvFormat(kind)))) {
    SLUICE_ASSIGN_OR_RETURN(runner.centre, LoadCentre(options, files->config()));
  }
  SLUICE_ASSIGN_OR_RETURN(model.runner,
                          engine::TransformerRunner::Create(*files, runner, *model.threads));
  return model;
}

}  // namespace sluice::services
