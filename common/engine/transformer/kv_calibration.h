// Measures the centre of a model's keys and values.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model_runner.h"
#include "model/kv_centre.h"

namespace sluice::engine {

// The first positions draw attention as sinks and are unlike the rest; they are left out.
inline constexpr int kCalibrationSkippedTokens = 4;

// The means of keys (after norm and rotation) and values over the positions of `tokens`, rounded to
// bf16. A few hundred tokens are enough: the vectors are the constant part that all texts share.
// Needs: a runner with f32 pages; its path decides the last bits, so use the reference one where
// results of several machines must be equal. Errors: FAILED_PRECONDITION for other pages,
// INVALID_ARGUMENT for tokens too few, too many for the context or outside the vocabulary.
// Threads: as ModelRunner::Forward. Cost: one pass over the tokens, and their f32 pages.
absl::StatusOr<model::KvCentre> CalibrateKvCentre(ModelRunner& runner,
                                                  absl::Span<const TokenId> tokens);

}  // namespace sluice::engine
