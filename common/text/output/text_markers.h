// Finds markers that a vocabulary does not hold as tokens of their own, in text while it is
// produced.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/output/output_format.h"

namespace sluice::text {

// Thread-compatible. Cost: linear in the text times the number of markers.
class TextMarkers {
 public:
  explicit TextMarkers(std::vector<MarkerText> markers) : markers_(std::move(markers)) {}

  // Calls `on_text(text)` and `on_marker(MarkerText)` in order for what is certain; what may be the
  // beginning of a marker is held back.
  template <typename OnText, typename OnMarker>
  void Append(absl::string_view text, OnText on_text, OnMarker on_marker) {
    held_.append(text.data(), text.size());
    for (;;) {
      const Found found = Find();
      if (found.begin > 0) on_text(absl::string_view(held_).substr(0, found.begin));
      held_.erase(0, found.begin);
      if (found.marker == nullptr) return;
      held_.erase(0, found.marker->text.size());
      on_marker(*found.marker);
    }
  }
  // What was held back is text after all.
  std::string TakeHeld() { return std::exchange(held_, {}); }

 private:
  // The first marker in held_, or, without one, where what may become one begins.
  struct Found {
    size_t begin = 0;
    const MarkerText* marker = nullptr;
  };
  Found Find() const;

  const std::vector<MarkerText> markers_;
  std::string held_;
};

}  // namespace sluice::text
