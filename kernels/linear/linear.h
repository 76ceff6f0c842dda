// Matrix products y = x W^T with W packed once at load: one copy serves one row (decode) and many
// (prefill).
//
// Exactness: the bits of a row of y depend on that row of x, on W and on the path, never on the
// number of rows, the position of the row in the batch or the panels asked for.
//
// Use: Pack() at load; per layer PrepareActivations() once per row, then Forward() for every matrix
// that shares the activation kind and k. The caller splits rows of PrepareActivations and panels of
// Forward over threads. Threads: every function is thread-safe and allocates nothing.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/isa.h"
#include "kernels/linear/weight_format.h"

namespace sluice::kernels {

constexpr int64_t kPanelRows = 16;
// Packed data and prepared activations start at a multiple of this.
constexpr int64_t kPackedAlignment = 64;

// What a kernel reads as x. Matrices with equal kind and k can share one prepared copy.
enum class ActivationKind : uint8_t {
  kFloat32,  // as given
  kInt16,    // per 32 elements: codes rint(x * 32767 / amax), one float32 scale amax / 32767, sums
             // of codes
  kInt8,     // the same with 127: twice the rate, 256 times the rounding error
};
constexpr ActivationKind kAllActivationKinds[] = {ActivationKind::kFloat32, ActivationKind::kInt16,
                                                  ActivationKind::kInt8};

// An immutable packed matrix [n, k]. A view: the owner of `data` keeps it alive.
struct PackedMatrix {
  IsaPath path = IsaPath::kReference;
  WeightFormat format = WeightFormat::kF32;
  ActivationKind activations = ActivationKind::kFloat32;
  int64_t n = 0;  // output features: rows of W
  int64_t k = 0;  // input features
  const uint8_t* data = nullptr;
  int64_t panel_bytes = 0;  // bytes of one panel of 16 rows, all of k

  int64_t panels() const { return (n + kPanelRows - 1) / kPanelRows; }
  int64_t bytes() const { return panels() * panel_bytes; }
};

// The shape, kind and size of the packed form, without data. `blocks`: how the fast paths read
// activations beside block formats, kInt16 or kInt8; nothing else depends on it. Needs: n, k > 0, k
// a multiple of BlockElements(format), path available.
PackedMatrix DescribePacked(IsaPath path, WeightFormat format, int64_t n, int64_t k,
                            ActivationKind blocks = ActivationKind::kInt16);

// Writes panels [panel_begin, panel_end) of `matrix` (from DescribePacked) to `out`, which is
// aligned to kPackedAlignment and holds matrix.bytes(). Threads may pack disjoint panels of one
// matrix. rows[i]: source row i: rows of several tensors, a permutation or a slice are all
// expressed by this list. rows.size() == n. Lossless, but K-quants: their scales and minima per 32
// (Q6_K: per 16) are multiplied out and rounded to f16. Cost: about 2 ns an element.
void PackPanels(const PackedMatrix& matrix, absl::Span<const WeightRow> rows, int64_t panel_begin,
                int64_t panel_end, uint8_t* out);

// DescribePacked and PackPanels of everything; returns the view with data = out.
PackedMatrix Pack(IsaPath path, WeightFormat format, int64_t n, int64_t k,
                  absl::Span<const WeightRow> rows, uint8_t* out,
                  ActivationKind blocks = ActivationKind::kInt16);

// Writes row `row` of W as float32 (k values), e.g. a token's embedding from the packed output
// matrix.
void UnpackRow(const PackedMatrix& matrix, int64_t row, float* out);

// Bytes of one prepared row; rows follow each other at this distance. A multiple of
// kPackedAlignment.
int64_t PreparedRowBytes(ActivationKind kind, int64_t k);

// Converts rows of x for Forward.
// Shapes: x [rows, k] float32, `x_stride` floats apart; prepared: rows * PreparedRowBytes bytes,
// aligned to kPackedAlignment. Splitting rows over calls changes nothing.
void PrepareActivations(IsaPath path, ActivationKind kind, const float* x, int64_t rows, int64_t k,
                        int64_t x_stride, uint8_t* prepared);
inline void PrepareActivations(const PackedMatrix& matrix, const float* x, int64_t rows,
                               int64_t x_stride, uint8_t* prepared) {
  PrepareActivations(matrix.path, matrix.activations, x, rows, matrix.k, x_stride, prepared);
}

// y[r][j] = sum_i x[r][i] * W[j][i] for the output features j of panels [panel_begin, panel_end):
// 16 * panel_begin up to min(n, 16 * panel_end). Other elements of y are not touched. Shapes:
// prepared: `rows` rows from PrepareActivations with the same path, kind and k; y: row r starts at
// y + r * y_stride and is indexed by j.
// Cost: every panel is read from memory once for all rows; 2 * rows * k * 16 operations a panel.
void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride);

}  // namespace sluice::kernels
