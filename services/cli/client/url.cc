#include "services/cli/client/url.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "rpc/listen.h"

namespace sluice::cli {

absl::StatusOr<std::vector<Endpoint>> ParseUrls(absl::string_view text) {
  std::vector<Endpoint> endpoints;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    absl::string_view address = part;
    if (absl::ConsumePrefix(&address, "http://") || absl::ConsumePrefix(&address, "https://")) {
      return absl::InvalidArgumentError(
          absl::StrCat("--url: '", part,
                       "' is an HTTP address; this command speaks gRPC: give the "
                       "router's gRPC port, by default ",
                       kDefaultUrl));
    }
    if (!absl::ConsumePrefix(&address, "grpc://")) {
      return absl::InvalidArgumentError(
          absl::StrCat("--url: '", part, "' is not of the form grpc://host:port"));
    }
    absl::ConsumeSuffix(&address, "/");
    const auto parsed = rpc::ParseHostPort(address);
    if (!parsed.ok() || parsed->port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--url: '", part, "' is not of the form grpc://host:port",
                       parsed.ok() ? "" : absl::StrCat(": ", parsed.status().message())));
    }
    endpoints.push_back({parsed->ToString()});
  }
  return endpoints;
}

std::string JoinUrls(const std::vector<Endpoint>& endpoints) {
  return absl::StrJoin(endpoints, ", ", [](std::string* out, const Endpoint& endpoint) {
    out->append(endpoint.url());
  });
}

}  // namespace sluice::cli
