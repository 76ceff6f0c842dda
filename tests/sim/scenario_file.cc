#include "tests/sim/scenario_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "tests/sim/sim_cluster.h"

namespace sluice::sim {
namespace {

constexpr absl::string_view kSeparator = "----";

// key=value words; every one must be asked for.
class Words {
 public:
  static absl::StatusOr<Words> Parse(absl::string_view text) {
    Words words;
    for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (pair.second.empty())
        return absl::InvalidArgumentError(absl::StrCat("'", word, "' is not key=value"));
      words.values_.emplace(pair.first, pair.second);
    }
    return words;
  }
  void Take(absl::string_view key, std::string* out) {
    if (const auto value = TakeValue(key)) *out = *value;
  }
  template <typename Number>
  void Take(absl::string_view key, Number* out) {
    const auto value = TakeValue(key);
    uint64_t number = 0;
    if (!value) return;
    if (!absl::SimpleAtoi(*value, &number)) wrong_ = absl::StrCat(key, "=", *value);
    *out = static_cast<Number>(number);
  }
  void Take(absl::string_view key, absl::Duration* out) {
    const auto value = TakeValue(key);
    if (value && !absl::ParseDuration(*value, out)) wrong_ = absl::StrCat(key, "=", *value);
  }
  absl::Status Done() const {
    if (!wrong_.empty()) return absl::InvalidArgumentError(absl::StrCat("cannot read ", wrong_));
    if (values_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("unknown word '", values_.begin()->first, "'"));
  }

 private:
  std::optional<std::string> TakeValue(absl::string_view key) {
    const auto found = values_.find(std::string(key));
    if (found == values_.end()) return std::nullopt;
    std::string value = found->second;
    values_.erase(found);
    return value;
  }
  std::map<std::string, std::string> values_;
  std::string wrong_;
};

// A quiet world: everything takes its time, nothing is drawn.
Scenario QuietWorld() {
  Scenario s;
  s.seed = 1;
  s.faults_end = absl::Seconds(3);
  s.process.model.layout.page_tokens = 16;
  s.process.model.eos_one_in = 0;
  s.process.worker.digests = handoff::DigestMode::kFull;
  s.process.worker.lease = absl::Seconds(1);
  s.process.worker.drift_margin = 0;
  s.process.worker.engine.layer_group = 1;
  s.process.step_cost = absl::Milliseconds(5);
  s.process.token_cost = absl::ZeroDuration();
  s.link.delay_min = s.link.delay_max = absl::Milliseconds(1);
  s.rpc.delay_min = s.rpc.delay_max = absl::Milliseconds(1);
  s.router.core.placement.split = cluster::SplitMode::kAlways;
  s.router.core.lookup_timeout = absl::Milliseconds(1);
  return s;
}

absl::Status ReadCluster(absl::string_view text, Scenario* s) {
  SLUICE_ASSIGN_OR_RETURN(Words words, Words::Parse(text));
  std::string roles, digests = "full";
  absl::Duration delay = s->link.delay_max;
  uint64_t bytes_per_second = 0, get = 1;
  words.Take("roles", &roles);
  words.Take("digests", &digests);
  words.Take("routers", &s->routers);
  words.Take("pages", &s->process.pages);
  words.Take("lease", &s->process.worker.lease);
  words.Take("delay", &delay);
  words.Take("bytes_per_second", &bytes_per_second);
  words.Take("get", &get);
  words.Take("until", &s->faults_end);
  words.Take("prompt_flavour", &s->prompt_flavour);
  words.Take("token_flavour", &s->token_flavour);
  SLUICE_RETURN_IF_ERROR(words.Done());
  for (char role : roles) {
    if (role != 'P' && role != 'D' && role != 'B')
      return absl::InvalidArgumentError(absl::StrCat("no role ", std::string(1, role)));
    s->roles.push_back(role == 'P'   ? cluster::Role::kPrefill
                       : role == 'D' ? cluster::Role::kDecode
                                     : cluster::Role::kBoth);
  }
  s->link.delay_min = s->link.delay_max = delay;
  s->link.bytes_per_second = static_cast<double>(bytes_per_second);
  s->process.transport.true_get = get != 0;
  if (digests != "full") s->process.worker.digests = handoff::DigestMode::kOff;
  return absl::OkStatus();
}

absl::Status ReadRequest(absl::string_view text, Scenario* s) {
  SLUICE_ASSIGN_OR_RETURN(Words words, Words::Parse(text));
  SimRequest request;
  uint64_t prompt = 20, words_seed = 1;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 4;
  words.Take("at", &request.arrival);
  words.Take("prompt", &prompt);
  words.Take("words", &words_seed);
  words.Take("tokens", &request.sampling.max_tokens);
  words.Take("choices", &request.choices);
  words.Take("priority", &request.priority);
  words.Take("deadline", &request.deadline);
  SLUICE_RETURN_IF_ERROR(words.Done());
  for (uint64_t i = 0; i < prompt; ++i)
    request.prompt.push_back(static_cast<request::TokenId>(Mix64(words_seed * 1000 + i) % 256));
  s->requests.push_back(std::move(request));
  return absl::OkStatus();
}

// "crash a=0 for=10ms"
absl::StatusOr<Fault> ReadFault(absl::string_view text) {
  using Kind = Fault::Kind;
  static const std::map<std::string, Kind> kKinds = {{"pause", Kind::kPauseProcess},
                                                     {"pause_engine", Kind::kPauseEngine},
                                                     {"pause_move", Kind::kPauseMove},
                                                     {"pause_router", Kind::kPauseRouter},
                                                     {"crash", Kind::kCrash},
                                                     {"crash_router", Kind::kCrashRouter},
                                                     {"cut_pages", Kind::kCutPages},
                                                     {"clog_pages", Kind::kClogPages},
                                                     {"disconnect", Kind::kDisconnect},
                                                     {"cut_calls", Kind::kCutCalls},
                                                     {"slow", Kind::kSlow},
                                                     {"lose_a_page", Kind::kLoseAPage}};
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(text), absl::MaxSplits(' ', 1));
  const auto kind = kKinds.find(parts.first);
  if (kind == kKinds.end())
    return absl::InvalidArgumentError(absl::StrCat("no fault '", parts.first, "'"));
  SLUICE_ASSIGN_OR_RETURN(Words words, Words::Parse(parts.second));
  Fault fault;
  fault.kind = kind->second;
  words.Take("a", &fault.a);
  words.Take("b", &fault.b);
  words.Take("for", &fault.duration);
  words.Take("both", &fault.both);
  words.Take("forward", &fault.forward);
  SLUICE_RETURN_IF_ERROR(words.Done());
  return fault;
}

// "what happened #2" -> the event and 2.
absl::Status ReadNth(absl::string_view text, std::string* event, uint64_t* nth) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, " #");
  *event = std::string(absl::StripAsciiWhitespace(parts.first));
  if (absl::SimpleAtoi(parts.second, nth)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' does not end with #number"));
}

absl::Status ReadMessage(absl::string_view what, absl::string_view text, Scenario* s) {
  MessageRule rule;
  std::string event;
  SLUICE_RETURN_IF_ERROR(ReadNth(what, &event, &rule.nth));
  const std::pair<std::string, std::string> parts = absl::StrSplit(event, ' ');
  if (parts.first.size() != 2 || parts.first[0] != 'w')
    return absl::InvalidArgumentError(absl::StrCat("'", parts.first, "' is no worker"));
  rule.worker = static_cast<size_t>(parts.first[1] - '0');
  rule.kind = parts.second;
  SLUICE_ASSIGN_OR_RETURN(Words words, Words::Parse(text));
  words.Take("copies", &rule.treatment.copies);
  words.Take("delay", &rule.treatment.delay);
  SLUICE_RETURN_IF_ERROR(words.Done());
  s->message_rules.push_back(std::move(rule));
  return absl::OkStatus();
}

absl::Status ReadLine(absl::string_view line, Scenario* s) {
  if (line.empty() || line[0] == '#') return absl::OkStatus();
  const std::pair<absl::string_view, absl::string_view> verb =
      absl::StrSplit(line, absl::MaxSplits(' ', 1));
  if (verb.first == "cluster") return ReadCluster(verb.second, s);
  if (verb.first == "request") return ReadRequest(verb.second, s);
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(verb.second, absl::MaxSplits(": ", 1));
  if (verb.first == "message") return ReadMessage(parts.first, parts.second, s);
  if (verb.first != "at" && verb.first != "when")
    return absl::InvalidArgumentError(absl::StrCat("no verb '", verb.first, "'"));
  SLUICE_ASSIGN_OR_RETURN(Fault fault, ReadFault(parts.second));
  if (verb.first == "at") {
    if (!absl::ParseDuration(parts.first, &fault.at))
      return absl::InvalidArgumentError(absl::StrCat("'", parts.first, "' is no time"));
    s->faults.push_back(fault);
    return absl::OkStatus();
  }
  TriggeredFault triggered;
  triggered.fault = fault;
  SLUICE_RETURN_IF_ERROR(ReadNth(parts.first, &triggered.event, &triggered.nth));
  s->triggered.push_back(std::move(triggered));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ScenarioFile> ParseScenarioFile(absl::string_view text) {
  ScenarioFile file;
  file.scenario = QuietWorld();
  bool expected = false;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (expected) {
      if (!line.empty()) file.expected.emplace_back(line);
      continue;
    }
    if (line == kSeparator) {
      expected = true;
      continue;
    }
    absl::StrAppend(&file.script, line, "\n");
    const absl::Status read = ReadLine(line, &file.scenario);
    if (!read.ok())
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", read.message()));
  }
  if (!expected) return absl::InvalidArgumentError("no ---- before an expected trace");
  if (file.scenario.roles.size() < 2) return absl::InvalidArgumentError("a cluster needs roles");
  return file;
}

std::vector<std::string> TraceOf(const Scenario& scenario) {
  std::vector<std::string> lines;
  bool over = false;
  SimOptions options;
  options.protocol = true;
  options.told = [&](absl::Duration at, const std::string& what) {
    over = over || what == "heal";
    if (!over) {
      lines.push_back(absl::StrFormat("%7.1fms %s", absl::ToDoubleMilliseconds(at), what));
    }
  };
  const SimResult result = RunScenario(scenario, options);
  if (!result.violation.empty()) lines.push_back(absl::StrCat("VIOLATION ", result.violation));
  return lines;
}

std::string Diff(const std::vector<std::string>& expected, const std::vector<std::string>& seen) {
  const size_t n = expected.size(), m = seen.size();
  // common[i][j]: lines that the ends from i and j on have in common, in order.
  std::vector<std::vector<size_t>> common(n + 1, std::vector<size_t>(m + 1));
  for (size_t i = n; i-- > 0;) {
    for (size_t j = m; j-- > 0;) {
      common[i][j] = expected[i] == seen[j] ? common[i + 1][j + 1] + 1
                                            : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  if (common[0][0] == n && n == m) return "";
  std::string out;
  for (size_t i = 0, j = 0; i < n || j < m;) {
    if (i < n && j < m && expected[i] == seen[j]) {
      absl::StrAppend(&out, "  ", expected[i++], "\n");
      ++j;
    } else if (j == m || (i < n && common[i + 1][j] >= common[i][j + 1])) {
      absl::StrAppend(&out, "- ", expected[i++], "\n");
    } else {
      absl::StrAppend(&out, "+ ", seen[j++], "\n");
    }
  }
  return out;
}

}  // namespace sluice::sim
