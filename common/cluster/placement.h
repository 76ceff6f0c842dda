// Which workers serve a request: a pure function of the cluster's state and the request.
#pragma once

#include <cstdint>
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
  double transfer_bytes_per_s = 1e9;
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
};

// Errors: UNAVAILABLE when no usable worker or pair exists, saying why each was ruled out (role,
// readiness, draining, breaker, layout, exclusion). A breaker is ignored when it would rule out the
// last candidates.
absl::StatusOr<PlacementDecision> Place(const PlacementOptions& options,
                                        const PlacementQuery& query,
                                        absl::Span<const WorkerState> workers,
                                        RandomSource& random);

}  // namespace sluice::cluster
