#include "services/router/usage_log.h"

#include <boost/json.hpp>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "telemetry/metric_names.h"

namespace sluice::router {
namespace {

constexpr size_t kWaitingMax = 65536;

}  // namespace

std::string ToJson(const UsageRecord& record) {
  return boost::json::serialize(boost::json::object{
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", record.at, absl::UTCTimeZone())},
      {"tenant", record.tenant},
      {"request_id", record.request_id},
      {"model", record.model},
      {"outcome", record.outcome},
      {"choices", record.choices},
      {"prompt_tokens", record.prompt_tokens},
      {"cached_tokens", record.cached_tokens},
      {"output_tokens", record.output_tokens},
      {"duration_ms", absl::ToInt64Milliseconds(record.duration)}});
}

absl::StatusOr<std::unique_ptr<UsageLog>> UsageLog::Open(const std::string& path,
                                                         const Clock& clock,
                                                         telemetry::Registry& metrics) {
  std::unique_ptr<UsageLog> log(new UsageLog(path == "-" ? "/dev/stdout" : path,
                                             metrics.counter(telemetry::kUsageRecordsLost)));
  if (!log->Reopen())
    return absl::PermissionDeniedError(absl::StrCat("usage_file: cannot append to ", path));
  SLUICE_ASSIGN_OR_RETURN(log->loop_, ThreadLoop::Start("usage", clock, kWaitingMax));
  return log;
}

UsageLog::~UsageLog() {
  if (loop_ != nullptr) loop_->Stop();
}

void UsageLog::Write(UsageRecord record) {
  if (!loop_->Post([this, record = std::move(record)] { Append(ToJson(record)); })) lost_.Add();
}

bool UsageLog::Reopen() {
  file_.close();
  file_.clear();
  file_.open(path_, std::ios::binary | std::ios::app);
  return static_cast<bool>(file_);
}

void UsageLog::Append(const std::string& line) {
  std::error_code error;
  // One write for the line: several processes may append to one file.
  if (std::filesystem::exists(path_, error) || Reopen())
    file_ << absl::StrCat(line, "\n") << std::flush;
  const bool failed = !file_;
  if (failed) {
    lost_.Add();
    if (!failing_) SLUICE_LOG(kError) << "cannot write usage records" << Field("file", path_);
    Reopen();
  }
  failing_ = failed;
}

}  // namespace sluice::router
