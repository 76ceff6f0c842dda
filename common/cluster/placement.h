// Which workers serve a request: a pure function of the cluster's state and the request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "cluster/block_index.h"
#include "cluster/directory.h"

namespace sluice::cluster {

enum class SplitMode { kAuto, kAlways, kNever };

struct PlacementOptions {
  SplitMode split = SplitMode::kAuto;
  // Prompts with fewer uncached tokens are computed where they are decoded, under kAuto.
  uint32_t local_tokens_max = 256;
  // Assumed until a worker has measured its own.
  double default_prefill_tokens_per_s = 2000;
  double default_decode_step_ms = 20;
  double transfer_bytes_per_s = 1e9;  // between a pair that has moved nothing of late
  // Choices within this factor of the best are drawn from at random, so that routers do not herd.
  double near_best = 1.05;
  // An affine pair is kept while it costs at most this many times the best.
  double affinity_slack = 2.0;
};

struct PlacementQuery {
  std::string model;
  uint32_t prompt_tokens = 0;
  uint32_t emitted_tokens = 0;  // output the client has: recomputed by the decode worker
  uint32_t output_tokens = 0;   // expected
  // Hits by worker and the numerics they were made with; from the cache-manager, may be empty.
  std::vector<WorkerHit> hits;
  // Workers that failed this request before.
  std::vector<WorkerId> excluded;
  // Pairs between which pages could not be moved of late.
  std::vector<WorkerPair> broken_pairs;
  // How fast pages moved between pairs of late.
  std::vector<MoveRate> move_rates;
  // Workers that served this session last.
  WorkerId affine_prefill;
  WorkerId affine_decode;
  // Set after the first token: only workers of these numerics continue byte for byte.
  Id128 prefill_numerics;
  Id128 decode_numerics;
};

struct PlacementDecision {
  bool split = false;
  WorkerId prefill;  // empty unless split
  WorkerId decode;
  uint32_t predicted_cached_tokens = 0;
  // What the queue and the prompt take where it is computed, by measured rates; 0 where none was
  // measured.
  double first_token_ms = 0;
};

// Errors: UNAVAILABLE when no usable worker or pair exists, saying which role is missing and why
// each worker was ruled out (readiness, draining, breaker, layout, exclusion). Breakers are ignored
// when they would rule out the last candidates.
absl::StatusOr<PlacementDecision> Place(const PlacementOptions& options,
                                        const PlacementQuery& query,
                                        absl::Span<const WorkerState> workers,
                                        RandomSource& random);

// Why no request at all can be served by these workers: "no decode worker is ready (...)". Empty
// when one can.
std::string WhyNobodyServes(const PlacementOptions& options, absl::Span<const WorkerState> workers);

// The largest sequence, prompt and output together, that the pages of any usable pair can hold.
struct LargestFit {
  uint64_t prompt_tokens = 0;    // where the prompt is computed
  uint64_t sequence_tokens = 0;  // where it is decoded
};
// Of the workers that serve the model and say how many pages they have; none if a role is missing.
std::optional<LargestFit> LargestFitOf(absl::Span<const WorkerState> workers,
                                       absl::string_view model);

}  // namespace sluice::cluster
