// Addresses of routers as people write them: grpc://host:port[,grpc://host:port...].
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::cli {

inline constexpr char kDefaultUrl[] = "grpc://127.0.0.1:8081";

struct Endpoint {
  std::string address;  // host:port, as gRPC takes it
  std::string url() const { return "grpc://" + address; }
};

// At least one. Errors: INVALID_ARGUMENT with the part that is wrong and the expected form; http://
// is refused with the address to use instead.
absl::StatusOr<std::vector<Endpoint>> ParseUrls(absl::string_view text);

// "grpc://a:1, grpc://b:2".
std::string JoinUrls(const std::vector<Endpoint>& endpoints);

}  // namespace sluice::cli
