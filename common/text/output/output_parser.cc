#include "text/output/output_parser.h"

#include "text/python_text.h"

namespace sluice::text {

void OutputParser::Text(absl::string_view text, OutputDelta* out) {
  if (calls_ != nullptr && calls_->active()) return calls_->Text(text, out);
  if (thinking_) return reasoning_.Append(text, /*drop_leading=*/true, &out->reasoning);
  Content(text, out);
}

void OutputParser::Content(absl::string_view text, OutputDelta* out) {
  if (begins_) text = PythonStrip(text, "\n", Side::kLeft);
  if (text.empty()) return;
  begins_ = false;
  content_.Append(text, /*drop_leading=*/false, &out->content);
}

void OutputParser::Marker(OutputMarker marker, absl::string_view text, OutputDelta* out) {
  const bool active = calls_ != nullptr && calls_->active();
  if (IsThinkMarker(marker)) {
    if (active && calls_->inside_data()) return calls_->Text(text, out);
    if (active) calls_->Finish(/*ended=*/true, out);
    return marker == OutputMarker::kThinkBegin ? BeginThinking() : EndThinking();
  }
  if (calls_ == nullptr) return;
  const bool begins = marker == OutputMarker::kCallsBegin || marker == OutputMarker::kCallBegin;
  if (!active && !begins) return;  // a stray end
  if (!active) {
    // Calls end the reasoning, also when its end is missing.
    EndThinking();
    content_.TakeHeld();
  }
  calls_->Marker(marker, out);
}

void OutputParser::BeginThinking() {
  if (thinking_) return;  // an echo of the prompt's own
  thinking_ = true;
  content_.TakeHeld();
}

void OutputParser::EndThinking() {
  if (!thinking_) return;
  thinking_ = false;
  begins_ = true;
  reasoning_.TakeHeld();
}

void OutputParser::Finish(bool ended, OutputDelta* out) {
  if (calls_ != nullptr) calls_->Finish(ended, out);
  if (thinking_ && !ended) out->reasoning += reasoning_.TakeHeld();
  if (!thinking_ && (calls_ == nullptr || calls_->calls() == 0))
    out->content += content_.TakeHeld();
}

}  // namespace sluice::text
