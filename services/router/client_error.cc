#include "services/router/client_error.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rpc/error.h"

namespace sluice::router {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

std::string Count(uint32_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// "decode/decode-0: no pages" or, when the message names its source itself, the message.
std::string CauseOf(const absl::Status& status) {
  const std::string source = rpc::DetailOf(status).source();
  return source.empty() ? std::string(status.message())
                        : absl::StrCat(source, ": ", status.message());
}

bool MayPass(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status);
}

// No worker took the request as long as it could wait.
absl::Status WaitedInVain(const absl::Status& status, const std::string& cause,
                          const std::string& tried, const cluster::RetryOptions& retry) {
  const std::string waited = absl::FormatDuration(retry.queue_wait_max);
  if (rpc::DetailOf(status).reason() == v1::QUOTA_EXCEEDED) {
    return rpc::MakeError(v1::QUOTA_EXCEEDED,
                          absl::StrCat("no worker had room for this tenant within ", waited, ": ",
                                       cause, "; wait for its other requests, or try again later"),
                          {.retry_after = kRetryAfter, .retryable = true});
  }
  if (absl::IsResourceExhausted(status)) {
    return rpc::MakeError(v1::OVERLOADED,
                          absl::StrCat("no worker had room within ", waited, ": ", cause,
                                       "; try again later, or ask for fewer tokens"),
                          {.retry_after = kRetryAfter});
  }
  return rpc::MakeError(v1::NO_READY_WORKERS,
                        absl::StrCat("no worker could take the request within ", waited, ", after ",
                                     tried, ": ", cause, "; try again once workers are up"),
                        {.retry_after = kRetryAfter});
}

}  // namespace

absl::Status ClientError(const absl::Status& status, const cluster::FlowSummary& summary,
                         const cluster::RetryOptions& retry) {
  if (status.ok()) return status;
  const std::string cause = CauseOf(status);
  const std::string tried = absl::StrCat(Count(summary.attempts, "attempt"), " on ",
                                         Count(summary.workers_tried, "worker"));
  const rpc::ErrorOptions soon{.retry_after = kRetryAfter};
  switch (summary.gave_up) {
    case cluster::GaveUp::kTooLate:
      return rpc::MakeError(v1::DEADLINE_EXCEEDED, status.message());
    case cluster::GaveUp::kNo:
      if (MayPass(status)) return status;
      return rpc::MakeError(
          v1::WORKER_FAILED,
          absl::StrCat("a worker refused what the router asked of it: ", cause,
                       "; the cluster is at fault, not the request: tell its operator"));
    case cluster::GaveUp::kAttempts:
      return rpc::MakeError(v1::WORKER_FAILED,
                            absl::StrCat("given up after ", tried, "; last failure: ", cause,
                                         "; try again in a moment"),
                            soon);
    case cluster::GaveUp::kBudget:
      return rpc::MakeError(v1::WORKER_FAILED,
                            absl::StrCat("given up after ", tried,
                                         " because too many requests are being retried just now; "
                                         "last failure: ",
                                         cause, "; try again in a moment"),
                            soon);
    case cluster::GaveUp::kMigrations:
      return rpc::MakeError(
          v1::WORKER_FAILED,
          absl::StrCat("the stream broke after ", Count(summary.usage.completion_tokens, "token"),
                       " and had been moved ", Count(summary.migrations, "time"), " before, over ",
                       Count(summary.workers_tried, "worker"), "; last failure: ", cause,
                       "; resume it from there, or try again"));
    case cluster::GaveUp::kPoisoned:
      return rpc::MakeError(
          v1::REQUEST_POISONED,
          absl::StrCat("workers died while they ran this request (",
                       absl::StrJoin(summary.deaths, ", ",
                                     [](std::string* out, const WorkerId& worker) {
                                       out->append(worker.value());
                                     }),
                       "), so it is not moved to another one; do not send it again: tell the "
                       "operator its id"));
    case cluster::GaveUp::kNoWorker: {
      const uint32_t tokens = summary.usage.completion_tokens;
      return rpc::MakeError(
          v1::NO_READY_WORKERS,
          absl::StrCat(tokens > 0 ? absl::StrCat("the stream broke after ", Count(tokens, "token"),
                                                 " and cannot go on: ")
                                  : "",
                       cause, "; try again once workers are up"),
          soon);
    }
    case cluster::GaveUp::kWait:
      break;
  }
  return WaitedInVain(status, cause, tried, retry);
}

}  // namespace sluice::router
