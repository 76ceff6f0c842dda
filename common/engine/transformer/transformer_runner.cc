#include "engine/transformer/transformer_runner.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "engine/transformer/attention_gqa.h"
#include "engine/transformer/attention_mla.h"
#include "engine/transformer/ffn_dense.h"
#include "engine/transformer/ffn_moe.h"
#include "kernels/elementwise/elementwise.h"
#include "model/numerics_id.h"

namespace sluice::engine {
namespace {

constexpr size_t kProbeTokens = 8;

kv::LayoutSpec LayoutOf(const model::ModelConfig& config, const TransformerOptions& options) {
  const kv::KvKind kind = config.mla ? kv::KvKind::kLatent : kv::KvKind::kHeads;
  const kernels::KvFormat format = options.kv_format.value_or(kv::DefaultKvFormat(kind));
  if (config.mla) {
    return MlaLayoutSpec(config, format, options.page_tokens > 0 ? options.page_tokens : 64);
  }
  return GqaLayoutSpec(config, format, options.page_tokens > 0 ? options.page_tokens : 32,
                       options.centre);
}

bool IsNaive(const model::ModelConfig& config, const TransformerOptions& options) {
  return config.mla.has_value() && options.exactness == Exactness::kFast;
}

absl::Status CheckCentre(const model::ModelConfig& config, const model::KvCentre& centre) {
  const uint64_t count = centre.layers * centre.kv_heads * centre.head_dim;
  const bool fits = centre.layers == static_cast<uint64_t>(config.layers) &&
                    centre.kv_heads == static_cast<uint64_t>(config.kv_heads) &&
                    centre.head_dim == static_cast<uint64_t>(config.head_dim);
  if (centre.empty() || (fits && centre.k.size() == count && centre.v.size() == count)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a centre of ", centre.layers, " layers, ",
                                                 centre.kv_heads, " KV heads and head dimension ",
                                                 centre.head_dim, " for a model of ", config.layers,
                                                 ", ", config.kv_heads, " and ", config.head_dim));
}

}  // namespace

TransformerRunner::TransformerRunner(const model::ModelConfig& config,
                                     const TransformerOptions& options,
                                     std::unique_ptr<model::LoadedWeights> weights,
                                     kv::PageLayout layout, device::ThreadPool& pool)
    : config_(config),
      weights_(std::move(weights)),
      centre_(options.centre),
      context_(config_, options.path, pool) {
  context_.torch_length = options.torch_length;
  context_.fast = IsNaive(config, options);
  info_.name = config.name;
  info_.vocabulary = config.vocabulary;
  info_.context_tokens = config.context_tokens;
  info_.layers = config.layers;
  info_.eos_tokens = config.eos_tokens;
  info_.layout = std::move(layout);
  MakeUnits();
}

void TransformerRunner::MakeUnits() {
  context_.workspace.Add(&context_.x, config_.hidden);
  context_.workspace.Add(&context_.y, config_.hidden);
  ActivationKinds output;
  output.Add(weights_->output());
  context_.input.Declare(output, config_.hidden);
  const absl::Span<const model::LayerWeights> layers = weights_->layers();
  if (config_.mla) {
    attention_ = std::make_unique<AttentionMla>(context_, layers, info_.layout);
  } else {
    attention_ = std::make_unique<AttentionGqa>(context_, layers, info_.layout, centre_);
  }
  for (const model::LayerWeights& layer : layers) {
    const bool sparse = std::holds_alternative<model::MoeWeights>(layer.ffn);
    if (sparse && moe_ == nullptr) moe_ = std::make_unique<FfnMoe>(context_, layers);
    if (!sparse && dense_ == nullptr) dense_ = std::make_unique<FfnDense>(context_, layers);
    ffn_.push_back(sparse ? moe_.get() : dense_.get());
  }
  if (!config_.mla && moe_ == nullptr) {
    for (const model::LayerWeights& layer : layers) {
      const auto& attention = std::get<model::GqaWeights>(layer.attention);
      const auto& ffn = std::get<model::FeedForwardWeights>(layer.ffn);
      context_.order.insert(context_.order.end(),
                            {&attention.qkv, &attention.o, &ffn.gate_up, &ffn.down});
    }
    context_.order.push_back(&weights_->output());
  }
  context_.input.AddTo(&context_.workspace);
  context_.inner.AddTo(&context_.workspace);
}

absl::Status TransformerRunner::CheckScratch() const {
  const size_t needed =
      std::max(attention_->scratch_bytes(), static_cast<size_t>(config_.hidden) * sizeof(float));
  const size_t there = context_.pool.scratch(0).size();
  if (there >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the thread pool has ", there, " bytes of scratch a worker, this model needs ", needed));
}

absl::StatusOr<std::unique_ptr<TransformerRunner>> TransformerRunner::Create(
    const model::ModelFiles& files, const TransformerOptions& options, device::ThreadPool& pool) {
  const model::ModelConfig& config = files.config();
  const absl::string_view path_name = kernels::IsaPathName(options.path);
  if (!kernels::IsaPathAvailable(options.path)) {
    return absl::UnimplementedError(
        absl::StrCat("this processor cannot run the kernels '", path_name, "'; use 'auto'"));
  }
  SLUICE_RETURN_IF_ERROR(CheckCentre(config, options.centre));
  SLUICE_ASSIGN_OR_RETURN(kv::PageLayout layout, kv::PageLayout::Make(LayoutOf(config, options)));
  const bool naive = IsNaive(config, options);
  SLUICE_ASSIGN_OR_RETURN(auto weights, model::LoadedWeights::Load(files, options.path, pool, naive,
                                                                   options.activations));
  auto runner = std::unique_ptr<TransformerRunner>(
      new TransformerRunner(config, options, std::move(weights), std::move(layout), pool));
  SLUICE_RETURN_IF_ERROR(runner->CheckScratch());
  SLUICE_RETURN_IF_ERROR(runner->context_.workspace.Reserve(options.reserved_rows));
  ModelInfo& info = runner->info_;
  info.model_digest = files.Digest();
  SLUICE_ASSIGN_OR_RETURN(const Id128 probe, runner->ProbeLogits());
  const std::string arithmetic = absl::StrCat(path_name, naive ? ", fast" : "");
  info.numerics_id = model::NumericsId({info.model_digest, arithmetic, info.layout.hash(), probe});
  runner->context_.weight_bytes_read = 0;
  return runner;
}

absl::StatusOr<Id128> TransformerRunner::ProbeLogits() {
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

absl::Status TransformerRunner::CheckBatch(absl::Span<const Segment> segments,
                                           size_t logits) const {
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

absl::Status TransformerRunner::Forward(absl::Span<const Segment> segments, ForwardHooks* hooks,
                                        absl::Span<float> logits) {
  SLUICE_RETURN_IF_ERROR(CheckBatch(segments, logits.size()));
  if (segments.empty()) return absl::OkStatus();
  context_.plan.Build(segments);
  SLUICE_RETURN_IF_ERROR(context_.workspace.Reserve(context_.rows()));
  SLUICE_RETURN_IF_ERROR(attention_->BeginPass());
  context_.ForEachRow([&](int64_t row, int) {
    weights_->Embedding(context_.plan.rows()[static_cast<size_t>(row)].token,
                        context_.x + row * config_.hidden);
  });
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (hooks != nullptr && hooks->Cancelled()) {
      return absl::CancelledError(absl::StrCat("cancelled before layer ", layer));
    }
    const model::LayerWeights& weights = weights_->layers()[static_cast<size_t>(layer)];
    context_.NormRows(layer > 0, weights.attn_norm, attention_->InputKinds(layer));
    attention_->Forward(layer, [&] {
      if (hooks != nullptr) hooks->LayersDone(layer, layer + 1);
    });
    FeedForwardUnit& ffn = *ffn_[static_cast<size_t>(layer)];
    context_.NormRows(true, weights.ffn_norm, ffn.InputKinds(layer));
    ffn.Forward(layer);
  }
  ProjectLogits(logits);
  return absl::OkStatus();
}

void TransformerRunner::ProjectLogits(absl::Span<float> logits) {
  const absl::Span<const int64_t> wanted = context_.plan.logits_rows();
  if (wanted.empty()) return;
  const int64_t hidden = config_.hidden;
  const int64_t count = static_cast<int64_t>(wanted.size());
  ActivationKinds kinds;
  kinds.Add(weights_->output());
  context_.pool.ParallelFor(count, [&](int64_t begin, int64_t end, int worker) {
    float* const normed = reinterpret_cast<float*>(context_.pool.scratch(worker).data());
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = wanted[static_cast<size_t>(i)];
      float* const x = context_.x + row * hidden;
      kernels::AddInPlace(context_.path, context_.y + row * hidden, hidden, x);
      kernels::RmsNorm(context_.path, x, weights_->final_norm().data(), config_.norm_eps, hidden,
                       normed);
      context_.input.Prepare(context_.path, kinds, normed, hidden, i);
    }
  });
  context_.Multiply(weights_->output(), context_.input, count, logits.data(), config_.vocabulary);
}

}  // namespace sluice::engine
