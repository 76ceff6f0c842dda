#include "engine/transformer/attention_gqa.h"

#include <algorithm>
#include <variant>

#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kv_store/kv_store.h"

namespace sluice::engine {

kv::LayoutSpec GqaLayoutSpec(const model::ModelConfig& config, kernels::KvFormat format,
                             uint32_t page_tokens, const model::KvCentre& centre) {
  kv::LayoutSpec spec;
  spec.format = format;
  spec.page_tokens = page_tokens;
  spec.sink_rows = kernels::IsCentred(format) ? 1 : 0;
  if (kernels::IsCentred(format)) spec.centre_digest = centre.Digest();
  spec.layers = static_cast<uint32_t>(config.layers);
  spec.kv_heads = static_cast<uint32_t>(config.kv_heads);
  spec.head_dim = static_cast<uint32_t>(config.head_dim);
  spec.rope_order = kv::RopeOrder::kHalfSplit;
  return spec;
}

AttentionGqa::AttentionGqa(PassContext& context, absl::Span<const model::LayerWeights> layers,
                           const kv::PageLayout& layout, const model::KvCentre& centre)
    : context_(context),
      layers_(layers),
      layout_(layout),
      centre_(centre),
      inverse_frequencies_(model::InverseFrequencies(context.config)),
      qkv_width_(context.config.q_width() + 2 * context.config.kv_width()) {
  const model::ModelConfig& config = context.config;
  for (int layer = 0; layer < config.layers; ++layer) {
    ActivationKinds output;
    output.Add(weights(layer).o);
    context.input.Declare(InputKinds(layer), config.hidden);
    context.inner.Declare(output, config.q_width());
  }
  const int64_t pairs = static_cast<int64_t>(inverse_frequencies_.size());
  context.workspace.Add(&qkv_, qkv_width_);
  context.workspace.Add(&attended_, config.q_width());
  context.workspace.Add(&cosines_, pairs);
  context.workspace.Add(&sines_, pairs);
}

const model::GqaWeights& AttentionGqa::weights(int layer) const {
  return std::get<model::GqaWeights>(layers_[static_cast<size_t>(layer)].attention);
}

ActivationKinds AttentionGqa::InputKinds(int layer) const {
  ActivationKinds kinds;
  kinds.Add(weights(layer).qkv);
  return kinds;
}

size_t AttentionGqa::scratch_bytes() const {
  return kernels::AttentionScratchBytes(layout_.LayerView(0), context_.config.heads);
}

absl::Status AttentionGqa::BeginPass() {
  const kernels::KvLayerView view = layout_.LayerView(0);
  tasks_.Build(
      context_.plan,
      {.kv_heads = view.kv_heads, .sink_rows = view.sink_rows, .workers = context_.pool.workers()});
  const size_t floats =
      tasks_.partials() * kernels::AttentionPartialFloats(view, context_.config.heads);
  if (floats > 0) {
    SLUICE_ASSIGN_OR_RETURN(std::byte * memory, partials_memory_.Reserve(floats * sizeof(float)));
    partials_ = reinterpret_cast<float*>(memory);
  }
  context_.RopeRows(inverse_frequencies_, cosines_, sines_);
  return absl::OkStatus();
}

kernels::KvLayerView AttentionGqa::View(int layer) const {
  kernels::KvLayerView view = layout_.LayerView(static_cast<uint32_t>(layer));
  if (!kernels::IsCentred(view.format) || centre_.empty()) return view;
  const auto at = static_cast<size_t>(layer * view.kv_heads * view.head_dim);
  view.k_centre = centre_.k.data() + at;
  view.v_centre = centre_.v.data() + at;
  return view;
}

void AttentionGqa::Forward(int layer, absl::FunctionRef<void()> stored) {
  const model::GqaWeights& gqa = weights(layer);
  const kernels::KvLayerView view = View(layer);
  const int64_t width = context_.config.q_width();
  context_.Multiply(gqa.qkv, context_.input, context_.rows(), qkv_, qkv_width_);
  context_.ForEachRow([&](int64_t row, int) { FinishQkvRow(gqa, view, row); });
  stored();
  Attend(view);
  ActivationKinds kinds;
  kinds.Add(gqa.o);
  context_.ForEachRow([&](int64_t row, int) {
    context_.inner.Prepare(context_.path, kinds, attended_ + row * width, width, row);
  });
  context_.Multiply(gqa.o, context_.inner, context_.rows(), context_.y, context_.config.hidden);
}

void AttentionGqa::FinishQkvRow(const model::GqaWeights& gqa, const kernels::KvLayerView& view,
                                int64_t row) {
  const model::ModelConfig& config = context_.config;
  const int64_t dim = config.head_dim;
  const int64_t pairs = static_cast<int64_t>(inverse_frequencies_.size());
  float* const q = qkv_ + row * qkv_width_;
  float* const k = q + config.q_width();
  if (config.qkv_bias) kernels::AddInPlace(context_.path, gqa.qkv_bias.data(), qkv_width_, q);
  if (config.qk_norm) {
    for (int64_t head = 0; head < config.heads + config.kv_heads; ++head) {
      const std::vector<float>& norm = head < config.heads ? gqa.q_norm : gqa.k_norm;
      kernels::RmsNorm(context_.path, q + head * dim, norm.data(), config.norm_eps, dim,
                       q + head * dim);
    }
  }
  // Heads of q and k follow each other, so one call rotates both.
  kernels::ApplyRope(context_.path, kernels::RopeOrder::kHalfSplit, cosines_ + row * pairs,
                     sines_ + row * pairs, pairs, config.heads + config.kv_heads, dim, q);
  const BatchRow& place = context_.plan.rows()[static_cast<size_t>(row)];
  const BatchRun& run = context_.plan.runs()[static_cast<size_t>(place.run)];
  const kernels::KvRows kv = {k, k + config.kv_width(), qkv_width_, qkv_width_};
  kernels::StoreKv(context_.path, view, run.pages, place.position, kv, 0, 1);
}

kernels::AttentionRun AttentionGqa::RunOf(int index) const {
  const BatchRun& run = context_.plan.runs()[static_cast<size_t>(index)];
  kernels::AttentionRun out;
  out.q = qkv_ + run.first_row * qkv_width_;
  out.out = attended_ + run.first_row * context_.config.q_width();
  out.q_stride = qkv_width_;
  out.out_stride = context_.config.q_width();
  out.heads = context_.config.heads;
  out.first_position = run.first_position;
  out.pages = run.pages;
  out.scale = context_.config.softmax_scale();
  return out;
}

void AttentionGqa::Attend(const kernels::KvLayerView& view) {
  const model::ModelConfig& config = context_.config;
  const size_t partial_floats = kernels::AttentionPartialFloats(view, config.heads);
  // About 20 multiply-adds per nanosecond and core.
  const int64_t count = static_cast<int64_t>(tasks_.tasks().size());
  const int64_t pairs_per_task = context_.plan.pairs() / std::max<int64_t>(count, 1) + 1;
  const int64_t task_ns = pairs_per_task * config.q_width() / config.kv_heads * 2 / 20;
  context_.pool.ParallelFor(
      count,
      [&](int64_t begin, int64_t end, int worker) {
        std::byte* const scratch = context_.pool.scratch(worker).data();
        for (int64_t i = begin; i < end; ++i) {
          const AttentionTask& task = tasks_.tasks()[static_cast<size_t>(i)];
          const kernels::AttentionRun run = RunOf(task.run);
          if (task.tile_end == 0) {
            kernels::Attention(context_.path, view, run, task.row_begin, task.row_end, task.kv_head,
                               task.kv_head + 1, scratch);
          } else {
            kernels::AttentionPartials(context_.path, view, run, task.row_begin, task.kv_head,
                                       task.tile_begin, task.tile_end,
                                       partials_ + task.first_partial * partial_floats, scratch);
          }
        }
      },
      kChunkNanoseconds / std::max<int64_t>(task_ns, 1) + 1, context_.ahead());
  for (const MergeTask& merge : tasks_.merges()) {
    kernels::AttentionMerge(context_.path, view, RunOf(merge.run), merge.row, merge.kv_head,
                            partials_ + merge.first_partial * partial_floats);
  }
}

}  // namespace sluice::engine
