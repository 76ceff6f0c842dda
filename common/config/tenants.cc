#include "config/tenants.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "config/config.h"

namespace sluice::config {
namespace {

constexpr size_t kNameBytesMax = 512;
constexpr int kNamesOfTenantMax = 1000;
constexpr uint32_t kWhole = 10000;  // permyriad
constexpr absl::string_view kReservedIds[] = {"other", "public"};
constexpr std::array<const char*, 3> kTiers = {"device", "host", "nvme"};

bool IsDigest(absl::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

std::string Escaped(absl::string_view text) {
  constexpr size_t kShown = 80;
  return absl::StrCat(absl::CHexEscape(text.substr(0, kShown)), text.size() > kShown ? "..." : "");
}

const v1::TenantKvShare& TierOf(const v1::TenantKv& kv, size_t tier) {
  return tier == 0 ? kv.device() : tier == 1 ? kv.host() : kv.nvme();
}
const std::string& TierOf(const v1::KvCapacity& capacity, size_t tier) {
  return tier == 0 ? capacity.device() : tier == 1 ? capacity.host() : capacity.nvme();
}

// One file on its way through the checks that need more than one setting.
class Checker {
 public:
  Checker(absl::string_view source, const YamlPlaces& places) : source_(source), places_(places) {}

  // The place is the setting's, or that of the innermost group around it that the file has.
  absl::Status Error(const std::string& path, absl::string_view what) const {
    std::string known = path;
    while (!known.empty() && !places_.contains(known)) {
      const size_t end = known.find_last_of(".[");
      known.resize(end == std::string::npos ? 0 : end);
    }
    const auto place = places_.find(known);
    const std::string where =
        place == places_.end()
            ? source_
            : absl::StrCat(source_, ":", place->second.line, ":", place->second.column);
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", path, " ", what));
  }

  absl::Status Check(const v1::TenantsFile& file) {
    if (file.tenants_size() > kTenantsMax)
      return Error("tenants", absl::StrCat("has ", file.tenants_size(), " entries; at most ",
                                           kTenantsMax, " are allowed"));
    for (int i = 0; i < file.tenants_size(); ++i) {
      SLUICE_RETURN_IF_ERROR(CheckTenant(file, file.tenants(i), absl::StrCat("tenants[", i, "]")));
    }
    if (file.has_jwt()) SLUICE_RETURN_IF_ERROR(CheckJwt(file.jwt()));
    if (file.has_default_class()) {
      SLUICE_RETURN_IF_ERROR(CheckLimits(file.default_class(), "default_class"));
      for (size_t tier = 0; tier < kTiers.size(); ++tier) {
        // Tenants nobody counted beforehand cannot each be promised something.
        if (!TierOf(file.default_class().kv(), tier).floor().empty()) {
          return Error(absl::StrCat("default_class.kv.", kTiers[tier], ".floor"),
                       "is set; tenants that the file does not name have no floor");
        }
      }
    }
    SLUICE_RETURN_IF_ERROR(CheckPrefixes(file));
    return CheckFloors(file);
  }

 private:
  // `text` may stand only once among all of its `kind` in the file.
  absl::Status Unique(absl::string_view kind, const std::string& text, const std::string& path,
                      bool secret = false) {
    const auto [first, fresh] = seen_.emplace(absl::StrCat(kind, "\n", text), path);
    if (fresh) return absl::OkStatus();
    return Error(path, absl::StrCat(secret ? "" : absl::StrCat("\"", Escaped(text), "\" "),
                                    "is there twice: ", first->second, " has it too"));
  }

  absl::Status CheckNames(const google::protobuf::RepeatedPtrField<std::string>& names,
                          const std::string& path, absl::string_view kind) {
    if (names.size() > kNamesOfTenantMax)
      return Error(path, absl::StrCat("has ", names.size(), " entries; at most ", kNamesOfTenantMax,
                                      " are allowed"));
    for (int i = 0; i < names.size(); ++i) {
      const std::string item = absl::StrCat(path, "[", i, "]");
      if (names[i].empty() || names[i].size() > kNameBytesMax)
        return Error(item, absl::StrCat("has ", names[i].size(), " bytes; allowed are 1 to ",
                                        kNameBytesMax));
      SLUICE_RETURN_IF_ERROR(Unique(kind, names[i], item));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTenant(const v1::TenantsFile& file, const v1::TenantEntry& tenant,
                           const std::string& path) {
    const std::string wrong = WrongTenantId(tenant.id());
    if (!wrong.empty()) return Error(path + ".id", wrong);
    SLUICE_RETURN_IF_ERROR(Unique("id", tenant.id(), path + ".id"));
    if (tenant.key_hashes_size() > kNamesOfTenantMax)
      return Error(path + ".key_hashes",
                   absl::StrCat("has ", tenant.key_hashes_size(), " entries; at most ",
                                kNamesOfTenantMax, " are allowed"));
    for (int i = 0; i < tenant.key_hashes_size(); ++i) {
      const std::string item = absl::StrCat(path, ".key_hashes[", i, "]");
      // It may be a key that somebody put here: not shown.
      if (!IsDigest(tenant.key_hashes(i)))
        return Error(item,
                     "is no key hash: 64 digits 0-9a-f, as sluice tenants add-key makes them");
      SLUICE_RETURN_IF_ERROR(Unique("key", tenant.key_hashes(i), item, true));
    }
    if (tenant.key_hashes_size() > 0 && file.key_pepper_file().empty()) {
      return Error(path + ".key_hashes",
                   "needs key_pepper_file, the secret that hashes are made with");
    }
    SLUICE_RETURN_IF_ERROR(
        CheckNames(tenant.jwt_subjects(), path + ".jwt_subjects", "jwt_subject"));
    if (tenant.jwt_subjects_size() > 0 && !file.has_jwt())
      return Error(path + ".jwt_subjects", "needs jwt, the issuer of the tokens");
    SLUICE_RETURN_IF_ERROR(CheckNames(tenant.mtls_names(), path + ".mtls_names", "mtls_name"));
    if (!tenant.sharing_group().empty()) {
      const std::string group = WrongTenantId(tenant.sharing_group());
      if (!group.empty()) return Error(path + ".sharing_group", group);
    }
    return CheckLimits(tenant.limits(), path + ".limits");
  }

  absl::Status CheckLimits(const v1::TenantLimits& limits, const std::string& path) const {
    if (limits.has_request_burst() && !limits.has_requests_per_min())
      return Error(path + ".request_burst", "needs requests_per_min");
    if (limits.has_token_burst() && !limits.has_tokens_per_min())
      return Error(path + ".token_burst", "needs tokens_per_min");
    for (size_t tier = 0; tier < kTiers.size(); ++tier) {
      const v1::TenantKvShare& share = TierOf(limits.kv(), tier);
      const std::string group = absl::StrCat(path, ".kv.", kTiers[tier]);
      const auto floor = ParseKvAmount(share.floor().empty() ? "0" : share.floor());
      if (!floor.ok()) return Error(group + ".floor", floor.status().message());
      if (share.cap().empty()) continue;
      const auto cap = ParseKvAmount(share.cap());
      if (!cap.ok()) return Error(group + ".cap", cap.status().message());
      const bool above =
          floor->is_share == cap->is_share &&
          (floor->is_share ? floor->permyriad > cap->permyriad : floor->bytes > cap->bytes);
      if (above)
        return Error(group + ".floor",
                     absl::StrCat("is ", share.floor(), ", above the cap of ", share.cap()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckJwt(const v1::JwtIssuer& jwt) const {
    const std::pair<const char*, bool> needed[] = {{"jwks_file", jwt.jwks_file().empty()},
                                                   {"issuer", jwt.issuer().empty()},
                                                   {"audience", jwt.audience().empty()}};
    for (const auto& [name, missing] : needed) {
      if (missing)
        return Error(absl::StrCat("jwt.", name), "is missing; tokens cannot be checked without it");
    }
    return absl::OkStatus();
  }

  absl::Status CheckPrefixes(const v1::TenantsFile& file) {
    if (file.public_prefixes_size() > kPublicPrefixesMax)
      return Error("public_prefixes",
                   absl::StrCat("has ", file.public_prefixes_size(), " entries; at most ",
                                kPublicPrefixesMax, " are allowed"));
    for (int i = 0; i < file.public_prefixes_size(); ++i) {
      const std::string path = absl::StrCat("public_prefixes[", i, "]");
      const v1::PublicPrefix& prefix = file.public_prefixes(i);
      if (!IsDigest(prefix.digest()))
        return Error(path + ".digest",
                     absl::StrCat("is \"", Escaped(prefix.digest()),
                                  "\"; it must be 64 digits 0-9a-f, as sluice tenants prefix "
                                  "prints them"));
      if (!prefix.has_tokens()) return Error(path + ".tokens", "is missing");
      SLUICE_RETURN_IF_ERROR(Unique("digest", prefix.digest(), path + ".digest"));
    }
    return absl::OkStatus();
  }

  // All floors of a tier together fit into it. Shares alone can be summed without knowing the
  // tier's size.
  absl::Status CheckFloors(const v1::TenantsFile& file) const {
    for (size_t tier = 0; tier < kTiers.size(); ++tier) {
      uint64_t capacity = 0;
      const std::string& text = TierOf(file.kv_capacity(), tier);
      if (!text.empty()) {
        const auto amount = ParseKvAmount(text);
        const std::string path = absl::StrCat("kv_capacity.", kTiers[tier]);
        if (!amount.ok()) return Error(path, amount.status().message());
        if (amount->is_share || amount->bytes == 0)
          return Error(path, absl::StrCat("is ", text, "; it must be bytes, more than 0"));
        capacity = amount->bytes;
      }
      uint64_t permyriad = 0;
      double bytes = 0;  // may exceed 64 bits
      for (int i = 0; i < file.tenants_size(); ++i) {
        const std::string& floor = TierOf(file.tenants(i).limits().kv(), tier).floor();
        if (floor.empty()) continue;
        const KvAmount amount = *ParseKvAmount(floor);  // checked
        if (amount.is_share) permyriad += amount.permyriad;
        bytes += static_cast<double>(amount.Of(capacity));
        const std::string path =
            absl::StrCat("tenants[", i, "].limits.kv.", kTiers[tier], ".floor");
        if (permyriad > kWhole)
          return Error(path, absl::StrCat("brings the floors of this tier to ",
                                          static_cast<double>(permyriad) / 100,
                                          "% of it; together they may be 100%"));
        if (capacity > 0 && bytes > static_cast<double>(capacity))
          return Error(path, absl::StrCat("brings the floors of this tier to ",
                                          absl::StrFormat("%.0f", bytes), " bytes; kv_capacity.",
                                          kTiers[tier], " is ", capacity));
      }
    }
    return absl::OkStatus();
  }

  const std::string source_;
  const YamlPlaces& places_;
  absl::flat_hash_map<std::string, std::string> seen_;  // to the path of its first place
};

}  // namespace

uint64_t KvAmount::Of(uint64_t capacity_bytes) const {
  if (!is_share) return bytes;
  return capacity_bytes / kWhole * permyriad + capacity_bytes % kWhole * permyriad / kWhole;
}

absl::StatusOr<KvAmount> ParseKvAmount(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("is \"", Escaped(text), "\"; write bytes such as 512MiB, 80GiB or 2TiB, or a ",
                   "share from 0% to 100% such as 12.5%"));
  absl::string_view number = text;
  // Digits and a point only: no sign, no exponent, no "inf".
  const auto plain = [](absl::string_view digits) {
    return !digits.empty() && digits.size() <= 20 &&
           digits.find_first_not_of("0123456789.") == absl::string_view::npos;
  };
  KvAmount amount;
  if (absl::ConsumeSuffix(&number, "%")) {
    double percent = 0;
    if (!plain(number) || !absl::SimpleAtod(number, &percent) || percent > 100) return wrong;
    amount.is_share = true;
    amount.permyriad = static_cast<uint32_t>(percent * 100 + 0.5);
    return amount;
  }
  uint64_t unit = 1;
  for (const auto& [suffix, shift] : {std::pair<const char*, int>{"KiB", 10},
                                      {"MiB", 20},
                                      {"GiB", 30},
                                      {"TiB", 40},
                                      {"PiB", 50}}) {
    if (absl::ConsumeSuffix(&number, suffix)) unit = uint64_t{1} << shift;
  }
  double value = 0;
  if (!plain(number) || !absl::SimpleAtod(number, &value)) return wrong;
  if (unit == 1 && number.find('.') != absl::string_view::npos) return wrong;
  const double bytes = value * static_cast<double>(unit);
  if (bytes > 0x1.0p62) return wrong;
  amount.bytes = static_cast<uint64_t>(bytes);
  return amount;
}

std::string PathBeside(const std::string& tenants_file, const std::string& file) {
  return (std::filesystem::path(tenants_file).parent_path() / file).string();
}

std::string WrongTenantId(absl::string_view id) {
  const auto allowed = [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return absl::ascii_isdigit(u) || absl::ascii_islower(u) || c == '.' || c == '_' || c == '-';
  };
  const bool begins = !id.empty() && (absl::ascii_islower(static_cast<unsigned char>(id[0])) ||
                                      absl::ascii_isdigit(static_cast<unsigned char>(id[0])));
  if (!begins || id.size() > kTenantIdBytesMax || !std::all_of(id.begin(), id.end(), allowed)) {
    return absl::StrCat("is \"", Escaped(id), "\"; it must be 1 to ", kTenantIdBytesMax,
                        " of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit");
  }
  for (absl::string_view reserved : kReservedIds) {
    if (id == reserved) return absl::StrCat("is \"", id, "\", a name that metrics use");
  }
  return "";
}

absl::StatusOr<v1::TenantsFile> LoadTenants(absl::string_view yaml, absl::string_view source,
                                            YamlPlaces* places) {
  if (yaml.size() > kTenantsFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(source, " has ", yaml.size(), " bytes; at most ",
                                                   kTenantsFileBytesMax, " are allowed"));
  }
  v1::TenantsFile file;
  YamlPlaces own;
  if (places == nullptr) places = &own;
  SLUICE_RETURN_IF_ERROR(MergeYaml(yaml, source, &file, places));
  const bool has_jwt = file.has_jwt();
  const bool has_default_class = file.has_default_class();
  Checker checker(source, *places);
  SLUICE_RETURN_IF_ERROR(Complete(&file, [&](const std::string& path, const std::string& what) {
    return checker.Error(path, what);
  }));
  if (!has_jwt) file.clear_jwt();
  if (!has_default_class) file.clear_default_class();
  SLUICE_RETURN_IF_ERROR(checker.Check(file));
  return file;
}

}  // namespace sluice::config
