// The calls of Qwen and others: <tool_call> {"name": ..., "arguments": {...}} </tool_call>.
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/output/call_parser.h"
#include "text/python_json.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

constexpr formats::JsonLimits kCallLimits = {
    .max_bytes = 4u << 20, .max_depth = 32, .max_values = 1u << 18};

class HermesCalls final : public CallParser {
 public:
  explicit HermesCalls(CallOptions options) : options_(std::move(options)) {}

  bool active() const override { return active_; }
  bool inside_data() const override { return active_ && !PythonStrip(body_).empty(); }

  void Marker(OutputMarker marker, OutputDelta* out) override {
    EndCall(out);
    active_ = marker == OutputMarker::kCallBegin;
  }

  void Text(absl::string_view text, OutputDelta*) override {
    body_.append(text.data(), text.size());
  }

  void Finish(bool ended, OutputDelta* out) override {
    if (active_ && !ended) {
      SetCutOff();
      body_.clear();
    }
    EndCall(out);
    active_ = false;
  }

 private:
  void EndCall(OutputDelta* out) {
    if (!active_) return;
    const std::string body = std::exchange(body_, {});
    const auto call = formats::ParseJson(body, "tool call", kCallLimits);
    const auto name = call.ok() ? call->GetString("name") : call.status();
    if (!name.ok()) {
      // No call after all; what the model meant is left to the reader.
      absl::StrAppend(&out->content, PythonStrip(body));
      return;
    }
    const JsonValue* arguments = call->Find("arguments");
    if (arguments == nullptr) arguments = call->Find("parameters");
    const uint32_t index = Begin(*name, CallId(options_.id_seed, calls()), out);
    if (arguments == nullptr || arguments->is_null()) {
      out->AppendArguments(index, "{}");
    } else if (arguments->is_string()) {
      out->AppendArguments(index, *arguments->AsString());
    } else {
      out->AppendArguments(index, PythonJson(*arguments));
    }
  }

  const CallOptions options_;
  bool active_ = false;
  std::string body_;
};

}  // namespace

std::unique_ptr<CallParser> HermesCallParser(CallOptions options) {
  return std::make_unique<HermesCalls>(std::move(options));
}

}  // namespace sluice::text
