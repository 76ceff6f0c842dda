// Structured log lines to stderr: SLUICE_LOG(kInfo) << "listening" << Field("port", port);
// INFO at most once per request, never per token. Prompts, outputs and keys are never logged.
#pragma once

#include <sstream>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// One key=value field of a log line; values with blanks are quoted.
struct LogField {
  std::string text;
};

template <typename T>
LogField Field(absl::string_view key, const T& value) {
  std::ostringstream out;
  out << value;
  const std::string text = out.str();
  const bool quote = text.empty() || text.find_first_of(" \"=\n") != std::string::npos;
  std::string line = " " + std::string(key) + "=";
  if (!quote) return {line + text};
  line += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') line += '\\';
    line += c == '\n' ? ' ' : c;
  }
  return {line + '"'};
}

// Sets the lowest level that is printed and the name of this process in every line. Thread-safe;
// call once in main.
void InitLogging(absl::string_view process_name, LogLevel min_level, bool json);
bool LogEnabled(LogLevel level);

// Parses "debug", "info", "warning" or "error"; returns false for anything else.
bool ParseLogLevel(absl::string_view text, LogLevel* level);

// One line under construction; the destructor emits it. Thread-safe.
class LogLine {
 public:
  LogLine(LogLevel level, const char* file, int line) : level_(level), file_(file), line_(line) {}
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  ~LogLine();
  LogLine& operator<<(const LogField& field) {
    stream_ << field.text;
    return *this;
  }
  template <typename T>
  LogLine& operator<<(const T& value) {
    stream_ << value;
    return *this;
  }

 private:
  LogLevel level_;
  const char* file_;
  int line_;
  std::ostringstream stream_;
};

}  // namespace sluice

#define SLUICE_LOG(level)                              \
  if (::sluice::LogEnabled(::sluice::LogLevel::level)) \
  ::sluice::LogLine(::sluice::LogLevel::level, __FILE__, __LINE__)
