// A string of a template that remembers which of its parts came with the request.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/segment.h"

namespace sluice::text::jinja {

// Every operation of the language that makes text out of text keeps the mark of each byte: what a
// client sent stays untrusted through filters, slices and concatenation. Thread-compatible.
class Text {
 public:
  Text() = default;
  Text(absl::string_view bytes, bool trusted) { Append(bytes, trusted); }

  absl::string_view view() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }

  void Append(absl::string_view bytes, bool trusted);
  void Append(const Text& other);
  // The bytes [begin, begin + length), which must exist.
  Text Substr(size_t begin, size_t length) const;
  // The part of this text that `part`, a view into view(), covers.
  Text Part(absl::string_view part) const {
    return Substr(static_cast<size_t>(part.data() - bytes_.data()), part.size());
  }
  // Appends `written`, which stands for the byte at `at`, with the mark of that byte.
  void AppendLike(const Text& source, size_t at, absl::string_view written) {
    Append(written, source.TrustedAt(at));
  }
  bool TrustedAt(size_t at) const;

  std::vector<Segment> ToSegments() const;

 private:
  struct Run {
    size_t end;  // exclusive; the next run begins here
    bool trusted;
  };
  std::vector<Run>::const_iterator RunAt(size_t at) const;

  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace sluice::text::jinja
