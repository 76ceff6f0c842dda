// The calls of GLM: <tool_call>NAME { <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> }
// </tool_call>, rewritten as JSON.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/output/call_parser.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

constexpr formats::JsonLimits kValueLimits = {
    .max_bytes = 4u << 20, .max_depth = 32, .max_values = 1u << 18};

// The inside of a JSON string.
std::string Escaped(absl::string_view text) {
  std::string quoted;
  AppendPythonJsonString(text, /*ascii=*/false, &quoted);
  return quoted.substr(1, quoted.size() - 2);
}

// What models write for JSON's words when they think in Python.
absl::string_view JsonWord(absl::string_view text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  return text;
}

// A finished value as JSON: as it stands if it is JSON of a kind that the parameter may be, or of
// any kind where a string is no choice; else a string.
std::string ValueAsJson(const std::string& raw, JsonKinds kinds) {
  const bool may_be_string = kinds == 0 || (kinds & kJsonString) != 0;
  const absl::string_view text = PythonStrip(raw);
  const absl::string_view word = kinds == 0 ? text : JsonWord(text);
  const auto value = formats::ParseJson(word, "value", kValueLimits);
  const bool fits = value.ok() && (kinds == 0 || (kinds & KindOf(*value)) != 0);
  if (fits || (value.ok() && !may_be_string)) return std::string(word);
  return absl::StrCat("\"", Escaped(raw), "\"");
}

class GlmCalls final : public CallParser {
 public:
  explicit GlmCalls(CallOptions options) : options_(std::move(options)) {}

  bool active() const override { return state_ != State::kOutside; }
  bool inside_data() const override { return state_ == State::kValue; }

  void Marker(OutputMarker marker, OutputDelta* out) override {
    switch (marker) {
      case OutputMarker::kCallBegin:
        EndCall(out);
        name_.clear();
        state_ = State::kName;
        return;
      case OutputMarker::kKeyBegin:
        EndValue(out);
        if (state_ == State::kName) BeginCall(out);
        key_.clear();
        state_ = State::kKey;
        return;
      case OutputMarker::kKeyEnd:
        if (state_ == State::kKey) state_ = State::kBeforeValue;
        return;
      case OutputMarker::kValueBegin:
        if (state_ == State::kKey || state_ == State::kBeforeValue) BeginValue(out);
        return;
      case OutputMarker::kValueEnd:
        if (state_ == State::kBeforeValue) BeginValue(out);
        EndValue(out);
        return;
      case OutputMarker::kCallEnd:
        EndCall(out);
        state_ = State::kOutside;
        return;
      default:
        return;
    }
  }

  void Text(absl::string_view text, OutputDelta* out) override {
    switch (state_) {
      case State::kName:
        name_.append(text.data(), text.size());
        return;
      case State::kKey:
        key_.append(text.data(), text.size());
        return;
      case State::kBeforeValue:
        // <arg_value> is missing when anything but white space stands here.
        if (PythonStrip(text).empty()) return;
        BeginValue(out);
        return Text(text, out);
      case State::kValue:
        if (streamed_) {
          out->AppendArguments(call_, Escaped(text));
        } else {
          value_.append(text.data(), text.size());
        }
        return;
      case State::kOutside:
      case State::kBetween:
        return;
    }
  }

  void Finish(bool ended, OutputDelta* out) override {
    if (!active()) return;
    if (ended) {
      EndCall(out);
    } else if (state_ != State::kName) {
      SetCutOff();
    }
    state_ = State::kOutside;
  }

 private:
  enum class State { kOutside, kName, kBetween, kKey, kBeforeValue, kValue };

  void BeginCall(OutputDelta* out) {
    const absl::string_view name = PythonStrip(name_);
    call_ = Begin(name, CallId(options_.id_seed, calls()), out);
    function_ = std::string(name);
    out->AppendArguments(call_, "{");
    first_ = true;
    state_ = State::kBetween;
  }

  void BeginValue(OutputDelta* out) {
    const absl::string_view key = PythonStrip(key_);
    kinds_ = options_.tools->KindsOf(function_, key);
    // Only a value that can be nothing but a string is known before it ends.
    streamed_ = kinds_ == kJsonString;
    value_.clear();
    out->AppendArguments(call_, absl::StrCat(std::exchange(first_, false) ? "" : ", ", "\"",
                                             Escaped(key), "\": ", streamed_ ? "\"" : ""));
    state_ = State::kValue;
  }

  void EndValue(OutputDelta* out) {
    if (state_ != State::kValue) return;
    out->AppendArguments(call_, streamed_ ? "\"" : ValueAsJson(value_, kinds_));
    state_ = State::kBetween;
  }

  void EndCall(OutputDelta* out) {
    if (!active()) return;
    EndValue(out);
    if (state_ == State::kName) {
      // A slip: the arguments as JSON behind the name.
      const size_t brace = name_.find('{');
      const std::string arguments = brace == std::string::npos ? "{}" : name_.substr(brace);
      name_.resize(std::min(brace, name_.size()));
      if (PythonStrip(name_).empty()) return;
      call_ = Begin(PythonStrip(name_), CallId(options_.id_seed, calls()), out);
      out->AppendArguments(call_, PythonStrip(arguments));
    } else {
      out->AppendArguments(call_, "}");
    }
    state_ = State::kBetween;
  }

  const CallOptions options_;
  State state_ = State::kOutside;
  uint32_t call_ = 0;
  bool first_ = true;  // argument of the call
  std::string name_, function_, key_, value_;
  JsonKinds kinds_ = 0;
  bool streamed_ = false;
};

}  // namespace

std::unique_ptr<CallParser> GlmCallParser(CallOptions options) {
  return std::make_unique<GlmCalls>(std::move(options));
}

}  // namespace sluice::text
