// kv_b taken apart for the absorbed form of latent attention. Internal to this folder.
//
// kv_b [heads x (nope + v), kv_lora_rank] makes keys and values of a latent. Instead, W_K^T of a
// head takes its query to the latent, and W_V the attended latent to its value. W_V is rows of kv_b
// in their format; W_K is transposed, which no format with scales along a row survives, so it is
// kept in the plain format that holds its values exactly.
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "model/model_files.h"
#include "model/weights.h"

namespace sluice::model {

// Shapes of k_up, v_up and, if `naive`, key_rows of every head.
void DescribeHeads(kernels::IsaPath path, const ModelConfig& config, kernels::WeightFormat format,
                   bool naive, MlaWeights* mla);

// Packs one head's matrix, described before, to `out`. Threads: heads may be packed at once.
void PackKeyUp(const TensorView& kv_b, const MlaConfig& mla, int64_t head, uint8_t* out,
               kernels::PackedMatrix* matrix);
void PackKeyRows(const TensorView& kv_b, const MlaConfig& mla, int64_t head, uint8_t* out,
                 kernels::PackedMatrix* matrix);
void PackValueUp(const TensorView& kv_b, const MlaConfig& mla, int64_t head, uint8_t* out,
                 kernels::PackedMatrix* matrix);

}  // namespace sluice::model
