#include "base/certificates/service_identity.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sluice {
namespace {

constexpr size_t kNameBytesMax = 128;
constexpr size_t kShownBytesMax = 200;

bool IsName(absl::string_view text) {
  const auto fits = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kNameBytesMax &&
         std::all_of(text.begin(), text.end(), fits);
}

std::string Shown(absl::string_view text) {
  return absl::CHexEscape(text.substr(0, kShownBytesMax));
}

}  // namespace

absl::string_view ServiceRoleName(ServiceRole role) {
  switch (role) {
    case ServiceRole::kRouter:
      return "router";
    case ServiceRole::kPrefill:
      return "prefill";
    case ServiceRole::kDecode:
      return "decode";
    case ServiceRole::kCacheManager:
      return "cache-manager";
    case ServiceRole::kOperator:
      return "operator";
  }
  return "unknown";
}

std::string ServiceRoles::Describe() const {
  std::vector<std::string> uris;
  for (const ServiceRole role : kServiceRoles) {
    if (Contains(role)) uris.push_back(absl::StrCat("sluice://", ServiceRoleName(role), "/..."));
  }
  return absl::StrJoin(uris, " or ");
}

std::string ServiceIdentity::ToUri() const {
  return absl::StrCat("sluice://", ServiceRoleName(role), "/", name);
}

absl::StatusOr<ServiceIdentity> ServiceIdentity::FromUri(absl::string_view uri) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("\"", Shown(uri),
                   "\" names no service; expected sluice://ROLE/NAME or "
                   "spiffe://TRUST-DOMAIN/sluice/ROLE/NAME with "
                   "a role of router, prefill, decode, cache-manager or operator"));
  absl::string_view path = uri;
  if (absl::ConsumePrefix(&path, "spiffe://")) {
    const size_t slash = path.find('/');
    if (slash == 0 || slash == absl::string_view::npos) return bad;
    path.remove_prefix(slash);
    if (!absl::ConsumePrefix(&path, "/sluice/")) return bad;
  } else if (!absl::ConsumePrefix(&path, "sluice://")) {
    return bad;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  if (parts.size() != 2 || !IsName(parts[1])) return bad;
  for (const ServiceRole role : kServiceRoles) {
    if (parts[0] == ServiceRoleName(role)) return ServiceIdentity{role, std::string(parts[1])};
  }
  return bad;
}

absl::StatusOr<ServiceIdentity> ServiceIdentity::FromUris(const std::vector<std::string>& uris) {
  if (uris.size() == 1) return FromUri(uris[0]);
  const auto shown = [](std::string* out, const std::string& uri) { out->append(Shown(uri)); };
  return absl::InvalidArgumentError(absl::StrCat("a certificate with ", uris.size(), " URIs [",
                                                 absl::StrJoin(uris, ", ", shown),
                                                 "]; expected exactly one, sluice://ROLE/NAME"));
}

CertificateFiles CertificateFilesIn(absl::string_view folder) {
  return {absl::StrCat(folder, "/tls.crt"), absl::StrCat(folder, "/tls.key"),
          absl::StrCat(folder, "/ca.crt")};
}

}  // namespace sluice
