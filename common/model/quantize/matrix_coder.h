// One matrix of a checkpoint in another weight format: which tensors store it, and their bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/thread_pool.h"
#include "formats/safetensors.h"
#include "model/model_files.h"

namespace sluice::model {

// The tensors of each: hf_tensor.h.
enum class Coding { kBf16, kInt4, kFp8, kPalette };

struct CodedMatrix {
  Coding coding = Coding::kBf16;
  TensorView view;                       // the source; rows are written in the order of Row
  std::array<uint8_t, 16> palette = {};  // kPalette
};

// Sets the palette of a BF16 matrix; false when some row has too many other exponents.
bool FindPalette(device::ThreadPool& pool, CodedMatrix* matrix);

// The tensors, "BASE.weight" and so on. INVALID_ARGUMENT for a shape that the coding does not take.
absl::StatusOr<std::vector<formats::SafetensorsEntry>> EntriesOf(const CodedMatrix& matrix,
                                                                 const std::string& base);
// Appends their bytes. Cost: about 2 ns an element divided by the workers; memory of the output.
void WriteMatrix(const CodedMatrix& matrix, device::ThreadPool& pool,
                 formats::SafetensorsWriter* writer);

}  // namespace sluice::model
