// A model loaded for computing in this process: thread pool, kernels, runner. Workers and the
// command line tool share it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/thread_pool.h"
#include "engine/model_runner.h"
#include "kernels/isa.h"

namespace sluice::services {

struct LocalModelOptions {
  std::string path;                // folder, .gguf file, or "toy"
  std::string kernels = "auto";    // auto, reference, avx2, avx512
  std::string kv_format = "auto";  // a KV format; auto: FP8 of the model's kind of attention
  // What centred formats subtract: a file of `sluice calibrate`, which must be there; "none"; or
  // empty: the file beside the model, none when there is none.
  std::string kv_centre;
  std::string exactness = "strict";  // strict or fast
  std::string activations = "int16";  // int8, int16: model::BlockActivations
  uint32_t threads = 0;              // 0: every usable core
  uint32_t page_tokens = 0;          // 0: 32, with latent attention 64
  // For comparisons with Hugging Face only: equal index scores are ordered as torch.topk orders
  // them in a prompt of this many tokens. 0: the earlier position first.
  int64_t torch_length = 0;
};

// The pool outlives the runner by the order of members.
struct LocalModel {
  std::unique_ptr<device::ThreadPool> threads;
  std::unique_ptr<engine::ModelRunner> runner;
  kernels::IsaPath path = kernels::IsaPath::kReference;
  uint64_t weight_bytes = 0;
};

// Errors: INVALID_ARGUMENT for an option, NOT_FOUND for missing files, UNIMPLEMENTED for a path
// this processor lacks.
absl::StatusOr<LocalModel> LoadLocalModel(const LocalModelOptions& options);

}  // namespace sluice::services
