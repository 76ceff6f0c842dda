// Finds stop strings in text while it is produced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::text {

inline constexpr size_t kStopStringsMax = 4;
inline constexpr size_t kStopStringBytesMax = 128;

struct StopMatch {
  size_t index = 0;           // Which stop string.
  uint64_t begin_offset = 0;  // Byte offset of the match in the whole text.
};

// Passes text through, holding back what may be the beginning of a stop string. The match that ends
// first wins, of those the longest, then the one listed first; so the result does not depend on how
// the text was cut. Given whole characters it emits whole characters. Thread-compatible. Cost:
// linear in text bytes times stop strings.
class StopMatcher {
 public:
  // `include_stop`: the matched string is part of the output. INVALID_ARGUMENT for more than
  // kStopStringsMax strings, an empty one, one over kStopStringBytesMax bytes, or invalid UTF-8.
  static absl::StatusOr<StopMatcher> Create(absl::Span<const std::string> stops,
                                            bool include_stop = false);

  // Takes the next text and appends to `out` what is certain not to be part of a stop string. Once
  // matched, text is ignored and the same match is returned.
  std::optional<StopMatch> Append(absl::string_view text, std::string* out);
  // End of the text: appends what was held back. Nothing after a match.
  void Flush(std::string* out);

  const std::optional<StopMatch>& match() const { return match_; }
  size_t held_bytes() const { return held_.size(); }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint8_t> fallback;  // Length of the longest proper border of each prefix.
    size_t matched = 0;             // Length of the longest suffix of the text that begins `text`.
  };

  StopMatcher(std::vector<Pattern> patterns, bool include_stop)
      : patterns_(std::move(patterns)), include_stop_(include_stop) {}
  void FinishMatch(size_t index, std::string* out);

  std::vector<Pattern> patterns_;
  bool include_stop_;
  std::string held_;
  uint64_t bytes_seen_ = 0;
  std::optional<StopMatch> match_;
};

}  // namespace sluice::text
