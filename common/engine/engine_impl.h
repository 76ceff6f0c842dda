// The engine's state and the steps of a step. Used by engine.cc and engine_pages.cc only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/rates.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/tenant_turns.h"

namespace sluice::engine {

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, ModelRunner& model, kv::PagePool& pool,
             kv::PrefixIndex& index, const Clock& clock, EngineEvents& events,
             FaultInjector* faults);

  absl::Status Submit(SequenceSpec spec) override;
  void Cancel(SequenceId sequence) override;
  void Interrupt(SequenceId sequence) override { interrupt_.Interrupt(sequence); }
  bool HasWork() const override { return !sequences_.empty(); }
  uint32_t Step() override;
  EngineLoad load() const override;
  absl::Time last_progress() const override { return last_progress_; }

 private:
  absl::Status CheckSpec(const SequenceSpec& spec) const;
  bool MayRecomputePrompt(const SequenceSpec& spec) const {
    return options_.may_recompute_prompts && spec.own_numerics;
  }
  std::vector<kv::BlockKey> KeysOf(const SequenceSpec& spec,
                                   absl::Span<const TokenId> tokens) const;

  // Ends what was cancelled or is too late.
  void EndOverdue(absl::Time now);
  // The one place where a sequence ends: publishes its blocks if they can be trusted, releases its
  // pages, tells the events.
  void Finish(Sequence& sequence, const absl::Status& status);
  absl::Status Compute(std::vector<BatchEntry>& batch);
  void AfterPass(const std::vector<BatchEntry>& batch);
  void TakeToken(const BatchEntry& entry);
  request::FinishReason FinishAfter(const Sequence& sequence, TokenId token) const;

  // Pages (engine_pages.cc).
  std::vector<BatchEntry> Schedule();
  // `phantom_pages` count as available but cannot be had.
  SchedulerState StateForPlan(uint64_t phantom_pages) const;
  // Null, or the first sequence for which there are no pages after all.
  Sequence* AllocateFor(const std::vector<StepPlan::Run>& runs);
  void ApplyPreemptions(const std::vector<size_t>& indices);
  void ApplyAdmissions(const std::vector<size_t>& indices);
  bool Admit(Sequence& sequence);
  absl::Span<const kv::BlockKey> ReusableKeys(const Sequence& sequence) const;
  void Start(Sequence& sequence);
  void Preempt(Sequence& sequence);
  bool AllocateMissing(Sequence& sequence);
  // Hands full blocks to the prefix index; `with_output` names blocks of output first.
  void Publish(Sequence& sequence, bool with_output);
  void AdoptPublished(Sequence& sequence, uint32_t end);
  uint64_t PagesAvailable() const;

  const EngineOptions options_;
  ModelRunner& model_;
  kv::PagePool& pool_;
  kv::PrefixIndex& index_;
  const Clock& clock_;
  EngineEvents& events_;
  FaultInjector* const faults_;

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;
  std::vector<Sequence*> waiting_;  // by arrival
  uint64_t arrivals_ = 0;
  uint64_t turns_ = 0;  // admissions and turns so far
  TenantTurns tenant_turns_;
  int layer_group_ = 1;
  InterruptFlag interrupt_;
  Rates rates_;
  absl::Time last_progress_;
  std::vector<float> logits_;  // [rows, vocabulary], kept between steps
};

}  // namespace sluice::engine
