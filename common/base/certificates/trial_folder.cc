#include "base/certificates/trial_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice {

absl::StatusOr<TrialFolder> TrialFolder::Create(const std::string& name,
                                                const CertificateOptions& options) {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "sluice-XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make a folder like ", path, ": ", strerror(errno)));
  }
  TrialFolder folder(path);
  SLUICE_RETURN_IF_ERROR(WriteTrialCertificates(path, name, options));
  return folder;
}

TrialFolder::~TrialFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::string TrialFolder::FolderOf(ServiceRole role) const {
  return absl::StrCat(path_, "/", ServiceRoleName(role));
}

}  // namespace sluice
