// Logits of the tiny checkpoints against the Hugging Face reference: on every path, page format and
// file format.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
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
  bool fp8_pages = true;  // there are logits for gqa_fp8 pages
};

class TransformerGolden : public ::testing::TestWithParam<Case> {
 protected:
  Distance Measure(IsaPath path, KvFormat format, absl::string_view expected_name) {
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
  const Distance distance = Measure(IsaPath::kReference, KvFormat::kF32, "expected.safetensors");
  EXPECT_LE(distance.max_error, GetParam().sparse ? 2e-3 : 1e-3);
}

TEST_P(TransformerGolden, ReferenceWithFp8PagesMatchesTheEmulatedFormat) {
  if (!GetParam().fp8_pages) return;
  const Distance distance =
      Measure(IsaPath::kReference, KvFormat::kGqaFp8, "expected_gqa_fp8.safetensors");
  EXPECT_LE(distance.mean_kl, 1e-5);
}

TEST_P(TransformerGolden, FastPathsStayClose) {
  for (IsaPath path : kernels::AvailableIsaPaths()) {
    if (path == IsaPath::kReference) continue;
    const Distance bf16 = Measure(path, KvFormat::kBf16, "expected.safetensors");
    EXPECT_LE(bf16.mean_kl, GetParam().sparse ? 2e-3 : 5e-4);
    EXPECT_LE(bf16.top_changed, GetParam().sparse ? bf16.clear / 50 : 0);
    if (!GetParam().fp8_pages) continue;
    const Distance fp8 = Measure(path, KvFormat::kGqaFp8, "expected_gqa_fp8.safetensors");
    EXPECT_LE(fp8.mean_kl, 1e-3);
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

Case Checkpoint(absl::string_view name, bool sparse, bool fp8_pages) {
  const std::string folder = absl::StrCat("models/", name);
  return {folder, folder, sparse, fp8_pages};
}

INSTANTIATE_TEST_SUITE_P(Tiny, TransformerGolden,
                         ::testing::Values(Checkpoint("tiny-llama", false, true),
                                           Checkpoint("tiny-llama3-rope", false, true),
                                           Checkpoint("tiny-qwen3", false, true),
                                           Case{"gguf/tiny-llama.gguf", "models/tiny-llama"},
                                           Case{"gguf/tiny-qwen3.gguf", "models/tiny-qwen3"},
                                           Checkpoint("tiny-qwen3-moe", true, true),
                                           Checkpoint("tiny-glm4-moe", true, true),
                                           Checkpoint("tiny-glm4-moe-air", true, true),
                                           Checkpoint("tiny-glm4-moe-fp8-channel", true, false)));

}  // namespace
}  // namespace sluice::engine
