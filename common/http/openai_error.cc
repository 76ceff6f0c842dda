#include "http/openai_error.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "http/error_body.h"
#include "rpc/error.h"

namespace sluice::http {
namespace {

struct ErrorRow {
  v1::ErrorReason reason;
  int status;
  absl::string_view type;
  absl::string_view code;
};

constexpr absl::string_view kInvalid = "invalid_request_error";
constexpr absl::string_view kUnavailable = "service_unavailable_error";
constexpr absl::string_view kServer = "server_error";

constexpr std::array<ErrorRow, 20> kRows = {{
    {v1::INVALID_FIELD, 400, kInvalid, "invalid_value"},
    {v1::CONTEXT_LENGTH_EXCEEDED, 400, kInvalid, "context_length_exceeded"},
    {v1::MODEL_NOT_FOUND, 404, kInvalid, "model_not_found"},
    {v1::INVALID_API_KEY, 401, "authentication_error", "invalid_api_key"},
    {v1::PERMISSION_DENIED, 403, "permission_error", "permission_denied"},
    {v1::RATE_LIMITED, 429, "rate_limit_error", "rate_limit_exceeded"},
    {v1::QUOTA_EXCEEDED, 429, "insufficient_quota", "insufficient_quota"},
    {v1::OVERLOADED, 503, kUnavailable, "server_is_overloaded"},
    {v1::DRAINING, 503, kUnavailable, "server_is_overloaded"},
    {v1::NO_READY_WORKERS, 503, kUnavailable, "server_is_overloaded"},
    {v1::DEADLINE_EXCEEDED, 504, "timeout", "deadline_exceeded"},
    {v1::CLIENT_CANCELLED, 499, kInvalid, "cancelled"},
    {v1::WORKER_FAILED, 503, kUnavailable, "worker_failed"},
    {v1::REQUEST_POISONED, 500, kServer, "request_poisoned"},
    {v1::LAYOUT_MISMATCH, 500, kServer, "internal_error"},
    {v1::STALE_LEASE, 503, kUnavailable, "worker_failed"},
    {v1::LIMIT_EXCEEDED, 400, kInvalid, "limit_exceeded"},
    {v1::SLOW_CONSUMER, 408, "timeout", "slow_consumer"},
    {v1::INTERNAL, 500, kServer, "internal_error"},
    {v1::NOT_SUPPORTED, 400, kInvalid, "not_supported"},
}};
static_assert(kRows.size() == v1::ErrorReason_ARRAYSIZE - 1, "a row for every reason");

// Of a failure that may pass soon but names no time.
constexpr uint32_t kRetryAfterDefaultMs = 1000;

ErrorRow RowOf(const absl::Status& status, v1::ErrorReason reason) {
  for (const ErrorRow& row : kRows) {
    if (row.reason == reason) return row;
  }
  // No reason: the code has to do.
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return {reason, 404, kInvalid, "not_found"};
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
      return {reason, 409, kInvalid, "conflict"};
    case absl::StatusCode::kUnimplemented:
      return {reason, 400, kInvalid, "not_supported"};
    default:
      return {reason, 500, kServer, "internal_error"};
  }
}

}  // namespace

std::string ParamOf(absl::string_view field, Endpoint endpoint) {
  absl::ConsumePrefix(&field, "sampling.");
  if (field == "choices") return "n";
  if (field == "text" || field == "token_ids") return "prompt";
  if (field == "input") return endpoint == Endpoint::kChat ? "messages" : "prompt";
  if (field == "include_stop") return "include_stop_str_in_output";
  if (field == "keep_special_tokens") return "skip_special_tokens";
  if (field == "session_affinity") return "user";
  if (field == "logprobs" && endpoint == Endpoint::kChat) return "top_logprobs";
  return std::string(field);
}

bool IsServerFault(const absl::Status& status) {
  return RowOf(status, rpc::DetailOf(status).reason()).status == 500;
}

std::string ErrorJson(const absl::Status& status, Endpoint endpoint, absl::string_view request_id) {
  const v1::ErrorDetail detail = rpc::DetailOf(status);
  const ErrorRow row = RowOf(status, detail.reason());
  const std::string hidden =
      absl::StrCat("the request failed inside the server; its id is ", request_id);
  const bool hide = row.status == 500 && row.reason != v1::REQUEST_POISONED;
  return ErrorBody({.message = hide ? absl::string_view(hidden) : status.message(),
                    .type = row.type,
                    .param = ParamOf(detail.field(), endpoint),
                    .code = row.code});
}

HttpHeaders RateHeaders(const v1::RateLimits& limits) {
  HttpHeaders headers;
  const auto add = [&headers](absl::string_view what, const v1::RateLimit& limit) {
    headers.emplace_back(absl::StrCat("x-ratelimit-limit-", what), absl::StrCat(limit.limit()));
    headers.emplace_back(absl::StrCat("x-ratelimit-remaining-", what),
                         absl::StrCat(limit.remaining()));
    headers.emplace_back(
        absl::StrCat("x-ratelimit-reset-", what),
        absl::FormatDuration(absl::Milliseconds(static_cast<int64_t>(limit.reset_ms()))));
  };
  if (limits.has_requests()) add("requests", limits.requests());
  if (limits.has_tokens()) add("tokens", limits.tokens());
  return headers;
}

HttpReply ErrorReply(const absl::Status& status, Endpoint endpoint, absl::string_view request_id) {
  const v1::ErrorDetail detail = rpc::DetailOf(status);
  const ErrorRow row = RowOf(status, detail.reason());
  HttpReply reply;
  reply.status = row.status;
  reply.body = ErrorJson(status, endpoint, request_id);
  reply.headers = RateHeaders(detail.rate_limits());
  if (row.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  // Clients retry 408, 409, 429 and 5xx on their own unless they are told.
  if (row.status >= 500 || row.status == 408 || row.status == 409 || row.status == 429) {
    reply.headers.emplace_back("x-should-retry", detail.retryable() ? "true" : "false");
  }
  if (detail.retryable() && row.status >= 429) {
    const uint32_t wait_ms =
        detail.retry_after_ms() > 0 ? detail.retry_after_ms() : kRetryAfterDefaultMs;
    reply.headers.emplace_back("Retry-After", absl::StrCat((wait_ms + 999) / 1000));
    reply.headers.emplace_back("retry-after-ms", absl::StrCat(wait_ms));
  }
  return reply;
}

}  // namespace sluice::http
