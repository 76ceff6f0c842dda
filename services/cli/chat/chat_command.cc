// sluice chat: flags, terminal and Ctrl-C around a ChatSession.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "rpc/signals.h"
#include "services/cli/chat/chat_session.h"
#include "services/cli/client/generate_client.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

constexpr int kExitInterrupted = 130;

struct ChatFlags {
  std::string url = kDefaultUrl;
  std::string text;
  std::string api_key;
  ChatSettings settings;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint64_t> seed;
  bool show_usage = false;
};

void WriteLine(absl::string_view line) { std::fprintf(stderr, "%s\n", std::string(line).c_str()); }

void PrintUsage(const GenerateOutcome& outcome, absl::Duration first, absl::Duration all) {
  const v1::Usage& usage = outcome.usage;
  const double seconds = absl::ToDoubleSeconds(all - first);
  const double rate =
      usage.completion_tokens() > 1 && seconds > 0 ? (usage.completion_tokens() - 1) / seconds : 0;
  WriteLine(
      absl::StrFormat("prompt_tokens=%u cached_tokens=%u completion_tokens=%u recomputed_tokens=%u "
                      "finish_reason=%s resumes=%u ttft_ms=%.1f tokens_per_s=%.1f request_id=%s",
                      usage.prompt_tokens(), usage.cached_tokens(), usage.completion_tokens(),
                      usage.recomputed_tokens(), outcome.finish_reason, outcome.resumes,
                      absl::ToDoubleMilliseconds(first), rate, outcome.start.request_id()));
}

class Chat {
 public:
  Chat(const ChatFlags& flags, std::vector<Endpoint> endpoints)
      : flags_(flags),
        client_(std::move(endpoints), flags.api_key),
        session_(Settings(flags), [this](v1::GenerateRequest request, const auto& on_text) {
          return client_.Generate(std::move(request), on_text, WriteLine);
        }) {}

  // Streams one answer to stdout; Ctrl-C cancels it.
  absl::Status Turn(absl::string_view text) {
    SLUICE_ASSIGN_OR_RETURN(const auto interrupt,
                            rpc::SignalWatcher::Start([this] { client_.Cancel(); }));
    const absl::Time begin = clock_.Now();
    absl::Time first = absl::InfiniteFuture();
    const auto outcome = session_.Ask(text, [&](const NewText& piece) {
      first = std::min(first, clock_.Now());
      if (!piece.reasoning.empty()) ShowReasoning(piece.reasoning);
      if (!piece.text.empty()) ShowReasoning("");
      std::fwrite(piece.text.data(), 1, piece.text.size(), stdout);
      std::fflush(stdout);
    });
    ShowReasoning("");
    if (first != absl::InfiniteFuture() || outcome.ok()) PrintLine("");
    SLUICE_RETURN_IF_ERROR(outcome.status());
    const absl::Time end = clock_.Now();
    if (flags_.show_usage) PrintUsage(*outcome, std::min(first, end) - begin, end - begin);
    return absl::OkStatus();
  }

  absl::Status Loop() {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    std::unique_ptr<rpc::SignalWatcher> at_prompt;
    if (terminal) WriteLine("Ctrl-D ends, /help explains.");
    const auto prompt = [&] {
      if (!terminal) return;
      std::fputs("> ", stderr);
    };
    const auto turn = [&](absl::string_view text) {
      at_prompt.reset();
      const absl::Status status = Turn(text);
      WatchAtPrompt(&at_prompt);
      return status;
    };
    WatchAtPrompt(&at_prompt);
    RunChatLoop(session_, {&std::cin, prompt, WriteLine, turn});
    return absl::OkStatus();
  }

 private:
  // Reasoning goes to a terminal's error stream, dimmed, so that what is piped is the answer alone.
  // An empty text ends it.
  void ShowReasoning(const std::string& text) {
    if (isatty(STDERR_FILENO) == 0 || (text.empty() && !reasoning_)) return;
    if (text.empty()) {
      std::fputs("\x1b[0m\n\n", stderr);
    } else {
      std::fprintf(stderr, "%s%s", reasoning_ ? "" : "\x1b[2m", text.c_str());
    }
    reasoning_ = !text.empty();
  }

  static ChatSettings Settings(const ChatFlags& flags) {
    ChatSettings settings = flags.settings;
    if (flags.temperature) settings.sampling.set_temperature(*flags.temperature);
    if (flags.top_p) settings.sampling.set_top_p(*flags.top_p);
    if (flags.seed) settings.sampling.set_seed(*flags.seed);
    settings.session_affinity = SecureRandom().NextId128().ToHex();
    return settings;
  }
  // Between turns nothing is to be cancelled: Ctrl-C ends the program.
  static void WatchAtPrompt(std::unique_ptr<rpc::SignalWatcher>* watcher) {
    auto started = rpc::SignalWatcher::Start([] { _exit(kExitInterrupted); });
    if (started.ok()) *watcher = *std::move(started);
  }

  const ChatFlags& flags_;
  const SystemClock clock_;
  GenerateClient client_;
  ChatSession session_;
  bool reasoning_ = false;  // is being shown
};

absl::Status RunChat(const ChatFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(auto endpoints, ParseUrls(flags.url));
  rpc::BlockTerminationSignals();
  Chat chat(flags, std::move(endpoints));
  return flags.text.empty() ? chat.Loop() : chat.Turn(flags.text);
}

}  // namespace

void AddChatCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a running cluster");
  command->add_option("text", flags->text, "One message; without it a conversation is read");
  command->add_option("--url", flags->url, "grpc://host:port[,...]: routers, the first preferred")
      ->capture_default_str();
  command->add_option("--api-key", flags->api_key, "Sent as a bearer token");
  command->add_option("--model", flags->settings.model, "When the cluster serves several");
  command->add_option("--system", flags->settings.system, "System message");
  command->add_option("--max-tokens", flags->settings.max_tokens,
                      "Most output tokens of an answer");
  command->add_option("--temperature", flags->temperature, "0 is greedy; default: the model's");
  command->add_option("--top-p", flags->top_p, "Nucleus of this probability; default: the model's");
  command->add_option("--seed", flags->seed, "The same seed gives the same answer");
  command->add_flag("--show-usage", flags->show_usage, "Print tokens and times of each answer");
  command->footer(
      "Examples:\n"
      "  sluice chat \"What is the capital of France?\"\n"
      "  sluice chat --temperature 0 --show-usage\n"
      "  sluice chat --url grpc://127.0.0.1:8081,grpc://127.0.0.1:9081 \"Tell me a story\"\n"
      "A stream that breaks goes on at the next address. Ctrl-C stops an answer.");
  command->callback([flags, run] { *run = [flags] { return RunChat(*flags); }; });
}

}  // namespace sluice::cli
