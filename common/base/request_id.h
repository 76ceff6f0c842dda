// What a client may call a request.
#pragma once

#include "absl/strings/string_view.h"

namespace sluice {

// Whether `id` is 1 to kRequestIdBytesMax ASCII letters, digits and "-_.:": it goes into headers,
// logs and names of choices as it is. Thread-safe.
bool IsRequestId(absl::string_view id);

}  // namespace sluice
