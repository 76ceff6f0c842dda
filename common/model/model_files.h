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

namespace sluice::model {

// Tensors of a dense decoder. The first three exist once, the others once per layer.
enum class TensorRole {
  kEmbedding,  // [vocabulary, hidden]
  kOutput,     // [vocabulary, hidden]; absent when embeddings are tied
  kFinalNorm,  // [hidden]
  kAttnNorm,   // [hidden]
  kQ,          // [heads * head_dim, hidden]
  kK,          // [kv_heads * head_dim, hidden]
  kV,          // [kv_heads * head_dim, hidden]
  kQNorm,      // [head_dim], Qwen3
  kKNorm,      // [head_dim], Qwen3
  kO,          // [hidden, heads * head_dim]
  kFfnNorm,    // [hidden]
  kGate,       // [intermediate, hidden]
  kUp,         // [intermediate, hidden]
  kDown,       // [hidden, intermediate]
};

// A tensor as rows of one weight format; a vector is one row. Views into the mapped file.
struct TensorView {
  std::string name;  // in the file
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  absl::Span<const uint8_t> data;
  // Not 0: within each head of so many rows the file stores rotation pairs next to each other
  // (GGUF's llama).
  int64_t interleaved_head_dim = 0;

  // Bytes of row `i` in the order of this project: rotation pairs are (i, i + head_dim / 2).
  const uint8_t* Row(int64_t i) const;
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
  // The tensor of `role` (`layer` counts only for roles that exist per layer). NOT_FOUND when this
  // model has none.
  absl::StatusOr<TensorView> Find(TensorRole role, int32_t layer = 0) const;

  // Bytes of all tensors.
  uint64_t tensor_bytes() const;
  // Hash of config, formats and bytes of every tensor. Cost: reads all tensors, about 10 GB/s from
  // the page cache.
  Id128 Digest() const;

 protected:
  explicit ModelFiles(ModelConfig config) : config_(std::move(config)) {}

  // The tensor called `name` in this kind of file, its shape as stored. NOT_FOUND when absent.
  virtual absl::StatusOr<TensorView> FindByName(const std::string& name) const = 0;
  // The name of a role in this kind of file.
  virtual std::string NameOf(TensorRole role, int32_t layer) const = 0;
  virtual bool interleaves_rotation() const = 0;

 private:
  absl::Status CheckTensors() const;

  const ModelConfig config_;
};

// Only the config of the model at `path`; needs no tensors of a Hugging Face folder.
absl::StatusOr<ModelConfig> ReadModelConfig(absl::string_view path);

// The format of a GGUF block type: the reader admits only types that have one.
kernels::WeightFormat WeightFormatOf(formats::GgmlType type);

// Whether `path` is read as a GGUF file (it is a file, or its name ends in .gguf) rather than as a folder.
bool IsGgufPath(absl::string_view path);

}  // namespace sluice::model
