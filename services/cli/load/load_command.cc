// sluice bench serve: flags, plan, progress and report around a LoadRunner.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rpc/signals.h"
#include "services/cli/command.h"
#include "services/cli/load/load_report.h"
#include "services/cli/load/load_runner.h"

namespace sluice::cli {
namespace {

constexpr uint32_t kConcurrencyMax = 4096;
// Half of the concurrent streams that a public server allows on one connection.
constexpr uint32_t kStreamsPerConnection = 128;
constexpr int kBarWidth = 30;

struct LoadFlags {
  std::string url = kDefaultUrl;
  std::string dataset = "random";
  std::string trace;
  std::string request_rate;
  std::string goodput;
  DatasetOptions data;
  LoadRunOptions run;
  uint32_t max_concurrency = kConcurrencyMax;
  double trace_speed = 1;
  double think_s = 0;
  double timeout_s = 600;
  bool json = false;
};

// 0 stands for the times of the trace.
absl::StatusOr<double> RequestRate(const LoadFlags& flags) {
  if (flags.request_rate.empty()) {
    return flags.data.kind == DatasetKind::kTrace ? 0 : std::numeric_limits<double>::infinity();
  }
  double rate = 0;
  if (!absl::SimpleAtod(flags.request_rate, &rate) || !(rate > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("--request-rate is '", flags.request_rate,
                                                   "'; write requests per second, or inf"));
  }
  return rate;
}

absl::Status CheckFlags(const LoadFlags& flags) {
  if (flags.max_concurrency < 1 || flags.max_concurrency > kConcurrencyMax) {
    return absl::InvalidArgumentError(absl::StrCat("--max-concurrency is ", flags.max_concurrency,
                                                   "; it must be between 1 and ", kConcurrencyMax));
  }
  if (flags.data.kind == DatasetKind::kTrace && flags.trace.empty()) {
    return absl::InvalidArgumentError("--dataset trace needs --trace FILE");
  }
  if (flags.data.kind != DatasetKind::kTrace && !flags.trace.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace has no meaning with --dataset ", flags.dataset));
  }
  return absl::OkStatus();
}

DispatchOptions MakeDispatch(const LoadFlags& flags, double rate,
                             const std::vector<LoadSession>& sessions) {
  DispatchOptions dispatch;
  dispatch.max_concurrency = flags.max_concurrency;
  dispatch.think_time = absl::Seconds(flags.think_s);
  if (rate == 0) {
    for (const LoadSession& session : sessions) {
      dispatch.arrivals.push_back(session.arrival / flags.trace_speed);
    }
  } else {
    // The rate counts requests; an agent's session brings several.
    const double turns = flags.data.kind == DatasetKind::kAgent ? flags.data.turns : 1;
    dispatch.arrivals = PoissonArrivals(rate / turns, sessions.size(), flags.data.seed);
  }
  return dispatch;
}

void ShowProgress(const LoadProgress& progress) {
  std::fprintf(stderr, "\r%s\x1b[K", ProgressLine(progress, kBarWidth).c_str());
}

absl::Status BenchServe(LoadFlags flags) {
  SLUICE_ASSIGN_OR_RETURN(flags.run.endpoints, ParseUrls(flags.url));
  SLUICE_ASSIGN_OR_RETURN(flags.data.kind, ParseDatasetKind(flags.dataset));
  SLUICE_RETURN_IF_ERROR(CheckFlags(flags));
  LoadDescription description;
  SLUICE_ASSIGN_OR_RETURN(description.request_rate, RequestRate(flags));
  if (!flags.goodput.empty()) {
    SLUICE_ASSIGN_OR_RETURN(description.goodput, ParseGoodput(flags.goodput));
  }
  std::vector<TraceLine> trace;
  if (!flags.trace.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.trace));
    SLUICE_ASSIGN_OR_RETURN(trace, ParseTrace(text, kRequestsMax));
  }
  flags.run.timeout = absl::Seconds(flags.timeout_s);

  rpc::BlockTerminationSignals();
  const SystemClock clock;
  const uint32_t most = std::min(flags.max_concurrency, flags.data.num_requests);
  LoadRunner runner(flags.run, clock, (most + kStreamsPerConnection - 1) / kStreamsPerConnection);
  SLUICE_ASSIGN_OR_RETURN(const v1::Model model, runner.Describe());
  SLUICE_ASSIGN_OR_RETURN(
      const auto sessions,
      MakeDataset(flags.data, trace, model.context_tokens(), &description.left_out));
  description.dataset = flags.dataset;
  description.model = model.id();
  description.max_concurrency = flags.max_concurrency;
  description.seed = flags.data.seed;
  description.tenants = std::max<size_t>(flags.run.api_keys.size(), 1);

  SLUICE_ASSIGN_OR_RETURN(const auto interrupt,
                          rpc::SignalWatcher::Start([&runner] { runner.Stop(); }));
  const bool bar = isatty(STDERR_FILENO) != 0;
  const LoadRun run =
      runner.Run(sessions, model, MakeDispatch(flags, description.request_rate, sessions),
                 bar ? ShowProgress : std::function<void(const LoadProgress&)>());
  if (bar) std::fputs("\r\x1b[K", stderr);
  PrintLine(flags.json ? LoadReportJson(description, run) : LoadReportTable(description, run));
  const bool any = std::any_of(run.records.begin(), run.records.end(),
                               [](const RequestRecord& record) { return record.completed(); });
  return any ? absl::OkStatus() : absl::UnavailableError("no request was completed");
}

void AddDatasetOptions(CLI::App& command, LoadFlags* flags) {
  DatasetOptions& data = flags->data;
  const auto option = [&command](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str();
  };
  option("--dataset", flags->dataset, "random, shared-prefix, agent or trace");
  option("--num-requests", data.num_requests, "Requests in all; turns of agents count each");
  option("--input-len", data.input_tokens, "Most new prompt tokens of a request");
  option("--output-len", data.output_tokens, "Most output tokens of a request");
  option("--range-ratio", data.range_ratio, "Lengths are uniform from this share up to the whole");
  option("--prefix-len", data.prefix_tokens,
         "shared-prefix, agent: tokens of the common beginning");
  option("--groups", data.groups, "shared-prefix: number of different beginnings");
  option("--turns", data.turns, "agent: requests of a session");
  option("--think-time", flags->think_s, "agent: seconds between an answer and the next turn");
  option("--trace", flags->trace,
         "trace: JSONL of timestamp, input_length, output_length, hash_ids");
  option("--trace-scale", data.trace_scale, "trace: divides all lengths; a power of two up to 512");
  option("--trace-speed", flags->trace_speed,
         "trace: divides its times; --request-rate replaces them");
  option("--seed", data.seed, "Another seed makes other prompts, so nothing is cached from before");
}

}  // namespace

void AddBenchServeCommand(CLI::App& bench, Command* run) {
  auto flags = std::make_shared<LoadFlags>();
  CLI::App* command = bench.add_subcommand("serve", "Load a running cluster and time its answers");
  command->add_option("--url", flags->url, "grpc://host:port[,...]: routers, used in turn")
      ->capture_default_str();
  AddDatasetOptions(*command, flags.get());
  command->add_option("--request-rate", flags->request_rate,
                      "Mean requests a second, arriving at random (Poisson); inf: at once");
  command->add_option("--max-concurrency", flags->max_concurrency, "Most requests in flight")
      ->capture_default_str();
  command->add_option("--api-key", flags->run.api_keys, "Bearer token; several: a tenant each")
      ->delimiter(',');
  command->add_option("--model", flags->run.model, "When the cluster serves several");
  command->add_option("--timeout", flags->timeout_s, "Seconds for one request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--goodput", flags->goodput, "Limits of a good request: ttft:MS,itl:MS,...");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->get_option("--trace-speed")->check(CLI::PositiveNumber);
  command->get_option("--think-time")->check(CLI::NonNegativeNumber);
  command->footer(
      "Examples:\n"
      "  sluice bench serve --request-rate 4 --num-requests 200 --goodput ttft:500,itl:50\n"
      "  sluice bench serve --dataset shared-prefix --max-concurrency 16 --json\n"
      "  sluice bench serve --dataset agent --turns 6 --input-len 64 --request-rate 2\n"
      "  sluice bench serve --dataset trace --trace t.jsonl --trace-scale 16 --request-rate 1");
  command->callback([flags, run] { *run = [flags] { return BenchServe(*flags); }; });
}

}  // namespace sluice::cli
