#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

namespace sluice {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// The one process-wide object behind the log: stderr is process-wide as well.
spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("sluice",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %n %v");
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *logger;
}

const char* BaseName(const char* path) {
  const char* base = path;
  for (const char* p = path; *p != '\0'; ++p) {
    if (*p == '/') base = p + 1;
  }
  return base;
}

}  // namespace

void InitLogging(absl::string_view process_name, LogLevel min_level, bool json) {
  const std::string name(process_name);
  Logger().set_level(ToSpdlog(min_level));
  Logger().set_pattern(
      json ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",\"level\":\"%l\",\"process\":\"" + name +
                 "\",\"pid\":%P,\"message\":\"%v\"}"
           : "%Y-%m-%dT%H:%M:%S.%e%z %l " + name + "[%P] %v");
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

bool ParseLogLevel(absl::string_view text, LogLevel* level) {
  static constexpr std::pair<const char*, LogLevel> kNames[] = {{"debug", LogLevel::kDebug},
                                                                {"info", LogLevel::kInfo},
                                                                {"warning", LogLevel::kWarning},
                                                                {"error", LogLevel::kError}};
  for (const auto& [name, value] : kNames) {
    if (text == name) {
      *level = value;
      return true;
    }
  }
  return false;
}

LogLine::~LogLine() {
  const std::string text = stream_.str();
  if (level_ >= LogLevel::kWarning) {
    Logger().log(ToSpdlog(level_), "{} at={}:{}", text, BaseName(file_), line_);
  } else {
    Logger().log(ToSpdlog(level_), "{}", text);
  }
}

}  // namespace sluice
