// A chat template of a model: the part of Jinja that such templates are written in.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "formats/json.h"
#include "text/jinja/ast.h"
#include "text/segment.h"

namespace sluice::text::jinja {

// What a rendering may see.
struct Variables {
  formats::JsonValue::Object data;                             // of the request: untrusted
  std::vector<std::pair<std::string, std::string>> constants;  // of the model: trusted text
  // Words that are harmless wherever they stand: strings of `data` that equal one are trusted under
  // the keys of `plain_keys`.
  std::vector<std::string> plain_words;
  std::vector<std::string> plain_keys;
  absl::CivilDay today;  // for strftime_now
};

// Immutable and thread-safe.
class Template {
 public:
  // INVALID_ARGUMENT for a text that is wrong, UNIMPLEMENTED for a construct that is not supported;
  // both name the line.
  static absl::StatusOr<std::unique_ptr<const Template>> Parse(absl::string_view source);

  // The text, with the mark of each part. INVALID_ARGUMENT, with the line, for operations that the
  // data does not allow, for what the template itself refuses, and for too much work: steps, text
  // and depth are bounded.
  absl::StatusOr<std::vector<Segment>> Render(const Variables& variables) const;

 private:
  explicit Template(Block block) : block_(std::move(block)) {}
  const Block block_;
};

}  // namespace sluice::text::jinja
