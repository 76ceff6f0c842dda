// What workers count: handles for the services, and collectors that read pool, index, engine and
// hand-off when scraped.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "handoff/worker.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "request/phase.h"
#include "telemetry/metrics.h"
#include "transport/transport.h"

namespace sluice::services {

// Thread-safe.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(telemetry::Registry& registry);

  // A call of `method` ended.
  void CallEnded(absl::string_view method, const absl::Status& status);
  // What a call's sequence computed and found.
  void SequenceEnded(const engine::SequenceStats& stats);
  void TokenSampled() { output_tokens_.Add(); }
  void PhaseEnded(request::Phase phase, absl::Duration duration);
  void Transferred(absl::Duration transfer) {
    transfer_seconds_.Observe(absl::ToDoubleSeconds(transfer));
  }

  // What the collectors read. All must outlive the registry's last Serialize.
  struct Sources {
    const Clock& clock;
    const handoff::Worker& worker;
    const kv::PagePool& pool;
    kv::PrefixIndex& index;
    const engine::ModelRunner& model;
    const transport::Transport& transport;
  };
  // Before the worker gets calls: it observes the index, too.
  void Collect(const Sources& sources);

 private:
  telemetry::Registry& registry_;
  const telemetry::Counter output_tokens_;
  const telemetry::Counter computed_tokens_;
  const telemetry::Counter cached_tokens_;
  const telemetry::Counter recomputed_tokens_;
  const telemetry::Counter preemptions_;
  const telemetry::Counter tag_failures_;
  const telemetry::Histogram transfer_seconds_;
};

}  // namespace sluice::services
