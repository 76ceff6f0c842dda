// Typed errors: an absl::Status that carries a v1::ErrorDetail as payload. Everything that crosses
// a process as a failure is one of these; a status without a detail gets one derived from its code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sluice/v1/errors.pb.h"

namespace sluice::rpc {

// What a typed error says beside code, reason and message.
struct ErrorOptions {
  std::string field = {};                             // offending request field or limit
  absl::Duration retry_after = absl::ZeroDuration();  // zero: unknown
  // Whether the same request may succeed later or elsewhere; default: by reason.
  std::optional<bool> retryable = std::nullopt;
};

// An error whose code follows from its reason. `reason` must be one of the enum's, not UNSPECIFIED.
absl::Status MakeError(v1::ErrorReason reason, absl::string_view message,
                       const ErrorOptions& options = {});

// The code that belongs to a reason, and the reason that a bare code is taken for.
absl::StatusCode CodeOfReason(v1::ErrorReason reason);
v1::ErrorReason ReasonOfCode(absl::StatusCode code);
bool RetryableByDefault(v1::ErrorReason reason);

bool HasDetail(const absl::Status& status);
// Sets or replaces the detail. Does nothing to an OK status.
void SetDetail(absl::Status* status, const v1::ErrorDetail& detail);
// The detail, or one derived from the code when there is none (or the payload is damaged).
v1::ErrorDetail DetailOf(const absl::Status& status);
// `status` with the source ("decode/decode-0") and the request id filled in where they are empty.
absl::Status WithContext(const absl::Status& status, absl::string_view source,
                         absl::string_view request_id);

}  // namespace sluice::rpc
