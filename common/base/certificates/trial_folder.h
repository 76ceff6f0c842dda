// Trial certificates of every role in a folder that goes with its owner: for self-tests and tests.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/certificates/service_identity.h"
#include "base/certificates/trial_authority.h"

namespace sluice {

// Move-only.
class TrialFolder {
 public:
  // All identities are called `name`. Errors: UNAVAILABLE with the path and the reason.
  static absl::StatusOr<TrialFolder> Create(const std::string& name = "trial",
                                            const CertificateOptions& options = {});
  TrialFolder(TrialFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TrialFolder& operator=(TrialFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~TrialFolder();

  const std::string& path() const { return path_; }
  std::string FolderOf(ServiceRole role) const;
  CertificateFiles Of(ServiceRole role) const { return CertificateFilesIn(FolderOf(role)); }

 private:
  explicit TrialFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace sluice
