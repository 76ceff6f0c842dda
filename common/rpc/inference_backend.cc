#include "rpc/inference_backend.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace sluice::rpc {

std::string BearerOf(absl::string_view authorization) {
  constexpr absl::string_view kBearer = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kBearer)) return "";
  return std::string(absl::StripAsciiWhitespace(authorization.substr(kBearer.size())));
}

}  // namespace sluice::rpc
