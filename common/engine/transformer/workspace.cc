#include "engine/transformer/workspace.h"

#include <algorithm>

#include "base/status_macros.h"

namespace sluice::engine {
namespace {

size_t Padded(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

}  // namespace

absl::Status Workspace::Reserve(int64_t rows) {
  if (rows <= rows_) return absl::OkStatus();
  size_t total = 64;
  for (const Buffer& buffer : buffers_) total += Padded(rows * buffer.row_bytes);
  rows_ = 0;  // nothing is usable if the new arena cannot be had
  arena_ = device::HugePageArena();
  SLUICE_ASSIGN_OR_RETURN(arena_, device::HugePageArena::Create(total));
  for (const Buffer& buffer : buffers_) {
    if (buffer.row_bytes == 0) continue;
    SLUICE_ASSIGN_OR_RETURN(const auto memory,
                            arena_.Allocate(static_cast<size_t>(rows * buffer.row_bytes)));
    if (buffer.bytes != nullptr) {
      *buffer.bytes = reinterpret_cast<uint8_t*>(memory.data());
    } else {
      *buffer.floats = reinterpret_cast<float*>(memory.data());
    }
  }
  rows_ = rows;
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> GrowingBuffer::Reserve(size_t bytes) {
  if (bytes > arena_.memory().size()) {
    arena_ = device::HugePageArena();
    SLUICE_ASSIGN_OR_RETURN(arena_, device::HugePageArena::Create(bytes));
  }
  return arena_.memory().data();
}

void PreparedRows::Declare(const ActivationKinds& kinds, int64_t k) {
  for (size_t i = 0; i < ActivationKinds::kCount; ++i) {
    if (!kinds.Has(kernels::kAllActivationKinds[i])) continue;
    row_bytes_[i] =
        std::max(row_bytes_[i], kernels::PreparedRowBytes(kernels::kAllActivationKinds[i], k));
  }
}

void PreparedRows::AddTo(Workspace* workspace, int64_t per_row) {
  for (size_t i = 0; i < ActivationKinds::kCount; ++i) {
    workspace->Add(&memory_[i], per_row * row_bytes_[i]);
  }
}

void PreparedRows::Prepare(kernels::IsaPath path, const ActivationKinds& kinds, const float* x,
                           int64_t k, int64_t i) const {
  for (kernels::ActivationKind kind : kernels::kAllActivationKinds) {
    if (kinds.Has(kind)) kernels::PrepareActivations(path, kind, x, 1, k, k, Row(kind, k, i));
  }
}

}  // namespace sluice::engine
