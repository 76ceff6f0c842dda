// A run of prompt text and whether it may contain markers.
#pragma once

#include <string>

namespace sluice::text {

// Trusted text comes from a template or from a caller who asked for markers; untrusted text comes
// from a user, and a marker inside it stays text.
struct Segment {
  std::string text;
  bool trusted = false;

  friend bool operator==(const Segment& a, const Segment& b) {
    return a.text == b.text && a.trusted == b.trusted;
  }
};

}  // namespace sluice::text
