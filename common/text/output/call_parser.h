// Reads the tool calls of one output format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "text/output/output_delta.h"
#include "text/output/output_format.h"
#include "text/output/tool_schemas.h"

namespace sluice::text {

struct CallOptions {
  std::shared_ptr<const ToolSchemas> tools;
  // Of the conversation before this answer: Kimi counts on.
  uint32_t calls_before = 0;
  // Makes the ids of calls unique and, for equal seeds, equal.
  std::string id_seed;
};

// A state machine over text and markers. The concatenated output does not depend on how text was
// cut. Thread-compatible.
class CallParser {
 public:
  virtual ~CallParser() = default;

  // Between the beginning of the calls and their end: text and markers belong to this parser.
  virtual bool active() const = 0;
  // Inside the data of one call, where markers that do not belong to calls are data.
  virtual bool inside_data() const = 0;
  virtual void Marker(OutputMarker marker, OutputDelta* out) = 0;
  virtual void Text(absl::string_view text, OutputDelta* out) = 0;
  // Ends the calls. `ended`: the model stopped here, so a call that lacks its end is taken as
  // complete; otherwise it was cut off and stays as it is.
  virtual void Finish(bool ended, OutputDelta* out) = 0;

  // Calls that were begun, and whether the last one was left incomplete.
  uint32_t calls() const { return calls_; }
  bool cut_off() const { return cut_off_; }

 protected:
  // Begins the next call in `out` and returns its index.
  uint32_t Begin(absl::string_view name, std::string id, OutputDelta* out) {
    out->tool_calls.push_back({calls_, std::move(id), std::string(name), ""});
    return calls_++;
  }
  void SetCutOff() { cut_off_ = true; }

 private:
  uint32_t calls_ = 0;
  bool cut_off_ = false;
};

// An id in the manner of OpenAI, for formats that write none.
std::string CallId(absl::string_view seed, uint32_t index);

// Kimi and DeepSeek: a header, a separator, the arguments as JSON.
std::unique_ptr<CallParser> HeaderCallParser(OutputFormat format, CallOptions options);
// GLM: a name and pairs of <arg_key> and <arg_value>.
std::unique_ptr<CallParser> GlmCallParser(CallOptions options);
// Qwen and others: a JSON object with name and arguments.
std::unique_ptr<CallParser> HermesCallParser(CallOptions options);

}  // namespace sluice::text
