// sluice certs: a trial authority and certificates of every role.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/certificates/service_identity.h"
#include "base/certificates/trial_authority.h"
#include "base/status_macros.h"
#include "services/cli/child_process.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

struct CertsFlags {
  std::string out;
  std::string name = "trial";
  std::vector<std::string> hosts;
  uint32_t days = 30;
  bool force = false;
};

// Certificates that run somewhere are not replaced by accident: the old authority is gone with
// them.
absl::Status CheckFolder(const CertsFlags& flags) {
  std::error_code error;
  if (flags.force || !std::filesystem::exists(absl::StrCat(flags.out, "/ca.crt"), error))
    return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      flags.out,
      " holds certificates already; choose another folder, or --force to replace all of them"));
}

absl::Status Certs(const CertsFlags& flags) {
  SLUICE_RETURN_IF_ERROR(CheckFolder(flags));
  CertificateOptions options;
  options.hosts = {"localhost", "127.0.0.1", "::1"};
  options.hosts.insert(options.hosts.end(), flags.hosts.begin(), flags.hosts.end());
  options.valid_for = absl::Hours(24) * flags.days;
  SLUICE_RETURN_IF_ERROR(WriteTrialCertificates(flags.out, flags.name, options));
  for (const ServiceRole role : kServiceRoles) {
    std::printf("%s/%s/tls.crt  %s\n", flags.out.c_str(),
                std::string(ServiceRoleName(role)).c_str(),
                ServiceIdentity{role, flags.name}.ToUri().c_str());
  }
  std::fprintf(
      stderr,
      "Valid for %u days, for trials: the authority's key was not kept, so more certificates need "
      "a new folder.\n"
      "  one host     %s/sluice up --tls %s\n"
      "  a service    --set service.tls.cert_file=%s/ROLE/tls.crt --set "
      "service.tls.key_file=%s/ROLE/tls.key \\\n"
      "               --set service.tls.ca_file=%s/ROLE/ca.crt\n"
      "  Kubernetes   for ROLE in router prefill decode cache-manager; do\n"
      "                 kubectl create secret generic sluice-tls-$ROLE --from-file=%s/$ROLE\n"
      "               done; then helm ... --set tls.secretPrefix=sluice-tls\n",
      flags.days, BinaryFolder().c_str(), flags.out.c_str(), flags.out.c_str(), flags.out.c_str(),
      flags.out.c_str(), flags.out.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddCertsCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<CertsFlags>();
  CLI::App* certs = app.add_subcommand(
      "certs", "Make a trial authority and a certificate for each role, for mTLS between services");
  certs
      ->add_option("--out", flags->out,
                   "Folder to write: ca.crt, and ROLE/tls.crt, ROLE/tls.key, ROLE/ca.crt")
      ->required();
  certs->add_option("--name", flags->name, "NAME of the identities sluice://ROLE/NAME")
      ->capture_default_str();
  certs->add_option("--host", flags->hosts,
                    "Further host name or address in the certificates; may be repeated");
  certs->add_option("--days", flags->days, "How long they are valid")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str();
  certs->add_flag("--force", flags->force, "Replace what is there");
  certs->callback([flags, run] { *run = [flags] { return Certs(*flags); }; });
}

}  // namespace sluice::cli
