#include "text/stop_matcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// For each prefix of `text`, the length of its longest proper prefix that is also its suffix.
std::vector<uint8_t> Borders(absl::string_view text) {
  std::vector<uint8_t> border(text.size(), 0);
  size_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    if (text[i] == text[length]) ++length;
    border[i] = static_cast<uint8_t>(length);
  }
  return border;
}

}  // namespace

absl::StatusOr<StopMatcher> StopMatcher::Create(absl::Span<const std::string> stops,
                                                bool include_stop) {
  if (stops.size() > kStopStringsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop has ", stops.size(), " strings; at most ", kStopStringsMax));
  }
  std::vector<Pattern> patterns;
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kStopStringBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stop string of ", stop.size(), " bytes; allowed are 1 to ", kStopStringBytesMax));
    }
    if (!IsValidUtf8(stop)) return absl::InvalidArgumentError("stop string is not valid UTF-8");
    patterns.push_back({stop, Borders(stop)});
  }
  return StopMatcher(std::move(patterns), include_stop);
}

std::optional<StopMatch> StopMatcher::Append(absl::string_view text, std::string* out) {
  if (match_.has_value()) return match_;
  if (patterns_.empty()) {
    out->append(text.data(), text.size());
    return match_;
  }
  for (const char c : text) {
    held_.push_back(c);
    ++bytes_seen_;
    size_t winner = patterns_.size();
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      while (p.matched > 0 && p.text[p.matched] != c) p.matched = p.fallback[p.matched - 1];
      if (p.text[p.matched] == c) ++p.matched;
      const bool complete = p.matched == p.text.size();
      if (complete &&
          (winner == patterns_.size() || p.text.size() > patterns_[winner].text.size())) {
        winner = i;
      }
    }
    if (winner < patterns_.size()) {
      FinishMatch(winner, out);
      return match_;
    }
  }
  size_t keep = 0;
  for (const Pattern& p : patterns_) keep = std::max(keep, p.matched);
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return match_;
}

void StopMatcher::FinishMatch(size_t index, std::string* out) {
  const size_t length = patterns_[index].text.size();
  match_ = StopMatch{index, bytes_seen_ - length};
  // The match lies at the end of what is held: whatever it could have begun with was kept back.
  out->append(held_, 0, held_.size() - (include_stop_ ? 0 : length));
  held_.clear();
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
  for (Pattern& p : patterns_) p.matched = 0;
}

}  // namespace sluice::text
