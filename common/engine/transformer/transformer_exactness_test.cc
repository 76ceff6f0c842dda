// The promise of ModelRunner: the bits of a row's logits do not depend on how it was computed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/transformer/runner_test_support.h"
#include "model/quantize/quantize.h"

namespace sluice::engine {
namespace {

using kernels::IsaPath;
using kernels::KvFormat;
using testing::AllLogits;
using testing::LoadedModel;
using testing::PagedSequence;
using testing::SameBits;

std::string ModelPath(absl::string_view name) {
  return absl::StrCat(SLUICE_TEST_DATA, "/golden/", name);
}

std::vector<TokenId> Tokens(size_t count, uint32_t seed) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<TokenId>((seed >> 8) % 320));
  }
  return tokens;
}

// Longer than two attention tiles, and its last tile is not full.
constexpr size_t kLength = 2 * 256 + 75;

class TransformerExactness : public ::testing::TestWithParam<std::tuple<std::string, IsaPath>> {
 protected:
  // Without a format: FP8 pages, centred where the model's attention has such.
  LoadedModel Load(std::optional<KvFormat> format = std::nullopt, int workers = 2) const {
    const std::string path = ModelPath(std::get<0>(GetParam()));
    const TransformerOptions options = {.path = std::get<1>(GetParam()), .kv_format = format};
    return testing::Load(path, testing::WithCentre(path, options), workers);
  }
};

TEST_P(TransformerExactness, ChunkingChangesNoBit) {
  const std::vector<TokenId> tokens = Tokens(kLength, 1);
  LoadedModel fp8 = Load();
  const std::vector<float> whole = AllLogits(fp8, tokens);
  for (size_t chunk : {1u, 7u, 32u, 33u, 200u}) {
    EXPECT_TRUE(SameBits(AllLogits(fp8, tokens, chunk), whole)) << "chunk " << chunk;
  }
  std::vector<KvFormat> formats = {KvFormat::kBf16};
  if (!testing::HasLatentAttention(ModelPath(std::get<0>(GetParam())))) {
    formats.insert(formats.end(), {KvFormat::kGqaFp8, KvFormat::kGqaInt8c});
  }
  for (KvFormat format : formats) {
    LoadedModel model = Load(format);
    EXPECT_TRUE(SameBits(AllLogits(model, tokens, 33), AllLogits(model, tokens)))
        << kv::KvFormatName(format);
  }
}

// Of models with weights in blocks; others have no activations of 8 bits, and the same numerics.
TEST_P(TransformerExactness, ChunkingChangesNoBitOfEightBitActivations) {
  const std::string path = ModelPath(std::get<0>(GetParam()));
  const std::vector<TokenId> tokens = Tokens(kLength, 4);
  TransformerOptions options = {.path = std::get<1>(GetParam())};
  LoadedModel int16 = testing::Load(path, options);
  options.activations = model::BlockActivations::kInt8;
  LoadedModel int8 = testing::Load(path, options);
  const std::vector<float> whole = AllLogits(int8, tokens);
  EXPECT_TRUE(SameBits(AllLogits(int8, tokens, 7), whole));
  const bool blocks = absl::StrContains(path, "int4");
  const bool differs = blocks && options.path != IsaPath::kReference;
  EXPECT_EQ(SameBits(AllLogits(int16, tokens), whole), !differs);
  EXPECT_EQ(int16.runner->info().numerics_id == int8.runner->info().numerics_id, !differs);
}

TEST_P(TransformerExactness, ThreadsChangeNoBit) {
  const std::vector<TokenId> tokens = Tokens(kLength, 2);
  LoadedModel one = Load(std::nullopt, 1);
  LoadedModel many = Load(std::nullopt, 5);
  const std::vector<float> whole = AllLogits(one, tokens);
  EXPECT_TRUE(SameBits(AllLogits(many, tokens), whole));
  // One row at a time: with many workers attention is cut into pieces of tiles.
  EXPECT_TRUE(SameBits(AllLogits(many, tokens, 1), whole));
  EXPECT_EQ(one.runner->info().numerics_id, many.runner->info().numerics_id);
}

// A sequence decodes alone and in the middle of 16 whose segments have other lengths and positions.
TEST_P(TransformerExactness, CompanyChangesNoBit) {
  LoadedModel model = Load();
  const size_t width = model.vocabulary();
  const std::vector<TokenId> tokens = Tokens(kLength, 3);
  const std::vector<float> alone = AllLogits(model, tokens);
  const kv::PageLayout& layout = model.runner->info().layout;
  std::vector<std::vector<TokenId>> others;
  std::vector<PagedSequence> sequences;
  for (uint32_t i = 0; i < 16; ++i) {
    others.push_back(Tokens(i % 3 == 0 ? 1 : 5 + i * 3, 100 + i));
    sequences.emplace_back(layout, static_cast<uint32_t>(kLength));
  }
  const size_t steps[] = {300, 213, 1, 1, 1, 1, 33, 37};
  size_t at = 0;
  for (size_t step : steps) {
    std::vector<Segment> batch;
    for (size_t i = 0; i < 16; ++i) {
      if (i == 7) {
        batch.push_back({absl::MakeConstSpan(tokens).subspan(at, step), static_cast<int32_t>(at),
                         sequences[i].pages(), LogitsWanted::kAll});
      } else {
        batch.push_back({others[i], 0, sequences[i].pages(),
                         i % 2 == 0 ? LogitsWanted::kLast : LogitsWanted::kNone});
      }
    }
    const size_t before = 4;  // sequences 0, 2, 4 and 6 want one row each in front of ours
    std::vector<float> logits((8 + step) * width);
    ASSERT_TRUE(model.runner->Forward(batch, nullptr, absl::MakeSpan(logits)).ok());
    EXPECT_TRUE(SameBits(absl::MakeConstSpan(logits).subspan(before * width, step * width),
                         absl::MakeConstSpan(alone).subspan(at * width, step * width)))
        << "at " << at;
    at += step;
  }
  EXPECT_EQ(at, kLength);
}

// BF16 coded without loss is the same model in other bytes.
TEST(TransformerLossless, LosslessWeightsChangeNoBit) {
  std::string folder = ::testing::TempDir() + "lossless_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string source = ModelPath("models/tiny-glm4-moe");
  const std::string coded = folder + "/coded";
  const auto pool = *device::ThreadPool::Create({.workers = 2});
  const auto report =
      model::QuantizeFolder(source, coded, {.to = model::QuantizeTo::kLossless}, *pool);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->quantized, 60u);
  const std::vector<TokenId> tokens = Tokens(40, 4);
  for (IsaPath path : kernels::AvailableIsaPaths()) {
    LoadedModel plain = testing::Load(source, {.path = path});
    LoadedModel lossless = testing::Load(coded, {.path = path});
    EXPECT_TRUE(SameBits(AllLogits(lossless, tokens), AllLogits(plain, tokens)))
        << kernels::IsaPathName(path);
    if (path == IsaPath::kReference) continue;  // keeps float32 rows
    EXPECT_LT(lossless.runner->weight_bytes_read() * 10, plain.runner->weight_bytes_read() * 9);
  }
  std::filesystem::remove_all(folder);
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<std::string, IsaPath>>& info) {
  return absl::StrReplaceAll(
      absl::StrCat(std::get<0>(info.param), "_", kernels::IsaPathName(std::get<1>(info.param))),
      {{"/", "_"}, {"-", "_"}, {".", "_"}});
}

INSTANTIATE_TEST_SUITE_P(
    Paths, TransformerExactness,
    ::testing::Combine(::testing::Values("models/tiny-llama", "gguf/tiny-qwen3.gguf",
                                         "models/tiny-qwen3-moe", "models/tiny-glm4-moe",
                                         "models/tiny-glm4-moe-fp8-channel",
                                         "models/tiny-kimi-k2.5-int4",
                                         "models/tiny-glm-moe-dsa-shared"),
                       ::testing::ValuesIn(kernels::AvailableIsaPaths())),
    CaseName);

}  // namespace
}  // namespace sluice::engine
