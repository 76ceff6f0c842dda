// The files of one model, a Hugging Face folder or a GGUF file: its config and its tensors by role.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "formats/gguf.h"
#include "kernels/linear/weight_format.h"
#include "model/config.h"
#include "model/tensor_roles.h"

namespace sluice::model {

// A tensor as rows of one weight format; a vector is one row. Views into the mapped file.
struct TensorView {
  std::string name;  // in the file
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  absl::Span<const uint8_t> data;
  // Of formats whose scales are a tensor of their own: its rows, each for `rows_per_scale` rows of
  // the matrix (0: one for all), and a factor of the whole matrix.
  absl::Span<const uint8_t> scales;
  kernels::ScaleType scale_type = kernels::ScaleType::kNone;
  int64_t scale_row_bytes = 0;
  int64_t rows_per_scale = 1;
  float factor = 1.0f;
  // count > 0: the file stores the rotation pairs of these rows next to each other.
  RotatedRows interleaved;

  // Row `i` in the order of this project: rotation pairs are (i, i + count / 2).
  kernels::WeightRow Row(int64_t i) const;
  // Where the file has that row.
  int64_t FileRow(int64_t i) const;
};

// Immutable; any thread may read it. Everything returned lives as long as the object.
class ModelFiles {
 public:
  // `path` is a folder with config.json and safetensors, or a .gguf file. Every tensor that the
  // config asks for is there with its shape and a format that kernels take, or the error says which
  // is not.
  static absl::StatusOr<std::unique_ptr<ModelFiles>> Open(absl::string_view path);
  virtual ~ModelFiles() = default;

  const ModelConfig& config() const { return config_; }
  // The tensor of a role. NOT_FOUND when this model has none.
  absl::StatusOr<TensorView> Find(TensorId id) const;
  absl::StatusOr<TensorView> Find(TensorRole role, int32_t layer = 0) const {
    return Find(TensorId{role, layer, 0});
  }

  // Bytes of all tensors.
  uint64_t tensor_bytes() const;
  // Hash of config, formats and bytes of every tensor. Cost: reads all tensors, about 10 GB/s from
  // the page cache.
  Id128 Digest() const;

 protected:
  explicit ModelFiles(ModelConfig config) : config_(std::move(config)) {}

  // The tensor called `name` in this kind of file, its shape as stored. NOT_FOUND when absent.
  virtual absl::StatusOr<TensorView> FindByName(const std::string& name) const = 0;
  // The name of a tensor in this kind of file.
  virtual std::string NameOf(TensorId id) const = 0;
  // Whether this kind of file stores the rotation pairs of `role` next to each other.
  virtual bool Interleaves(TensorRole role) const = 0;

 private:
  absl::Status CheckTensors() const;

  const ModelConfig config_;
};

// Only the config of the model at `path`; needs no tensors of a Hugging Face folder.
absl::StatusOr<ModelConfig> ReadModelConfig(absl::string_view path);

// The format of a GGUF block type: the reader admits only types that have one.
kernels::WeightFormat WeightFormatOf(formats::GgmlType type);

// Whether `path` is read as a GGUF file (it is a file, or its name ends in .gguf) rather than as a
// folder.
bool IsGgufPath(absl::string_view path);

}  // namespace sluice::model
