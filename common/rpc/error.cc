#include "rpc/error.h"

#include <array>

#include "absl/strings/cord.h"
#include "base/check.h"

namespace sluice::rpc {
namespace {

constexpr char kPayloadUrl[] = "type.googleapis.com/sluice.v1.ErrorDetail";

struct ReasonRow {
  v1::ErrorReason reason;
  absl::StatusCode code;
  bool retryable;
};

constexpr std::array<ReasonRow, 20> kReasons = {{
    {v1::INVALID_FIELD, absl::StatusCode::kInvalidArgument, false},
    {v1::CONTEXT_LENGTH_EXCEEDED, absl::StatusCode::kInvalidArgument, false},
    {v1::MODEL_NOT_FOUND, absl::StatusCode::kNotFound, false},
    {v1::INVALID_API_KEY, absl::StatusCode::kUnauthenticated, false},
    {v1::PERMISSION_DENIED, absl::StatusCode::kPermissionDenied, false},
    {v1::RATE_LIMITED, absl::StatusCode::kResourceExhausted, true},
    {v1::QUOTA_EXCEEDED, absl::StatusCode::kResourceExhausted, false},
    {v1::OVERLOADED, absl::StatusCode::kResourceExhausted, true},
    {v1::DRAINING, absl::StatusCode::kUnavailable, true},
    {v1::NO_READY_WORKERS, absl::StatusCode::kUnavailable, true},
    {v1::DEADLINE_EXCEEDED, absl::StatusCode::kDeadlineExceeded, false},
    {v1::CLIENT_CANCELLED, absl::StatusCode::kCancelled, false},
    {v1::WORKER_FAILED, absl::StatusCode::kUnavailable, true},
    {v1::REQUEST_POISONED, absl::StatusCode::kInternal, false},
    {v1::LAYOUT_MISMATCH, absl::StatusCode::kFailedPrecondition, false},
    {v1::STALE_LEASE, absl::StatusCode::kAborted, true},
    {v1::LIMIT_EXCEEDED, absl::StatusCode::kInvalidArgument, false},
    {v1::SLOW_CONSUMER, absl::StatusCode::kResourceExhausted, false},
    {v1::INTERNAL, absl::StatusCode::kInternal, false},
    {v1::NOT_SUPPORTED, absl::StatusCode::kUnimplemented, false},
}};
static_assert(kReasons.size() == v1::ErrorReason_ARRAYSIZE - 1, "a row for every reason");

const ReasonRow* RowOf(v1::ErrorReason reason) {
  for (const ReasonRow& row : kReasons) {
    if (row.reason == reason) return &row;
  }
  return nullptr;
}

}  // namespace

absl::StatusCode CodeOfReason(v1::ErrorReason reason) {
  const ReasonRow* row = RowOf(reason);
  return row == nullptr ? absl::StatusCode::kUnknown : row->code;
}

bool RetryableByDefault(v1::ErrorReason reason) {
  const ReasonRow* row = RowOf(reason);
  return row != nullptr && row->retryable;
}

v1::ErrorReason ReasonOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return v1::INVALID_FIELD;
    case absl::StatusCode::kUnauthenticated:
      return v1::INVALID_API_KEY;
    case absl::StatusCode::kPermissionDenied:
      return v1::PERMISSION_DENIED;
    case absl::StatusCode::kResourceExhausted:
      return v1::OVERLOADED;
    case absl::StatusCode::kUnavailable:
      return v1::WORKER_FAILED;
    case absl::StatusCode::kDeadlineExceeded:
      return v1::DEADLINE_EXCEEDED;
    case absl::StatusCode::kCancelled:
      return v1::CLIENT_CANCELLED;
    case absl::StatusCode::kAborted:
      return v1::STALE_LEASE;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss:
      return v1::INTERNAL;
    case absl::StatusCode::kUnimplemented:
      return v1::NOT_SUPPORTED;
    default:
      return v1::ERROR_REASON_UNSPECIFIED;
  }
}

absl::Status MakeError(v1::ErrorReason reason, absl::string_view message,
                       const ErrorOptions& options) {
  SLUICE_CHECK(RowOf(reason) != nullptr) << "reason " << reason;
  absl::Status status(CodeOfReason(reason), message);
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_retryable(options.retryable.value_or(RetryableByDefault(reason)));
  detail.set_retry_after_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options.retry_after)));
  detail.set_field(options.field);
  SetDetail(&status, detail);
  return status;
}

void SetDetail(absl::Status* status, const v1::ErrorDetail& detail) {
  status->SetPayload(kPayloadUrl, absl::Cord(detail.SerializeAsString()));
}

bool HasDetail(const absl::Status& status) { return status.GetPayload(kPayloadUrl).has_value(); }

v1::ErrorDetail DetailOf(const absl::Status& status) {
  v1::ErrorDetail detail;
  const auto payload = status.GetPayload(kPayloadUrl);
  if (payload.has_value() && detail.ParseFromString(std::string(*payload))) return detail;
  detail.Clear();
  detail.set_reason(ReasonOfCode(status.code()));
  detail.set_retryable(RetryableByDefault(detail.reason()));
  return detail;
}

absl::Status WithContext(const absl::Status& status, absl::string_view source,
                         absl::string_view request_id) {
  if (status.ok()) return status;
  v1::ErrorDetail detail = DetailOf(status);
  if (detail.source().empty()) detail.set_source(std::string(source));
  if (detail.request_id().empty()) detail.set_request_id(std::string(request_id));
  absl::Status result = status;
  SetDetail(&result, detail);
  return result;
}

}  // namespace sluice::rpc
