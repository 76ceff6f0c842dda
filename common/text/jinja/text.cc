#include "text/jinja/text.h"

#include <algorithm>

namespace sluice::text::jinja {

void Text::Append(absl::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  bytes_.append(bytes.data(), bytes.size());
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), trusted});
  }
}

void Text::Append(const Text& other) {
  if (&other == this) return Append(Text(other));
  size_t begin = 0;
  for (const Run& run : other.runs_) {
    Append(other.view().substr(begin, run.end - begin), run.trusted);
    begin = run.end;
  }
}

Text Text::Substr(size_t begin, size_t length) const {
  Text part;
  const size_t end = begin + length;
  for (auto run = RunAt(begin); run != runs_.end() && begin < end; ++run) {
    const size_t to = std::min(end, run->end);
    part.Append(view().substr(begin, to - begin), run->trusted);
    begin = to;
  }
  return part;
}

std::vector<Text::Run>::const_iterator Text::RunAt(size_t at) const {
  return std::upper_bound(runs_.begin(), runs_.end(), at,
                          [](size_t position, const Run& run) { return position < run.end; });
}

bool Text::TrustedAt(size_t at) const {
  const auto run = RunAt(at);
  return run != runs_.end() && run->trusted;
}

std::vector<Segment> Text::ToSegments() const {
  std::vector<Segment> segments;
  size_t begin = 0;
  for (const Run& run : runs_) {
    segments.push_back({bytes_.substr(begin, run.end - begin), run.trusted});
    begin = run.end;
  }
  return segments;
}

}  // namespace sluice::text::jinja
