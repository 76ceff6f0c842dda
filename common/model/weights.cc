#include "model/weights.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/mla_weights.h"

namespace sluice::model {
namespace {

// One packed matrix to be made of the rows of `sources`, in order.
struct PackJob {
  kernels::PackedMatrix* matrix = nullptr;
  std::vector<TensorView> sources;
};

// The matrices of all heads, to be made of kv_b.
struct HeadJob {
  MlaWeights* mla = nullptr;
  TensorView kv_b;
};

uint64_t RoundUp(uint64_t bytes) {
  constexpr uint64_t kAlignment = kernels::kPackedAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

int64_t MatrixGroup::panels() const {
  int64_t total = 0;
  for (const Part& part : parts) total += part.matrix.panels();
  return total;
}

int64_t MatrixGroup::bytes() const {
  int64_t total = 0;
  for (const Part& part : parts) total += part.matrix.bytes();
  return total;
}

// Plans all matrices, reserves one arena for them and packs. Lives for one Load.
class WeightLoader {
 public:
  WeightLoader(const ModelFiles& files, kernels::IsaPath path, bool naive_mla,
               BlockActivations blocks, LoadedWeights* out)
      : files_(files),
        config_(files.config()),
        path_(path),
        naive_mla_(naive_mla),
        blocks_(blocks),
        out_(out) {}

  absl::Status Load(device::ThreadPool& pool) {
    out_->layers_.resize(static_cast<size_t>(config_.layers));
    for (int32_t i = 0; i < config_.layers; ++i) SLUICE_RETURN_IF_ERROR(PlanLayer(i));
    SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kFinalNorm, 0, &out_->final_norm_));
    const TensorRole output =
        config_.tied_embeddings ? TensorRole::kEmbedding : TensorRole::kOutput;
    SLUICE_RETURN_IF_ERROR(PlanGroup({output}, 0, &out_->output_));
    TensorView embedding;
    if (!config_.tied_embeddings) {
      SLUICE_ASSIGN_OR_RETURN(embedding, files_.Find(TensorRole::kEmbedding));
    }
    uint64_t total = RoundUp(embedding.data.size()) + RoundUp(embedding.scales.size());
    for (const PackJob& job : jobs_) {
      total += RoundUp(static_cast<uint64_t>(job.matrix->bytes()));
    }
    for (const HeadJob& job : head_jobs_) {
      for (const auto* matrices : {&job.mla->k_up, &job.mla->v_up, &job.mla->key_rows}) {
        for (const kernels::PackedMatrix& matrix : *matrices) {
          total += RoundUp(static_cast<uint64_t>(matrix.bytes()));
        }
      }
    }
    SLUICE_ASSIGN_OR_RETURN(out_->arena_, device::HugePageArena::Create(total));
    for (PackJob& job : jobs_) SLUICE_RETURN_IF_ERROR(Pack(job, pool));
    for (const HeadJob& job : head_jobs_) SLUICE_RETURN_IF_ERROR(PackHeads(job, pool));
    SLUICE_RETURN_IF_ERROR(Keep(&embedding.data));
    SLUICE_RETURN_IF_ERROR(Keep(&embedding.scales));
    out_->embedding_ = std::move(embedding);
    return absl::OkStatus();
  }

 private:
  absl::Status PlanLayer(int32_t i) {
    LayerWeights& layer = out_->layers_[static_cast<size_t>(i)];
    SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kAttnNorm, i, &layer.attn_norm));
    SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kFfnNorm, i, &layer.ffn_norm));
    SLUICE_RETURN_IF_ERROR(config_.mla ? PlanMla(i, &layer.attention.emplace<MlaWeights>())
                                       : PlanGqa(i, &layer.attention.emplace<GqaWeights>()));
    if (config_.is_sparse(i)) return PlanMoe(i, &layer.ffn.emplace<MoeWeights>());
    FeedForwardWeights& dense = layer.ffn.emplace<FeedForwardWeights>();
    SLUICE_RETURN_IF_ERROR(PlanGroup({TensorRole::kGate, TensorRole::kUp}, i, &dense.gate_up));
    return PlanGroup({TensorRole::kDown}, i, &dense.down);
  }

  absl::Status PlanGqa(int32_t i, GqaWeights* gqa) {
    if (config_.qk_norm) {
      SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kQNorm, i, &gqa->q_norm));
      SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kKNorm, i, &gqa->k_norm));
    }
    if (config_.qkv_bias) {
      for (TensorRole role : {TensorRole::kQBias, TensorRole::kKBias, TensorRole::kVBias}) {
        SLUICE_RETURN_IF_ERROR(LoadVector(role, i, &gqa->qkv_bias));
      }
    }
    SLUICE_RETURN_IF_ERROR(
        PlanGroup({TensorRole::kQ, TensorRole::kK, TensorRole::kV}, i, &gqa->qkv));
    return PlanGroup({TensorRole::kO}, i, &gqa->o);
  }

  absl::Status PlanMla(int32_t i, MlaWeights* mla) {
    const bool low_rank = config_.mla->q_lora_rank > 0;
    SLUICE_RETURN_IF_ERROR(
        PlanGroup({low_rank ? TensorRole::kQA : TensorRole::kQ, TensorRole::kKvA}, i, &mla->down));
    SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kKvANorm, i, &mla->kv_norm));
    if (low_rank) {
      SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kQANorm, i, &mla->q_norm));
      SLUICE_RETURN_IF_ERROR(PlanGroup({TensorRole::kQB}, i, &mla->q));
    }
    SLUICE_ASSIGN_OR_RETURN(TensorView kv_b, files_.Find(TensorRole::kKvB, i));
    DescribeHeads(path_, config_, kv_b.format, naive_mla_, mla);
    if (config_.has_indexer(i)) SLUICE_RETURN_IF_ERROR(PlanIndexer(i, &mla->indexer.emplace()));
    head_jobs_.push_back({mla, std::move(kv_b)});
    return PlanGroup({TensorRole::kO}, i, &mla->o);
  }

  absl::Status PlanIndexer(int32_t i, IndexerWeights* indexer) {
    SLUICE_RETURN_IF_ERROR(PlanGroup({TensorRole::kIndexQ}, i, &indexer->q));
    SLUICE_RETURN_IF_ERROR(
        PlanGroup({TensorRole::kIndexK, TensorRole::kIndexWeights}, i, &indexer->key));
    // The norm follows the rows of the key, wherever these were put for their rotation.
    SLUICE_ASSIGN_OR_RETURN(const TensorView key, files_.Find(TensorRole::kIndexK, i));
    for (const auto& [role, out] :
         {std::pair(TensorRole::kIndexKNorm, &indexer->key_norm),
          std::pair(TensorRole::kIndexKNormBias, &indexer->key_norm_bias)}) {
      std::vector<float> values;
      SLUICE_RETURN_IF_ERROR(LoadVector(role, i, &values));
      for (int64_t row = 0; row < key.rows; ++row) {
        out->push_back(values[static_cast<size_t>(key.FileRow(row))]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status PlanMoe(int32_t i, MoeWeights* moe) {
    SLUICE_RETURN_IF_ERROR(PlanGroup({TensorRole::kRouter}, i, &moe->router));
    if (config_.moe->correction_bias) {
      SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kRouterBias, i, &moe->correction_bias));
    }
    moe->experts.resize(static_cast<size_t>(config_.moe->experts));
    for (int32_t e = 0; e < config_.moe->experts; ++e) {
      ExpertWeights& expert = moe->experts[static_cast<size_t>(e)];
      SLUICE_RETURN_IF_ERROR(PlanMatrix({TensorRole::kExpertGate, i, e}, &expert.gate));
      SLUICE_RETURN_IF_ERROR(PlanMatrix({TensorRole::kExpertUp, i, e}, &expert.up));
      SLUICE_RETURN_IF_ERROR(PlanMatrix({TensorRole::kExpertDown, i, e}, &expert.down));
    }
    if (config_.moe->shared_intermediate == 0) return absl::OkStatus();
    moe->shared.resize(1);
    SLUICE_RETURN_IF_ERROR(PlanMatrix({TensorRole::kSharedGate, i, 0}, &moe->shared[0].gate));
    SLUICE_RETURN_IF_ERROR(PlanMatrix({TensorRole::kSharedUp, i, 0}, &moe->shared[0].up));
    return PlanMatrix({TensorRole::kSharedDown, i, 0}, &moe->shared[0].down);
  }

  // Appends the values of a vector.
  absl::Status LoadVector(TensorRole role, int32_t layer, std::vector<float>* out) {
    SLUICE_ASSIGN_OR_RETURN(const TensorView view, files_.Find(role, layer));
    const size_t begin = out->size();
    out->resize(begin + static_cast<size_t>(view.columns));
    kernels::DequantizeRow(view.format, view.Row(0), view.columns, out->data() + begin);
    return absl::OkStatus();
  }

  kernels::PackedMatrix Describe(kernels::WeightFormat format, int64_t n, int64_t k) const {
    const auto kind = blocks_ == BlockActivations::kInt8 ? kernels::ActivationKind::kInt8
                                                         : kernels::ActivationKind::kInt16;
    return kernels::DescribePacked(path_, format, n, k, kind);
  }

  // `matrix` must stay where it is until Pack.
  absl::Status PlanMatrix(TensorId id, kernels::PackedMatrix* matrix) {
    SLUICE_ASSIGN_OR_RETURN(TensorView view, files_.Find(id));
    *matrix = Describe(view.format, view.rows, view.columns);
    jobs_.push_back({matrix, {std::move(view)}});
    return absl::OkStatus();
  }

  // Fuses neighbours of equal format into one matrix; each palette stays one of its own.
  absl::Status PlanGroup(std::initializer_list<TensorRole> roles, int32_t layer,
                         MatrixGroup* group) {
    std::vector<std::vector<TensorView>> sources;
    for (TensorRole role : roles) {
      SLUICE_ASSIGN_OR_RETURN(TensorView view, files_.Find(role, layer));
      const bool fuse = !sources.empty() && sources.back().back().format == view.format &&
                        view.format != kernels::WeightFormat::kBf16Palette;
      if (!fuse) sources.emplace_back();
      sources.back().push_back(std::move(view));
    }
    group->parts.resize(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      int64_t rows = 0;
      for (const TensorView& view : sources[i]) rows += view.rows;
      MatrixGroup::Part& part = group->parts[i];
      part.column = group->n;
      group->n += rows;
      group->k = sources[i][0].columns;
      part.matrix = Describe(sources[i][0].format, rows, group->k);
      jobs_.push_back({&part.matrix, std::move(sources[i])});
    }
    return absl::OkStatus();
  }

  absl::Status Pack(const PackJob& job, device::ThreadPool& pool) {
    kernels::PackedMatrix& matrix = *job.matrix;
    std::vector<kernels::WeightRow> rows;
    rows.reserve(static_cast<size_t>(matrix.n));
    for (const TensorView& view : job.sources) {
      for (int64_t i = 0; i < view.rows; ++i) rows.push_back(view.Row(i));
    }
    SLUICE_ASSIGN_OR_RETURN(const auto memory,
                            out_->arena_.Allocate(static_cast<size_t>(matrix.bytes())));
    uint8_t* const data = reinterpret_cast<uint8_t*>(memory.data());
    pool.ParallelFor(matrix.panels(), [&](int64_t begin, int64_t end, int) {
      kernels::PackPanels(matrix, rows, begin, end, data);
    });
    matrix.data = data;
    return absl::OkStatus();
  }

  absl::Status PackHeads(const HeadJob& job, device::ThreadPool& pool) {
    std::vector<uint8_t*> memory;
    for (auto* matrices : {&job.mla->k_up, &job.mla->v_up, &job.mla->key_rows}) {
      for (kernels::PackedMatrix& matrix : *matrices) {
        SLUICE_ASSIGN_OR_RETURN(const auto bytes,
                                out_->arena_.Allocate(static_cast<size_t>(matrix.bytes())));
        memory.push_back(reinterpret_cast<uint8_t*>(bytes.data()));
      }
    }
    const auto heads = static_cast<size_t>(config_.heads);
    pool.ParallelFor(config_.heads, [&](int64_t begin, int64_t end, int) {
      for (int64_t head = begin; head < end; ++head) {
        const auto h = static_cast<size_t>(head);
        PackKeyUp(job.kv_b, *config_.mla, head, memory[h], &job.mla->k_up[h]);
        PackValueUp(job.kv_b, *config_.mla, head, memory[heads + h], &job.mla->v_up[h]);
        if (!naive_mla_) continue;
        PackKeyRows(job.kv_b, *config_.mla, head, memory[2 * heads + h], &job.mla->key_rows[h]);
      }
    });
    return absl::OkStatus();
  }

  // Copies bytes of a file into the arena.
  absl::Status Keep(absl::Span<const uint8_t>* bytes) {
    if (bytes->empty()) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const auto memory, out_->arena_.Allocate(bytes->size()));
    std::memcpy(memory.data(), bytes->data(), bytes->size());
    *bytes = {reinterpret_cast<const uint8_t*>(memory.data()), bytes->size()};
    return absl::OkStatus();
  }

  const ModelFiles& files_;
  const ModelConfig& config_;
  const kernels::IsaPath path_;
  const bool naive_mla_;
  const BlockActivations blocks_;
  LoadedWeights* const out_;
  std::vector<PackJob> jobs_;
  std::vector<HeadJob> head_jobs_;
};

absl::StatusOr<std::unique_ptr<LoadedWeights>> LoadedWeights::Load(const ModelFiles& files,
                                                                   kernels::IsaPath path,
                                                                   device::ThreadPool& pool,
                                                                   bool naive_mla,
                                                                   BlockActivations blocks) {
  auto weights = std::unique_ptr<LoadedWeights>(new LoadedWeights);
  SLUICE_RETURN_IF_ERROR(WeightLoader(files, path, naive_mla, blocks, weights.get()).Load(pool));
  return weights;
}

void LoadedWeights::Embedding(int32_t token, float* out) const {
  if (embedding_.data.empty()) return kernels::UnpackRow(output_.parts[0].matrix, token, out);
  kernels::DequantizeRow(embedding_.format, embedding_.Row(token), embedding_.columns, out);
}

}  // namespace sluice::model
