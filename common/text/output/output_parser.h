// Sorts what a model writes into reasoning, content and tool calls.
#pragma once

#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "text/output/call_parser.h"
#include "text/output/trimmed_text.h"

namespace sluice::text {

// Fed with text and the markers between it. Markers are never content. White space next to a marker
// belongs to the format and is dropped; line breaks at the beginning of the content too. The
// concatenated output does not depend on how text was cut. Thread-compatible.
class OutputParser {
 public:
  // `calls`: null when calls are not to be parsed. `inside_thinking`: the prompt ended inside the
  // reasoning.
  OutputParser(std::unique_ptr<CallParser> calls, bool inside_thinking)
      : calls_(std::move(calls)), thinking_(inside_thinking) {}

  void Text(absl::string_view text, OutputDelta* out);
  // `text` is how the marker is written: inside the data of a call it is just that.
  void Marker(OutputMarker marker, absl::string_view text, OutputDelta* out);
  // `ended`: the model stopped by itself; otherwise it was cut off.
  void Finish(bool ended, OutputDelta* out);

  // Calls that are complete so far; none is open.
  bool called_tools() const {
    return calls_ != nullptr && calls_->calls() > 0 && !calls_->cut_off();
  }

 private:
  void Content(absl::string_view text, OutputDelta* out);
  void BeginThinking();
  void EndThinking();

  const std::unique_ptr<CallParser> calls_;
  bool thinking_;
  bool begins_ = true;  // the content, or what follows reasoning: line breaks are dropped
  TrimmedText reasoning_;
  TrimmedText content_;
};

}  // namespace sluice::text
