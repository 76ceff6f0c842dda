// The tenants file: YAML to a checked message. What is wrong is said with the line and the setting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "config/yaml.h"
#include "sluice/v1/tenants.pb.h"

namespace sluice::config {

inline constexpr size_t kTenantsFileBytesMax = size_t{16} << 20;
inline constexpr int kTenantsMax = 100000;
inline constexpr int kPublicPrefixesMax = 64;
inline constexpr size_t kTenantIdBytesMax = 63;

// Bytes, or a share of something.
struct KvAmount {
  uint64_t bytes = 0;
  uint32_t permyriad = 0;  // of a share: hundredths of a percent
  bool is_share = false;

  uint64_t Of(uint64_t capacity_bytes) const;
};
// "512MiB", "80GiB", "2TiB", "1000", "12.5%". Errors: INVALID_ARGUMENT with the text and what is
// allowed.
absl::StatusOr<KvAmount> ParseKvAmount(absl::string_view text);

// What is wrong with `id` as the name of a tenant; empty when nothing is. Bytes that are not
// printable ASCII are shown escaped.
std::string WrongTenantId(absl::string_view id);

// Where `file`, which a tenants file names, is: beside `tenants_file`, unless it is absolute.
std::string PathBeside(const std::string& tenants_file, const std::string& file);

// A checked file, complete but for `jwt` and `default_class`, which stay absent where the file has
// none. `yaml` is the text of `source`. `places`, unless null, gets where settings stand. Errors:
// INVALID_ARGUMENT "source:line:column: setting ..."; ids, hashes, subjects and names may stand
// only once in the file, floors must fit into each tier.
absl::StatusOr<v1::TenantsFile> LoadTenants(absl::string_view yaml, absl::string_view source,
                                            YamlPlaces* places = nullptr);

}  // namespace sluice::config
