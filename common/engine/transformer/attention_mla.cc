#include "engine/transformer/attention_mla.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kv_store/mla_store.h"

namespace sluice::engine {
namespace {

// Of the norms of query and latent: what the models' own code uses, whatever rms_norm_eps says.
constexpr float kLatentNormEpsilon = 1e-6f;

// Heads of one attention task: enough to pay for the expansion of a tile, few enough for several
// workers to share a row.
constexpr int kTaskHeads = 32;

ActivationKinds KindsOf(const model::MatrixGroup& group) {
  ActivationKinds kinds;
  kinds.Add(group);
  return kinds;
}

ActivationKinds KindsOf(const std::vector<kernels::PackedMatrix>& matrices) {
  ActivationKinds kinds;
  for (const kernels::PackedMatrix& matrix : matrices) kinds.Add(matrix);
  return kinds;
}

int64_t DownWidth(const model::ModelConfig& config) {
  const model::MlaConfig& mla = *config.mla;
  const int64_t query = mla.q_lora_rank > 0 ? mla.q_lora_rank : config.q_width();
  return query + mla.kv_lora_rank + mla.qk_rope_head_dim;
}

}  // namespace

kv::LayoutSpec MlaLayoutSpec(const model::ModelConfig& config, kernels::KvFormat format,
                             uint32_t page_tokens) {
  kv::LayoutSpec spec;
  spec.format = format;
  spec.page_tokens = page_tokens;
  spec.layers = static_cast<uint32_t>(config.layers);
  spec.kv_heads = 1;
  spec.head_dim = static_cast<uint32_t>(config.mla->kv_lora_rank);
  spec.rope_dim = static_cast<uint32_t>(config.mla->qk_rope_head_dim);
  spec.rope_order = kv::RopeOrder::kHalfSplit;
  spec.shard.kind = kv::Shard::Kind::kReplicated;
  if (!config.dsa) return spec;
  spec.index_dim = static_cast<uint32_t>(config.dsa->head_dim);
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    if (config.has_indexer(static_cast<int32_t>(layer))) spec.index_layers.push_back(layer);
  }
  return spec;
}

AttentionMla::AttentionMla(PassContext& context, absl::Span<const model::LayerWeights> layers,
                           const kv::PageLayout& layout)
    : context_(context),
      layers_(layers),
      layout_(layout),
      mla_(*context.config.mla),
      inverse_frequencies_(model::InverseFrequencies(context.config)),
      heads_(context.config.heads),
      down_width_(DownWidth(context.config)),
      cache_width_(mla_.kv_lora_rank + mla_.qk_rope_head_dim) {
  const model::ModelConfig& config = context.config;
  if (config.dsa) indexer_ = std::make_unique<Indexer>(context, layers, layout);
  if (context.fast) naive_ = std::make_unique<MlaNaive>(context, layers);
  for (int layer = 0; layer < config.layers; ++layer) {
    const model::MlaWeights& mla = weights(layer);
    context.input.Declare(InputKinds(layer), config.hidden);
    context.inner.Declare(KindsOf(mla.q), mla_.q_lora_rank);
    context.inner.Declare(KindsOf(mla.o), heads_ * mla_.v_head_dim);
    nope_.Declare(KindsOf(mla.k_up), mla_.qk_nope_head_dim);
    latents_.Declare(KindsOf(mla.v_up), mla_.kv_lora_rank);
  }
  const int64_t pairs = static_cast<int64_t>(inverse_frequencies_.size());
  Workspace* const workspace = &context.workspace;
  workspace->Add(&down_, down_width_);
  if (mla_.q_lora_rank > 0) workspace->Add(&q_, config.q_width());
  workspace->Add(&absorbed_, heads_ * cache_width_);
  workspace->Add(&attended_, heads_ * mla_.kv_lora_rank);
  workspace->Add(&values_, heads_ * mla_.v_head_dim);
  workspace->Add(&cosines_, pairs);
  workspace->Add(&sines_, pairs);
  nope_.AddTo(workspace, heads_);
  latents_.AddTo(workspace, heads_);
}

const model::MlaWeights& AttentionMla::weights(int layer) const {
  return std::get<model::MlaWeights>(layers_[static_cast<size_t>(layer)].attention);
}

ActivationKinds AttentionMla::InputKinds(int layer) const {
  ActivationKinds kinds = KindsOf(weights(layer).down);
  if (indexer_ != nullptr) kinds.Add(indexer_->InputKinds(layer));
  return kinds;
}

size_t AttentionMla::scratch_bytes() const {
  size_t bytes = kernels::MlaScratchBytes(layout_.MlaView(0));
  if (indexer_ != nullptr) bytes = std::max(bytes, indexer_->scratch_bytes());
  if (naive_ != nullptr) bytes = std::max(bytes, naive_->scratch_bytes());
  return bytes;
}

absl::Status AttentionMla::BeginPass() {
  const int groups = (context_.config.heads + kTaskHeads - 1) / kTaskHeads;
  AttentionTasks::Options tasks = {.kv_heads = groups, .workers = context_.pool.workers()};
  bool picks = false;
  if (indexer_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(indexer_->BeginPass());
    picks = indexer_->picks();
    tasks.attended_max = context_.config.dsa->topk;
  }
  // Rows with picks of their own share no keys that the naive form could make.
  if (naive_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(naive_->BeginPass(!picks));
    tasks.left_out = &naive_->takes();
  }
  absorbed_rows_.clear();
  for (size_t run = 0; run < context_.plan.runs().size(); ++run) {
    const BatchRun& at = context_.plan.runs()[run];
    if (IsNaive(static_cast<int>(run))) continue;
    if (absorbed_rows_.empty() || absorbed_rows_.back().second != at.first_row) {
      absorbed_rows_.emplace_back(at.first_row, at.first_row);
    }
    absorbed_rows_.back().second += at.rows;
  }
  tasks_.Build(context_.plan, tasks);
  const size_t floats =
      tasks_.partials() * kTaskHeads * kernels::MlaPartialFloats(layout_.MlaView(0));
  if (floats > 0) {
    SLUICE_ASSIGN_OR_RETURN(std::byte * memory, partials_memory_.Reserve(floats * sizeof(float)));
    partials_ = reinterpret_cast<float*>(memory);
  }
  context_.RopeRows(inverse_frequencies_, cosines_, sines_);
  return absl::OkStatus();
}

void AttentionMla::Forward(int layer, absl::FunctionRef<void()> stored) {
  const model::MlaWeights& mla = weights(layer);
  const kernels::MlaLayerView view = layout_.MlaView(static_cast<uint32_t>(layer));
  const int64_t rows = context_.rows();
  context_.Multiply(mla.down, context_.input, rows, down_, down_width_);
  ActivationKinds query_kinds = KindsOf(mla.q);
  if (indexer_ != nullptr) query_kinds.Add(indexer_->QueryKinds(layer));
  context_.ForEachRow([&](int64_t row, int) { FinishDownRow(mla, query_kinds, view, row); });
  if (indexer_ != nullptr) indexer_->StoreKeys(layer, cosines_, sines_);
  stored();
  if (indexer_ != nullptr) indexer_->Pick(layer, cosines_, sines_);
  if (mla_.q_lora_rank > 0) {
    context_.Multiply(mla.q, context_.inner, rows, q_, context_.config.q_width());
  }
  context_.ForEachRow([&](int64_t row, int) { FinishQueryRow(mla, row); });
  MultiplyHeads(
      mla.k_up, nope_, [&](int64_t head) { return absorbed_ + head * cache_width_; },
      heads_ * cache_width_);
  Attend(view);
  const ActivationKinds kinds = KindsOf(mla.v_up);
  const int64_t latent = mla_.kv_lora_rank;
  context_.ForEachRow([&](int64_t row, int) {
    if (IsNaive(context_.plan.rows()[static_cast<size_t>(row)].run)) return;
    for (int64_t head = 0; head < heads_; ++head) {
      latents_.Prepare(context_.path, kinds, attended_ + (row * heads_ + head) * latent, latent,
                       head * rows + row);
    }
  });
  const int64_t width = heads_ * mla_.v_head_dim;
  MultiplyHeads(
      mla.v_up, latents_, [&](int64_t head) { return values_ + head * mla_.v_head_dim; }, width);
  AttendNaive(mla, view);
  context_.ForEachRow([&](int64_t row, int) {
    context_.inner.Prepare(context_.path, KindsOf(mla.o), values_ + row * width, width, row);
  });
  context_.Multiply(mla.o, context_.inner, rows, context_.y, context_.config.hidden);
}

void AttentionMla::FinishDownRow(const model::MlaWeights& mla, const ActivationKinds& query_kinds,
                                 const kernels::MlaLayerView& view, int64_t row) {
  const int64_t pairs = static_cast<int64_t>(inverse_frequencies_.size());
  float* const query = down_ + row * down_width_;
  float* const latent = query + down_width_ - cache_width_;
  float* const rope = latent + mla_.kv_lora_rank;
  if (mla_.q_lora_rank > 0) {
    kernels::RmsNorm(context_.path, query, mla.q_norm.data(), kLatentNormEpsilon, mla_.q_lora_rank,
                     query);
    context_.inner.Prepare(context_.path, query_kinds, query, mla_.q_lora_rank, row);
  }
  kernels::RmsNorm(context_.path, latent, mla.kv_norm.data(), kLatentNormEpsilon, mla_.kv_lora_rank,
                   latent);
  kernels::ApplyRope(context_.path, kernels::RopeOrder::kHalfSplit, cosines_ + row * pairs,
                     sines_ + row * pairs, pairs, 1, mla_.qk_rope_head_dim, rope);
  const BatchRow& place = context_.plan.rows()[static_cast<size_t>(row)];
  const BatchRun& run = context_.plan.runs()[static_cast<size_t>(place.run)];
  kernels::StoreMla(context_.path, view, run.pages, place.position, {latent, rope}, 0, 1);
}

void AttentionMla::FinishQueryRow(const model::MlaWeights& mla, int64_t row) {
  const model::ModelConfig& config = context_.config;
  const int64_t nope = mla_.qk_nope_head_dim;
  const int64_t rope = mla_.qk_rope_head_dim;
  const int64_t pairs = static_cast<int64_t>(inverse_frequencies_.size());
  const ActivationKinds kinds = KindsOf(mla.k_up);
  float* q = mla_.q_lora_rank > 0 ? q_ + row * config.q_width() : down_ + row * down_width_;
  kernels::ApplyRope(context_.path, kernels::RopeOrder::kHalfSplit, cosines_ + row * pairs,
                     sines_ + row * pairs, pairs, heads_, config.head_dim, q + nope);
  if (IsNaive(context_.plan.rows()[static_cast<size_t>(row)].run)) return;
  float* absorbed = absorbed_ + row * heads_ * cache_width_;
  for (int64_t head = 0; head < heads_; ++head, q += config.head_dim, absorbed += cache_width_) {
    nope_.Prepare(context_.path, kinds, q, nope, head * context_.rows() + row);
    std::memcpy(absorbed + mla_.kv_lora_rank, q + nope, static_cast<size_t>(rope) * sizeof(float));
  }
}

void AttentionMla::MultiplyHeads(absl::Span<const kernels::PackedMatrix> matrices,
                                 const PreparedRows& prepared,
                                 absl::FunctionRef<float*(int64_t head)> out, int64_t stride) {
  const kernels::PackedMatrix& first = matrices.front();
  const int64_t panels = first.panels();
  const int64_t rows = context_.rows();
  for (const auto& [row, row_end] : absorbed_rows_) {
    const int64_t count = row_end - row;
    context_.pool.ParallelFor(
        panels * heads_,
        [&, row = row](int64_t begin, int64_t end, int) {
          while (begin < end) {
            const int64_t head = begin / panels;
            const int64_t stop = std::min(end, (head + 1) * panels);
            const kernels::PackedMatrix& matrix = matrices[static_cast<size_t>(head)];
            kernels::Forward(matrix, prepared.Row(matrix.activations, matrix.k, head * rows + row),
                             count, begin - head * panels, stop - head * panels,
                             out(head) + row * stride, stride);
            begin = stop;
          }
        },
        kChunkNanoseconds / PanelNanoseconds(first, count) + 1);
  }
  context_.weight_bytes_read += static_cast<uint64_t>(first.bytes() * heads_);
}

void AttentionMla::AttendNaive(const model::MlaWeights& mla, const kernels::MlaLayerView& view) {
  const int64_t q_stride = mla_.q_lora_rank > 0 ? context_.config.q_width() : down_width_;
  const float* const q = mla_.q_lora_rank > 0 ? q_ : down_;
  for (size_t i = 0; i < context_.plan.runs().size(); ++i) {
    if (!IsNaive(static_cast<int>(i))) continue;
    const BatchRun& run = context_.plan.runs()[i];
    naive_->Attend(mla, view, run, q + run.first_row * q_stride, q_stride,
                   values_ + run.first_row * heads_ * mla_.v_head_dim);
  }
}

kernels::MlaRun AttentionMla::RunOf(int index) const {
  const BatchRun& run = context_.plan.runs()[static_cast<size_t>(index)];
  kernels::MlaRun out;
  out.q_stride = heads_ * cache_width_;
  out.out_stride = heads_ * mla_.kv_lora_rank;
  out.q = absorbed_ + run.first_row * out.q_stride;
  out.out = attended_ + run.first_row * out.out_stride;
  out.heads = context_.config.heads;
  out.first_position = run.first_position;
  out.pages = run.pages;
  out.scale = context_.config.softmax_scale();
  if (indexer_ != nullptr) indexer_->Attach(run, &out);
  return out;
}

int AttentionMla::HeadsEnd(int group) const {
  return std::min((group + 1) * kTaskHeads, context_.config.heads);
}

float* AttentionMla::PartialsOf(size_t first_partial, const kernels::MlaLayerView& view) const {
  return partials_ + first_partial * kTaskHeads * kernels::MlaPartialFloats(view);
}

void AttentionMla::Attend(const kernels::MlaLayerView& view) {
  // About 20 multiply-adds per nanosecond and core.
  const int64_t count = static_cast<int64_t>(tasks_.tasks().size());
  const int64_t pairs_per_task = context_.plan.pairs() / std::max<int64_t>(count, 1) + 1;
  const int64_t task_ns = pairs_per_task * std::min<int64_t>(kTaskHeads, heads_) *
                          (cache_width_ + mla_.kv_lora_rank) / 20;
  context_.pool.ParallelFor(
      count,
      [&](int64_t begin, int64_t end, int worker) {
        std::byte* const scratch = context_.pool.scratch(worker).data();
        for (int64_t i = begin; i < end; ++i) {
          const AttentionTask& task = tasks_.tasks()[static_cast<size_t>(i)];
          const kernels::MlaRun run = RunOf(task.run);
          const int head = task.kv_head * kTaskHeads;
          if (task.tile_end == 0) {
            kernels::MlaAttention(context_.path, view, run, task.row_begin, task.row_end, head,
                                  HeadsEnd(task.kv_head), scratch);
          } else {
            kernels::MlaPartials(
                context_.path, view, run, task.row_begin, head, HeadsEnd(task.kv_head),
                task.tile_begin, task.tile_end,
                PartialsOf(task.first_partial - static_cast<size_t>(task.tile_begin), view) +
                    static_cast<size_t>(task.tile_begin) *
                        static_cast<size_t>(HeadsEnd(task.kv_head) - head) *
                        kernels::MlaPartialFloats(view),
                scratch);
          }
        }
      },
      kChunkNanoseconds / std::max<int64_t>(task_ns, 1) + 1);
  for (const MergeTask& merge : tasks_.merges()) {
    kernels::MlaMerge(context_.path, view, RunOf(merge.run), merge.row, merge.kv_head * kTaskHeads,
                      HeadsEnd(merge.kv_head), PartialsOf(merge.first_partial, view));
  }
}

}  // namespace sluice::engine
