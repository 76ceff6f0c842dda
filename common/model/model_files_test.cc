#include "model/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "formats/mapped_file.h"
#include "formats/safetensors.h"
#include "model/kv_centre.h"
#include "model/numerics_id.h"
#include "model/tokenizer_inputs.h"

namespace sluice::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Golden(absl::string_view name) {
  return absl::StrCat(SLUICE_TEST_DATA, "/golden/", name);
}

std::vector<float> RowOf(const TensorView& view, int64_t row) {
  std::vector<float> values(static_cast<size_t>(view.columns));
  kernels::DequantizeRow(view.format, view.Row(row), view.columns, values.data());
  return values;
}

TEST(GgufTypes, EveryBlockTypeDequantisesExactly) {
  const auto file = formats::GgufFile::Open(Golden("gguf/types.gguf"));
  const auto expected = formats::Safetensors::OpenFile(Golden("gguf/types.safetensors"));
  ASSERT_TRUE(file.ok() && expected.ok()) << file.status() << expected.status();
  ASSERT_EQ(file->tensors().size(), 11u);
  for (const formats::GgufTensor& tensor : file->tensors()) {
    const formats::SafetensorsTensor* want = expected->Find(tensor.name);
    ASSERT_NE(want, nullptr) << tensor.name;
    const kernels::WeightFormat format = WeightFormatOf(tensor.type);
    const int64_t k = static_cast<int64_t>(tensor.row_elements());
    std::vector<float> values(tensor.rows() * tensor.row_elements());
    for (size_t row = 0; row < tensor.rows(); ++row) {
      kernels::DequantizeRow(
          format, {tensor.data.data() + static_cast<int64_t>(row) * kernels::RowBytes(format, k)},
          k, values.data() + row * tensor.row_elements());
    }
    ASSERT_EQ(want->data.size(), values.size() * sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
      float reference;
      std::memcpy(&reference, want->data.data() + i * sizeof(float), sizeof(float));
      ASSERT_EQ(values[i], reference) << tensor.name << " element " << i;
    }
  }
}

// The GGUF twins hold the same weights, llama's q and k rows permuted: read by role they are equal.
TEST(ModelFiles, GgufAndSafetensorsTwinsHoldTheSameRows) {
  for (absl::string_view name : {"tiny-llama", "tiny-qwen3"}) {
    const auto hf = ModelFiles::Open(Golden(absl::StrCat("models/", name)));
    const auto gguf = ModelFiles::Open(Golden(absl::StrCat("gguf/", name, ".gguf")));
    ASSERT_TRUE(hf.ok() && gguf.ok()) << hf.status() << gguf.status();
    EXPECT_EQ(ConfigDigest((*hf)->config()), ConfigDigest((*gguf)->config()));
    EXPECT_NE((*hf)->Digest(), (*gguf)->Digest());  // V is F32 in one of them
    int compared = 0;
    for (int role = 0; role <= static_cast<int>(TensorRole::kDown); ++role) {
      for (int32_t layer = 0; layer < 3; ++layer) {
        const auto a = (*hf)->Find(static_cast<TensorRole>(role), layer);
        const auto b = (*gguf)->Find(static_cast<TensorRole>(role), layer);
        ASSERT_EQ(a.ok(), b.ok()) << a.status() << b.status();
        if (!a.ok()) continue;
        for (int64_t row = 0; row < a->rows; ++row) {
          ASSERT_EQ(RowOf(*a, row), RowOf(*b, row)) << a->name << " row " << row;
          ++compared;
        }
      }
    }
    EXPECT_GT(compared, 3000);
  }
}

TEST(ModelFiles, DigestFollowsEveryByteAndTheConfig) {
  const auto a = ModelFiles::Open(Golden("models/tiny-llama"));
  const auto again = ModelFiles::Open(Golden("models/tiny-llama"));
  const auto b = ModelFiles::Open(Golden("models/tiny-llama3-rope"));
  ASSERT_TRUE(a.ok() && b.ok() && again.ok());
  EXPECT_EQ((*a)->Digest(), (*again)->Digest());
  EXPECT_NE((*a)->Digest(), (*b)->Digest());
  EXPECT_EQ((*a)->tensor_bytes(), 968448u);
}

TEST(NumericsId, DependsOnEveryInput) {
  const NumericsInputs base = {{1, 2}, "avx2", {3, 4}, {5, 6}};
  NumericsInputs changed[4] = {base, base, base, base};
  changed[0].model_digest.low = 9;
  changed[1].isa_path = "avx512";
  changed[2].layout_hash.low = 9;
  changed[3].probe_logits.low = 9;
  EXPECT_EQ(NumericsId(base), NumericsId(base));
  for (const NumericsInputs& inputs : changed) EXPECT_NE(NumericsId(inputs), NumericsId(base));
}

// A copy of a golden folder that a test may break.
class BrokenModel : public ::testing::Test {
 protected:
  BrokenModel() {
    std::string path = ::testing::TempDir() + "model_XXXXXX";
    folder_ = mkdtemp(path.data());
    std::filesystem::copy(Golden("models/tiny-llama"), folder_);
  }
  ~BrokenModel() override { std::filesystem::remove_all(folder_); }

  // Replaces text of one of its files. In a safetensors header keep the length.
  void Replace(const std::string& name, absl::string_view from, absl::string_view to) const {
    const std::string path = folder_ + "/" + name;
    const std::string text = *formats::ReadTextFile(path, 1u << 30);
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(text, changed) << from;
    std::ofstream(path, std::ios::binary) << changed;
  }
  std::string OpenError() const {
    const auto files = ModelFiles::Open(folder_);
    EXPECT_FALSE(files.ok());
    return std::string(files.status().message());
  }

  std::string folder_;
};

TEST_F(BrokenModel, MissingTensorIsNamed) {
  Replace("model.safetensors", "model.layers.1.mlp.up_proj.weight",
          "model.layers.1.mlp.xx_proj.weight");
  EXPECT_THAT(OpenError(), HasSubstr("'model.layers.1.mlp.up_proj.weight' is missing"));
}

TEST_F(BrokenModel, WrongShapeIsNamedWithBothShapes) {
  Replace("config.json", "\"intermediate_size\": 256", "\"intermediate_size\": 255");
  EXPECT_THAT(OpenError(), HasSubstr("has 256 rows of 128, the config asks for 255 of 128"));
}

TEST_F(BrokenModel, UnknownTypesAndBiasesAreRefused) {
  Replace("model.safetensors", "model.layers.0.self_attn.k_proj.weight\":{\"dtype\":\"BF16\"",
          "model.layers.0.self_attn.k_proj.weight\":{\"dtype\":\"I16\" ");
  EXPECT_THAT(OpenError(), HasSubstr("is I16; read are F32, F16 and BF16, and F8_E4M3 and U8"));
  Replace("model.safetensors", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.gate_pro.x.bias ");
  Replace("model.safetensors", ".x.bias ", "j.x.bias");
  EXPECT_THAT(OpenError(), HasSubstr("biases are not built"));
}

TEST_F(BrokenModel, TruncatedFilesAreRefused) {
  const std::string path = folder_ + "/model.safetensors";
  const std::string gguf = folder_ + "/copy.gguf";
  std::filesystem::copy(Golden("gguf/tiny-llama.gguf"), gguf);
  // From the last byte down to nothing, in steps that end inside data, header and counts.
  for (const std::string& name : {path, gguf}) {
    uintmax_t size = std::filesystem::file_size(name);
    for (uintmax_t step = 1; size > 0; step *= 2) {
      size -= std::min(step, size);
      std::filesystem::resize_file(name, size);
      EXPECT_FALSE(ModelFiles::Open(name == gguf ? gguf : folder_).ok()) << name << " " << size;
    }
  }
}

TEST_F(BrokenModel, MissingConfigSaysWhichFile) {
  std::filesystem::remove(folder_ + "/config.json");
  EXPECT_THAT(OpenError(), HasSubstr("config.json"));
  EXPECT_EQ(ReadModelConfig(folder_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(BrokenModel, TokenizerFilesAreReadWithoutTensors) {
  std::filesystem::remove(folder_ + "/model.safetensors");
  EXPECT_EQ(ReadTokenizerInputs(folder_)->kind, TokenizerInputs::Kind::kNone);
  std::ofstream(folder_ + "/tokenizer.json") << "{}";
  std::ofstream(folder_ + "/tokenizer_config.json") << R"({"chat_template": "hi"})";
  auto inputs = ReadTokenizerInputs(folder_);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(inputs->kind, TokenizerInputs::Kind::kTokenizerJson);
  EXPECT_EQ(inputs->tokenizer_json, "{}");
  EXPECT_EQ(inputs->chat_template, "hi");
  std::ofstream(folder_ + "/tokenizer_config.json")
      << R"({"chat_template": [{"name": "tool", "template": "a"}, {"name": "default", "template": "b"}]})";
  EXPECT_EQ(ReadTokenizerInputs(folder_)->chat_template, "b");
  std::ofstream(folder_ + "/chat_template.jinja") << "c";
  EXPECT_EQ(ReadTokenizerInputs(folder_)->chat_template, "c");
  std::ofstream(folder_ + "/tokenizer_config.json") << "{";
  std::filesystem::remove(folder_ + "/chat_template.jinja");
  EXPECT_THAT(std::string(ReadTokenizerInputs(folder_).status().message()),
              HasSubstr("tokenizer_config.json"));
}

TEST_F(BrokenModel, AFileOfAnyNameIsReadAsGguf) {
  const std::string path = folder_ + "/weights.bin";
  std::ofstream(path) << "GGML, rather";
  const auto config = ReadModelConfig(path);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("does not start with \"GGUF\""));
}

TEST(TokenizerInputs, GgufWithoutATokenizerHasNone) {
  const auto inputs = ReadTokenizerInputs(Golden("gguf/tiny-llama.gguf"));
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(inputs->kind, TokenizerInputs::Kind::kNone);
}

class KvCentreTest : public BrokenModel {
 protected:
  KvCentreTest() {
    config_.layers = 2;
    config_.kv_heads = 3;
    config_.head_dim = 4;
    centre_.layers = 2;
    centre_.kv_heads = 3;
    centre_.head_dim = 4;
    for (int i = 0; i < 24; ++i) {
      centre_.k.push_back(static_cast<float>(i) / 4 - 2);
      centre_.v.push_back(static_cast<float>(i) / 8 - 1);
    }
  }
  std::string File() const { return absl::StrCat(folder_, "/centre.safetensors"); }
  std::string ReadError() const {
    return std::string(ReadKvCentre(File(), config_).status().message());
  }

  ModelConfig config_;
  KvCentre centre_;
};

TEST_F(KvCentreTest, WhatIsWrittenIsRead) {
  ASSERT_TRUE(WriteKvCentre(File(), centre_).ok());
  const auto read = ReadKvCentre(File(), config_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->k, centre_.k);
  EXPECT_EQ(read->v, centre_.v);
  EXPECT_EQ(read->Digest(), centre_.Digest());
}

TEST_F(KvCentreTest, TheDigestFollowsEveryValueAndTheShape) {
  const std::string digest = centre_.Digest();
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_EQ(KvCentre().Digest(), "");
  KvCentre other = centre_;
  other.k[23] += 0.25f;
  EXPECT_NE(other.Digest(), digest);
  other = centre_;
  std::swap(other.k, other.v);
  EXPECT_NE(other.Digest(), digest);
  other = centre_;
  std::swap(other.layers, other.kv_heads);
  EXPECT_NE(other.Digest(), digest);
}

TEST_F(KvCentreTest, FilesOfOtherModelsOrWithBadValuesAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(ReadKvCentre(File(), config_).status()));
  ASSERT_TRUE(WriteKvCentre(File(), centre_).ok());
  config_.layers = 5;
  EXPECT_THAT(ReadError(), AllOf(HasSubstr("[2,3,4]"), HasSubstr("[5,3,4]")));
  config_.layers = 2;
  centre_.v[7] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(WriteKvCentre(File(), centre_).ok());
  EXPECT_THAT(ReadError(), HasSubstr("element 7 of 'v_centre'"));
  const formats::SafetensorsF32 other = {"other", {1}, {centre_.k.data(), 1}};
  ASSERT_TRUE(formats::WriteSafetensors(File(), {&other, 1}).ok());
  EXPECT_THAT(ReadError(), HasSubstr("no tensor 'k_centre'"));
  std::ofstream(File()) << "not a safetensors file";
  EXPECT_TRUE(absl::IsInvalidArgument(ReadKvCentre(File(), config_).status()));
}

TEST(KvCentrePath, LiesBesideTheModel) {
  EXPECT_EQ(KvCentrePath("/models/m.Q4_1.gguf"), "/models/m.Q4_1.kv_centre.safetensors");
  EXPECT_EQ(KvCentrePath("/models/m"), "/models/m/kv_centre.safetensors");
  EXPECT_EQ(KvCentrePath("/models/m/"), "/models/m/kv_centre.safetensors");
}

}  // namespace
}  // namespace sluice::model
