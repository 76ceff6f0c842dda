#include "text/output/text_markers.h"

#include "absl/strings/match.h"

namespace sluice::text {

TextMarkers::Found TextMarkers::Find() const {
  const absl::string_view text = held_;
  if (markers_.empty()) return {text.size(), nullptr};
  for (size_t begin = text.find('<'); begin != absl::string_view::npos;
       begin = text.find('<', begin + 1)) {
    const absl::string_view rest = text.substr(begin);
    bool may_begin = false;
    for (const MarkerText& marker : markers_) {
      if (absl::StartsWith(rest, marker.text)) return {begin, &marker};
      may_begin = may_begin || absl::StartsWith(marker.text, rest);
    }
    if (may_begin) return {begin, nullptr};
  }
  return {text.size(), nullptr};
}

}  // namespace sluice::text
