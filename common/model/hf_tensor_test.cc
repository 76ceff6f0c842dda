// Weight formats as published checkpoints store them, seen by the tensors beside a matrix.
#include "model/hf_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "formats/format_builders.h"
#include "kernels/fp/fp.h"

namespace sluice::model {
namespace {

using ::testing::HasSubstr;

// A checkpoint file of a test.
class HfTensorTest : public ::testing::Test {
 protected:
  HfTensorTest() {
    std::string path = ::testing::TempDir() + "hf_tensor_XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~HfTensorTest() override { std::filesystem::remove_all(folder_); }

  template <typename T>
  void Add(absl::string_view name, absl::string_view dtype, const std::vector<uint64_t>& shape,
           const std::vector<T>& values) {
    const size_t begin = data_.size();
    for (T value : values) formats::testing::Put(&data_, value);
    entries_.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[",
                                    absl::StrJoin(shape, ","), "],\"data_offsets\":[", begin, ",",
                                    data_.size(), "]}"));
  }
  // The matrix "a.weight", row by row.
  absl::StatusOr<std::vector<std::vector<float>>> Rows() {
    const std::string path = folder_ + "/model.safetensors";
    std::ofstream(path, std::ios::binary) << formats::testing::SafetensorsBytes(
        absl::StrCat("{", absl::StrJoin(entries_, ","), "}"), data_);
    const auto file = formats::Safetensors::OpenFile(path);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto view = ReadHfTensor(*file, "m", "a.weight");
    if (!view.ok()) return view.status();
    std::vector<std::vector<float>> rows;
    for (int64_t i = 0; i < view->rows; ++i) {
      rows.emplace_back(static_cast<size_t>(view->columns));
      kernels::DequantizeRow(view->format, view->Row(i), view->columns, rows.back().data());
    }
    return rows;
  }
  std::string Error() {
    const auto rows = Rows();
    EXPECT_FALSE(rows.ok());
    return std::string(rows.status().message());
  }

  std::string folder_;
  std::string data_;
  std::vector<std::string> entries_;
};

TEST_F(HfTensorTest, Fp8BlocksArePartialAtTheEdges) {
  const uint8_t one = kernels::FloatToE4m3(1.0f);
  Add<uint8_t>("a.weight", "F8_E4M3", {130, 129}, std::vector<uint8_t>(130 * 129, one));
  Add<float>("a.weight_scale_inv", "F32", {2, 2}, {1, 2, 3, 4});
  const auto rows = Rows();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[127][127], 1);
  EXPECT_EQ((*rows)[127][128], 2);
  EXPECT_EQ((*rows)[128][127], 3);
  EXPECT_EQ((*rows)[129][128], 4);
}

TEST_F(HfTensorTest, Fp8ChannelsHaveAScaleARowOrOneForAll) {
  const uint8_t two = kernels::FloatToE4m3(2.0f);
  Add<uint8_t>("a.weight", "F8_E4M3", {2, 3}, std::vector<uint8_t>(6, two));
  Add<uint16_t>("a.weight_scale", "BF16", {2, 1},
                {kernels::FloatToBf16(0.5f), kernels::FloatToBf16(-3.0f)});
  const auto rows = Rows();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0][2], 1);
  EXPECT_EQ((*rows)[1][0], -6);
  entries_.pop_back();
  data_.resize(6);
  Add<float>("a.weight_scale", "F32", {}, {4});
  const auto one = Rows();
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ((*one)[1][2], 8);
}

TEST_F(HfTensorTest, Int4IsPackedInWordsLowNibbleFirst) {
  std::vector<int32_t> words(8, static_cast<int32_t>(0x88888888));
  words[0] = static_cast<int32_t>(0xf8888880);  // elements 0 and 7 of row 0: -8 and 7
  Add<int32_t>("a.weight_packed", "I32", {2, 4}, words);
  Add<uint16_t>("a.weight_scale", "BF16", {2, 1},
                {kernels::FloatToBf16(0.5f), kernels::FloatToBf16(1.0f)});
  Add<int64_t>("a.weight_shape", "I64", {2}, {2, 32});
  const auto rows = Rows();
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ((*rows)[0].size(), 32u);
  EXPECT_EQ((*rows)[0][0], -4);
  EXPECT_EQ((*rows)[0][7], 3.5f);
  EXPECT_EQ((*rows)[1][5], 0);
}

// One producer stores the scale of the tensor, the other its reciprocal.
TEST_F(HfTensorTest, NvFp4OfBothProducersIsTheSame) {
  const std::vector<uint8_t> codes(16, 0x72);  // 1 and 6
  const std::vector<uint8_t> scales = {kernels::FloatToE4m3(1.0f), kernels::FloatToE4m3(0.5f)};
  Add<uint8_t>("a.weight", "U8", {1, 16}, codes);
  Add<uint8_t>("a.weight_scale", "F8_E4M3", {1, 2}, scales);
  Add<float>("a.weight_scale_2", "F32", {}, {0.25f});
  Add<float>("a.input_scale", "F32", {}, {1.0f});
  const auto multiplied = Rows();
  ASSERT_TRUE(multiplied.ok()) << multiplied.status();
  EXPECT_EQ((*multiplied)[0][0], 0.25f);
  EXPECT_EQ((*multiplied)[0][1], 1.5f);
  EXPECT_EQ((*multiplied)[0][17], 0.75f);
  entries_.clear();
  data_.clear();
  Add<uint8_t>("a.weight_packed", "U8", {1, 16}, codes);
  Add<uint8_t>("a.weight_scale", "F8_E4M3", {1, 2}, scales);
  Add<float>("a.weight_global_scale", "F32", {1}, {4.0f});
  const auto divided = Rows();
  ASSERT_TRUE(divided.ok()) << divided.status();
  EXPECT_EQ(*divided, *multiplied);
}

TEST_F(HfTensorTest, ErrorsNameTheTensorAndWhatWasExpected) {
  EXPECT_THAT(Error(), HasSubstr("m: tensor 'a.weight' is missing"));
  Add<uint8_t>("a.weight", "F8_E4M3", {2, 4}, std::vector<uint8_t>(8));
  EXPECT_THAT(Error(), HasSubstr("tensor 'a.weight_scale' is missing"));
  Add<float>("a.weight_scale", "F32", {4, 1}, {1, 1, 1, 1});
  EXPECT_THAT(Error(), HasSubstr("'a.weight_scale' is F32 [4,1], expected is F32 or BF16 [2,1]"));
  Add<float>("a.weight_scale_inv", "F32", {2, 1}, {1, 1});
  EXPECT_THAT(Error(),
              HasSubstr("'a.weight_scale_inv' is F32 [2,1], expected is F32 or BF16 [1,1]"));
}

TEST_F(HfTensorTest, PackedShapesMustAgree) {
  Add<int32_t>("a.weight_packed", "I32", {1, 4}, {0, 0, 0, 0});
  EXPECT_THAT(Error(), HasSubstr("tensor 'a.weight_shape' is missing"));
  Add<int64_t>("a.weight_shape", "I64", {2}, {1, 64});
  EXPECT_THAT(Error(), HasSubstr("tensor 'a.weight_scale' is missing"));
  Add<uint16_t>("a.weight_scale", "BF16", {1, 1}, {0});
  EXPECT_THAT(Error(), HasSubstr("'a.weight_packed' is I32 [1,4], expected is [N,K/8]"));
}

TEST_F(HfTensorTest, NvFp4NeedsAFiniteScale) {
  Add<uint8_t>("a.weight", "U8", {1, 8}, std::vector<uint8_t>(8));
  Add<uint8_t>("a.weight_scale", "F8_E4M3", {1, 1}, {0});
  Add<float>("a.weight_scale_2", "F32", {}, {0.0f});
  EXPECT_THAT(Error(), HasSubstr("'a.weight_scale_2' is F32 [], expected is a finite scale"));
}

}  // namespace
}  // namespace sluice::model
