#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "formats/format_builders.h"

namespace sluice::formats {
namespace {

using testing::AsBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Put;
using testing::SafetensorsBytes;

constexpr absl::string_view kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";

// A temporary folder of this test alone.
class SafetensorsFiles : public ::testing::Test {
 protected:
  SafetensorsFiles() {
    std::string path = ::testing::TempDir() + "safetensors_XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~SafetensorsFiles() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }

  std::string folder_;
};

void ExpectRefused(absl::string_view header, absl::string_view reason, size_t data_bytes = 16) {
  const std::string bytes = SafetensorsBytes(header, std::string(data_bytes, '\0'));
  const absl::Status status = ParseSafetensors(AsBytes(bytes), "x.safetensors").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << header;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(reason))) << header;
  EXPECT_THAT(std::string(status.message()), HasSubstr("x.safetensors"));
}

// One tensor "a" of 16 bytes with the given description.
void ExpectTensorRefused(absl::string_view description, absl::string_view reason) {
  ExpectRefused(absl::StrCat(R"({"a":)", description, "}"), reason);
}

TEST(Safetensors, ListsTensorsInFileOrder) {
  const std::string bytes = SafetensorsBytes(kGood, std::string(16, '\0'));
  const auto header = ParseSafetensors(AsBytes(bytes), "x");
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].type, SafetensorsType::kBF16);
  EXPECT_THAT(header->tensors[1].shape, ElementsAre(2, 3));
  EXPECT_EQ(header->tensors[1].elements(), 6u);
  EXPECT_EQ(header->metadata[0].second, "pt");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string bytes = SafetensorsBytes(kGood, std::string(16, '\0'));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(ParseSafetensors(cut, "cut").ok()) << size;
  }
}

TEST(Safetensors, LyingHeaderLengthIsRefused) {
  for (uint64_t size : {uint64_t{0}, uint64_t{17}, uint64_t{200'000'000}, ~uint64_t{0}}) {
    std::string bytes;
    Put(&bytes, size);
    bytes += "{\"a\":1}         ";
    EXPECT_FALSE(ParseSafetensors(AsBytes(bytes), "x").ok()) << size;
  }
  SafetensorsLimits limits;
  limits.max_header_bytes = 10;
  const std::string bytes = SafetensorsBytes(kGood, std::string(16, '\0'));
  EXPECT_FALSE(ParseSafetensors(AsBytes(bytes), "x", limits).ok());
}

TEST(Safetensors, LyingFieldsAreRefused) {
  ExpectRefused("[]", "no JSON object");
  ExpectRefused("{", "bad JSON");
  ExpectRefused(R"({"__metadata__":{"a":1}})", "__metadata__");
  ExpectRefused(R"({"__metadata__":[]})", "__metadata__");
  ExpectTensorRefused("5", "not described by an object");
  ExpectTensorRefused(R"({"shape":[4],"data_offsets":[0,16]})", "'dtype' is missing");
  ExpectTensorRefused(R"({"dtype":"F31","shape":[4],"data_offsets":[0,16]})", "dtype 'F31'");
  ExpectTensorRefused(R"({"dtype":4,"shape":[4],"data_offsets":[0,16]})", "'dtype' is integer");
  ExpectTensorRefused(R"({"dtype":"F32","data_offsets":[0,16]})", "no array 'shape'");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})", "no count");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})", "no count");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})",
                      "9 numbers");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[4]})", "no array 'data_offsets'");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[0]})", "data_offsets [0]");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})", "data_offsets");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})", "16 bytes of data");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})", "does not take");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]})",
                      "does not take");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})", "hole");
  ExpectTensorRefused(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
                      "the tensors end at 8");
}

TEST(Safetensors, OverlapHolesAndDuplicatesAreRefused) {
  const auto two = [](absl::string_view second, absl::string_view offsets) {
    return absl::StrCat(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},")", second,
                        R"(":{"dtype":"U8","shape":[8],"data_offsets":)", offsets, "}}");
  };
  ExpectRefused(two("b", "[7,15]"), "overlap", 15);
  ExpectRefused(two("b", "[9,17]"), "hole", 17);
  ExpectRefused(two("a", "[8,16]"), "duplicate key 'a'");
  const std::string good = SafetensorsBytes(two("b", "[8,16]"), std::string(16, '\0'));
  EXPECT_TRUE(ParseSafetensors(AsBytes(good), "x").ok());
}

TEST_F(SafetensorsFiles, ShardedFolderFollowsItsIndex) {
  const std::string one = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const std::string two = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  Write("s1.safetensors", SafetensorsBytes(one, "x"));
  Write("s2.safetensors", SafetensorsBytes(two, "y"));
  const auto open = [&](const std::string& map) {
    Write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
    return Safetensors::OpenFolder(folder_);
  };
  const auto good = open(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->Find("a")->data[0], 'x');
  EXPECT_EQ(good->Find("b")->data[0], 'y');
  EXPECT_EQ(good->Find("c"), nullptr);
  const auto missing = open(R"({"a":"s1.safetensors","b":"s1.safetensors"})");
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("'b' is not in its shard"));
  EXPECT_FALSE(open(R"({"a":"../s1.safetensors"})").ok());
  EXPECT_FALSE(open(R"({"a":"/etc/passwd"})").ok());
  EXPECT_FALSE(open(R"({"a":7})").ok());
  EXPECT_FALSE(open("[]").ok());
  EXPECT_EQ(open(R"({"a":"absent.safetensors"})").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsFiles, WriterRoundTrips) {
  const std::string path = Path("written.safetensors");
  const std::vector<float> logits = {1.5f, -2.0f, 3.25f, 0.0f, 5.0f, 6.0f};
  const float one = 7.0f;
  ASSERT_TRUE(WriteSafetensors(path, {{"logits", {2, 3}, logits}, {"x", {}, {&one, 1}}}).ok());
  const auto file = Safetensors::OpenFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsTensor* tensor = file->Find("logits");
  ASSERT_NE(tensor, nullptr);
  EXPECT_THAT(tensor->shape, ElementsAre(2, 3));
  EXPECT_EQ(std::memcmp(tensor->data.data(), logits.data(), 24), 0);
  EXPECT_EQ(file->Find("x")->data.size(), 4u);
}

TEST_F(SafetensorsFiles, WriterStreamsTensorsOfAnyType) {
  const std::string path = Path("streamed.safetensors");
  auto writer = SafetensorsWriter::Create(
      path, {{"codes", SafetensorsType::kF8E4M3, {2, 2}}, {"shape", SafetensorsType::kI64, {1}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const uint8_t codes[4] = {1, 2, 3, 4};
  const int64_t shape = 7;
  writer->Append(codes, 3);
  writer->Append(codes + 3, 1);
  EXPECT_THAT(std::string(writer->Finish().message()),
              HasSubstr("8 bytes of the tensors are missing"));
  writer->Append(&shape, sizeof(shape));
  ASSERT_TRUE(writer->Finish().ok());
  const auto file = Safetensors::OpenFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("codes")->type, SafetensorsType::kF8E4M3);
  EXPECT_EQ(std::memcmp(file->Find("codes")->data.data(), codes, 4), 0);
  EXPECT_EQ(std::memcmp(file->Find("shape")->data.data(), &shape, 8), 0);
}

TEST_F(SafetensorsFiles, AnUnfinishedWriterLeavesNoFile) {
  const std::string path = Path("unfinished.safetensors");
  {
    auto writer = SafetensorsWriter::Create(path, {{"a", SafetensorsType::kU8, {2}}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    const uint8_t three[3] = {};
    writer->Append(three, 3);
    EXPECT_THAT(std::string(writer->Finish().message()), HasSubstr("more bytes"));
  }
  EXPECT_EQ(Safetensors::OpenFile(path).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsFiles, WriterRefusesWhatItCannotWrite) {
  const std::string path = Path("refused.safetensors");
  const std::vector<float> two = {1, 2};
  EXPECT_FALSE(WriteSafetensors(path, {{"a", {3}, two}}).ok());
  EXPECT_FALSE(WriteSafetensors(path, {{"a", {2}, two}, {"a", {2}, two}}).ok());
  EXPECT_FALSE(WriteSafetensors(path, {{"a\"", {2}, two}}).ok());
  EXPECT_EQ(Safetensors::OpenFile(path).status().code(), absl::StatusCode::kNotFound);
  const absl::Status status = WriteSafetensors("/nonexistent/a", {{"a", {2}, two}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/a"));
}

}  // namespace
}  // namespace sluice::formats
