// Logits of the tiny checkpoints against the Hugging Face reference: on every path, page format and
// file format.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "engine/transformer/runner_test_support.h"
#include "formats/safetensors.h"

namespace sluice::engine {
namespace {

using kernels::IsaPath;
using kernels::KvFormat;

constexpr int kPrompts = 4;

std::string Golden(absl::string_view name) {
  return absl::StrCat(SLUICE_TEST_DATA, "/golden/", name);
}

template <typename T>
std::vector<T> Values(const formats::Safetensors& file, const std::string& name) {
  const formats::SafetensorsTensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<T> values(tensor->data.size() / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

// How far the logits of all prompts are from expected ones.
struct Distance {
  double max_error = 0;
  double mean_kl = 0;
  int clear = 0;        // positions where the reference's margin is > 0.1
  int top_changed = 0;  // of them, where the top token differs
};

struct Case {
  std::string model;     // below tests/golden
  std::string expected;  // folder with the expected logits
  // Routing turns a rounding into another expert now and then: wider limits.
  bool sparse = false;
  KvFormat fp8 = KvFormat::kGqaFp8;
  bool fp8_expected = true;  // there are logits for pages of that format
};

class TransformerGolden : public ::testing::TestWithParam<Case> {
 protected:
  // `emulated`: against logits of the reference with keys and values as `format` stores them.
  Distance Measure(IsaPath path, KvFormat format, bool emulated = false) {
    const std::string expected_name =
        emulated ? absl::StrCat("expected_", kv::KvFormatName(format), ".safetensors")
                 : "expected.safetensors";
    const auto prompts =
        formats::Safetensors::OpenFile(Golden(GetParam().expected + "/expected.safetensors"));
    const auto expected = formats::Safetensors::OpenFile(
        Golden(absl::StrCat(GetParam().expected, "/", expected_name)));
    EXPECT_TRUE(prompts.ok() && expected.ok()) << prompts.status() << expected.status();
    testing::LoadedModel model =
        testing::Load(Golden(GetParam().model), {.path = path, .kv_format = format});
    Distance distance;
    size_t rows = 0;
    const size_t width = model.vocabulary();
    for (int i = 0; i < kPrompts; ++i) {
      const auto want = Values<float>(*expected, absl::StrCat("logits.", i));
      const auto got =
          testing::AllLogits(model, Values<int32_t>(*prompts, absl::StrCat("prompt.", i)));
      EXPECT_EQ(got.size(), want.size());
      for (size_t at = 0; at < want.size(); at += width, ++rows) {
        const auto a = absl::MakeConstSpan(want).subspan(at, width);
        const auto b = absl::MakeConstSpan(got).subspan(at, width);
        for (size_t j = 0; j < width; ++j) {
          distance.max_error = std::max<double>(distance.max_error, std::abs(a[j] - b[j]));
        }
        distance.mean_kl += testing::KlDivergence(a, b);
        const testing::Top top = testing::TopOf(a);
        distance.clear += top.margin > 0.1f;
        distance.top_changed += top.margin > 0.1f && testing::TopOf(b).token != top.token;
      }
    }
    distance.mean_kl /= static_cast<double>(rows);
    std::printf("%-24s %-9s %-8s max error %.2e, mean KL %.2e, top changed %d of %d\n",
                GetParam().model.c_str(), std::string(kernels::IsaPathName(path)).c_str(),
                std::string(kv::KvFormatName(format)).c_str(), distance.max_error, distance.mean_kl,
                distance.top_changed, distance.clear);
    return distance;
  }
};

TEST_P(TransformerGolden, ReferenceWithF32PagesIsExact) {
  const Distance distance = Measure(IsaPath::kReference, KvFormat::kF32);
  EXPECT_LE(distance.max_error, GetParam().sparse ? 2e-3 : 1e-3);
}

TEST_P(TransformerGolden, ReferenceWithFp8PagesMatchesTheEmulatedFormat) {
  if (!GetParam().fp8_expected) return;
  const Distance distance = Measure(IsaPath::kReference, GetParam().fp8, true);
  EXPECT_LE(distance.mean_kl, 1e-5);
}

// No reference emulates it; between bf16 and mla_fp8 is where it belongs.
TEST_P(TransformerGolden, TiledScalesBeatOneScaleARow) {
  if (GetParam().fp8 != KvFormat::kMlaFp8) return;
  const Distance tiles = Measure(IsaPath::kReference, KvFormat::kMlaFp8Tiles);
  const Distance rows = Measure(IsaPath::kReference, KvFormat::kMlaFp8);
  EXPECT_LE(tiles.mean_kl, rows.mean_kl);
}

TEST_P(TransformerGolden, FastPathsStayClose) {
  for (IsaPath path : kernels::AvailableIsaPaths()) {
    if (path == IsaPath::kReference) continue;
    const bool latent = GetParam().fp8 == KvFormat::kMlaFp8;
    // The latents of these random models feel every rounding of a page, on any path; with exact
    // pages the paths show what they are.
    if (latent) {
      EXPECT_LE(Measure(path, KvFormat::kF32).mean_kl, 1e-7);
    }
    const Distance bf16 = Measure(path, KvFormat::kBf16);
    EXPECT_LE(bf16.mean_kl, latent ? 8e-3 : GetParam().sparse ? 2e-3 : 5e-4);
    EXPECT_LE(bf16.top_changed, GetParam().sparse ? bf16.clear / 50 : 0);
    if (!GetParam().fp8_expected) continue;
    const Distance fp8 = Measure(path, GetParam().fp8, true);
    EXPECT_LE(fp8.mean_kl, latent ? 4e-3 : 1e-3);
  }
}

TEST_P(TransformerGolden, GreedyTokensAreTheReferences) {
  const auto expected =
      formats::Safetensors::OpenFile(Golden(GetParam().expected + "/expected.safetensors"));
  ASSERT_TRUE(expected.ok());
  testing::LoadedModel model = testing::Load(
      Golden(GetParam().model), {.path = IsaPath::kReference, .kv_format = KvFormat::kF32});
  const auto prompt = Values<int32_t>(*expected, "prompt.0");
  const auto greedy = Values<int32_t>(*expected, "greedy.0");
  const testing::PagedSequence sequence(model.runner->info().layout, 64);
  std::vector<float> logits(model.vocabulary());
  std::vector<TokenId> step = prompt;
  int32_t position = 0;
  for (int32_t want : greedy) {
    const Segment segment = {step, position, sequence.pages(), LogitsWanted::kLast};
    ASSERT_TRUE(model.runner->Forward({&segment, 1}, nullptr, absl::MakeSpan(logits)).ok());
    ASSERT_EQ(static_cast<int32_t>(testing::TopOf(logits).token), want) << "position " << position;
    position += static_cast<int32_t>(step.size());
    step = {want};
  }
}

// Writes tiny-kimi-k2 to `folder` with other query matrices: q [192][128] either directly, or
// behind an identity and a norm that changes nothing, because the norm before it has no weights.
void WriteWithQueries(const std::string& folder, bool direct) {
  const std::string source = Golden("models/tiny-kimi-k2");
  const auto tensors = formats::Safetensors::OpenFile(source + "/model.safetensors");
  ASSERT_TRUE(tensors.ok());
  std::vector<std::vector<float>> made;
  std::vector<formats::SafetensorsEntry> entries;
  std::vector<std::pair<const void*, size_t>> bytes;
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape,
                       std::vector<float> values) {
    made.push_back(std::move(values));
    entries.push_back({name, formats::SafetensorsType::kF32, std::move(shape)});
    bytes.emplace_back(made.back().data(), made.back().size() * sizeof(float));
  };
  for (const formats::SafetensorsTensor& tensor : tensors->tensors()) {
    if (absl::EndsWith(tensor.name, "input_layernorm.weight")) {
      add(tensor.name, {128}, std::vector<float>(128, 1.0f));
    } else if (absl::EndsWith(tensor.name, ".q_b_proj.weight")) {
      const std::string prefix(absl::StripSuffix(tensor.name, "q_b_proj.weight"));
      std::vector<float> q(192 * 128);
      for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(static_cast<float>(i * i % 8191)) / 8;
      add(prefix + (direct ? "q_proj.weight" : "q_b_proj.weight"), {192, 128}, std::move(q));
      if (direct) continue;
      std::vector<float> identity(128 * 128);
      for (size_t i = 0; i < 128; ++i) identity[i * 129] = 1;
      add(prefix + "q_a_proj.weight", {128, 128}, std::move(identity));
      add(prefix + "q_a_layernorm.weight", {128}, std::vector<float>(128, 1.0f));
    } else if (!absl::StrContains(tensor.name, ".q_a_")) {
      entries.push_back({std::string(tensor.name), tensor.type, tensor.shape});
      bytes.emplace_back(tensor.data.data(), tensor.data.size());
    }
  }
  auto writer = formats::SafetensorsWriter::Create(folder + "/model.safetensors", entries);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [data, size] : bytes) writer->Append(data, size);
  ASSERT_TRUE(writer->Finish().ok());
  std::stringstream config;
  config << std::ifstream(source + "/config.json").rdbuf();
  std::ofstream(folder + "/config.json") << absl::StrReplaceAll(
      config.str(),
      {{"\"q_lora_rank\": 48", direct ? "\"q_lora_rank\": null" : "\"q_lora_rank\": 128"}});
}

TEST(TransformerLatent, DirectQueriesAreTheSameMaths) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back(i * i * 7 % 320);
  std::vector<float> logits[2];
  for (bool direct : {false, true}) {
    std::string folder = ::testing::TempDir() + "queries_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    WriteWithQueries(folder, direct);
    testing::LoadedModel model =
        testing::Load(folder, {.path = kernels::BestIsaPath(), .kv_format = KvFormat::kF32});
    logits[direct ? 1 : 0] = testing::AllLogits(model, tokens);
    std::filesystem::remove_all(folder);
  }
  for (size_t at = 0; at < logits[0].size(); at += 320) {
    EXPECT_LE(testing::KlDivergence(absl::MakeConstSpan(logits[0]).subspan(at, 320),
                                    absl::MakeConstSpan(logits[1]).subspan(at, 320)),
              1e-6);
  }
}

// Long chunks in the naive form, the last tokens one by one in the absorbed one.
TEST(TransformerLatent, TheNaiveFormIsTheSameMaths) {
  for (absl::string_view name : {"tiny-kimi-k2-fp8", "tiny-kimi-k2.5", "tiny-glm4-moe-lite"}) {
    const std::string folder = Golden(absl::StrCat("models/", name));
    const auto expected = formats::Safetensors::OpenFile(folder + "/expected.safetensors");
    ASSERT_TRUE(expected.ok());
    const auto want = Values<float>(*expected, "logits.3");
    const auto prompt = Values<int32_t>(*expected, "prompt.3");
    for (IsaPath path : kernels::AvailableIsaPaths()) {
      SCOPED_TRACE(absl::StrCat(name, " ", kernels::IsaPathName(path)));
      const TransformerOptions strict = {.path = path, .kv_format = KvFormat::kF32};
      TransformerOptions fast = strict;
      fast.exactness = Exactness::kFast;
      testing::LoadedModel exact = testing::Load(folder, strict);
      testing::LoadedModel naive = testing::Load(folder, fast);
      EXPECT_NE(naive.runner->info().numerics_id, exact.runner->info().numerics_id);
      const auto absorbed = testing::AllLogits(exact, prompt);
      for (size_t chunk : {size_t{0}, size_t{33}}) {
        const auto got = testing::AllLogits(naive, prompt, chunk);
        ASSERT_EQ(got.size(), want.size());
        float error = 0;
        for (size_t at = 0; at < got.size(); ++at) {
          error = std::max(error, std::abs(got[at] - want[at]));
        }
        EXPECT_LE(error, 2e-3f);
        EXPECT_NE(std::memcmp(got.data(), absorbed.data(), got.size() * sizeof(float)), 0);
      }
      // One by one nothing is left to the naive form.
      const auto single = testing::AllLogits(naive, absl::MakeConstSpan(prompt).first(9), 1);
      EXPECT_EQ(std::memcmp(single.data(), absorbed.data(), single.size() * sizeof(float)), 0);
    }
  }
}

// Attention over 16 picked positions, with full and shared schedules. With the tiny indexers' 4
// heads several positions often score exactly 0; only with its order of equals, which follows the
// length of the prompt, are all rows those of the reference.
TEST(TransformerLatent, PickedPositionsAreTheReferences) {
  for (absl::string_view name : {"tiny-glm-moe-dsa-fp8", "tiny-glm-moe-dsa-shared"}) {
    const std::string folder = Golden(absl::StrCat("models/", name));
    const auto expected = formats::Safetensors::OpenFile(folder + "/expected.safetensors");
    ASSERT_TRUE(expected.ok());
    for (IsaPath path : kernels::AvailableIsaPaths()) {
      for (int i = 0; i < kPrompts; ++i) {
        const auto want = Values<float>(*expected, absl::StrCat("logits.", i));
        const auto prompt = Values<int32_t>(*expected, absl::StrCat("prompt.", i));
        testing::LoadedModel model =
            testing::Load(folder, {.path = path,
                                   .kv_format = KvFormat::kF32,
                                   .torch_length = static_cast<int64_t>(prompt.size())});
        const auto got = testing::AllLogits(model, prompt);
        ASSERT_EQ(got.size(), want.size());
        float error = 0;
        for (size_t at = 0; at < got.size(); ++at) {
          error = std::max(error, std::abs(got[at] - want[at]));
        }
        EXPECT_LE(error, 2e-3f) << name << " " << kernels::IsaPathName(path) << " prompt " << i;
      }
    }
  }
}

Case Checkpoint(absl::string_view name, bool sparse, bool fp8_pages) {
  const std::string folder = absl::StrCat("models/", name);
  return {folder, folder, sparse, KvFormat::kGqaFp8, fp8_pages};
}

Case Latent(absl::string_view name, bool fp8_pages) {
  const std::string folder = absl::StrCat("models/", name);
  return {folder, folder, true, KvFormat::kMlaFp8, fp8_pages};
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, TransformerGolden,
    ::testing::Values(
        Checkpoint("tiny-llama", false, true), Checkpoint("tiny-llama3-rope", false, true),
        Checkpoint("tiny-qwen3", false, true), Case{"gguf/tiny-llama.gguf", "models/tiny-llama"},
        Case{"gguf/tiny-qwen3.gguf", "models/tiny-qwen3"}, Checkpoint("tiny-qwen3-moe", true, true),
        Checkpoint("tiny-glm4-moe", true, true), Checkpoint("tiny-glm4-moe-air", true, true),
        Checkpoint("tiny-glm4-moe-fp8-channel", true, false),
        Latent("tiny-deepseek-v3-groups", true), Latent("tiny-glm4-moe-lite", true),
        Latent("tiny-kimi-k2", true), Latent("tiny-kimi-k2.5", true),
        Latent("tiny-kimi-k2-fp8", false), Latent("tiny-kimi-k2.5-int4", false),
        Latent("tiny-kimi-k2.5-nvfp4", false)));

}  // namespace
}  // namespace sluice::engine
