// Typed errors to HTTP statuses, headers and the error object of the OpenAI API. Pure functions,
// one table.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "http/http_server.h"
#include "http/openai_request.h"
#include "sluice/v1/errors.pb.h"

namespace sluice::http {

// The answer to a request that failed with `status`, which must not be OK. Failures of the server
// itself are not explained: their text may name what is inside; the request id leads to the log.
HttpReply ErrorReply(const absl::Status& status, Endpoint endpoint, absl::string_view request_id);
// Its body alone, for a stream that has begun.
std::string ErrorJson(const absl::Status& status, Endpoint endpoint, absl::string_view request_id);
// True for failures whose text is kept from the client and belongs into the log.
bool IsServerFault(const absl::Status& status);

// "x-ratelimit-limit-requests" and so on, as OpenAI's clients read them; none for what is
// unlimited.
HttpHeaders RateHeaders(const v1::RateLimits& limits);

// The name that the client used for a field of inference.proto.
std::string ParamOf(absl::string_view field, Endpoint endpoint);

}  // namespace sluice::http
