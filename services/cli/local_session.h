// One engine in this process, without a cluster: for `generate`, `logits` and `bench engine`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "device/huge_page_arena.h"
#include "engine/engine.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "services/local_model/local_model.h"

namespace sluice::cli {

// What became of one sequence.
struct LocalResult {
  std::vector<request::SampledToken> tokens;
  request::FinishReason finish = request::FinishReason::kNone;
  absl::Status status;
  engine::SequenceStats stats;
};

// Owned by one thread.
class LocalSession final : private engine::EngineEvents {
 public:
  // Room for `tokens` tokens of context in all.
  static absl::StatusOr<std::unique_ptr<LocalSession>> Create(
      const services::LocalModelOptions& options, uint64_t tokens,
      const engine::EngineOptions& engine_options);

  const engine::ModelInfo& info() const { return model_.runner->info(); }
  engine::ModelRunner& runner() { return *model_.runner; }
  const services::LocalModel& model() const { return model_; }
  kv::PagePool& pool() { return *pool_; }
  const Clock& clock() const { return clock_; }

  // `on_token` may be null.
  using TokenCallback = std::function<void(const request::SampledToken&, request::FinishReason)>;
  // Submits a sequence; its result is there once it has left the engine.
  absl::StatusOr<SequenceId> Submit(std::vector<request::TokenId> prompt,
                                    const request::SamplingParams& sampling,
                                    TokenCallback on_token);
  // The result follows within one step: CANCELLED.
  void Cancel(SequenceId id) { engine_->Cancel(id); }
  bool Step();  // false when nothing is left to do
  const LocalResult& result(SequenceId id) const { return results_[id.value() - 1].result; }

 private:
  struct Entry {
    LocalResult result;
    TokenCallback on_token;
  };
  LocalSession() = default;
  void OnStarted(SequenceId, uint32_t) override {}
  void OnPagesFinal(SequenceId, std::vector<engine::FinalPage>, int, int) override {}
  void OnPromptDone(SequenceId, const std::optional<request::SampledToken>&,
                    request::FinishReason) override {}
  void OnToken(SequenceId sequence, uint32_t position, const request::SampledToken& token,
               request::FinishReason finish) override;
  void OnFinished(SequenceId sequence, const absl::Status& status,
                  const engine::SequenceStats& stats) override;

  SystemClock clock_;
  services::LocalModel model_;
  device::HugePageArena memory_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<kv::PrefixIndex> index_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<Entry> results_;
};

}  // namespace sluice::cli
