// Test support: a loaded model, sequences with pages of their own, and comparisons of logits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/transformer/kv_calibration.h"
#include "engine/transformer/transformer_runner.h"

namespace sluice::engine::testing {

// One sequence: page memory for `tokens` tokens. The bytes of a fresh page are as the pool leaves
// them: zero.
class PagedSequence {
 public:
  PagedSequence(const kv::PageLayout& layout, uint32_t tokens)
      : memory_(layout.PagesFor(tokens) * layout.page_bytes() + 64) {
    uint8_t* base = memory_.data();
    base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
    for (uint32_t i = 0; i < layout.PagesFor(tokens); ++i) {
      pages_.push_back(base + i * layout.page_bytes());
    }
  }
  absl::Span<uint8_t* const> pages() const { return pages_; }

 private:
  std::vector<uint8_t> memory_;
  std::vector<uint8_t*> pages_;
};

struct LoadedModel {
  std::unique_ptr<device::ThreadPool> pool;
  std::unique_ptr<TransformerRunner> runner;
  size_t vocabulary() const { return static_cast<size_t>(runner->info().vocabulary); }
};

inline LoadedModel Load(absl::string_view path, const TransformerOptions& options,
                        int workers = 2) {
  LoadedModel loaded;
  loaded.pool = *device::ThreadPool::Create({.workers = workers});
  auto files = model::ModelFiles::Open(path);
  EXPECT_TRUE(files.ok()) << files.status();
  auto runner = TransformerRunner::Create(**files, options, *loaded.pool);
  EXPECT_TRUE(runner.ok()) << runner.status();
  loaded.runner = *std::move(runner);
  return loaded;
}

// The centre of a model, from a few tokens of its vocabulary.
inline model::KvCentre CentreOf(absl::string_view path, TokenId seed = 1) {
  const LoadedModel loaded = Load(path, {.kv_format = kernels::KvFormat::kF32});
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 40; ++i) {
    tokens.push_back((i * 7919 + seed) % loaded.runner->info().vocabulary);
  }
  auto centre = CalibrateKvCentre(*loaded.runner, tokens);
  EXPECT_TRUE(centre.ok()) << centre.status();
  return *std::move(centre);
}

inline bool HasLatentAttention(absl::string_view path) {
  return model::ReadModelConfig(path)->mla.has_value();
}

// `options` with a centre and, unless they name a format, FP8 pages that use it; latent attention
// has no such pages.
inline TransformerOptions WithCentre(absl::string_view path, TransformerOptions options) {
  if (HasLatentAttention(path)) return options;
  if (!options.kv_format.has_value()) options.kv_format = kernels::KvFormat::kGqaFp8c;
  options.centre = CentreOf(path);
  return options;
}

// Logits of every position, the prompt fed in chunks of `chunk` tokens (0: at once).
inline std::vector<float> AllLogits(LoadedModel& model, absl::Span<const TokenId> tokens,
                                    size_t chunk = 0) {
  if (chunk == 0) chunk = tokens.size();
  const PagedSequence sequence(model.runner->info().layout, static_cast<uint32_t>(tokens.size()));
  std::vector<float> logits(tokens.size() * model.vocabulary());
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const Segment segment = {tokens.subspan(at, chunk), static_cast<int32_t>(at), sequence.pages(),
                             LogitsWanted::kAll};
    const absl::Status status = model.runner->Forward(
        {&segment, 1}, nullptr,
        absl::MakeSpan(logits).subspan(at * model.vocabulary(),
                                       segment.tokens.size() * model.vocabulary()));
    EXPECT_TRUE(status.ok()) << status;
  }
  return logits;
}

// log softmax of one row, in double.
inline std::vector<double> LogSoftmax(absl::Span<const float> row) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (float value : row) sum += std::exp(value - max);
  std::vector<double> result;
  for (float value : row) result.push_back(value - max - std::log(sum));
  return result;
}

// KL(reference || other) of one row of logits.
inline double KlDivergence(absl::Span<const float> reference, absl::Span<const float> other) {
  const std::vector<double> p = LogSoftmax(reference);
  const std::vector<double> q = LogSoftmax(other);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

// Index of the largest value and its distance to the second largest.
struct Top {
  size_t token = 0;
  float margin = 0;
};
inline Top TopOf(absl::Span<const float> row) {
  Top top;
  float best = -INFINITY, second = -INFINITY;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] > best) {
      second = best;
      best = row[i];
      top.token = i;
    } else {
      second = std::max(second, row[i]);
    }
  }
  top.margin = best - second;
  return top;
}

inline bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace sluice::engine::testing
