// One matrix or vector of a safetensors checkpoint, whatever tensors store it. Internal to this
// folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/safetensors.h"
#include "model/model_files.h"

namespace sluice::model {

// The tensor `name`, "....weight" for matrices. The format is seen by the tensors beside it:
//   weight F32, F16, BF16                                               as it is
//   weight F8_E4M3 [N,K], weight_scale_inv [N/128,K/128]                FP8, a scale per block
//   weight F8_E4M3 [N,K], weight_scale [N,1], [N] or one value          FP8, a scale per row
//   weight_packed I32 [N,K/8], weight_scale [N,K/32], weight_shape [2]  INT4 in groups of 32
//   weight U8 [N,K/2], weight_scale F8_E4M3 [N,K/16], weight_scale_2    NVFP4, multiplied by it
//   weight_packed U8, weight_scale F8_E4M3, weight_global_scale         NVFP4, divided by it
//   weight_bf16p U8, weight_palette U8 [16], weight_shape [2]           BF16 without loss, our own
// Errors: NOT_FOUND when absent, UNIMPLEMENTED for another type, INVALID_ARGUMENT for a shape that
// does not fit; each names the tensor and what was expected. `source` is for errors.
absl::StatusOr<TensorView> ReadHfTensor(const formats::Safetensors& tensors,
                                        absl::string_view source, const std::string& name);

}  // namespace sluice::model
