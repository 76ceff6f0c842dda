#include "model/weights.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice::model {
namespace {

std::string Golden(absl::string_view name) {
  return absl::StrCat(SLUICE_TEST_DATA, "/golden/", name);
}

std::vector<float> RowOf(const TensorView& view, int64_t row) {
  std::vector<float> values(static_cast<size_t>(view.columns));
  kernels::DequantizeRow(view.format, view.Row(row), view.columns, values.data());
  return values;
}

// Row `output` of a group, whichever part holds it.
std::vector<float> GroupRow(const MatrixGroup& group, int64_t output) {
  std::vector<float> values(static_cast<size_t>(group.k));
  for (const MatrixGroup::Part& part : group.parts) {
    if (output >= part.column && output < part.column + part.matrix.n) {
      kernels::UnpackRow(part.matrix, output - part.column, values.data());
    }
  }
  return values;
}

class LoadedWeightsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Load(kernels::IsaPath path) {
    pool_ = *device::ThreadPool::Create({.workers = 2});
    auto files = ModelFiles::Open(Golden(GetParam()));
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
    auto weights = LoadedWeights::Load(*files_, path, *pool_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
  }
  void ExpectRows(const MatrixGroup& group, int64_t first, TensorRole role, int32_t layer) {
    const TensorView view = *files_->Find(role, layer);
    for (int64_t row = 0; row < view.rows; ++row) {
      ASSERT_EQ(GroupRow(group, first + row), RowOf(view, row)) << view.name << " row " << row;
    }
  }

  std::unique_ptr<device::ThreadPool> pool_;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<LoadedWeights> weights_;
};

TEST_P(LoadedWeightsTest, PacksEveryTensorOnEveryPath) {
  for (kernels::IsaPath path : kernels::AvailableIsaPaths()) {
    SCOPED_TRACE(std::string(kernels::IsaPathName(path)));
    Load(path);
    const ModelConfig& config = files_->config();
    ASSERT_EQ(weights_->layers().size(), 3u);
    for (int32_t i = 0; i < config.layers; ++i) {
      const LayerWeights& layer = weights_->layers()[static_cast<size_t>(i)];
      const auto& gqa = std::get<GqaWeights>(layer.attention);
      const auto& ffn = std::get<FeedForwardWeights>(layer.ffn);
      EXPECT_EQ(gqa.qkv.n, config.q_width() + 2 * config.kv_width());
      ExpectRows(gqa.qkv, 0, TensorRole::kQ, i);
      ExpectRows(gqa.qkv, config.q_width(), TensorRole::kK, i);
      ExpectRows(gqa.qkv, config.q_width() + config.kv_width(), TensorRole::kV, i);
      ExpectRows(gqa.o, 0, TensorRole::kO, i);
      ExpectRows(ffn.gate_up, 0, TensorRole::kGate, i);
      ExpectRows(ffn.gate_up, config.intermediate, TensorRole::kUp, i);
      ExpectRows(ffn.down, 0, TensorRole::kDown, i);
      EXPECT_EQ(layer.attn_norm, RowOf(*files_->Find(TensorRole::kAttnNorm, i), 0));
      EXPECT_EQ(gqa.q_norm.empty(), !config.qk_norm);
    }
    const TensorView embedding = *files_->Find(TensorRole::kEmbedding);
    std::vector<float> row(static_cast<size_t>(config.hidden));
    for (int32_t token = 0; token < config.vocabulary; ++token) {
      weights_->Embedding(token, row.data());
      ASSERT_EQ(row, RowOf(embedding, token)) << token;
    }
  }
}

TEST_P(LoadedWeightsTest, FusesNeighboursOfOneFormat) {
  Load(kernels::IsaPath::kReference);
  const LayerWeights& layer = weights_->layers()[0];
  // The GGUF twins keep V in F32 and the rest in BF16.
  const bool mixed = IsGgufPath(GetParam());
  EXPECT_EQ(std::get<GqaWeights>(layer.attention).qkv.parts.size(), mixed ? 2u : 1u);
  EXPECT_EQ(std::get<FeedForwardWeights>(layer.ffn).gate_up.parts.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Models, LoadedWeightsTest,
                         ::testing::Values("models/tiny-llama", "models/tiny-llama3-rope",
                                           "models/tiny-qwen3", "gguf/tiny-llama.gguf",
                                           "gguf/tiny-qwen3.gguf"));

}  // namespace
}  // namespace sluice::model
