// State and flows of a worker. Used by worker*.cc only.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "base/mutex.h"
#include "handoff/credits.h"
#include "handoff/dispatch.h"
#include "handoff/mailbox.h"
#include "handoff/source.h"
#include "handoff/taker.h"
#include "handoff/worker.h"

namespace sluice::handoff {

// Makes a generator usable from any thread.
class LockedRandom final : public RandomSource {
 public:
  explicit LockedRandom(RandomSource& inner) : inner_(inner) {}
  uint64_t Next64() override {
    MutexLock lock(mutex_);
    return inner_.Next64();
  }

 private:
  Mutex mutex_;
  RandomSource& inner_ SLUICE_GUARDED_BY(mutex_);
};

// What both kinds of call have. Engine loop.
struct Call {
  CallId id;
  TimerId deadline_timer = kNoTimer;
  bool in_engine = false;               // submitted and not finished
  std::optional<absl::Status> verdict;  // why it is being ended, if not by the engine itself
  engine::SequenceStats stats;
};
struct PrefillState : Call {
  std::unique_ptr<PrefillEvents> events;
  LeaseId credit;
  std::optional<LeaseId> lease;  // set while the source may still serve it
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  bool committed = false;  // the pages are on their way; the call ends with the source
  std::optional<std::pair<absl::Status, uint64_t>> source_end;
};
struct DecodeState : Call {
  std::unique_ptr<DecodeEvents> events;
  DecodeCall call;
  bool landed = false;
};

// Threads: calls, engine and step driver belong to the engine loop; source, taker, dispatcher and
// `source_calls_` to the move loop. The two talk through mailboxes only. A call's sequence has the
// call's number.
class WorkerImpl final : public Worker, private engine::EngineEvents, private SourceEvents {
 public:
  WorkerImpl(const WorkerOptions& options, const Dependencies& dependencies);
  ~WorkerImpl() override;

  absl::StatusOr<LeaseId> Admit(uint32_t prompt_tokens, const TenantId& tenant) override {
    return credits_.Admit(prompt_tokens, tenant);
  }
  void ReturnCredit(LeaseId credit) override { credits_.Return(credit); }
  void Reserve(ReserveCall call, absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) override;
  void Release(LeaseId lease) override;
  CallId Prefill(PrefillCall call, std::unique_ptr<PrefillEvents> events) override;
  CallId Decode(DecodeCall call, std::unique_ptr<DecodeEvents> events) override;
  void Cancel(CallId call) override;
  WorkerLoad load() const override;
  MoveCounters counters() const override { return counters_; }
  absl::Time last_progress() const override;
  void PollTransport() override;

 private:
  // Common (worker.cc).
  void ScheduleStep();
  void RunStep();
  void PublishLoad();
  void ArmDeadline(Call& call, absl::Time deadline);
  void DoCancel(CallId id, const absl::Status& why);
  // Ends the sequence; its OnFinished then ends the call.
  void CancelInEngine(Call& call, const absl::Status& why);

  // Prefill calls (worker_prefill.cc). A lease is served for one call; mail of another call that
  // names it is dropped.
  bool Serves(CallId id, LeaseId lease) const;
  void StartPrefill(CallId id, PrefillCall call, LeaseId credit,
                    std::unique_ptr<PrefillEvents> events);
  // FAILED_PRECONDITION if the call was meant for a predecessor of this process.
  absl::Status CheckMeant(const CallContext& context) const;
  void OpenSource(CallId id, const v1::Grant& grant, uint32_t prompt_tokens);
  void WithdrawSource(PrefillState& state, absl::string_view reason);
  void SourceEnded(CallId id, const absl::Status& status, uint64_t bytes);
  void PrefillFinished(PrefillState& state, const absl::Status& status);
  void AbandonPrefill(PrefillState& state, const absl::Status& why);
  void EndPrefill(CallId id, const absl::Status& status, uint64_t bytes);
  void OnSourceEnded(LeaseId lease, const absl::Status& status, uint64_t bytes) override;

  // Decode calls (worker_decode.cc).
  void StartDecode(CallId id, DecodeCall call, std::unique_ptr<DecodeEvents> events);
  void Landed(CallId id, absl::StatusOr<LandedSequence> landed);
  absl::Status SubmitLocal(DecodeState& state);
  absl::Status SubmitLanded(DecodeState& state, LandedSequence landed);
  void AbandonDecode(DecodeState& state, const absl::Status& why);
  void EndDecode(CallId id, const absl::Status& status);

  // Engine events, inside a step.
  void OnStarted(SequenceId sequence, uint32_t cached_tokens) override;
  void OnPagesFinal(SequenceId sequence, std::vector<engine::FinalPage> pages, int layer_begin,
                    int layer_end) override;
  void OnPromptDone(SequenceId sequence, const std::optional<request::SampledToken>& first,
                    request::FinishReason finish) override;
  void OnToken(SequenceId sequence, uint32_t position, const request::SampledToken& token,
               request::FinishReason finish) override;
  void OnFinished(SequenceId sequence, const absl::Status& status,
                  const engine::SequenceStats& stats) override;
  // A fault point inside a step: an error ends the call after the step.
  void EndAfterStep(CallId id, const absl::Status& why);

  PrefillState* FindPrefill(SequenceId sequence);
  DecodeState* FindDecode(SequenceId sequence);

  const WorkerOptions options_;
  const Dependencies deps_;
  MoveCounters counters_;
  LockedRandom random_;
  Credits credits_;
  std::atomic<uint64_t> calls_made_{0};

  // Engine loop.
  absl::btree_map<CallId, PrefillState> prefills_;
  absl::btree_map<CallId, DecodeState> decodes_;
  bool step_scheduled_ = false;
  absl::Time next_step_at_ = absl::InfinitePast();
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> last_progress_nanos_;
  mutable Mutex load_mutex_;
  engine::EngineLoad load_ SLUICE_GUARDED_BY(load_mutex_);

  // Move loop.
  absl::btree_map<LeaseId, CallId> source_calls_;

  // Destroyed first to last in reverse: mail may hold pages, the sides may hold connections.
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<HandoffSource> source_;
  std::unique_ptr<HandoffTaker> taker_;
  std::unique_ptr<MoveDispatcher> dispatcher_;
  Mailbox engine_mail_;
  Mailbox move_mail_;
};

}  // namespace sluice::handoff
