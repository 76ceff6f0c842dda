// Collects a prompt as segments.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "text/segment.h"

namespace sluice::text {

// Thread-compatible.
class PromptBuilder {
 public:
  // Text of the template: markers in it count.
  template <typename... Parts>
  PromptBuilder& Trusted(const Parts&... parts) {
    return Add(absl::StrCat(parts...), true);
  }
  // Text of a client: markers in it stay text.
  PromptBuilder& Untrusted(absl::string_view text) { return Add(text, false); }

  std::vector<Segment> Finish() { return std::move(segments_); }

 private:
  PromptBuilder& Add(absl::string_view text, bool trusted) {
    if (text.empty()) return *this;
    if (segments_.empty() || segments_.back().trusted != trusted)
      segments_.push_back({"", trusted});
    segments_.back().text.append(text.data(), text.size());
    return *this;
  }

  std::vector<Segment> segments_;
};

}  // namespace sluice::text
