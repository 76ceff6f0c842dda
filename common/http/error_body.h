// The error object of the OpenAI API, the body of every failure over HTTP.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice::http {

struct ErrorFields {
  absl::string_view message;
  absl::string_view type = "invalid_request_error";
  absl::string_view param = {};  // empty: null
  absl::string_view code = {};   // empty: null
};

// {"error":{"message","type","param","code"}}
std::string ErrorBody(const ErrorFields& fields);

}  // namespace sluice::http
