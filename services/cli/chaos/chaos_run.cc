#include "services/cli/chaos/chaos_run.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace sluice::cli {
namespace {

// The answer while it comes: kills once, and times what follows.
class Disturbance {
 public:
  Disturbance(const ChaosPlan& plan, const ChaosHooks& hooks, const Clock& clock,
              ChaosReport* report)
      : plan_(plan), hooks_(hooks), clock_(clock), report_(*report) {}

  void OnText(const NewText& fresh) {
    const absl::Time now = clock_.Now();
    if (killed_ && now - last_ > report_.pause) {
      report_.pause = now - last_;
      report_.paused_at = report_.tokens;
    }
    last_ = now;
    report_.tokens = fresh.tokens;
    report_.disturbed += fresh.text;
    hooks_.show(fresh.text);
    if (!killed_ && fresh.tokens >= plan_.kill_at) Kill();
  }

  const absl::Status& kill_status() const { return kill_status_; }
  bool killed() const { return killed_; }

 private:
  void Kill() {
    killed_ = true;
    const auto victim = hooks_.kill();
    kill_status_ = victim.status();
    if (!victim.ok()) return;
    report_.victim = *victim;
    report_.killed_at = report_.tokens;
    hooks_.killed(*victim, report_.tokens);
  }

  const ChaosPlan& plan_;
  const ChaosHooks& hooks_;
  const Clock& clock_;
  ChaosReport& report_;
  absl::Time last_;
  bool killed_ = false;
  absl::Status kill_status_;
};

// The first byte in which the answers differ, for the report.
size_t FirstDifference(const std::string& a, const std::string& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

}  // namespace

absl::StatusOr<ChaosReport> RunChaos(const ChaosPlan& plan, const ChaosHooks& hooks,
                                     const Clock& clock) {
  ChaosReport report;
  SLUICE_ASSIGN_OR_RETURN(const GenerateOutcome calm,
                          hooks.generate(plan.request, [&](const NewText& fresh) {
                            report.undisturbed += fresh.text;
                          }));
  report.undisturbed_finish = calm.finish_reason;

  Disturbance disturbance(plan, hooks, clock, &report);
  const auto outcome =
      hooks.generate(plan.request, [&](const NewText& fresh) { disturbance.OnText(fresh); });
  SLUICE_RETURN_IF_ERROR(disturbance.kill_status());
  SLUICE_RETURN_IF_ERROR(outcome.status());
  report.disturbed_finish = outcome->finish_reason;
  report.tokens = outcome->usage.completion_tokens();
  report.recomputed = outcome->usage.recomputed_tokens();
  report.resumes = outcome->resumes;
  if (!disturbance.killed()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the answer ended after ", report.tokens, " tokens, before token ",
                     plan.kill_at, ": nothing was killed; choose a smaller --at"));
  }
  return report;
}

std::string Describe(const ChaosReport& report) {
  std::string text = absl::StrFormat(
      "%s, pid %d, was killed (SIGKILL) when the client had %u tokens. The longest pause after "
      "that "
      "was %.0f ms, after token %u; %u tokens were computed again%s.\n",
      report.victim.name, report.victim.pid, report.killed_at,
      absl::ToDoubleMilliseconds(report.pause), report.paused_at, report.recomputed,
      report.resumes > 0 ? ", and the client went on at another router" : "");
  if (report.equal()) {
    absl::StrAppend(&text, "The answer, ", report.tokens, " tokens, ", report.disturbed.size(),
                    " bytes, is byte for byte that of the undisturbed run.");
  } else {
    absl::StrAppend(&text, "The answer differs from that of the undisturbed run at byte ",
                    FirstDifference(report.undisturbed, report.disturbed), ": ",
                    report.disturbed.size(), " bytes, finish reason '", report.disturbed_finish,
                    "', instead of ", report.undisturbed.size(), " bytes, '",
                    report.undisturbed_finish, "'.");
  }
  return text;
}

std::string ToJson(const ChaosReport& report) {
  return boost::json::serialize(
      boost::json::object{{"killed", {{"name", report.victim.name}, {"pid", report.victim.pid}}},
                          {"killed_at_token", report.killed_at},
                          {"pause_ms", absl::ToDoubleMilliseconds(report.pause)},
                          {"paused_at_token", report.paused_at},
                          {"tokens", report.tokens},
                          {"recomputed_tokens", report.recomputed},
                          {"resumes", report.resumes},
                          {"finish_reason", report.disturbed_finish},
                          {"text", report.disturbed},
                          {"equal", report.equal()}});
}

}  // namespace sluice::cli
