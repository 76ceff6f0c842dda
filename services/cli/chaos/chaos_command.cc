// sluice chaos: an answer goes on while one of the processes that make it is killed.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "rpc/signals.h"
#include "services/cli/chaos/chaos_run.h"
#include "services/cli/chaos/demo_cluster.h"
#include "services/cli/chaos/victims.h"
#include "services/cli/client/generate_client.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

constexpr char kDefaultText[] =
    "Explain in a few sentences why a distributed system must expect its parts to fail.";

struct ChaosFlags {
  std::string model = "toy";
  std::string endpoints;  // empty: a cluster of one's own
  std::string role = "decode";
  std::string text = kDefaultText;
  std::optional<uint32_t> kill_at;
  uint32_t max_tokens = 300;
  uint32_t threads = 0;
  bool json = false;
};

// Two of each role, so that there is always another one.
std::vector<std::string> UpArguments(const ChaosFlags& flags) {
  return {"--model", flags.model, "--prefill", "2",         "--decode",
          "2",       "--routers", "2",         "--threads", absl::StrCat(flags.threads)};
}

v1::GenerateRequest Request(const ChaosFlags& flags) {
  v1::GenerateRequest request;
  auto* message = request.mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(flags.text);
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(flags.max_tokens);
  // A model may have little to say; the answer must not be over before the kill.
  request.set_ignore_eos(true);
  return request;
}

absl::StatusOr<ChaosReport> RunOn(const ClusterFile& cluster, const ChaosFlags& flags,
                                  const Clock& clock) {
  SLUICE_ASSIGN_OR_RETURN(auto routers, ParseUrls(cluster.routers));
  GenerateClient client(std::move(routers), "");
  SLUICE_ASSIGN_OR_RETURN(const auto interrupt,
                          rpc::SignalWatcher::Start([&client] { client.Cancel(); }));
  ChaosHooks hooks;
  hooks.generate = [&](v1::GenerateRequest request, const ChaosHooks::OnText& on_text) {
    return client.Generate(std::move(request), on_text, nullptr);
  };
  hooks.kill = [&] { return KillBusiest(*cluster.Role(flags.role)); };
  hooks.show = [&](absl::string_view text) {
    if (flags.json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  hooks.killed = [](const Victim& victim, uint32_t tokens) {
    std::fprintf(stderr, "\n[kill -9 %d: %s, after token %u]\n", victim.pid, victim.name.c_str(),
                 tokens);
  };
  const ChaosPlan plan = {Request(flags), flags.kill_at.value_or(flags.max_tokens / 3)};
  return RunChaos(plan, hooks, clock);
}

absl::Status Chaos(const ChaosFlags& flags) {
  rpc::BlockTerminationSignals();
  const SystemClock clock;
  std::unique_ptr<DemoCluster> own;
  std::string endpoints;
  if (flags.endpoints.empty()) {
    std::fprintf(stderr, "starting two routers, two prefill and two decode workers\n");
    SLUICE_ASSIGN_OR_RETURN(own, DemoCluster::Start(UpArguments(flags), clock));
    endpoints = own->endpoints();
  } else {
    SLUICE_ASSIGN_OR_RETURN(endpoints, ReadTextFile(flags.endpoints));
  }
  const auto cluster = ParseClusterFile(endpoints);
  if (!cluster.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--endpoints ", flags.endpoints, ": ", cluster.status().message()));
  }
  SLUICE_ASSIGN_OR_RETURN(const ChaosReport report, RunOn(*cluster, flags, clock));
  PrintLine(flags.json ? ToJson(report) : "");
  if (!flags.json) std::fprintf(stderr, "%s\n", Describe(report).c_str());
  if (report.equal()) return absl::OkStatus();
  return absl::DataLossError("the answer is not that of the undisturbed run");
}

}  // namespace

void AddChaosCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<ChaosFlags>();
  CLI::App* command = app.add_subcommand(
      "chaos",
      "Kill a process with -9 while an answer streams, and compare the answer with an undisturbed "
      "one");
  command
      ->add_option("--kill", flags->role,
                   "Of this role; the worker that streams, where there are several")
      ->check(CLI::IsMember({"decode", "prefill", "router", "cache-manager"}))
      ->capture_default_str();
  auto* endpoints =
      command
          ->add_option("--endpoints", flags->endpoints,
                       "Endpoints file of a running sluice up, which loses a process; default: a "
                       "cluster of two routers, two prefill and two decode workers that is started "
                       "and stopped again")
          ->check(CLI::ExistingFile);
  AddModelOption(*command, &flags->model,
                 "Model folder, .gguf file, toy, or a name in deploy/models")
      ->capture_default_str()
      ->excludes(endpoints);
  command
      ->add_option("--threads", flags->threads,
                   "Compute threads of each worker that is started; 0: every usable core")
      ->excludes(endpoints);
  command->add_option("--text", flags->text, "What is asked")->capture_default_str();
  command->add_option("--max-tokens", flags->max_tokens, "Tokens of the answer")
      ->check(CLI::Range(2u, 100000u))
      ->capture_default_str();
  command->add_option("--at", flags->kill_at, "Kill after so many tokens; default: a third of them")
      ->check(CLI::Range(1u, 100000u));
  command->add_flag("--json", flags->json, "One JSON object instead of the text");
  command->callback([flags, run] { *run = [flags] { return Chaos(*flags); }; });
}

}  // namespace sluice::cli
