#include "base/request_id.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/ids.h"

namespace sluice {

bool IsRequestId(absl::string_view id) {
  return !id.empty() && id.size() <= kRequestIdBytesMax &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.' || c == ':';
         });
}

}  // namespace sluice
