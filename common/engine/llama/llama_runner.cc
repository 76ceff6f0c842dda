#include "engine/llama/llama_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "kernels/attention/attention.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kv_store/kv_store.h"
#include "model/numerics_id.h"

namespace sluice::engine {
namespace {

// A chunk of work should take longer than this, or handing it out costs more than it saves.
constexpr int64_t kChunkNanoseconds = 1500;
constexpr int64_t kRowChunk = 4;  // rows of a step that only norms, rotates or adds: well over 1 us
constexpr size_t kProbeTokens = 8;

// Panels per chunk by a rough model of one core: 40 GB/s of weights, 400 operations per nanosecond.
int64_t PanelChunk(const kernels::PackedMatrix& matrix, int64_t rows) {
  const int64_t read_ns = matrix.panel_bytes / 40;
  const int64_t compute_ns = rows * matrix.k * 2 * kernels::kPanelRows / 400;
  return kChunkNanoseconds / std::max<int64_t>({read_ns, compute_ns, 1}) + 1;
}

absl::StatusOr<kv::PageLayout> MakeLayout(const model::ModelConfig& config,
                                          const LlamaRunnerOptions& options) {
  kv::LayoutSpec spec;
  spec.format = options.kv_format;
  spec.page_tokens = options.page_tokens;
  spec.layers = static_cast<uint32_t>(config.layers);
  spec.kv_heads = static_cast<uint32_t>(config.kv_heads);
  spec.head_dim = static_cast<uint32_t>(config.head_dim);
  spec.rope_order = kv::RopeOrder::kHalfSplit;
  return kv::PageLayout::Make(spec);
}

}  // namespace

LlamaRunner::LlamaRunner(const model::ModelConfig& config, const LlamaRunnerOptions& options,
                         std::unique_ptr<model::LoadedWeights> weights, device::ThreadPool& pool)
    : config_(config),
      options_(options),
      weights_(std::move(weights)),
      pool_(pool),
      inverse_frequencies_(model::InverseFrequencies(config)),
      qkv_width_(config.q_width() + 2 * config.kv_width()),
      act_(config, *weights_) {}

absl::StatusOr<std::unique_ptr<LlamaRunner>> LlamaRunner::Create(const model::ModelFiles& files,
                                                                 const LlamaRunnerOptions& options,
                                                                 device::ThreadPool& pool) {
  const model::ModelConfig& config = files.config();
  const absl::string_view path_name = kernels::IsaPathName(options.path);
  if (!kernels::IsaPathAvailable(options.path)) {
    return absl::UnimplementedError(
        absl::StrCat("this processor cannot run the kernels '", path_name, "'; use 'auto'"));
  }
  SLUICE_ASSIGN_OR_RETURN(kv::PageLayout layout, MakeLayout(config, options));
  const kernels::KvLayerView view = layout.LayerView(0);
  const size_t scratch = std::max(kernels::AttentionScratchBytes(view, config.heads),
                                  static_cast<size_t>(config.hidden) * sizeof(float));
  if (pool.scratch(0).size() < scratch) {
    return absl::InvalidArgumentError(absl::StrCat("the thread pool has ", pool.scratch(0).size(),
                                                   " bytes of scratch a worker, this model needs ",
                                                   scratch));
  }
  SLUICE_ASSIGN_OR_RETURN(auto weights, model::LoadedWeights::Load(files, options.path, pool));
  auto runner =
      std::unique_ptr<LlamaRunner>(new LlamaRunner(config, options, std::move(weights), pool));
  SLUICE_RETURN_IF_ERROR(runner->act_.Reserve(options.reserved_rows, 0));
  ModelInfo& info = runner->info_;
  info.name = config.name;
  info.vocabulary = config.vocabulary;
  info.context_tokens = config.context_tokens;
  info.layers = config.layers;
  info.eos_tokens = config.eos_tokens;
  info.layout = std::move(layout);
  info.model_digest = files.Digest();
  SLUICE_ASSIGN_OR_RETURN(const Id128 probe, runner->ProbeLogits());
  info.numerics_id = model::NumericsId({info.model_digest, path_name, info.layout.hash(), probe});
  runner->weight_bytes_read_ = 0;
  return runner;
}

absl::StatusOr<Id128> LlamaRunner::ProbeLogits() {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < kProbeTokens; ++i) {
    tokens.push_back(
        static_cast<TokenId>((i * 7919 + 13) % static_cast<size_t>(config_.vocabulary)));
  }
  const size_t pages = info_.layout.PagesFor(kProbeTokens);
  SLUICE_ASSIGN_OR_RETURN(const auto memory,
                          device::HugePageArena::Create(pages * info_.layout.page_bytes()));
  std::vector<uint8_t*> table;
  for (size_t i = 0; i < pages; ++i) {
    table.push_back(reinterpret_cast<uint8_t*>(memory.memory().data()) +
                    i * info_.layout.page_bytes());
  }
  std::vector<float> logits(static_cast<size_t>(config_.vocabulary));
  const Segment segment = {tokens, 0, table, LogitsWanted::kLast};
  SLUICE_RETURN_IF_ERROR(Forward({&segment, 1}, nullptr, absl::MakeSpan(logits)));
  return Hash128(logits.data(), logits.size() * sizeof(float));
}

absl::Status LlamaRunner::CheckBatch(absl::Span<const Segment> segments, size_t logits) const {
  size_t logits_rows = 0;
  for (const Segment& segment : segments) {
    if (segment.tokens.empty() || segment.first_position < 0) {
      return absl::InternalError("a segment without tokens or with a negative position");
    }
    const uint32_t end = static_cast<uint32_t>(segment.first_position) +
                         static_cast<uint32_t>(segment.tokens.size());
    if (info_.layout.PagesFor(end) > segment.pages.size()) {
      return absl::InternalError(absl::StrCat("a segment up to position ", end, " has only ",
                                              segment.pages.size(), " pages of ",
                                              info_.layout.page_tokens(), " tokens"));
    }
    for (TokenId token : segment.tokens) {
      if (token >= 0 && token < config_.vocabulary) continue;
      return absl::InternalError(
          absl::StrCat("token ", token, " is outside the vocabulary of ", config_.vocabulary));
    }
    if (segment.logits == LogitsWanted::kLast) logits_rows += 1;
    if (segment.logits == LogitsWanted::kAll) logits_rows += segment.tokens.size();
  }
  if (logits != logits_rows * static_cast<size_t>(config_.vocabulary)) {
    return absl::InternalError(absl::StrCat("room for ", logits, " logits, wanted are ",
                                            logits_rows, " rows of ", config_.vocabulary));
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::Forward(absl::Span<const Segment> segments, ForwardHooks* hooks,
                                  absl::Span<float> logits) {
  SLUICE_RETURN_IF_ERROR(CheckBatch(segments, logits.size()));
  if (segments.empty()) return absl::OkStatus();
  const kernels::KvLayerView view = info_.layout.LayerView(0);
  plan_.Build(segments, view, pool_.workers());
  SLUICE_RETURN_IF_ERROR(
      act_.Reserve(static_cast<int64_t>(plan_.rows().size()),
                   static_cast<int64_t>(plan_.partials() *
                                        kernels::AttentionPartialFloats(view, config_.heads))));
  Embed();
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (hooks != nullptr && hooks->Cancelled()) {
      return absl::CancelledError(absl::StrCat("cancelled before layer ", layer));
    }
    AttentionBlock(layer, layer == 0, hooks);
    FeedForwardBlock(layer);
  }
  ProjectLogits(logits);
  return absl::OkStatus();
}

void LlamaRunner::Embed() {
  const int64_t pairs = config_.head_dim / 2;
  pool_.ParallelFor(
      static_cast<int64_t>(plan_.rows().size()),
      [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const BatchRow& row = plan_.rows()[static_cast<size_t>(i)];
          weights_->Embedding(row.token, act_.x + i * config_.hidden);
          kernels::RopeAngles(inverse_frequencies_.data(), pairs, row.position, 1.0f,
                              act_.cosines + i * pairs, act_.sines + i * pairs);
        }
      },
      kRowChunk);
}

void LlamaRunner::AttentionBlock(int layer, bool first, ForwardHooks* hooks) {
  const model::LayerWeights& weights = weights_->layers()[static_cast<size_t>(layer)];
  const kernels::KvLayerView view = info_.layout.LayerView(static_cast<uint32_t>(layer));
  const int64_t rows = static_cast<int64_t>(plan_.rows().size());
  NormRows(!first, weights.attn_norm, weights.qkv);
  Multiply(weights.qkv, rows, act_.qkv, qkv_width_);
  pool_.ParallelFor(
      rows,
      [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) FinishQkvRow(weights, view, row);
      },
      kRowChunk);
  if (hooks != nullptr) hooks->LayersDone(layer, layer + 1);
  Attend(view);
  pool_.ParallelFor(
      rows,
      [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          PrepareRow(weights.o, act_.attention + row * config_.q_width(), row);
        }
      },
      kRowChunk);
  Multiply(weights.o, rows, act_.y, config_.hidden);
}

void LlamaRunner::FeedForwardBlock(int layer) {
  const model::LayerWeights& weights = weights_->layers()[static_cast<size_t>(layer)];
  const int64_t rows = static_cast<int64_t>(plan_.rows().size());
  const int64_t width = config_.intermediate;
  NormRows(true, weights.ffn_norm, weights.gate_up);
  Multiply(weights.gate_up, rows, act_.gate_up, 2 * width);
  pool_.ParallelFor(
      rows,
      [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          float* const gate = act_.gate_up + row * 2 * width;
          kernels::SiluMultiply(options_.path, gate, gate + width, width, gate);
          PrepareRow(weights.down, gate, row);
        }
      },
      kRowChunk);
  Multiply(weights.down, rows, act_.y, config_.hidden);
}

void LlamaRunner::ProjectLogits(absl::Span<float> logits) {
  const absl::Span<const int64_t> wanted = plan_.logits_rows();
  if (wanted.empty()) return;
  const int64_t hidden = config_.hidden;
  const model::MatrixGroup& output = weights_->output();
  pool_.ParallelFor(
      static_cast<int64_t>(wanted.size()),
      [&](int64_t begin, int64_t end, int worker) {
        float* const normed = reinterpret_cast<float*>(pool_.scratch(worker).data());
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = wanted[static_cast<size_t>(i)];
          float* const x = act_.x + row * hidden;
          kernels::AddInPlace(options_.path, act_.y + row * hidden, hidden, x);
          kernels::RmsNorm(options_.path, x, weights_->final_norm().data(), config_.norm_eps,
                           hidden, normed);
          PrepareRow(output, normed, i);
        }
      },
      kRowChunk);
  Multiply(output, static_cast<int64_t>(wanted.size()), logits.data(), config_.vocabulary);
}

void LlamaRunner::NormRows(bool add, absl::Span<const float> norm,
                           const model::MatrixGroup& group) {
  const int64_t hidden = config_.hidden;
  pool_.ParallelFor(
      static_cast<int64_t>(plan_.rows().size()),
      [&](int64_t begin, int64_t end, int worker) {
        float* const normed = reinterpret_cast<float*>(pool_.scratch(worker).data());
        for (int64_t row = begin; row < end; ++row) {
          float* const x = act_.x + row * hidden;
          if (add) kernels::AddInPlace(options_.path, act_.y + row * hidden, hidden, x);
          kernels::RmsNorm(options_.path, x, norm.data(), config_.norm_eps, hidden, normed);
          PrepareRow(group, normed, row);
        }
      },
      kRowChunk);
}

void LlamaRunner::PrepareRow(const model::MatrixGroup& group, const float* input, int64_t row) {
  for (size_t i = 0; i < group.parts.size(); ++i) {
    const kernels::ActivationKind kind = group.parts[i].matrix.activations;
    const bool done = std::any_of(
        group.parts.begin(), group.parts.begin() + static_cast<ptrdiff_t>(i),
        [&](const model::MatrixGroup::Part& part) { return part.matrix.activations == kind; });
    if (done) continue;
    kernels::PrepareActivations(
        options_.path, kind, input, 1, group.k, group.k,
        act_.prepared(kind) + row * kernels::PreparedRowBytes(kind, group.k));
  }
}

void LlamaRunner::FinishQkvRow(const model::LayerWeights& weights, const kernels::KvLayerView& view,
                               int64_t row) {
  const int64_t dim = config_.head_dim;
  const int64_t pairs = dim / 2;
  float* const q = act_.qkv + row * qkv_width_;
  float* const k = q + config_.q_width();
  if (config_.has_qk_norm()) {
    for (int64_t head = 0; head < config_.heads + config_.kv_heads; ++head) {
      const std::vector<float>& norm = head < config_.heads ? weights.q_norm : weights.k_norm;
      kernels::RmsNorm(options_.path, q + head * dim, norm.data(), config_.norm_eps, dim,
                       q + head * dim);
    }
  }
  // Heads of q and k follow each other, so one call rotates both.
  kernels::ApplyRope(options_.path, kernels::RopeOrder::kHalfSplit, act_.cosines + row * pairs,
                     act_.sines + row * pairs, pairs, config_.heads + config_.kv_heads, dim, q);
  const BatchRow& place = plan_.rows()[static_cast<size_t>(row)];
  const BatchRun& run = plan_.runs()[static_cast<size_t>(place.run)];
  const kernels::KvRows kv = {k, k + config_.kv_width(), qkv_width_, qkv_width_};
  kernels::StoreKv(options_.path, view, run.pages, place.position, kv, 0, 1);
}

void LlamaRunner::Attend(const kernels::KvLayerView& view) {
  const auto run_of = [&](int index) {
    const BatchRun& run = plan_.runs()[static_cast<size_t>(index)];
    kernels::AttentionRun out;
    out.q = act_.qkv + run.first_row * qkv_width_;
    out.out = act_.attention + run.first_row * config_.q_width();
    out.q_stride = qkv_width_;
    out.out_stride = config_.q_width();
    out.heads = config_.heads;
    out.first_position = run.first_position;
    out.pages = run.pages;
    out.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    return out;
  };
  const size_t partial_floats = kernels::AttentionPartialFloats(view, config_.heads);
  // About 20 multiply-adds per nanosecond and core.
  const int64_t task_ns = plan_.pairs_per_task() * config_.q_width() / config_.kv_heads * 2 / 20;
  const int64_t chunk = kChunkNanoseconds / std::max<int64_t>(task_ns, 1) + 1;
  pool_.ParallelFor(
      static_cast<int64_t>(plan_.tasks().size()),
      [&](int64_t begin, int64_t end, int worker) {
        std::byte* const scratch = pool_.scratch(worker).data();
        for (int64_t i = begin; i < end; ++i) {
          const AttentionTask& task = plan_.tasks()[static_cast<size_t>(i)];
          const kernels::AttentionRun run = run_of(task.run);
          if (task.tile_end == 0) {
            kernels::Attention(options_.path, view, run, task.row_begin, task.row_end, task.kv_head,
                               task.kv_head + 1, scratch);
          } else {
            kernels::AttentionPartials(
                options_.path, view, run, task.row_begin, task.kv_head, task.tile_begin,
                task.tile_end, act_.partials + task.first_partial * partial_floats, scratch);
          }
        }
      },
      chunk);
  for (const MergeTask& merge : plan_.merges()) {
    kernels::AttentionMerge(options_.path, view, run_of(merge.run), merge.row, merge.kv_head,
                            act_.partials + merge.first_partial * partial_floats);
  }
}

void LlamaRunner::Multiply(const model::MatrixGroup& group, int64_t rows, float* y,
                           int64_t stride) {
  for (const model::MatrixGroup::Part& part : group.parts) {
    const kernels::PackedMatrix& matrix = part.matrix;
    const uint8_t* const prepared = act_.prepared(matrix.activations);
    pool_.ParallelFor(
        matrix.panels(),
        [&](int64_t begin, int64_t end, int) {
          kernels::Forward(matrix, prepared, rows, begin, end, y + part.column, stride);
        },
        PanelChunk(matrix, rows));
  }
  weight_bytes_read_ += static_cast<uint64_t>(group.bytes());
}

}  // namespace sluice::engine
