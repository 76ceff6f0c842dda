#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/format_builders.h"

namespace sluice::formats {
namespace {

using testing::AsBytes;
using ::testing::ElementsAre;
using testing::GgufBytes;
using testing::GgufPair;
using testing::GgufTensorInfo;
using ::testing::HasSubstr;
using testing::Put;
using testing::PutString;

template <typename T>
std::string Scalar(T value) {
  std::string out;
  Put(&out, value);
  return out;
}

std::string Text(absl::string_view text) {
  std::string out;
  PutString(&out, text);
  return out;
}

std::string ArrayOf(uint32_t element, uint64_t count, absl::string_view payload) {
  return Scalar(element) + Scalar(count) + std::string(payload);
}

// Two F32 tensors of 8 values and one of every metadata type.
GgufBytes Good() {
  GgufBytes file;
  file.pairs = {
      GgufPair("u8", 0, Scalar<uint8_t>(200)),
      GgufPair("i8", 1, Scalar<int8_t>(-3)),
      GgufPair("u16", 2, Scalar<uint16_t>(40000)),
      GgufPair("i16", 3, Scalar<int16_t>(-300)),
      GgufPair("u32", 4, Scalar<uint32_t>(4000000000u)),
      GgufPair("i32", 5, Scalar<int32_t>(-70000)),
      GgufPair("f32", 6, Scalar<float>(0.5f)),
      GgufPair("bool", 7, Scalar<uint8_t>(1)),
      GgufPair("string", 8, Text("hello")),
      GgufPair("u64", 10, Scalar<uint64_t>(1ull << 63)),
      GgufPair("i64", 11, Scalar<int64_t>(-5000000000)),
      GgufPair("f64", 12, Scalar<double>(0.25)),
      GgufPair("strings", 9, ArrayOf(8, 3, Text("a") + Text("") + Text("bc"))),
      GgufPair("ints", 9, ArrayOf(5, 2, Scalar<int32_t>(-1) + Scalar<int32_t>(7))),
      GgufPair("floats", 9, ArrayOf(6, 2, Scalar<float>(1) + Scalar<float>(2))),
  };
  file.tensors = {GgufTensorInfo("a", {4, 2}, 0, 0), GgufTensorInfo("b", {8}, 0, 32)};
  file.data = std::string(64, '\1');
  return file;
}

absl::Status ParseStatus(const std::string& bytes, const GgufLimits& limits = {}) {
  return GgufFile::Parse(AsBytes(bytes), "test.gguf", limits).status();
}

void ExpectRefused(const GgufBytes& file, absl::string_view reason) {
  const absl::Status status = ParseStatus(file.Build());
  EXPECT_FALSE(status.ok()) << reason;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(reason)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("test.gguf"));
}

TEST(Gguf, ReadsEveryMetadataType) {
  const std::string bytes = Good().Build();
  const auto file = GgufFile::Parse(AsBytes(bytes), "test.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->GetU64("u8"), 200u);
  EXPECT_EQ(*file->GetU32("u16"), 40000u);
  EXPECT_EQ(*file->GetU32("u32"), 4000000000u);
  EXPECT_EQ(*file->GetF64("f32"), 0.5);
  EXPECT_EQ(*file->GetF64("f64"), 0.25);
  EXPECT_EQ(*file->GetBool("bool"), true);
  EXPECT_EQ(*file->GetString("string"), "hello");
  EXPECT_EQ(*file->GetU64("u64"), 1ull << 63);
  EXPECT_THAT(*file->GetStringArray("strings"), ElementsAre("a", "", "bc"));
  EXPECT_THAT(*file->GetIntArray("ints"), ElementsAre(-1, 7));
}

TEST(Gguf, GettersNameTheKeyAndTheTypeFound) {
  const std::string bytes = Good().Build();
  const auto file = GgufFile::Parse(AsBytes(bytes), "test.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->GetU32("nope").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file->GetU32("nope").status().message()), HasSubstr("'nope'"));
  EXPECT_THAT(std::string(file->GetU32("string").status().message()),
              HasSubstr("'string' is string, expected an integer"));
  EXPECT_FALSE(file->GetU32("u64").ok());
  for (const char* negative : {"i8", "i16", "i32", "i64"}) {
    EXPECT_FALSE(file->GetU64(negative).ok()) << negative;
  }
  EXPECT_FALSE(file->GetF64("u32").ok());
  EXPECT_FALSE(file->GetBool("u8").ok());
  EXPECT_FALSE(file->GetString("strings").ok());
  EXPECT_FALSE(file->GetStringArray("ints").ok());
  EXPECT_FALSE(file->GetIntArray("floats").ok());
}

TEST(Gguf, TensorsAreViewsWithTheFastestDimensionFirst) {
  const std::string bytes = Good().Build();
  const auto file = GgufFile::Parse(AsBytes(bytes), "test.gguf");
  ASSERT_TRUE(file.ok());
  const GgufTensor* a = file->FindTensor("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->row_elements(), 4u);
  EXPECT_EQ(a->rows(), 2u);
  EXPECT_EQ(a->data.size(), 32u);
  EXPECT_EQ(file->FindTensor("b")->data.data(), a->data.data() + 32);
  EXPECT_EQ(file->FindTensor("c"), nullptr);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string bytes = Good().Build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly this size lets AddressSanitizer see a read past the end.
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(GgufFile::Parse(cut, "cut.gguf").ok()) << size;
  }
}

TEST(Gguf, LyingHeaderFieldsAreRefused) {
  GgufBytes file = Good();
  file.magic = 0x46554746;
  ExpectRefused(file, "GGUF");
  file = Good();
  file.version = 2;
  ExpectRefused(file, "version 2");
  file = Good();
  file.extra_tensors = 1;
  ExpectRefused(file, "bad GGUF");
  file.extra_tensors = int64_t{1} << 60;
  ExpectRefused(file, "the limit is");
  file = Good();
  file.extra_pairs = 1;
  ExpectRefused(file, "bad GGUF");
  file.extra_pairs = -16;  // wraps to a huge count
  ExpectRefused(file, "the limit is");
}

TEST(Gguf, LyingMetadataIsRefused) {
  const auto with = [](std::string pair) {
    GgufBytes file = Good();
    file.pairs.push_back(std::move(pair));
    return file;
  };
  ExpectRefused(with(GgufPair("u8", 0, Scalar<uint8_t>(1))), "'u8' appears twice");
  ExpectRefused(with(GgufPair("x", 13, "")), "value type 13");
  ExpectRefused(with(GgufPair("x", 7, Scalar<uint8_t>(2))), "bool");
  ExpectRefused(with(GgufPair("x", 8, Scalar<uint64_t>(~0ull))), "bytes in a string");
  ExpectRefused(with(GgufPair("x", 8, Scalar<uint64_t>(4096))), "ends inside");
  ExpectRefused(with(GgufPair("x", 9, ArrayOf(14, 1, ""))), "value type 14");
  ExpectRefused(with(GgufPair("x", 9, ArrayOf(9, 1, ""))), "arrays of arrays");
  ExpectRefused(with(GgufPair("x", 9, ArrayOf(10, 1ull << 61, ""))), "array elements");
  ExpectRefused(with(GgufPair("x", 9, ArrayOf(10, 4096, ""))), "ends inside");
  ExpectRefused(with(GgufPair("x", 9, ArrayOf(8, 100000, ""))), "bad GGUF");
  ExpectRefused(with(Scalar<uint64_t>(1ull << 40)), "bytes in a metadata key");
  for (uint32_t alignment : {0u, 4u, 33u, 1u << 30}) {
    ExpectRefused(with(GgufPair("general.alignment", 4, Scalar(alignment))), "general.alignment");
  }
  ExpectRefused(with(GgufPair("general.alignment", 8, Text("32"))), "general.alignment");
}

TEST(Gguf, LyingTensorInfosAreRefused) {
  const auto with = [](std::string info) {
    GgufBytes file = Good();
    file.tensors[1] = std::move(info);
    return file;
  };
  ExpectRefused(with(GgufTensorInfo("a", {8}, 0, 32)), "'a' appears twice");
  ExpectRefused(with(GgufTensorInfo("b", {}, 0, 32)), "0 dimensions");
  ExpectRefused(with(GgufTensorInfo("b", {1, 1, 1, 1, 8}, 0, 32)), "5 dimensions");
  ExpectRefused(with(GgufTensorInfo("b", {0}, 0, 32)), "empty dimension");
  ExpectRefused(with(GgufTensorInfo("b", {8}, 4, 32)), "block type 4");
  ExpectRefused(with(GgufTensorInfo("b", {8}, 2, 32)), "not a multiple of the Q4_0 block");
  ExpectRefused(with(GgufTensorInfo("b", {8}, 0, 33)), "not at a multiple of 32");
  ExpectRefused(with(GgufTensorInfo("b", {8}, 0, 64)), "takes 32 bytes at 64");
  ExpectRefused(with(GgufTensorInfo("b", {9}, 0, 32)), "takes 36 bytes at 32");
  ExpectRefused(with(GgufTensorInfo("b", {8}, 0, 0)), "overlap");
  ExpectRefused(with(GgufTensorInfo("b", {8}, 0, ~0ull - 31)), "takes 32 bytes at");
  ExpectRefused(with(GgufTensorInfo("b", {1ull << 32, 1ull << 32}, 0, 32)), "overflows");
  ExpectRefused(with(GgufTensorInfo("b", {1ull << 62}, 0, 32)), "overflows");
  ExpectRefused(with(GgufTensorInfo(std::string(65, 'n'), {8}, 0, 32)), "bytes in a tensor name");
}

TEST(Gguf, HonoursAnotherAlignment) {
  GgufBytes file = Good();
  file.pairs.push_back(GgufPair("general.alignment", 4, Scalar<uint32_t>(64)));
  file.alignment = 64;
  file.tensors[1] = GgufTensorInfo("b", {8}, 0, 64);
  file.data = std::string(96, '\1');
  EXPECT_TRUE(ParseStatus(file.Build()).ok()) << ParseStatus(file.Build());
  file.tensors[1] = GgufTensorInfo("b", {8}, 0, 32);
  ExpectRefused(file, "not at a multiple of 64");
}

TEST(Gguf, HeaderLimitIsEnforced) {
  GgufLimits limits;
  limits.max_header_bytes = 64;
  EXPECT_THAT(std::string(ParseStatus(Good().Build(), limits).message()),
              HasSubstr("the header is over 64 bytes"));
}

TEST(Gguf, OpenNamesPathAndErrno) {
  const absl::Status status = GgufFile::Open("/nonexistent/model.gguf").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/model.gguf"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file"));
  EXPECT_THAT(std::string(GgufFile::Open("/").status().message()), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace sluice::formats
