#include "services/cli/doctor/host.h"

#include <pwd.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/certificates/trial_folder.h"
#include "base/status_macros.h"
#include "model/model_files.h"
#include "services/text_model/text_model.h"
#include "transport/factory.h"
#include "transport/measure.h"

namespace sluice::cli {

absl::StatusOr<Space> SpaceOf(const std::string& path) {
  std::error_code error;
  std::filesystem::path folder = path;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  struct statvfs info {};
  if (path.empty() || statvfs(folder.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("no file system at '", path, "': ", strerror(errno)));
  }
  return Space{uint64_t{info.f_blocks} * info.f_frsize, uint64_t{info.f_bavail} * info.f_frsize};
}

absl::StatusOr<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return line;
}

absl::StatusOr<uint64_t> AvailableMemory(const std::string& meminfo) {
  std::ifstream file(meminfo);
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kib = 0;
    if (fields.size() >= 2 && fields[0] == "MemAvailable:" && absl::SimpleAtoi(fields[1], &kib)) {
      return kib << 10;
    }
  }
  return absl::NotFoundError(absl::StrCat("no MemAvailable in ", meminfo));
}

bool HasRdmaDevice(const std::string& folder) {
  std::error_code error;
  return std::filesystem::directory_iterator(folder, error) !=
         std::filesystem::directory_iterator();
}

std::string DefaultCacheFolder(const std::string& cache_home) {
  if (std::filesystem::path(cache_home).is_absolute()) return absl::StrCat(cache_home, "/sluice");
  const passwd* user = getpwuid(getuid());  // NOLINT(concurrency-mt-unsafe): one thread so far
  return user == nullptr ? "" : absl::StrCat(user->pw_dir, "/.cache/sluice");
}

absl::StatusOr<std::string> DescribeModel(const std::string& path, uint64_t* weight_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const auto text, services::LoadTextModel(path));
  const std::string chat = text->chat_template != nullptr ? "chat template" : "no chat template";
  if (path == services::kToyModelPath) return absl::StrCat("the built-in toy model, ", chat);
  SLUICE_ASSIGN_OR_RETURN(const auto files, model::ModelFiles::Open(path));
  *weight_bytes = files->tensor_bytes();
  return absl::StrFormat("%d layers, %d hidden, vocabulary %d, context %d, %.0f MB, %s, %s",
                         files->config().layers, files->config().hidden, files->config().vocabulary,
                         files->config().context_tokens, static_cast<double>(*weight_bytes) / 1e6,
                         text->tokenizer != nullptr ? "tokenizer" : "no tokenizer", chat);
}

std::vector<TransportProbe> ProbeTransports(const Clock& clock) {
  transport::MeasureOptions measure;
  measure.region_bytes = size_t{16} << 20;
  measure.total_bytes = uint64_t{256} << 20;
  measure.timeout = absl::Seconds(10);
  transport::TransportOptions options;
  options.trusted_network = true;  // both ends are this process, on the loopback interface
  const absl::StatusOr<TrialFolder> certificates = TrialFolder::Create();
  if (certificates.ok()) options.certificates = certificates->Of(ServiceRole::kDecode);
  std::vector<TransportProbe> probes;
  for (const transport::Backend& backend : transport::BuiltBackends()) {
    if (backend.name == "loopback") continue;  // a network inside one process
    const auto probe = [&]() -> absl::StatusOr<double> {
      SLUICE_ASSIGN_OR_RETURN(const auto here, backend.create(options));
      SLUICE_ASSIGN_OR_RETURN(const auto there, backend.create(options));
      SLUICE_ASSIGN_OR_RETURN(const transport::Measurement moved,
                              here->capabilities().true_get
                                  ? transport::MeasureFetch(*here, *there, measure, clock)
                                  : transport::MeasureSend(*here, *there, measure, clock));
      return moved.gigabytes_per_second();
    };
    probes.push_back({backend.name, probe()});
  }
  return probes;
}

}  // namespace sluice::cli
