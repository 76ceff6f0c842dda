#include "services/process/claim_key_file.h"

#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace sluice::services {
namespace {

constexpr char kSetting[] = "claim_key_file";
constexpr size_t kBytesMax = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<ClaimKeyFile>> ClaimKeyFile::Load(const std::string& path,
                                                                 const Clock& clock) {
  std::unique_ptr<ClaimKeyFile> file(new ClaimKeyFile(path, clock));
  SLUICE_RETURN_IF_ERROR(file->Read());
  return file;
}

std::shared_ptr<const identity::ClaimKeys> ClaimKeyFile::keys() const {
  MutexLock lock(mutex_);
  return keys_;
}

absl::Status ClaimKeyFile::Read() {
  files_.Begin();
  SLUICE_ASSIGN_OR_RETURN(const std::string text, files_.Read(kSetting, path_, kBytesMax));
  if (files_.SameAsBefore()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(identity::ClaimKeys keys, identity::ClaimKeys::Parse(text, kSetting));
  MutexLock lock(mutex_);
  keys_ = std::make_shared<const identity::ClaimKeys>(std::move(keys));
  return absl::OkStatus();
}

void ClaimKeyFile::Refresh() {
  if (!files_.Changed()) return;
  if (const absl::Status status = Read(); !status.ok())
    SLUICE_LOG(kError) << "the claim keys stay as they were" << Field("why", status.message());
}

}  // namespace sluice::services
