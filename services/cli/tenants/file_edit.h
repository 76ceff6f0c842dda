// Changes to the text of a tenants file that leave everything else in it, comments too, as it was.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::cli {

// Adds a tenant with nothing but an id, in front of the others. Errors: INVALID_ARGUMENT or
// ALREADY_EXISTS when it cannot be one; those of config::LoadTenants for `yaml`.
absl::StatusOr<std::string> WithTenant(absl::string_view yaml, absl::string_view source,
                                       const std::string& id);

// Adds a key hash to a tenant. Errors: NOT_FOUND naming the tenants there are; those of
// config::LoadTenants for `yaml`; FAILED_PRECONDITION with the lines to write by hand where the
// file is written in a way that this cannot change.
absl::StatusOr<std::string> WithKeyHash(absl::string_view yaml, absl::string_view source,
                                        const std::string& id, const std::string& hash);

// Names the pepper file, in the first line.
std::string WithPepperFile(absl::string_view yaml, absl::string_view name);

}  // namespace sluice::cli
