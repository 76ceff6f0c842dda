// The calls of Kimi and DeepSeek: <begin> { <call> HEADER <separator> JSON <end of call> } <end>.
#include <cctype>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "text/output/call_parser.h"
#include "text/output/trimmed_text.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

constexpr formats::JsonLimits kArgumentsLimits = {
    .max_bytes = 4u << 20, .max_depth = 32, .max_values = 1u << 18};

bool IsNumber(absl::string_view text) {
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) return false;
  }
  return !text.empty();
}

// The function that a header names: "functions.NAME:3", also without the prefix or the number; ""
// for a bare number.
absl::string_view NameOfHeader(absl::string_view header) {
  header = PythonStrip(header);
  absl::ConsumePrefix(&header, "functions.");
  const size_t colon = header.rfind(':');
  if (colon != absl::string_view::npos && IsNumber(header.substr(colon + 1))) {
    header = header.substr(0, colon);
  }
  return IsNumber(header) ? absl::string_view() : header;
}

class HeaderCalls final : public CallParser {
 public:
  HeaderCalls(OutputFormat format, CallOptions options)
      : format_(format), options_(std::move(options)) {}

  bool active() const override { return state_ != State::kOutside; }
  bool inside_data() const override { return state_ == State::kArguments; }

  void Marker(OutputMarker marker, OutputDelta* out) override {
    switch (marker) {
      case OutputMarker::kCallsBegin:
        EndCall(out);
        return Enter(State::kBetween);
      case OutputMarker::kCallBegin:
        // A second one before the arguments began: the first was a slip.
        EndCall(out);
        return Enter(State::kHeader);
      case OutputMarker::kCallArguments:
        // Outside the arguments whatever stands in front is the header.
        if (state_ != State::kArguments) BeginCall(out);
        return;
      case OutputMarker::kCallEnd:
        if (state_ == State::kHeader) SplitHeader(out);
        EndCall(out);
        return Enter(State::kBetween);
      case OutputMarker::kCallsEnd:
        EndCall(out);
        return Leave(out);
      default:
        return;
    }
  }

  void Text(absl::string_view text, OutputDelta* out) override {
    if (state_ == State::kArguments) return Arguments(text, out);
    header_.append(text.data(), text.size());
  }

  void Finish(bool ended, OutputDelta* out) override {
    if (state_ == State::kArguments && !ended) SetCutOff();
    if (state_ == State::kArguments && (ended || !named_)) EndCall(out);
    if (state_ == State::kHeader)
      header_.clear();  // a call without arguments began: nothing is known
    Leave(out);
  }

 private:
  enum class State { kOutside, kBetween, kHeader, kArguments };

  void Enter(State state) {
    state_ = state;
    header_.clear();
  }

  // Text between calls that is no white space was meant for the reader.
  void Leave(OutputDelta* out) {
    if (state_ == State::kBetween) absl::StrAppend(&out->content, PythonStrip(header_));
    Enter(State::kOutside);
  }

  void BeginCall(OutputDelta* out) {
    const std::string header = std::exchange(header_, {});
    const absl::string_view name = NameOfHeader(header);
    state_ = State::kArguments;
    named_ = !name.empty();
    bare_header_ = named_ ? "" : std::string(PythonStrip(header));
    if (named_) Name(name, out);
  }

  void Name(absl::string_view name, OutputDelta* out) {
    std::string id = format_ == OutputFormat::kKimi
                         ? absl::StrCat("functions.", name, ":", options_.calls_before + calls())
                         : CallId(options_.id_seed, calls());
    call_ = Begin(name, std::move(id), out);
  }

  // Arguments of a call whose name is still to be found are kept.
  void Arguments(absl::string_view text, OutputDelta* out) {
    std::string fresh;
    trimmed_.Append(text, /*drop_leading=*/true, &fresh);
    if (!named_) {
      unnamed_ += fresh;
    } else if (!fresh.empty()) {
      out->AppendArguments(call_, fresh);
    }
  }

  // A header whose separator is missing: the arguments begin with their brace.
  void SplitHeader(OutputDelta* out) {
    std::string arguments;
    const size_t brace = header_.find('{');
    if (brace != std::string::npos) {
      arguments = header_.substr(brace);
      header_.resize(brace);
    }
    if (PythonStrip(header_).empty() && arguments.empty()) return;
    BeginCall(out);
    Arguments(arguments, out);
  }

  void EndCall(OutputDelta* out) {
    if (state_ != State::kArguments) return;
    const bool no_arguments = trimmed_.empty();
    if (!named_) {
      Name(InferName(), out);
      out->AppendArguments(call_, unnamed_);
      unnamed_.clear();
    }
    if (no_arguments) out->AppendArguments(call_, "{}");
    trimmed_.TakeHeld();
    state_ = State::kBetween;
  }

  // The tool that knows the arguments; the bare number itself if none does, for the client to
  // refuse.
  std::string InferName() const {
    std::vector<absl::string_view> keys;
    const auto arguments = formats::ParseJson(unnamed_, "arguments", kArgumentsLimits);
    if (arguments.ok()) {
      for (const auto& [key, value] : arguments->members()) keys.push_back(key);
    }
    const absl::string_view name = options_.tools->Infer(keys);
    return name.empty() ? bare_header_ : std::string(name);
  }

  const OutputFormat format_;
  const CallOptions options_;
  State state_ = State::kOutside;
  std::string header_;  // of a call, or text between calls
  bool named_ = false;
  std::string bare_header_;
  std::string unnamed_;  // arguments of the open call, while it has no name
  TrimmedText trimmed_;
  uint32_t call_ = 0;
};

}  // namespace

std::unique_ptr<CallParser> HeaderCallParser(OutputFormat format, CallOptions options) {
  return std::make_unique<HeaderCalls>(format, std::move(options));
}

}  // namespace sluice::text
