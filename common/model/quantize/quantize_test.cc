#include "model/quantize/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/model_files.h"

namespace sluice::model {
namespace {

using kernels::WeightFormat;
using ::testing::HasSubstr;

std::string Golden(absl::string_view name) {
  return absl::StrCat(SLUICE_TEST_DATA, "/golden/models/", name);
}

std::vector<float> RowOf(const TensorView& view, int64_t row) {
  std::vector<float> values(static_cast<size_t>(view.columns));
  kernels::DequantizeRow(view.format, view.Row(row), view.columns, values.data());
  return values;
}

class QuantizeTest : public ::testing::Test {
 protected:
  QuantizeTest() : pool_(*device::ThreadPool::Create({.workers = 2})) {
    std::string path = ::testing::TempDir() + "quantize_XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~QuantizeTest() override { std::filesystem::remove_all(folder_); }

  std::string Out(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }
  QuantizeReport Quantize(const std::string& source, const std::string& out, QuantizeTo to,
                          uint64_t shard_bytes = uint64_t{4} << 30) {
    const auto report = QuantizeFolder(source, out, {to, shard_bytes}, *pool_);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : QuantizeReport();
  }
  // Compares every tensor of two models; values may differ by `relative` of the largest of a row
  // when the second is in `format`, else not at all.
  static void ExpectClose(const std::string& a, const std::string& b, WeightFormat format,
                          double relative) {
    const auto x = ModelFiles::Open(a);
    const auto y = ModelFiles::Open(b);
    ASSERT_TRUE(x.ok() && y.ok()) << x.status() << y.status();
    EXPECT_EQ(ConfigDigest((*x)->config()), ConfigDigest((*y)->config()));
    int quantised = 0;
    ASSERT_TRUE(ForEachTensor((*x)->config(), [&](TensorId id) {
                  const TensorView from = *(*x)->Find(id);
                  const TensorView to = *(*y)->Find(id);
                  quantised += to.format == format;
                  for (int64_t row = 0; row < from.rows; ++row) {
                    const std::vector<float> want = RowOf(from, row);
                    const std::vector<float> got = RowOf(to, row);
                    float largest = 0;
                    for (float value : want) largest = std::max(largest, std::abs(value));
                    const double tolerance = to.format == format ? relative * largest : 0;
                    for (size_t i = 0; i < want.size(); ++i) {
                      EXPECT_NEAR(got[i], want[i], tolerance) << from.name << " " << row;
                    }
                  }
                  return absl::OkStatus();
                }).ok());
    EXPECT_GT(quantised, 10);
  }

  std::unique_ptr<device::ThreadPool> pool_;
  std::string folder_;
};

// A code is off by at most half a scale, a scale at most 1 / 7.5 of the largest value of the row.
constexpr double kInt4Error = 0.55 / 7.5;

TEST_F(QuantizeTest, Int4TakesTheRoutedExpertsOnly) {
  const std::string source = Golden("tiny-glm4-moe");
  const QuantizeReport report = Quantize(source, Out("int4"), QuantizeTo::kInt4);
  EXPECT_EQ(report.quantized, 2u * 8 * 3);  // layers, experts, matrices
  EXPECT_EQ(report.widened, 0u);
  EXPECT_LT(report.bytes_after, report.bytes_before * 7 / 10);
  ExpectClose(source, Out("int4"), WeightFormat::kInt4, kInt4Error);
}

TEST_F(QuantizeTest, Int4AllTakesEveryMatrixOfALayerButTheRouter) {
  const std::string source = Golden("tiny-qwen3-moe");
  Quantize(source, Out("int4"), QuantizeTo::kInt4All);
  ExpectClose(source, Out("int4"), WeightFormat::kInt4, kInt4Error);
  const auto files = ModelFiles::Open(Out("int4"));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->Find(TensorRole::kQ)->format, WeightFormat::kInt4);
  EXPECT_EQ((*files)->Find(TensorRole::kRouter)->format, WeightFormat::kBf16);
  EXPECT_EQ((*files)->Find(TensorRole::kOutput)->format, WeightFormat::kBf16);
}

TEST_F(QuantizeTest, Fp8TakesEveryMatrixOfALayerButTheRouter) {
  const std::string source = Golden("tiny-qwen3-moe");
  Quantize(source, Out("fp8"), QuantizeTo::kFp8);
  // e4m3 keeps 4 bits: half a step is 1/16 of a value at the top of a binade.
  ExpectClose(source, Out("fp8"), WeightFormat::kFp8Block, 1.0 / 16);
  const auto files = ModelFiles::Open(Out("fp8"));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->Find(TensorRole::kQ)->format, WeightFormat::kFp8Block);
  EXPECT_EQ((*files)->Find(TensorRole::kRouter)->format, WeightFormat::kBf16);
  EXPECT_EQ((*files)->Find(TensorRole::kOutput)->format, WeightFormat::kBf16);
}

TEST_F(QuantizeTest, AQuantisedCheckpointIsWidenedWhereTheFormatDoesNotReach) {
  const std::string source = Golden("tiny-glm4-moe-fp8-channel");
  const QuantizeReport report = Quantize(source, Out("int4"), QuantizeTo::kInt4);
  EXPECT_EQ(report.quantized, 2u * 8 * 3);
  EXPECT_EQ(report.widened, 3u * 4 + 3u + 2u * 3);  // attention, dense and shared feed-forward
  const auto files = ModelFiles::Open(Out("int4"));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->Find(TensorRole::kQ)->format, WeightFormat::kBf16);
}

TEST_F(QuantizeTest, DenseModelsQuantiseEveryLayerAndKeepOtherFiles) {
  const std::string source = Out("source");
  std::filesystem::copy(Golden("tiny-llama"), source);
  std::ofstream(source + "/tokenizer.json") << "{}";
  // Small shards: an index and several files.
  const QuantizeReport report = Quantize(source, Out("int4"), QuantizeTo::kInt4, 50'000);
  EXPECT_EQ(report.quantized, 3u * 7);
  EXPECT_TRUE(std::filesystem::exists(Out("int4") + "/model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(Out("int4") + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(Out("int4") + "/tokenizer.json"));
  ExpectClose(source, Out("int4"), WeightFormat::kInt4, kInt4Error);
}

TEST_F(QuantizeTest, LosslessKeepsEveryBitOfBf16) {
  for (absl::string_view name : {"tiny-qwen3-moe", "tiny-llama"}) {
    const std::string source = Golden(name);
    const std::string out = Out(name);
    const QuantizeReport report = Quantize(source, out, QuantizeTo::kLossless);
    EXPECT_LT(report.bytes_after, report.bytes_before * 82 / 100);
    ExpectClose(source, out, WeightFormat::kBf16Palette, 0);
  }
}

TEST_F(QuantizeTest, LosslessLeavesQuantisedMatricesAlone) {
  const std::string source = Golden("tiny-glm4-moe-fp8-channel");
  Quantize(source, Out("lossless"), QuantizeTo::kLossless);
  const auto files = ModelFiles::Open(Out("lossless"));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->Find(TensorRole::kQ)->format, WeightFormat::kFp8Channel);
  EXPECT_EQ((*files)->Find(TensorRole::kOutput)->format, WeightFormat::kBf16Palette);
}

TEST_F(QuantizeTest, RefusesWhatItCannotDo) {
  const auto error = [&](const std::string& source, const std::string& out) {
    return std::string(QuantizeFolder(source, out, {}, *pool_).status().message());
  };
  EXPECT_THAT(error(Golden("tiny-llama"), folder_), HasSubstr("exists; name a new folder"));
  EXPECT_THAT(error(absl::StrCat(SLUICE_TEST_DATA, "/golden/gguf/tiny-llama.gguf"), Out("x")),
              HasSubstr("only a folder"));
  EXPECT_THAT(error(Golden("missing"), Out("x")), HasSubstr("config.json"));
  EXPECT_FALSE(std::filesystem::exists(Out("x")));
}

}  // namespace
}  // namespace sluice::model
