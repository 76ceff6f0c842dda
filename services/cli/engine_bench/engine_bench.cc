#include "services/cli/engine_bench/engine_bench.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "device/cpu.h"
#include "kernels/isa.h"
#include "services/cli/flag_range.h"
#include "services/cli/local_session.h"

namespace sluice::cli {
namespace {

constexpr uint32_t kBatchMax = 1024;
constexpr uint32_t kTokensMax = 1u << 20;
constexpr uint32_t kWarmUpTokens = 4;

// Times prefill and decode on one session.
class Bench {
 public:
  Bench(const EngineBenchOptions& options, LocalSession& session)
      : options_(options), session_(session), random_(options.seed) {}

  absl::StatusOr<Stretch> Prefill(uint32_t tokens) {
    request::SamplingParams sampling = Sampling();
    sampling.max_tokens = 1;
    const Mark begin = Now();
    SLUICE_ASSIGN_OR_RETURN(const SequenceId id,
                            session_.Submit(Prompt(tokens), sampling, nullptr));
    uint64_t steps = 0;
    while (session_.Step()) ++steps;
    const Stretch stretch = Since(begin, tokens, steps);
    SLUICE_RETURN_IF_ERROR(session_.result(id).status);
    return stretch;
  }

  // Times `steps` steps in each of which `batch` sequences get one token.
  absl::StatusOr<Stretch> Decode(uint32_t batch, uint32_t steps) {
    uint64_t tokens = 0;
    uint32_t started = 0;
    std::vector<SequenceId> ids;
    for (uint32_t i = 0; i < batch; ++i) {
      bool first = true;
      const auto count = [&tokens, &started, first](const auto&, auto) mutable {
        ++tokens;
        started += first ? 1 : 0;
        first = false;
      };
      SLUICE_ASSIGN_OR_RETURN(const SequenceId id,
                              session_.Submit(Prompt(options_.depth_tokens), Sampling(), count));
      ids.push_back(id);
    }
    while (started < batch && session_.Step()) {
    }
    tokens = 0;
    const Mark begin = Now();
    for (uint32_t i = 0; i < steps; ++i) session_.Step();
    const Stretch stretch = Since(begin, tokens, steps);
    for (SequenceId id : ids) session_.Cancel(id);
    while (session_.Step()) {
    }
    for (SequenceId id : ids) {
      const absl::Status& status = session_.result(id).status;
      if (!absl::IsCancelled(status)) return status.ok() ? EndedEarly() : status;
    }
    return tokens == uint64_t{batch} * steps ? absl::StatusOr<Stretch>(stretch) : EndedEarly();
  }

 private:
  struct Mark {
    absl::Time time;
    uint64_t weight_bytes;
  };

  static absl::Status EndedEarly() {
    return absl::InternalError("a sequence ended or was preempted while it was timed");
  }
  Mark Now() const { return {session_.clock().Now(), session_.runner().weight_bytes_read()}; }
  Stretch Since(const Mark& begin, uint64_t tokens, uint64_t steps) const {
    const Mark end = Now();
    return {tokens, steps, end.weight_bytes - begin.weight_bytes, end.time - begin.time};
  }
  std::vector<request::TokenId> Prompt(uint32_t tokens) {
    std::vector<request::TokenId> prompt(tokens);
    const auto vocabulary = static_cast<uint64_t>(session_.info().vocabulary);
    for (auto& token : prompt) token = static_cast<request::TokenId>(random_.Below(vocabulary));
    return prompt;
  }
  // Greedy, until cancelled.
  static request::SamplingParams Sampling() {
    request::SamplingParams sampling;
    sampling.temperature = 0;
    sampling.ignore_eos = true;
    sampling.max_tokens = kTokensMax;
    return sampling;
  }

  const EngineBenchOptions& options_;
  LocalSession& session_;
  SeededRandom random_;
};

// Tokens that one decoding sequence may come to hold: while later prompts are computed, the first
// sequences go on, by a token per step.
uint64_t SequenceTokensMax(const EngineBenchOptions& options, uint32_t batch) {
  const engine::EngineOptions defaults;
  const uint64_t prompt_steps =
      uint64_t{batch} * options.depth_tokens / (defaults.step_tokens_max / 2) + batch / 8 + 2;
  return options.depth_tokens + prompt_steps + std::max(options.gen_tokens, kWarmUpTokens) + 1;
}

absl::StatusOr<std::unique_ptr<LocalSession>> CreateSession(const EngineBenchOptions& options) {
  const uint32_t batch = *std::max_element(options.batches.begin(), options.batches.end());
  engine::EngineOptions engine;
  engine.batch_max = batch;
  engine.waiting_max = batch;
  engine.step_tokens_max = std::max(engine.step_tokens_max, 2 * batch);
  // Prompts are not what is timed in a decode run: let them pass quickly.
  engine.itl_target = absl::Minutes(10);
  const uint64_t longest = SequenceTokensMax(options, batch);
  const uint64_t tokens = std::max<uint64_t>(batch * longest, options.prompt_tokens + 1);
  SLUICE_ASSIGN_OR_RETURN(auto session, LocalSession::Create(options.model, tokens, engine));
  const auto context = static_cast<uint64_t>(session->info().context_tokens);
  const uint64_t needed = std::max<uint64_t>(longest, options.prompt_tokens + 1);
  if (needed > context) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt ", options.prompt_tokens, ", --depth ", options.depth_tokens,
                     " and --gen ", options.gen_tokens, " need a context of ", needed,
                     " tokens; that of ", session->info().name, " is ", context));
  }
  return session;
}

}  // namespace

absl::Status ValidateEngineBench(const EngineBenchOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckRange("--prompt", options.prompt_tokens, 1, kTokensMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--gen", options.gen_tokens, 1, kTokensMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--depth", options.depth_tokens, 1, kTokensMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--repetitions", options.repetitions, 1, 1000));
  if (options.batches.empty()) {
    return absl::InvalidArgumentError("--batch is empty; write --batch 1,8,32");
  }
  for (uint32_t batch : options.batches) {
    SLUICE_RETURN_IF_ERROR(CheckRange("--batch", batch, 1, kBatchMax));
  }
  return absl::OkStatus();
}

double Stretch::tokens_per_s() const {
  return static_cast<double>(tokens) / absl::ToDoubleSeconds(took);
}
double Stretch::step_ms() const {
  return absl::ToDoubleMilliseconds(took) / static_cast<double>(steps);
}
double Stretch::weight_bytes_per_step() const {
  return static_cast<double>(weight_bytes) / static_cast<double>(steps);
}

Stretch MedianByRate(std::vector<Stretch> stretches) {
  SLUICE_CHECK(!stretches.empty());
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return a.tokens_per_s() < b.tokens_per_s(); });
  return stretches[(stretches.size() - 1) / 2];
}

absl::StatusOr<EngineBenchReport> RunEngineBench(
    const EngineBenchOptions& options, const std::function<void(absl::string_view)>& progress) {
  SLUICE_RETURN_IF_ERROR(ValidateEngineBench(options));
  const auto say = [&progress](absl::string_view line) {
    if (progress) progress(line);
  };
  say(absl::StrCat("loading ", options.model.path));
  SLUICE_ASSIGN_OR_RETURN(auto session, CreateSession(options));
  EngineBenchReport report;
  report.options = options;
  report.model = session->info().name;
  report.kernels = std::string(kernels::IsaPathName(session->model().path));
  report.kv_format = std::string(kv::KvFormatName(session->info().layout.spec().format));
  report.threads = session->model().threads->workers();
  SLUICE_ASSIGN_OR_RETURN(report.read_gb_per_s, device::MeasureReadBandwidth(
                                                    *session->model().threads, session->clock()));

  Bench bench(options, *session);
  SLUICE_RETURN_IF_ERROR(bench.Prefill(options.prompt_tokens).status());
  say(absl::StrCat("prefill of ", options.prompt_tokens, " tokens"));
  std::vector<Stretch> stretches;
  for (uint32_t i = 0; i < options.repetitions; ++i) {
    SLUICE_ASSIGN_OR_RETURN(const Stretch stretch, bench.Prefill(options.prompt_tokens));
    stretches.push_back(stretch);
  }
  report.prefill = MedianByRate(stretches);
  for (uint32_t batch : options.batches) {
    say(absl::StrCat("decode of ", options.gen_tokens, " tokens, batch ", batch));
    SLUICE_RETURN_IF_ERROR(bench.Decode(batch, kWarmUpTokens).status());
    stretches.clear();
    for (uint32_t i = 0; i < options.repetitions; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const Stretch stretch, bench.Decode(batch, options.gen_tokens));
      stretches.push_back(stretch);
    }
    report.decode.push_back({batch, MedianByRate(stretches)});
  }
  return report;
}

}  // namespace sluice::cli
