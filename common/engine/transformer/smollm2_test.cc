// SmolLM2-135M-Instruct (Q4_1, GGUF), teacher forced on reference prompts and answers, on every
// path and page format. Needs the model file: cmake -DSLUICE_TEST_MODEL=FILE.gguf. Skipped without.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/transformer/runner_test_support.h"
#include "formats/json.h"
#include "formats/mapped_file.h"

namespace sluice::engine {
namespace {

using kernels::IsaPath;
using kernels::KvFormat;

// One entry of greedy.json.
struct Reference {
  std::vector<TokenId> tokens;  // prompt, then the greedy answer without its last token
  size_t prompt_tokens = 0;
  std::vector<TokenId> answer;
  std::vector<float> margins;  // top-1 minus top-2 at each answer token
  std::vector<TokenId> top_tokens;
  std::vector<float> top_logits;
  double prompt_nll = 0;
};

template <typename T>
std::vector<T> Numbers(const formats::JsonValue& entry, absl::string_view key) {
  std::vector<T> numbers;
  for (const formats::JsonValue& value : entry.Find(key)->array()) {
    numbers.push_back(static_cast<T>(*value.AsDouble()));
  }
  return numbers;
}

std::vector<Reference> ReadReferences() {
  const std::string path = absl::StrCat(SLUICE_TEST_DATA, "/golden/smollm2/greedy.json");
  const auto text = formats::ReadTextFile(path, 1 << 20);
  const auto json = formats::ParseJson(*text, path);
  std::vector<Reference> references;
  for (const formats::JsonValue& entry : json->array()) {
    Reference one;
    one.tokens = Numbers<TokenId>(entry, "ids");
    one.prompt_tokens = one.tokens.size();
    one.answer = Numbers<TokenId>(entry, "greedy_ids");
    one.margins = Numbers<float>(entry, "greedy_margin");
    one.top_tokens = Numbers<TokenId>(entry, "top_ids");
    one.top_logits = Numbers<float>(entry, "top_logits");
    one.prompt_nll = *entry.GetDouble("prompt_mean_nll");
    one.tokens.insert(one.tokens.end(), one.answer.begin(), one.answer.end() - 1);
    references.push_back(std::move(one));
  }
  return references;
}

// Mean negative log-likelihood of the prompt's tokens but the first.
double PromptNll(const Reference& reference, absl::Span<const float> logits, size_t width) {
  double nll = 0;
  for (size_t i = 0; i + 1 < reference.prompt_tokens; ++i) {
    const auto row = testing::LogSoftmax(logits.subspan(i * width, width));
    nll -= row[static_cast<size_t>(reference.tokens[i + 1])];
  }
  return nll / static_cast<double>(reference.prompt_tokens - 1);
}

class SmolLm2 : public ::testing::Test {
 protected:
  const std::string model_path_ = SLUICE_TEST_MODEL;
};

TEST_F(SmolLm2, ReferenceWithF32PagesMatches) {
  auto model =
      testing::Load(model_path_, {.path = IsaPath::kReference, .kv_format = KvFormat::kF32});
  const size_t width = model.vocabulary();
  double worst = 0;
  for (const Reference& reference : ReadReferences()) {
    const std::vector<float> logits = testing::AllLogits(model, reference.tokens);
    const size_t last = (reference.prompt_tokens - 1) * width;
    for (size_t i = 0; i < reference.top_tokens.size(); ++i) {
      const size_t token = static_cast<size_t>(reference.top_tokens[i]);
      const double error = std::abs(logits[last + token] - reference.top_logits[i]);
      EXPECT_LE(error, 0.02);
      worst = std::max(worst, error);
    }
    for (size_t i = 0; i < reference.answer.size(); ++i) {
      const auto top = testing::TopOf(absl::MakeConstSpan(logits).subspan(last + i * width, width));
      if (reference.margins[i] <= 0.02f) continue;
      EXPECT_EQ(static_cast<TokenId>(top.token), reference.answer[i]) << "answer token " << i;
    }
    EXPECT_NEAR(PromptNll(reference, logits, width), reference.prompt_nll, 1e-3);
  }
  std::printf("reference f32: largest error of top-20 logits %.4f\n", worst);
}

// Distance of a fast path to the reference path with f32 pages.
struct Distance {
  double mean_kl = 0;
  double same_top =
      0;  // share of answer positions with margin >= 0.25 whose top token is the reference's
  double nll_change = 0;  // largest relative change of the mean NLL of a prompt
};

class SmolLm2Fast : public SmolLm2 {
 protected:
  // Logits of all references on the reference path, computed once.
  const std::vector<std::vector<float>>& Exact() const {
    static const std::vector<std::vector<float>> all = [this] {
      auto model =
          testing::Load(model_path_, {.path = IsaPath::kReference, .kv_format = KvFormat::kF32});
      std::vector<std::vector<float>> logits;
      for (const Reference& reference : ReadReferences()) {
        logits.push_back(testing::AllLogits(model, reference.tokens));
      }
      return logits;
    }();
    return all;
  }
  Distance Measure(IsaPath path, KvFormat format) {
    auto fast = testing::Load(model_path_, {.path = path, .kv_format = format});
    const size_t width = fast.vocabulary();
    Distance distance;
    size_t next = 0;
    size_t rows = 0, clear = 0;
    for (const Reference& reference : ReadReferences()) {
      const std::vector<float>& want = Exact()[next++];
      const std::vector<float> got = testing::AllLogits(fast, reference.tokens);
      for (size_t i = 0; i < reference.tokens.size(); ++i, ++rows) {
        const auto a = absl::MakeConstSpan(want).subspan(i * width, width);
        const auto b = absl::MakeConstSpan(got).subspan(i * width, width);
        distance.mean_kl += testing::KlDivergence(a, b);
        if (i + 1 < reference.prompt_tokens) continue;
        const testing::Top top = testing::TopOf(a);
        if (top.margin < 0.25f) continue;
        ++clear;
        distance.same_top += testing::TopOf(b).token == top.token;
      }
      const double change = PromptNll(reference, got, width) / reference.prompt_nll - 1;
      distance.nll_change = std::max(distance.nll_change, std::abs(change));
    }
    distance.mean_kl /= static_cast<double>(rows);
    distance.same_top /= static_cast<double>(clear);
    std::printf("%s %s: mean KL %.2e, top equal %.2f %% of %zu, NLL of a prompt at most %.2f %%\n",
                std::string(kernels::IsaPathName(path)).c_str(),
                std::string(kv::KvFormatName(format)).c_str(), distance.mean_kl,
                100 * distance.same_top, clear, 100 * distance.nll_change);
    return distance;
  }
};

TEST_F(SmolLm2Fast, Bf16PagesStayClose) {
  for (IsaPath path : kernels::AvailableIsaPaths()) {
    if (path == IsaPath::kReference) continue;
    const Distance distance = Measure(path, KvFormat::kBf16);
    EXPECT_LE(distance.mean_kl, 5e-4);
    EXPECT_GE(distance.same_top, 0.99);
    EXPECT_LE(distance.nll_change, 0.03);
  }
}

TEST_F(SmolLm2Fast, Fp8PagesStayClose) {
  for (IsaPath path : kernels::AvailableIsaPaths()) {
    if (path == IsaPath::kReference) continue;
    const Distance distance = Measure(path, KvFormat::kGqaFp8);
    EXPECT_LE(distance.mean_kl, 2e-2);
    EXPECT_GE(distance.same_top, 0.97);
    EXPECT_LE(distance.nll_change, 0.03);
  }
}

TEST_F(SmolLm2, ChunksAndCompanyChangeNoBit) {
  // Longer than two attention tiles.
  std::vector<TokenId> tokens;
  const std::vector<Reference> references = ReadReferences();
  while (tokens.size() < 560) {
    for (const Reference& reference : references) {
      tokens.insert(tokens.end(), reference.tokens.begin(), reference.tokens.end());
    }
  }
  tokens.resize(560);
  auto model = testing::Load(model_path_, {.path = kernels::BestIsaPath()});
  const std::vector<float> whole = testing::AllLogits(model, tokens);
  for (size_t chunk : {1, 7, 32, 33, 200}) {
    EXPECT_TRUE(testing::SameBits(testing::AllLogits(model, tokens, chunk), whole)) << chunk;
  }
  // The last 20 tokens one by one among 15 other sequences.
  std::vector<testing::PagedSequence> sequences;
  for (int i = 0; i < 16; ++i) sequences.emplace_back(model.runner->info().layout, 600);
  const size_t width = model.vocabulary();
  std::vector<float> logits(16 * width);
  for (size_t at : {size_t{0}, size_t{540}, size_t{541}, size_t{542}}) {
    const size_t count = at == 0 ? 540 : 1;
    std::vector<Segment> batch;
    for (size_t i = 0; i < 16; ++i) {
      if (i == 9) {
        batch.push_back({absl::MakeConstSpan(tokens).subspan(at, count), static_cast<int32_t>(at),
                         sequences[i].pages(), LogitsWanted::kLast});
      } else {
        batch.push_back({absl::MakeConstSpan(tokens).subspan(i * 3, 1 + i % 4), 0,
                         sequences[i].pages(), LogitsWanted::kLast});
      }
    }
    ASSERT_TRUE(model.runner->Forward(batch, nullptr, absl::MakeSpan(logits)).ok());
    EXPECT_TRUE(
        testing::SameBits(absl::MakeConstSpan(logits).subspan(9 * width, width),
                          absl::MakeConstSpan(whole).subspan((at + count - 1) * width, width)))
        << at;
  }
}

}  // namespace
}  // namespace sluice::engine
