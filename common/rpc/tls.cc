#include "rpc/tls.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/certificates/certificate_check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "rpc/library.h"

namespace sluice::rpc {
namespace {

namespace tls = grpc::experimental;

struct MethodRule {
  absl::string_view prefix;  // of the method
  ServiceRoles callers;
};

constexpr ServiceRoles kEverybody = {ServiceRole::kRouter, ServiceRole::kPrefill,
                                     ServiceRole::kDecode, ServiceRole::kCacheManager,
                                     ServiceRole::kOperator};
// Workers and manager answer to routers; a worker reaches another only through a transport.
constexpr MethodRule kMethodRules[] = {
    {"/sluice.v1.Prefill/", {ServiceRole::kRouter}},
    {"/sluice.v1.Decode/", {ServiceRole::kRouter}},
    {"/sluice.v1.CacheManager/Attach", {ServiceRole::kPrefill, ServiceRole::kDecode}},
    {"/sluice.v1.CacheManager/WatchWorkers", {ServiceRole::kRouter, ServiceRole::kOperator}},
    {"/sluice.v1.CacheManager/Lookup", {ServiceRole::kRouter}},
    {"/sluice.v1.RateLeases/", {ServiceRole::kRouter}},
    {"/sluice.v1.Admin/", {ServiceRole::kOperator}},
    {"/grpc.reflection.v1alpha.ServerReflection/", {ServiceRole::kOperator}},
    {"/grpc.health.v1.Health/", kEverybody},
};

absl::StatusOr<ServiceIdentity> CallerOf(const grpc::AuthContext& context) {
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return ServiceIdentity::FromUris(uris);
}

// Of channels: who answered.
class ServerCheck final : public tls::ExternalCertificateVerifier {
 public:
  explicit ServerCheck(ServiceRoles expected) : expected_(expected) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) {
      uris.emplace_back(uri.data(), uri.size());
    }
    const absl::StatusOr<ServiceIdentity> server = ServiceIdentity::FromUris(uris);
    if (!server.ok()) {
      *status =
          grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(server.status().message()));
    } else if (!expected_.Contains(server->role)) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                             absl::StrCat("the server presented ", server->ToUri(), "; expected ",
                                          expected_.Describe()));
    }
    return true;  // done
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const ServiceRoles expected_;
};

// Whole seconds, as gRPC's provider wants them.
unsigned SecondsOf(absl::Duration refresh) {
  return static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(refresh)));
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> CredentialsForClients(const CertificateFiles& files,
                                                               absl::Duration refresh) {
  KeepGrpcRunning();
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.authorities, SecondsOf(refresh)));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

ServiceRoles CallersOf(absl::string_view method) {
  for (const MethodRule& rule : kMethodRules) {
    if (absl::StartsWith(method, rule.prefix)) return rule.callers;
  }
  return {};
}

// Of servers: runs before the handler of every call, on gRPC's thread.
class CallerCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit CallerCheck(std::shared_ptr<const Tls> owner) : owner_(std::move(owner)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    const auto path = metadata.find(":path");
    const absl::string_view method =
        path == metadata.end() ? absl::string_view()
                               : absl::string_view(path->second.data(), path->second.size());
    const ServiceRoles callers = CallersOf(method);
    const absl::StatusOr<ServiceIdentity> caller = CallerOf(*context);
    if (caller.ok() && callers.Contains(caller->role)) return grpc::Status::OK;
    const std::string presented =
        caller.ok() ? caller->ToUri() : std::string(caller.status().message());
    const std::string why = absl::StrCat(presented, " may not call ", method, "; expected ",
                                         callers.empty() ? "nobody" : callers.Describe());
    const uint64_t before = owner_->refused_calls_.fetch_add(1, std::memory_order_relaxed);
    if (std::has_single_bit(before + 1)) {
      SLUICE_LOG(kWarning) << "grpc: refused a call" << Field("why", why)
                           << Field("so_far", before + 1);
    }
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, why);
  }

 private:
  const std::shared_ptr<const Tls> owner_;
};

absl::StatusOr<std::shared_ptr<const Tls>> Tls::Load(const CertificateFiles& files,
                                                     absl::Duration refresh) {
  SLUICE_ASSIGN_OR_RETURN(const CertificateFacts facts, CheckCertificateFiles(files));
  KeepGrpcRunning();
  std::shared_ptr<Tls> made(new Tls());
  made->identity_ = facts.identity;
  made->provider_ = std::make_shared<tls::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.authorities, SecondsOf(refresh));
  return std::shared_ptr<const Tls>(std::move(made));
}

Tls::~Tls() = default;

std::shared_ptr<grpc::ServerCredentials> Tls::ForServer() const {
  tls::TlsServerCredentialsOptions options(provider_);
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = tls::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<CallerCheck>(shared_from_this()));
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> Tls::ForChannel(ServiceRoles servers) const {
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ServerCheck>(servers));
  // Peers move between addresses; who they are is their role.
  options.set_check_call_host(false);
  return tls::TlsCredentials(options);
}

}  // namespace sluice::rpc
