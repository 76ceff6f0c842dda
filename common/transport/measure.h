// How fast bytes move between two transports: for the self-test at pairing, `doctor`, and
// benchmarks.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "transport/transport.h"

namespace sluice::transport {

struct MeasureOptions {
  size_t piece_bytes = 256u << 10;
  // Pieces are taken one after the other from this much memory; more than the caches hold measures
  // memory.
  size_t region_bytes = 64u << 20;
  uint64_t total_bytes = 1u << 30;
  size_t outstanding_max = 8;
  absl::Duration timeout = absl::Seconds(30);
};

struct Measurement {
  uint64_t pieces = 0;
  uint64_t bytes = 0;
  absl::Duration took;
  double gigabytes_per_second() const {
    return static_cast<double>(bytes) / absl::ToDoubleSeconds(took) / 1e9;
  }
};

// `taker` reads pieces of a region of `holder`. Both belong to this thread; each allocates a region
// of `region_bytes`. Pages are touched before, so first use is not measured. Errors: UNIMPLEMENTED
// without true_get, DEADLINE_EXCEEDED, and those of the transports.
absl::StatusOr<Measurement> MeasureFetch(Transport& taker, Transport& holder,
                                         const MeasureOptions& options, const Clock& clock);

// `sender` sends messages of `piece_bytes` to `receiver`, which copies each into memory, as offers
// that carry bytes do. The receiver works on a thread of its own during the call; the sender takes
// no other messages meanwhile.
absl::StatusOr<Measurement> MeasureSend(Transport& sender, Transport& receiver,
                                        const MeasureOptions& options, const Clock& clock);

}  // namespace sluice::transport
