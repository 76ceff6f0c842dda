#include "telemetry/metric_names.h"

#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::telemetry {
namespace {

constexpr const MetricDef* kAll[] = {
    &kBuildInfo,
    &kReady,
    &kDegraded,
    &kInFlight,
    &kRpcRefusals,
    &kCertificateExpiry,
    &kProcessCpu,
    &kProcessMemory,
    &kProcessFds,
    &kHeartbeatAge,
    &kRunning,
    &kWaiting,
    &kPrefillBacklog,
    &kDecodeContext,
    &kPrefillRate,
    &kDecodeStep,
    &kWeightBytesRead,
    &kPromptTokens,
    &kOutputTokens,
    &kRecomputedTokens,
    &kPreemptions,
    &kPhaseSeconds,
    &kWorkerCalls,
    &kKvPages,
    &kQuarantineAge,
    &kPinAge,
    &kKvPageBytes,
    &kKvTokens,
    &kPrefixBlocks,
    &kPrefixQueries,
    &kPrefixHits,
    &kPrefixDamage,
    &kKvEvictions,
    &kTenantKvBytes,
    &kTenantKvOwnBytes,
    &kTenantKvLimitBytes,
    &kLedgerBytes,
    &kTagFailures,
    &kKvTransferBytes,
    &kKvTransferPieces,
    &kKvTransfers,
    &kKvTransferSeconds,
    &kStaleMessages,
    &kDuplicateMessages,
    &kInvalidMessages,
    &kTransportRefusals,
    &kDigestFailures,
    &kGrantsRefused,
    &kPeerQuarantines,
    &kPeerRefusals,
    &kLeaseExpiries,
    &kRequests,
    &kRejections,
    &kFailures,
    &kQueueRequests,
    &kQueueSeconds,
    &kRouteDecisions,
    &kPredictedCachedTokens,
    &kLookupFailures,
    &kTtft,
    &kTtftPhase,
    &kItl,
    &kRequestSeconds,
    &kInputTokens,
    &kGeneratedTokens,
    &kCachedTokens,
    &kMigrations,
    &kRetries,
    &kResumeGap,
    &kStreamPauses,
    &kExposed,
    &kRouterWorkers,
    &kIndexBlocks,
    &kIndexOverflows,
    &kIndexGaps,
    &kWorkers,
    &kLookups,
    &kWorkerUpdates,
    &kAuthFailures,
    &kTenantsReloadFailures,
    &kTenantRejections,
    &kTenantQueueSeconds,
    &kUsageRecordsLost,
};

constexpr double kFirstTokenBounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25,
                                        .5,   .75,  1,   2.5, 5,   7.5, 10,  30, 60};
constexpr double kPerTokenBounds[] = {.001, .0025, .005, .01, .015, .02, .025, .03, .04, .05,
                                      .075, .1,    .15,  .2,  .3,   .4,  .5,   .75, 1,   2.5};
constexpr double kDurationBounds[] = {.01,  .02,  .04,   .08,   .16,   .32,   .64, 1.28,
                                      2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300, 600};
constexpr double kShortBounds[] = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05,
                                   .1,    .25,    .5,    1,    2.5,   5,    10,  30};

// Prometheus asks for base units; these are the usual slips.
constexpr absl::string_view kBadSuffixes[] = {"_ms", "_us",      "_ns",   "_kb",          "_mb",
                                              "_gb", "_percent", "_perc", "_milliseconds"};

// Unbounded values, the format's own labels, and those that scrape configurations attach:
// Prometheus would rename ours.
constexpr absl::string_view kReservedLabels[] = {
    "request_id", "id",        "prompt",   "le",
    "quantile",   "job",       "instance", "role",
    "service",    "namespace", "pod",      "container",
    "endpoint",   "cluster",   "node",     "sluice_cluster"};

}  // namespace

absl::Span<const MetricDef* const> AllMetrics() { return kAll; }

absl::Span<const double> BucketBounds(Buckets buckets) {
  switch (buckets) {
    case Buckets::kFirstToken:
      return kFirstTokenBounds;
    case Buckets::kPerToken:
      return kPerTokenBounds;
    case Buckets::kDuration:
      return kDurationBounds;
    case Buckets::kShort:
      return kShortBounds;
    case Buckets::kNone:
      return {};
  }
  return {};
}

std::string LintMetric(const MetricDef& def) {
  const absl::string_view name = def.name;
  if (!absl::StartsWith(name, "sluice_")) return "the name must start with sluice_";
  for (char c : name) {
    if (!std::islower(static_cast<unsigned char>(c)) &&
        !std::isdigit(static_cast<unsigned char>(c)) && c != '_') {
      return absl::StrCat("the name holds '", std::string(1, c), "'; use a-z, 0-9 and _");
    }
  }
  const bool total = absl::EndsWith(name, "_total");
  if (total != (def.type == MetricType::kCounter)) return "counters, and only they, end in _total";
  const absl::string_view stem = total ? name.substr(0, name.size() - 6) : name;
  for (absl::string_view suffix : kBadSuffixes) {
    if (absl::EndsWith(stem, suffix)) return "use base units: seconds, bytes, ratios from 0 to 1";
  }
  const absl::string_view help = def.help;
  if (help.size() < 2 || help.back() != '.') return "the help text must be a sentence";
  if ((def.type == MetricType::kHistogram) != (def.buckets != Buckets::kNone))
    return "histograms, and only they, have buckets";
  for (const char* label : def.labels) {
    if (label == nullptr) break;
    for (absl::string_view reserved : kReservedLabels) {
      if (label == reserved) return absl::StrCat("label ", label, " is reserved or unbounded");
    }
  }
  return "";
}

}  // namespace sluice::telemetry
