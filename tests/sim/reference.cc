#include "base/check.h"
#include "engine/engine.h"
#include "engine/toy_model.h"
#include "tests/sim/sim_cluster.h"

namespace sluice::sim {
namespace {

class Recorder final : public engine::EngineEvents {
 public:
  void OnStarted(SequenceId, uint32_t) override {}
  void OnPagesFinal(SequenceId, std::vector<engine::FinalPage>, int, int) override {}
  void OnPromptDone(SequenceId, const std::optional<request::SampledToken>&,
                    request::FinishReason) override {}
  void OnToken(SequenceId, uint32_t, const request::SampledToken& token,
               request::FinishReason) override {
    tokens.push_back(token.token);
  }
  void OnFinished(SequenceId, const absl::Status& status, const engine::SequenceStats&) override {
    SLUICE_CHECK(status.ok()) << status.ToString();
  }
  std::vector<request::TokenId> tokens;
};

}  // namespace

std::vector<request::TokenId> ReferenceTokens(const engine::ToyModelOptions& model_options,
                                              const SimRequest& request) {
  FakeClock clock;
  const std::unique_ptr<engine::ModelRunner> model = *engine::CreateToyModel(model_options);
  const kv::PageLayout& layout = model->info().layout;
  const size_t pages =
      layout.PagesFor(static_cast<uint32_t>(request.prompt.size()) + request.sampling.max_tokens);
  // Pages are aligned to 64 bytes.
  std::vector<uint8_t> memory(pages * layout.page_bytes() + 64);
  const size_t skip = (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  const auto pool = *kv::PagePool::Create(
      absl::MakeSpan(memory).subspan(skip, pages * layout.page_bytes()), layout, {});
  const auto index = kv::PrefixIndex::Create(*pool);
  Recorder recorder;
  const auto engine = engine::Engine::Create({}, *model, *pool, *index, clock, recorder, nullptr);
  engine::SequenceSpec spec;
  spec.id = SequenceId(1);
  spec.prompt = request.prompt;
  spec.sampling = request.sampling;
  SLUICE_CHECK(engine->Submit(std::move(spec)).ok());
  while (engine->HasWork()) engine->Step();
  return recorder.tokens;
}

}  // namespace sluice::sim
