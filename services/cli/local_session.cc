#include "services/cli/local_session.h"

#include <utility>

#include "base/status_macros.h"

namespace sluice::cli {

absl::StatusOr<std::unique_ptr<LocalSession>> LocalSession::Create(
    const services::LocalModelOptions& options, uint64_t tokens,
    const engine::EngineOptions& engine_options) {
  std::unique_ptr<LocalSession> session(new LocalSession());
  SLUICE_ASSIGN_OR_RETURN(session->model_, services::LoadLocalModel(options));
  const kv::PageLayout& layout = session->info().layout;
  // One page of room beyond the last token for every sequence that may begin a new one.
  const uint64_t pages = tokens / layout.page_tokens() + engine_options.batch_max + 2;
  SLUICE_ASSIGN_OR_RETURN(session->memory_,
                          device::HugePageArena::Create(pages * layout.page_bytes()));
  const auto memory = session->memory_.memory();
  SLUICE_ASSIGN_OR_RETURN(
      session->pool_,
      kv::PagePool::Create({reinterpret_cast<uint8_t*>(memory.data()), pages * layout.page_bytes()},
                           layout, {}));
  session->index_ = kv::PrefixIndex::Create(*session->pool_);
  session->engine_ =
      engine::Engine::Create(engine_options, *session->model_.runner, *session->pool_,
                             *session->index_, session->clock_, *session, nullptr);
  return session;
}

absl::StatusOr<SequenceId> LocalSession::Submit(std::vector<request::TokenId> prompt,
                                                const request::SamplingParams& sampling,
                                                TokenCallback on_token) {
  results_.push_back({{}, std::move(on_token)});
  engine::SequenceSpec spec;
  spec.id = SequenceId(results_.size());
  spec.request = RequestId("local");
  spec.kind = engine::SequenceKind::kLocal;
  spec.prompt = std::move(prompt);
  spec.sampling = sampling;
  const SequenceId id = spec.id;
  SLUICE_RETURN_IF_ERROR(engine_->Submit(std::move(spec)));
  return id;
}

bool LocalSession::Step() {
  if (!engine_->HasWork()) return false;
  engine_->Step();
  return true;
}

void LocalSession::OnToken(SequenceId sequence, uint32_t, const request::SampledToken& token,
                           request::FinishReason finish) {
  Entry& entry = results_[sequence.value() - 1];
  entry.result.tokens.push_back(token);
  entry.result.finish = finish;
  if (entry.on_token) entry.on_token(token, finish);
}

void LocalSession::OnFinished(SequenceId sequence, const absl::Status& status,
                              const engine::SequenceStats& stats) {
  results_[sequence.value() - 1].result.status = status;
  results_[sequence.value() - 1].result.stats = stats;
}

}  // namespace sluice::cli
