// Text without white space at its ends, while it is produced.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace sluice::text {

// Holds white space back until something follows it. Thread-compatible.
class TrimmedText {
 public:
  // Appends to `out` what is certain not to be at the end. White space at the beginning is dropped
  // when `drop_leading`, else held like any other.
  void Append(absl::string_view text, bool drop_leading, std::string* out);
  // White space that was held back, for who wants to keep it. As new afterwards.
  std::string TakeHeld() {
    empty_ = true;
    return std::exchange(held_, {});
  }
  // Nothing but white space so far.
  bool empty() const { return empty_; }

 private:
  std::string held_;
  bool empty_ = true;
};

}  // namespace sluice::text
