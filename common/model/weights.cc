#include "model/weights.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace sluice::model {
namespace {

// One packed matrix to be made: source rows in output order.
struct PackJob {
  kernels::PackedMatrix* matrix = nullptr;
  std::vector<const uint8_t*> rows;
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
  WeightLoader(const ModelFiles& files, kernels::IsaPath path, LoadedWeights* out)
      : files_(files), config_(files.config()), path_(path), out_(out) {}

  absl::Status Load(device::ThreadPool& pool) {
    out_->hidden_ = config_.hidden;
    out_->layers_.resize(static_cast<size_t>(config_.layers));
    for (int32_t i = 0; i < config_.layers; ++i) SLUICE_RETURN_IF_ERROR(PlanLayer(i));
    SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kFinalNorm, 0, &out_->final_norm_));
    const TensorRole output =
        config_.tied_embeddings ? TensorRole::kEmbedding : TensorRole::kOutput;
    SLUICE_RETURN_IF_ERROR(PlanGroup({output}, 0, &out_->output_));
    TensorView embedding;
    uint64_t embedding_bytes = 0;
    if (!config_.tied_embeddings) {
      SLUICE_ASSIGN_OR_RETURN(embedding, files_.Find(TensorRole::kEmbedding));
      embedding_bytes = embedding.data.size();
    }
    CollectJobs();
    uint64_t total = RoundUp(embedding_bytes);
    for (const PackJob& job : jobs_) {
      total += RoundUp(static_cast<uint64_t>(job.matrix->bytes()));
    }
    SLUICE_ASSIGN_OR_RETURN(out_->arena_, device::HugePageArena::Create(total));
    for (PackJob& job : jobs_) SLUICE_RETURN_IF_ERROR(Pack(job, pool));
    if (embedding_bytes == 0) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const auto memory, out_->arena_.Allocate(embedding_bytes));
    std::memcpy(memory.data(), embedding.data.data(), embedding_bytes);
    out_->embedding_format_ = embedding.format;
    out_->embedding_rows_ = reinterpret_cast<const uint8_t*>(memory.data());
    return absl::OkStatus();
  }

 private:
  absl::Status PlanLayer(int32_t i) {
    LayerWeights& layer = out_->layers_[static_cast<size_t>(i)];
    SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kAttnNorm, i, &layer.attn_norm));
    SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kFfnNorm, i, &layer.ffn_norm));
    if (config_.has_qk_norm()) {
      SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kQNorm, i, &layer.q_norm));
      SLUICE_RETURN_IF_ERROR(LoadVector(TensorRole::kKNorm, i, &layer.k_norm));
    }
    SLUICE_RETURN_IF_ERROR(
        PlanGroup({TensorRole::kQ, TensorRole::kK, TensorRole::kV}, i, &layer.qkv));
    SLUICE_RETURN_IF_ERROR(PlanGroup({TensorRole::kO}, i, &layer.o));
    SLUICE_RETURN_IF_ERROR(PlanGroup({TensorRole::kGate, TensorRole::kUp}, i, &layer.gate_up));
    return PlanGroup({TensorRole::kDown}, i, &layer.down);
  }

  absl::Status LoadVector(TensorRole role, int32_t layer, std::vector<float>* out) {
    SLUICE_ASSIGN_OR_RETURN(const TensorView view, files_.Find(role, layer));
    out->resize(static_cast<size_t>(view.columns));
    kernels::DequantizeRow(view.format, view.Row(0), view.columns, out->data());
    return absl::OkStatus();
  }

  // Fuses neighbours of equal format into one matrix. Their rows are kept for CollectJobs.
  absl::Status PlanGroup(std::initializer_list<TensorRole> roles, int32_t layer,
                         MatrixGroup* group) {
    for (TensorRole role : roles) {
      SLUICE_ASSIGN_OR_RETURN(const TensorView view, files_.Find(role, layer));
      const bool fuse = !group->parts.empty() && group->parts.back().matrix.format == view.format;
      if (!fuse) {
        group->parts.push_back({{}, group->n});
        rows_.emplace_back();
      }
      std::vector<const uint8_t*>& rows = rows_.back();
      for (int64_t i = 0; i < view.rows; ++i) rows.push_back(view.Row(i));
      group->n += view.rows;
      group->k = view.columns;
      group->parts.back().matrix = kernels::DescribePacked(
          path_, view.format, static_cast<int64_t>(rows.size()), view.columns);
    }
    groups_.push_back(group);
    return absl::OkStatus();
  }

  // Pairs each part with its rows: parts were planned in this order, and their addresses are final
  // now.
  void CollectJobs() {
    size_t next = 0;
    for (MatrixGroup* group : groups_) {
      for (MatrixGroup::Part& part : group->parts) {
        jobs_.push_back({&part.matrix, std::move(rows_[next++])});
      }
    }
  }

  absl::Status Pack(const PackJob& job, device::ThreadPool& pool) {
    kernels::PackedMatrix& matrix = *job.matrix;
    SLUICE_ASSIGN_OR_RETURN(const auto memory,
                            out_->arena_.Allocate(static_cast<size_t>(matrix.bytes())));
    uint8_t* const data = reinterpret_cast<uint8_t*>(memory.data());
    pool.ParallelFor(matrix.panels(), [&](int64_t begin, int64_t end, int) {
      kernels::PackPanels(matrix, job.rows, begin, end, data);
    });
    matrix.data = data;
    return absl::OkStatus();
  }

  const ModelFiles& files_;
  const ModelConfig& config_;
  const kernels::IsaPath path_;
  LoadedWeights* const out_;
  std::vector<MatrixGroup*> groups_;
  std::vector<std::vector<const uint8_t*>> rows_;
  std::vector<PackJob> jobs_;
};

absl::StatusOr<std::unique_ptr<LoadedWeights>> LoadedWeights::Load(const ModelFiles& files,
                                                                   kernels::IsaPath path,
                                                                   device::ThreadPool& pool) {
  auto weights = std::unique_ptr<LoadedWeights>(new LoadedWeights);
  SLUICE_RETURN_IF_ERROR(WeightLoader(files, path, weights.get()).Load(pool));
  return weights;
}

void LoadedWeights::Embedding(int32_t token, float* out) const {
  if (embedding_rows_ == nullptr) {
    kernels::UnpackRow(output_.parts[0].matrix, token, out);
    return;
  }
  const int64_t row_bytes = kernels::RowBytes(embedding_format_, hidden_);
  kernels::DequantizeRow(embedding_format_, embedding_rows_ + token * row_bytes, hidden_, out);
}

}  // namespace sluice::model
