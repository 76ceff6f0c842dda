#include "services/cli/tenants/file_edit.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/tenants.h"
#include "google/protobuf/util/message_differencer.h"

namespace sluice::cli {
namespace {

constexpr size_t kKnownShown = 10;

// Where line and column (from 1) are in a text.
size_t OffsetOf(absl::string_view text, const config::YamlPlace& place) {
  size_t offset = 0;
  for (int line = 1; line < place.line; ++line) {
    const size_t end = text.find('\n', offset);
    if (end == absl::string_view::npos) return text.size();
    offset = end + 1;
  }
  return std::min(text.size(), offset + static_cast<size_t>(place.column) - 1);
}

std::string Inserted(absl::string_view text, size_t offset, absl::string_view what) {
  return absl::StrCat(text.substr(0, offset), what, text.substr(offset));
}

// Whether what stands at `place` begins a line but for spaces and the "- " of its list: block
// style. In flow style a brace or a comma is before it.
bool BeginsLine(absl::string_view text, const config::YamlPlace& place) {
  const size_t offset = OffsetOf(text, place);
  const absl::string_view before = text.substr(0, offset);
  const absl::string_view line = before.substr(before.rfind('\n') + 1);
  return line.find_first_not_of(" -") == absl::string_view::npos;
}

std::string Indent(const config::YamlPlace& place) {
  return std::string(static_cast<size_t>(place.column) - 1, ' ');
}

// In front of what stands at `place`, an item of a list.
std::string WithItemBefore(absl::string_view text, const config::YamlPlace& place,
                           absl::string_view item) {
  const size_t offset = OffsetOf(text, place);
  if (!BeginsLine(text, place)) return Inserted(text, offset, absl::StrCat(item, ", "));
  const config::YamlPlace dash{place.line, std::max(1, place.column - 2)};
  return Inserted(text, offset, absl::StrCat(item, "\n", Indent(dash), "- "));
}

// In front of what stands at `place`, a setting of a group.
std::string WithSettingBefore(absl::string_view text, const config::YamlPlace& place,
                              absl::string_view setting) {
  const size_t offset = OffsetOf(text, place);
  const bool block = BeginsLine(text, place);
  return Inserted(text, offset,
                  absl::StrCat(setting, block ? absl::StrCat("\n", Indent(place)) : ", "));
}

// `edited` if it says just what `expected` says.
absl::StatusOr<std::string> Checked(std::string edited, absl::string_view source,
                                    const v1::TenantsFile& expected, absl::string_view by_hand) {
  const auto read = config::LoadTenants(edited, source);
  if (read.ok() && google::protobuf::util::MessageDifferencer::Equals(*read, expected))
    return edited;
  return absl::FailedPreconditionError(absl::StrCat(
      source, " is written in a way that this cannot change; write by hand: ", by_hand));
}

// The loader fills in the defaults of a tenant that has none of its own.
absl::Status AddPlainTenant(const std::string& id, v1::TenantsFile* file) {
  SLUICE_ASSIGN_OR_RETURN(const v1::TenantsFile plain,
                          config::LoadTenants(absl::StrCat("tenants: [{id: ", id, "}]"), "new"));
  v1::TenantsFile changed = plain;
  changed.mutable_tenants()->MergeFrom(file->tenants());
  file->mutable_tenants()->Swap(changed.mutable_tenants());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> WithTenant(absl::string_view yaml, absl::string_view source,
                                       const std::string& id) {
  config::YamlPlaces places;
  SLUICE_ASSIGN_OR_RETURN(v1::TenantsFile file, config::LoadTenants(yaml, source, &places));
  if (const std::string wrong = config::WrongTenantId(id); !wrong.empty())
    return absl::InvalidArgumentError(absl::StrCat("the tenant's id ", wrong));
  for (const v1::TenantEntry& tenant : file.tenants()) {
    if (tenant.id() == id)
      return absl::AlreadyExistsError(
          absl::StrCat(source, " has the tenant ", id, " already; add-key gives it another key"));
  }
  SLUICE_RETURN_IF_ERROR(AddPlainTenant(id, &file));
  const std::string entry = absl::StrCat("id: ", id);
  std::string edited;
  if (const auto first = places.find("tenants[0]"); first != places.end()) {
    edited = BeginsLine(yaml, first->second)
                 ? WithItemBefore(yaml, first->second, entry)
                 : WithItemBefore(yaml, first->second, absl::StrCat("{", entry, "}"));
  } else {
    const bool open = !yaml.empty() && yaml.back() != '\n';
    edited = absl::StrCat(yaml, open ? "\n" : "", "tenants:\n  - ", entry, "\n");
  }
  return Checked(std::move(edited), source, file, absl::StrCat("a tenant {", entry, "}"));
}

absl::StatusOr<std::string> WithKeyHash(absl::string_view yaml, absl::string_view source,
                                        const std::string& id, const std::string& hash) {
  config::YamlPlaces places;
  SLUICE_ASSIGN_OR_RETURN(v1::TenantsFile file, config::LoadTenants(yaml, source, &places));
  std::optional<int> index;
  std::string known;
  for (int i = 0; i < file.tenants_size(); ++i) {
    if (file.tenants(i).id() == id) index = i;
    if (static_cast<size_t>(i) < kKnownShown)
      absl::StrAppend(&known, known.empty() ? "" : ", ", file.tenants(i).id());
  }
  if (!index) {
    return absl::NotFoundError(
        absl::StrCat(source, " has no tenant ", id, "; it has ", known.empty() ? "none" : known));
  }
  v1::TenantEntry* tenant = file.mutable_tenants(*index);
  v1::TenantEntry changed;
  changed.add_key_hashes(hash);
  changed.mutable_key_hashes()->MergeFrom(tenant->key_hashes());
  tenant->mutable_key_hashes()->Swap(changed.mutable_key_hashes());
  const std::string path = absl::StrCat("tenants[", *index, "]");
  const auto first = places.find(path + ".key_hashes[0]");
  const std::string setting = absl::StrCat("key_hashes: [", hash, "]");
  std::string edited = first != places.end()
                           ? WithItemBefore(yaml, first->second, hash)
                           : WithSettingBefore(yaml, places[path + ".id"], setting);
  return Checked(std::move(edited), source, file,
                 absl::StrCat("in the tenant ", id, ", ", setting));
}

std::string WithPepperFile(absl::string_view yaml, absl::string_view name) {
  return absl::StrCat("key_pepper_file: ", name, "\n", yaml);
}

}  // namespace sluice::cli
