#include "transport/factory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"

namespace sluice::transport {

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportOptions& options) {
  const std::vector<Backend> built = BuiltBackends();
  const std::string available = absl::StrJoin(
      built, ", ", [](std::string* out, const Backend& b) { absl::StrAppend(out, b.name); });
  if (options.backends.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no transport is configured; this build has: ", available));
  }
  std::string reasons;
  for (const std::string& name : options.backends) {
    const auto it =
        std::find_if(built.begin(), built.end(), [&](const Backend& b) { return b.name == name; });
    if (it == built.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown transport '", name, "'; this build has: ", available));
    }
    absl::StatusOr<std::unique_ptr<Transport>> transport = it->create(options);
    if (transport.ok()) {
      if (!reasons.empty()) {
        SLUICE_LOG(kWarning) << "transport: not the preferred one" << Field("chosen", name)
                             << Field("why", reasons);
      }
      return transport;
    }
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", name, ": ",
                    transport.status().message());
  }
  // Only those that were not asked for: the others have said what they lack.
  std::vector<std::string> others;
  for (const Backend& backend : built) {
    if (!absl::c_linear_search(options.backends, backend.name)) others.push_back(backend.name);
  }
  return absl::UnavailableError(
      absl::StrCat("no configured transport works here: ", reasons,
                   others.empty() ? "" : "; not configured: ", absl::StrJoin(others, ", ")));
}

}  // namespace sluice::transport
