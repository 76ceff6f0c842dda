// One worker: engine loop, hand-off loop and what passes between them. Services call it, and so
// does the simulation: the whole worker but for gRPC lives behind this class.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/fault.h"
#include "base/ids.h"
#include "base/loop.h"
#include "base/random.h"
#include "engine/engine.h"
#include "handoff/calls.h"
#include "handoff/guards.h"
#include "handoff/move.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "sluice/v1/kv.pb.h"
#include "transport/transport.h"

namespace sluice::handoff {

struct WorkerOptions {
  engine::EngineOptions engine;
  DigestMode digests = DigestMode::kFull;
  absl::Duration lease = absl::Seconds(10);
  // Taken off every lease by the taker: clocks drift.
  double drift_margin = 0.01;
  size_t transfers_max = 256;
  // Lease ids that were served are remembered, up to so many.
  size_t served_max = 65536;
  uint32_t credits_max = 8;
  absl::Duration credit_lease = absl::Seconds(2);
  // Calls in progress; beyond them Prefill and Decode end with RESOURCE_EXHAUSTED.
  size_t calls_max = 1024;
  Guards guards;
};

// Identifies one running call; unique within a worker.
using CallId = StrongId<struct CallIdTag, uint64_t>;

// Events of one call. Called on the worker's engine loop, never concurrently. After OnEnd nothing
// follows.
class PrefillEvents {
 public:
  virtual ~PrefillEvents() = default;
  virtual void OnStarted(uint32_t cached_tokens) = 0;
  virtual void OnFirstToken(const request::SampledToken& token, request::FinishReason finish) = 0;
  // OK: all pages were fetched and verified by the taker, or nothing had to be moved.
  virtual void OnEnd(const absl::Status& status, const engine::SequenceStats& stats,
                     uint64_t transferred_bytes) = 0;
};

class DecodeEvents {
 public:
  virtual ~DecodeEvents() = default;
  // Before OnStarted, if pages came from a holder: `transfer` is the time from its first offered
  // piece to the last verified one.
  virtual void OnLanded(absl::Duration /*transfer*/) {}
  // The pages are verified (or the prompt is being computed here).
  virtual void OnStarted(uint32_t held_tokens, uint64_t transferred_bytes,
                         absl::string_view transport) = 0;
  virtual void OnToken(uint32_t position, const request::SampledToken& token,
                       request::FinishReason finish) = 0;
  virtual void OnEnd(const absl::Status& status, const engine::SequenceStats& stats) = 0;
};

struct WorkerLoad {
  engine::EngineLoad engine;
  kv::PageCounts pages;
};

// Thread-safe front; state is owned by the two loops, which must outlive it and be stopped before
// it is destroyed. Calls that are running then end with UNAVAILABLE, on the destroying thread.
class Worker {
 public:
  struct Dependencies {
    engine::ModelRunner& model;
    kv::PagePool& pool;
    kv::PrefixIndex& index;
    transport::Transport& transport;  // used on the move loop only
    std::string pool_remote_key;
    Loop& engine_loop;
    Loop& move_loop;
    RandomSource& random;
    Incarnation incarnation;
    FaultInjector* faults = nullptr;
    // Time a step takes; the simulation supplies it, production leaves it empty (steps take their
    // own time).
    std::function<absl::Duration(uint32_t tokens)> step_cost;
  };
  static std::unique_ptr<Worker> Create(const WorkerOptions& options,
                                        const Dependencies& dependencies);
  virtual ~Worker() = default;

  // A start credit: RESOURCE_EXHAUSTED when all are out or the prompt does not fit the free pages
  // and those that may be evicted for its tenant.
  virtual absl::StatusOr<LeaseId> Admit(uint32_t prompt_tokens, const TenantId& tenant) = 0;
  virtual void ReturnCredit(LeaseId credit) = 0;

  // `done` runs on the move loop. Errors: RESOURCE_EXHAUSTED, FAILED_PRECONDITION for another
  // layout (both descriptions in the message).
  virtual void Reserve(ReserveCall call,
                       absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) = 0;
  virtual void Release(LeaseId lease) = 0;

  // Errors arrive by OnEnd. Without a valid credit the call needs a free one (RESOURCE_EXHAUSTED
  // otherwise). `events` is owned by the worker and destroyed after OnEnd returned.
  virtual CallId Prefill(PrefillCall call, std::unique_ptr<PrefillEvents> events) = 0;
  virtual CallId Decode(DecodeCall call, std::unique_ptr<DecodeEvents> events) = 0;
  // OnEnd(CANCELLED) follows unless the call ended by itself. Unknown ids are ignored.
  virtual void Cancel(CallId call) = 0;

  virtual WorkerLoad load() const = 0;
  virtual MoveCounters counters() const = 0;
  // Now when there is nothing to do; else when something was last done. Thread-safe.
  virtual absl::Time last_progress() const = 0;

  // Simulation and tests: handles what the transport has, on the move loop. Production wires the
  // transport's fd itself.
  virtual void PollTransport() = 0;
};

}  // namespace sluice::handoff
