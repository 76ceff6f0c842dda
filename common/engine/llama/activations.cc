#include "engine/llama/activations.h"

#include <algorithm>

#include "base/status_macros.h"

namespace sluice::engine {
namespace {

size_t Padded(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

}  // namespace

Activations::Activations(const model::ModelConfig& config, const model::LoadedWeights& weights)
    : config_(config) {
  const auto visit = [this](const model::MatrixGroup& group) {
    for (const model::MatrixGroup::Part& part : group.parts) {
      const kernels::ActivationKind kind = part.matrix.activations;
      int64_t& bytes = prepared_row_bytes_[static_cast<size_t>(kind)];
      bytes = std::max(bytes, kernels::PreparedRowBytes(kind, group.k));
    }
  };
  for (const model::LayerWeights& layer : weights.layers()) {
    for (const auto* group : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) visit(*group);
  }
  visit(weights.output());
}

std::array<Activations::Field, 7> Activations::Fields() {
  const int64_t pairs = config_.head_dim / 2;
  return {{{&x, config_.hidden},
           {&y, config_.hidden},
           {&qkv, config_.q_width() + 2 * config_.kv_width()},
           {&attention, config_.q_width()},
           {&gate_up, 2 * config_.intermediate},
           {&cosines, pairs},
           {&sines, pairs}}};
}

absl::Status Activations::Reserve(int64_t rows, int64_t partial_floats) {
  if (rows <= rows_ && partial_floats <= partial_floats_) return absl::OkStatus();
  rows = std::max(rows, rows_);
  partial_floats = std::max(partial_floats, partial_floats_);
  constexpr int64_t kFloat = sizeof(float);
  size_t total = Padded(partial_floats * kFloat);
  for (const Field& field : Fields()) total += Padded(rows * field.row_floats * kFloat);
  for (int64_t bytes : prepared_row_bytes_) total += Padded(rows * bytes);
  rows_ = 0;  // nothing is usable if the new arena cannot be had
  arena_ = device::HugePageArena();
  SLUICE_ASSIGN_OR_RETURN(arena_, device::HugePageArena::Create(total));
  const auto take = [this](int64_t bytes) -> absl::StatusOr<std::byte*> {
    if (bytes == 0) return nullptr;
    SLUICE_ASSIGN_OR_RETURN(const auto memory, arena_.Allocate(static_cast<size_t>(bytes)));
    return memory.data();
  };
  for (const Field& field : Fields()) {
    SLUICE_ASSIGN_OR_RETURN(std::byte * memory, take(rows * field.row_floats * kFloat));
    *field.pointer = reinterpret_cast<float*>(memory);
  }
  SLUICE_ASSIGN_OR_RETURN(std::byte * memory, take(partial_floats * kFloat));
  partials = reinterpret_cast<float*>(memory);
  for (size_t kind = 0; kind < kKinds; ++kind) {
    SLUICE_ASSIGN_OR_RETURN(std::byte * bytes, take(rows * prepared_row_bytes_[kind]));
    prepared_[kind] = reinterpret_cast<uint8_t*>(bytes);
  }
  rows_ = rows;
  partial_floats_ = partial_floats;
  return absl::OkStatus();
}

}  // namespace sluice::engine
