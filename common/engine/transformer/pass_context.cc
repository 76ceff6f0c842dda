#include "engine/transformer/pass_context.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"

namespace sluice::engine {
namespace {

constexpr int64_t kAheadRowsMax = 8;
constexpr int64_t kRowChunk = 4;  // rows of a step that only norms, rotates or adds: well over 1 us

}  // namespace

int64_t PanelNanoseconds(const kernels::PackedMatrix& matrix, int64_t rows) {
  const int64_t read_ns = matrix.panel_bytes / 40;
  const int64_t rate = matrix.activations == kernels::ActivationKind::kInt8 ? 650 : 400;
  const int64_t compute_ns = rows * matrix.k * 2 * kernels::kPanelRows / rate;
  return std::max<int64_t>({read_ns, compute_ns, 1});
}

void PassContext::ForEachRow(absl::FunctionRef<void(int64_t row, int worker)> body) {
  pool.ParallelFor(
      rows(),
      [&](int64_t begin, int64_t end, int worker) {
        for (int64_t row = begin; row < end; ++row) body(row, worker);
      },
      kRowChunk, ahead_);
}

void PassContext::NormRows(bool add, absl::Span<const float> norm, const ActivationKinds& kinds) {
  const int64_t hidden = config.hidden;
  ForEachRow([&](int64_t row, int worker) {
    float* const normed = reinterpret_cast<float*>(pool.scratch(worker).data());
    float* const residual = x + row * hidden;
    if (add) kernels::AddInPlace(path, y + row * hidden, hidden, residual);
    kernels::RmsNorm(path, residual, norm.data(), config.norm_eps, hidden, normed);
    input.Prepare(path, kinds, normed, hidden, row);
  });
}

void PassContext::RopeRows(absl::Span<const float> inverse_frequencies, float* cosines,
                           float* sines) {
  const int64_t pairs = static_cast<int64_t>(inverse_frequencies.size());
  const float magnitude = static_cast<float>(config.rope.magnitude);
  ForEachRow([&](int64_t row, int) {
    kernels::RopeAngles(inverse_frequencies.data(), pairs,
                        plan.rows()[static_cast<size_t>(row)].position, magnitude,
                        cosines + row * pairs, sines + row * pairs);
  });
}

void PassContext::Multiply(const model::MatrixGroup& group, const PreparedRows& prepared,
                           int64_t count, float* out, int64_t stride) {
  ahead_ = count <= kAheadRowsMax ? MemoryAfter(group) : absl::Span<const uint8_t>();
  for (const model::MatrixGroup::Part& part : group.parts) {
    const kernels::PackedMatrix& matrix = part.matrix;
    const uint8_t* const in = prepared.Row(matrix.activations, group.k, 0);
    pool.ParallelFor(
        matrix.panels(),
        [&](int64_t begin, int64_t end, int) {
          kernels::Forward(matrix, in, count, begin, end, out + part.column, stride);
        },
        kChunkNanoseconds / PanelNanoseconds(matrix, count) + 1, ahead_);
  }
  weight_bytes_read += static_cast<uint64_t>(group.bytes());
}

absl::Span<const uint8_t> PassContext::MemoryAfter(const model::MatrixGroup& group) {
  if (order.empty()) return {};
  if (order[at_] != &group) {  // a pass was cancelled
    const auto found = std::find(order.begin(), order.end(), &group);
    if (found == order.end()) return {};
    at_ = static_cast<size_t>(found - order.begin());
  }
  at_ = (at_ + 1) % order.size();
  const kernels::PackedMatrix& next = order[at_]->parts[0].matrix;
  return {next.data, static_cast<size_t>(next.bytes())};
}

}  // namespace sluice::engine
