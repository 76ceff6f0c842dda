#include <algorithm>
#include <boost/json.hpp>

#include "absl/strings/str_format.h"
#include "services/cli/doctor/checks.h"

namespace sluice::cli {

absl::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
  }
  return "";
}

size_t Count(absl::Span<const Finding> findings, Verdict verdict) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [verdict](const Finding& finding) { return finding.verdict == verdict; }));
}

std::string FindingsJson(absl::Span<const Finding> findings) {
  boost::json::array checks;
  for (const Finding& finding : findings) {
    checks.push_back({{"name", finding.name},
                      {"status", std::string(VerdictName(finding.verdict))},
                      {"value", finding.value},
                      {"advice", finding.advice}});
  }
  const boost::json::object object = {{"ok", Count(findings, Verdict::kFail) == 0},
                                      {"failed", Count(findings, Verdict::kFail)},
                                      {"warned", Count(findings, Verdict::kWarn)},
                                      {"checks", std::move(checks)}};
  return boost::json::serialize(object);
}

std::string FindingsTable(absl::Span<const Finding> findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-5s%-20s%s\n", VerdictName(finding.verdict), finding.name,
                          finding.value);
    if (!finding.advice.empty()) absl::StrAppendFormat(&text, "%25s-> %s\n", "", finding.advice);
  }
  absl::StrAppendFormat(&text, "%d ok, %d warnings, %d failed", Count(findings, Verdict::kOk),
                        Count(findings, Verdict::kWarn), Count(findings, Verdict::kFail));
  return text;
}

}  // namespace sluice::cli
