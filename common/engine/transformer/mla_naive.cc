#include "engine/transformer/mla_naive.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "base/status_macros.h"
#include "kernels/kv_store/mla_store.h"

namespace sluice::engine {
namespace {

// Keys and values of this many heads at a time: 12 KiB a position for heads of 192.
constexpr int64_t kGroupHeads = 8;
constexpr int kPageTokens = 256;
// Rows of one head that share the expansion of a tile.
constexpr int kRowBlock = 64;

size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Heads of a group: the largest divisor that is not above kGroupHeads.
int64_t GroupOf(int64_t heads) {
  int64_t group = std::min(heads, kGroupHeads);
  while (heads % group != 0) --group;
  return group;
}

}  // namespace

MlaNaive::MlaNaive(PassContext& context, absl::Span<const model::LayerWeights> layers)
    : context_(context),
      mla_(*context.config.mla),
      heads_(context.config.heads),
      dim_(context.config.head_dim),
      group_(GroupOf(heads_)) {
  layer_.format = kernels::KvFormat::kF32;
  layer_.page_tokens = kPageTokens;
  layer_.kv_heads = static_cast<int>(group_);
  layer_.head_dim = static_cast<int>(dim_);
  layer_.v_offset = static_cast<uint32_t>(group_ * kPageTokens * dim_ * int64_t{sizeof(float)});
  for (const model::LayerWeights& layer : layers) {
    const auto& mla = std::get<model::MlaWeights>(layer.attention);
    kinds_.Add(mla.key_rows.front());
    kinds_.Add(mla.v_up.front());
  }
}

size_t MlaNaive::scratch_bytes() const {
  return std::max(kernels::AttentionScratchBytes(layer_, layer_.kv_heads),
                  static_cast<size_t>(mla_.kv_lora_rank + mla_.qk_rope_head_dim) * sizeof(float));
}

bool MlaNaive::Pays(const BatchRun& run) const {
  // Shapes that the attention kernels take; values are padded to the width of keys.
  if (run.rows < 2 || dim_ % 16 != 0 || dim_ > 256 || mla_.v_head_dim > dim_) return false;
  const int64_t positions = run.first_position + run.rows;
  const int64_t pairs = run.rows * run.first_position + int64_t{run.rows} * (run.rows + 1) / 2;
  const int64_t saved_pair = 2 * mla_.kv_lora_rank + mla_.qk_rope_head_dim - 2 * dim_;
  // The absorbed form takes queries and results of its rows through kv_b, this one all positions.
  const int64_t up = mla_.kv_lora_rank * (mla_.qk_nope_head_dim + mla_.v_head_dim);
  return saved_pair * pairs > up * (positions - run.rows);
}

absl::Status MlaNaive::BeginPass(bool may_take) {
  takes_.clear();
  int64_t positions = 0, rows = 0;
  for (const BatchRun& run : context_.plan.runs()) {
    takes_.push_back(may_take && Pays(run));
    if (!takes_.back()) continue;
    positions = std::max(positions, run.first_position + run.rows);
    rows = std::max<int64_t>(rows, run.rows);
  }
  if (positions == 0) return absl::OkStatus();
  const int64_t pages = (positions + kPageTokens - 1) / kPageTokens;
  const size_t page_bytes = size_t{2} * layer_.v_offset;
  const size_t rope_bytes = RoundUp(static_cast<size_t>(positions * mla_.qk_rope_head_dim * 4));
  const size_t out_bytes = RoundUp(static_cast<size_t>(rows * group_ * dim_ * 4));
  size_t kind_bytes[ActivationKinds::kCount] = {};
  size_t total = static_cast<size_t>(pages) * page_bytes + rope_bytes + out_bytes;
  for (size_t i = 0; i < ActivationKinds::kCount; ++i) {
    const auto kind = static_cast<kernels::ActivationKind>(i);
    if (!kinds_.Has(kind)) continue;
    kind_bytes[i] =
        static_cast<size_t>(positions * kernels::PreparedRowBytes(kind, mla_.kv_lora_rank));
    total += kind_bytes[i];
  }
  SLUICE_ASSIGN_OR_RETURN(std::byte * memory, memory_.Reserve(total));
  pages_.clear();
  for (int64_t i = 0; i < pages; ++i, memory += page_bytes) pages_.push_back(memory);
  rope_ = reinterpret_cast<float*>(memory);
  out_ = reinterpret_cast<float*>(memory + rope_bytes);
  memory += rope_bytes + out_bytes;
  for (size_t i = 0; i < ActivationKinds::kCount; ++i) {
    prepared_[i] = reinterpret_cast<uint8_t*>(memory);
    memory += kind_bytes[i];
  }
  return absl::OkStatus();
}

void MlaNaive::Attend(const model::MlaWeights& mla, const kernels::MlaLayerView& view,
                      const BatchRun& run, const float* q, int64_t q_stride, float* values) {
  const int64_t count = run.first_position + run.rows;
  Expand(mla, view, run, count);
  for (int64_t head = 0; head < heads_; head += group_) {
    MakePages(mla, head, count);
    AttendGroup(run, head, q, q_stride, values);
  }
}

void MlaNaive::Expand(const model::MlaWeights& mla, const kernels::MlaLayerView& view,
                      const BatchRun& run, int64_t count) {
  const int64_t latent = mla_.kv_lora_rank;
  const int64_t rope = mla_.qk_rope_head_dim;
  ActivationKinds kinds;
  kinds.Add(mla.key_rows.front());
  kinds.Add(mla.v_up.front());
  context_.pool.ParallelFor(count, [&](int64_t begin, int64_t end, int worker) {
    float* const row = reinterpret_cast<float*>(context_.pool.scratch(worker).data());
    for (int64_t position = begin; position < end; ++position) {
      kernels::LoadMlaRow(view, run.pages[position / view.page_tokens],
                          static_cast<int>(position % view.page_tokens), row);
      std::memcpy(rope_ + position * rope, row + latent, static_cast<size_t>(rope) * 4);
      for (size_t i = 0; i < ActivationKinds::kCount; ++i) {
        const auto kind = static_cast<kernels::ActivationKind>(i);
        if (!kinds.Has(kind)) continue;
        kernels::PrepareActivations(
            context_.path, kind, row, 1, latent, latent,
            prepared_[i] + position * kernels::PreparedRowBytes(kind, latent));
      }
    }
  });
}

void MlaNaive::MakePages(const model::MlaWeights& mla, int64_t first_head, int64_t count) {
  const int64_t nope = mla_.qk_nope_head_dim;
  const int64_t rope = mla_.qk_rope_head_dim;
  const auto rows_of = [&](const kernels::PackedMatrix& matrix, int64_t position) {
    return prepared_[static_cast<size_t>(matrix.activations)] +
           position * kernels::PreparedRowBytes(matrix.activations, matrix.k);
  };
  const int64_t pages = (count + kPageTokens - 1) / kPageTokens;
  context_.pool.ParallelFor(pages * group_, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t page = i / group_, head = i % group_, first = page * kPageTokens;
      const int64_t tokens = std::min<int64_t>(count - first, kPageTokens);
      const kernels::PackedMatrix& keys = mla.key_rows[static_cast<size_t>(first_head + head)];
      const kernels::PackedMatrix& up = mla.v_up[static_cast<size_t>(first_head + head)];
      std::byte* const memory = pages_[static_cast<size_t>(page)];
      float* const k = reinterpret_cast<float*>(memory) + head * kPageTokens * dim_;
      float* const v =
          reinterpret_cast<float*>(memory + layer_.v_offset) + head * kPageTokens * dim_;
      kernels::Forward(keys, rows_of(keys, first), tokens, 0, keys.panels(), k, dim_);
      kernels::Forward(up, rows_of(up, first), tokens, 0, up.panels(), v, dim_);
      for (int64_t t = 0; t < tokens; ++t) {
        std::memcpy(k + t * dim_ + nope, rope_ + (first + t) * rope, static_cast<size_t>(rope) * 4);
        std::fill(v + t * dim_ + mla_.v_head_dim, v + (t + 1) * dim_, 0.0f);
      }
    }
  });
}

void MlaNaive::AttendGroup(const BatchRun& run, int64_t first_head, const float* q,
                           int64_t q_stride, float* values) {
  kernels::AttentionRun attention;
  attention.q = q + first_head * dim_;
  attention.out = out_;
  attention.q_stride = q_stride;
  attention.out_stride = group_ * dim_;
  attention.heads = static_cast<int>(group_);
  attention.first_position = run.first_position;
  attention.pages = pages_.data();
  attention.scale = context_.config.softmax_scale();
  const int64_t blocks = (run.rows + kRowBlock - 1) / kRowBlock;
  const int64_t width = mla_.v_head_dim;
  context_.pool.ParallelFor(blocks * group_, [&](int64_t begin, int64_t end, int worker) {
    std::byte* const scratch = context_.pool.scratch(worker).data();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i % group_;
      const int row_begin = static_cast<int>(i / group_) * kRowBlock;
      const int row_end = std::min(row_begin + kRowBlock, run.rows);
      kernels::Attention(context_.path, layer_, attention, row_begin, row_end,
                         static_cast<int>(head), static_cast<int>(head) + 1, scratch);
      for (int64_t row = row_begin; row < row_end; ++row) {
        std::memcpy(values + (row * heads_ + first_head + head) * width,
                    out_ + (row * group_ + head) * dim_, static_cast<size_t>(width) * 4);
      }
    }
  });
}

}  // namespace sluice::engine
