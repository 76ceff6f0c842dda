#include "engine/transformer/indexer.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kv_store/mla_store.h"

namespace sluice::engine {
namespace {

constexpr double kLayerNormEpsilon = 1e-6;
// Positions that a worker scores at a time when a row is shared out: a few microseconds.
constexpr int64_t kScoreBlock = 256;

// x = (x - mean) / sqrt(variance + epsilon) * weight + bias, in place. The sums are double, so
// their order decides nothing that float32 shows.
void LayerNorm(const std::vector<float>& weight, const std::vector<float>& bias, float* x) {
  const size_t n = weight.size();
  double mean = 0;
  for (size_t i = 0; i < n; ++i) mean += double{x[i]};
  mean /= static_cast<double>(n);
  double variance = 0;
  for (size_t i = 0; i < n; ++i) variance += (double{x[i]} - mean) * (double{x[i]} - mean);
  const double inverse = 1.0 / std::sqrt(variance / static_cast<double>(n) + kLayerNormEpsilon);
  for (size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>((double{x[i]} - mean) * inverse) * weight[i] + bias[i];
  }
}

}  // namespace

Indexer::Indexer(PassContext& context, absl::Span<const model::LayerWeights> layers,
                 const kv::PageLayout& layout)
    : context_(context),
      layers_(layers),
      layout_(layout),
      dsa_(*context.config.dsa),
      pairs_(context.config.rotary_dim() / 2),
      key_width_(int64_t{dsa_.head_dim} + dsa_.heads),
      memory_(static_cast<size_t>(context.pool.workers())),
      scores_(memory_.size()) {
  for (int layer = 0; layer < context.config.layers; ++layer) {
    context.input.Declare(InputKinds(layer), context.config.hidden);
    context.inner.Declare(QueryKinds(layer), context.config.mla->q_lora_rank);
  }
  context.workspace.Add(&key_, key_width_);
  context.workspace.Add(&q_, int64_t{dsa_.heads} * dsa_.head_dim);
  context.workspace.Add(&picks_, int64_t{dsa_.topk} * static_cast<int64_t>(sizeof(int32_t)));
}

const model::IndexerWeights* Indexer::weights(int layer) const {
  const auto& mla = std::get<model::MlaWeights>(layers_[static_cast<size_t>(layer)].attention);
  return mla.indexer ? &*mla.indexer : nullptr;
}

ActivationKinds Indexer::InputKinds(int layer) const {
  ActivationKinds kinds;
  if (weights(layer) != nullptr) kinds.Add(weights(layer)->key);
  return kinds;
}

ActivationKinds Indexer::QueryKinds(int layer) const {
  ActivationKinds kinds;
  if (weights(layer) != nullptr) kinds.Add(weights(layer)->q);
  return kinds;
}

size_t Indexer::scratch_bytes() const {
  // Layer 0 always has an indexer.
  return kernels::MlaIndexScratchBytes(layout_.MlaView(0), dsa_.heads);
}

absl::Status Indexer::BeginPass() {
  positions_ = 0;
  for (const BatchRow& row : context_.plan.rows()) {
    positions_ = std::max(positions_, row.position + 1);
  }
  length_ = std::max(positions_, context_.torch_length);
  const size_t bytes = static_cast<size_t>(length_) * (sizeof(float) + sizeof(int32_t));
  for (size_t worker = 0; worker < memory_.size(); ++worker) {
    SLUICE_ASSIGN_OR_RETURN(scores_[worker], memory_[worker].Reserve(bytes));
  }
  pick_counts_.resize(static_cast<size_t>(context_.rows()));
  return absl::OkStatus();
}

void Indexer::StoreKeys(int layer, const float* cosines, const float* sines) {
  const model::IndexerWeights* const indexer = weights(layer);
  if (indexer == nullptr) return;
  const kernels::MlaLayerView view = layout_.MlaView(static_cast<uint32_t>(layer));
  context_.Multiply(indexer->key, context_.input, context_.rows(), key_, key_width_);
  // Both square roots of the published form, and the weights of all heads at once.
  const float scale =
      1.0f / std::sqrt(static_cast<float>(int64_t{dsa_.heads} * int64_t{dsa_.head_dim}));
  context_.ForEachRow([&](int64_t row, int) {
    float* const key = key_ + row * key_width_;
    LayerNorm(indexer->key_norm, indexer->key_norm_bias, key);
    kernels::ApplyRope(context_.path, kernels::RopeOrder::kHalfSplit, cosines + row * pairs_,
                       sines + row * pairs_, pairs_, 1, dsa_.head_dim, key);
    for (int64_t i = dsa_.head_dim; i < key_width_; ++i) key[i] *= scale;
    const BatchRow& place = context_.plan.rows()[static_cast<size_t>(row)];
    const BatchRun& run = context_.plan.runs()[static_cast<size_t>(place.run)];
    kernels::StoreMlaIndex(context_.path, view, run.pages, place.position, key, key_width_, 0, 1);
  });
}

void Indexer::Pick(int layer, const float* cosines, const float* sines) {
  const model::IndexerWeights* const indexer = weights(layer);
  if (indexer == nullptr || !picks()) return;
  const kernels::MlaLayerView view = layout_.MlaView(static_cast<uint32_t>(layer));
  const int64_t width = int64_t{dsa_.heads} * dsa_.head_dim;
  context_.Multiply(indexer->q, context_.inner, context_.rows(), q_, width);
  context_.ForEachRow([&](int64_t row, int) {
    kernels::ApplyRope(context_.path, kernels::RopeOrder::kHalfSplit, cosines + row * pairs_,
                       sines + row * pairs_, pairs_, dsa_.heads, dsa_.head_dim, q_ + row * width);
  });
  if (context_.rows() >= 2 * context_.pool.workers()) {
    context_.pool.ParallelFor(context_.rows(), [&](int64_t begin, int64_t end, int worker) {
      for (int64_t row = begin; row < end; ++row) {
        ScoreRow(view, row, 0, PositionsOf(row), ScoresOf(worker), worker);
        PickRow(row, ScoresOf(worker));
      }
    });
    return;
  }
  // Few rows: the positions of each are shared out.
  for (int64_t row = 0; row < context_.rows(); ++row) {
    if (PositionsOf(row) > dsa_.topk) {
      const int64_t blocks = (PositionsOf(row) + kScoreBlock - 1) / kScoreBlock;
      context_.pool.ParallelFor(blocks, [&](int64_t begin, int64_t end, int worker) {
        ScoreRow(view, row, begin * kScoreBlock, std::min(end * kScoreBlock, PositionsOf(row)),
                 ScoresOf(0), worker);
      });
    }
    PickRow(row, ScoresOf(0));
  }
}

int64_t Indexer::PositionsOf(int64_t row) const {
  return context_.plan.rows()[static_cast<size_t>(row)].position + 1;
}

float* Indexer::ScoresOf(int buffer) const {
  return reinterpret_cast<float*>(scores_[static_cast<size_t>(buffer)]);
}

void Indexer::ScoreRow(const kernels::MlaLayerView& view, int64_t row, int64_t begin, int64_t end,
                       float* scores, int worker) {
  if (PositionsOf(row) <= dsa_.topk) return;
  const BatchRow& place = context_.plan.rows()[static_cast<size_t>(row)];
  const BatchRun& run = context_.plan.runs()[static_cast<size_t>(place.run)];
  const kernels::MlaIndexQuery query = {q_ + row * dsa_.heads * dsa_.head_dim,
                                        key_ + row * key_width_ + dsa_.head_dim, dsa_.heads};
  kernels::MlaIndexScores(context_.path, view, query, run.pages, begin, end, scores,
                          context_.pool.scratch(worker).data());
}

void Indexer::PickRow(int64_t row, float* scores) {
  pick_counts_[static_cast<size_t>(row)] =
      kernels::MlaPick({dsa_.topk, context_.torch_length}, PositionsOf(row), scores,
                       reinterpret_cast<int32_t*>(scores + length_),
                       reinterpret_cast<int32_t*>(picks_) + row * dsa_.topk);
}

void Indexer::Attach(const BatchRun& run, kernels::MlaRun* out) const {
  if (!picks()) return;
  out->picks = reinterpret_cast<const int32_t*>(picks_) + run.first_row * dsa_.topk;
  out->pick_counts = pick_counts_.data() + run.first_row;
  out->pick_stride = dsa_.topk;
}

}  // namespace sluice::engine
