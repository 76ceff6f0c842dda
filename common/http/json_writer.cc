#include "http/json_writer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "text/utf8.h"

namespace sluice::http {

void JsonWriter::Separate() {
  if (comma_) out_ += ',';
  comma_ = true;
}

JsonWriter& JsonWriter::Open(char bracket) {
  Separate();
  out_ += bracket;
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Shut(char bracket) {
  out_ += bracket;
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(absl::string_view name) {
  Separate();
  AppendEscaped(name);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(absl::string_view value) {
  Separate();
  AppendEscaped(value);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  Separate();
  absl::StrAppend(&out_, value);
  return *this;
}

JsonWriter& JsonWriter::Number(double value) {
  Separate();
  absl::StrAppendFormat(&out_, "%.9g", std::isfinite(value) ? value : -9999.0);
  return *this;
}

JsonWriter& JsonWriter::Raw(absl::string_view json) {
  Separate();
  absl::StrAppend(&out_, json);
  return *this;
}

void JsonWriter::AppendEscaped(absl::string_view value) {
  out_ += '"';
  while (!value.empty()) {
    const text::Utf8Step step = text::DecodeUtf8(value);
    if (step.state != text::Utf8State::kValid) {
      absl::StrAppend(&out_, text::kReplacementCharacter);
    } else if (step.code_point == '"' || step.code_point == '\\') {
      out_ += '\\';
      out_ += value[0];
    } else if (step.code_point == '\n') {
      out_ += "\\n";
    } else if (step.code_point < 0x20) {
      absl::StrAppendFormat(&out_, "\\u%04x", step.code_point);
    } else {
      out_.append(value.data(), step.length);
    }
    value.remove_prefix(step.length);
  }
  out_ += '"';
}

}  // namespace sluice::http
