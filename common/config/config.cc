#include "config/config.h"

#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "config/yaml.h"

namespace sluice::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr FieldRule kRules[] = {
    {"TlsConfig", "cert_file"},
    {"TlsConfig", "key_file"},
    {"TlsConfig", "ca_file"},
    {"ServiceConfig", "name"},
    {"ServiceConfig", "listen"},
    {"ServiceConfig", "metrics_listen"},
    {"ServiceConfig", "admin_listen"},
    {"ServiceConfig", "log_level", "info", 0, 0, "debug|info|warning|error"},
    {"ServiceConfig", "log_json"},
    {"ServiceConfig", "advertise"},
    {"ServiceConfig", "drain_s", "30", 0, 3600},
    {"ServiceConfig", "ready_file"},
    {"ServiceConfig", "insecure_listen_anywhere"},
    {"ServiceConfig", "tls"},
    {"ServiceConfig", "insecure_metrics_anywhere"},
    {"ModelSource", "path"},
    {"ModelSource", "served_name"},
    {"EngineConfig", "kernels", "auto", 0, 0, "auto|reference|avx2|avx512"},
    {"EngineConfig", "threads", "", 1, 256},
    {"EngineConfig", "kv_format", "auto", 0, 0,
     "auto|f32|bf16|gqa_fp8|gqa_fp8c|gqa_int8c|mla_fp8|mla_fp8_656"},
    {"EngineConfig", "kv_centre"},
    {"EngineConfig", "exactness", "strict", 0, 0, "strict|fast"},
    {"EngineConfig", "activations", "int16", 0, 0, "int8|int16"},
    {"EngineConfig", "page_tokens", "", 16, 256},
    {"EngineConfig", "kv_pool_mib", "1024", 1, 1048576},
    {"EngineConfig", "step_tokens_max", "512", 1, 65536},
    {"EngineConfig", "batch_max", "64", 1, 1024},
    {"EngineConfig", "itl_target_ms", "50", 1, 10000},
    {"EngineConfig", "waiting_max", "256", 1, 65536},
    {"EngineConfig", "layer_group", "0", 0, 1024},
    {"EngineConfig", "prefix_digests", "sampled", 0, 0, "off|sampled|full"},
    {"EngineConfig", "kv_zero_on_free", "tenant_change", 0, 0, "tenant_change|always"},
    {"TransportConfig", "backends", "", 0, 0, "ucx-shm|ucx-rdma|ucx-tcp|tls|loopback"},
    {"TransportConfig", "net_devices", "lo"},
    {"TransportConfig", "trusted_network"},
    {"TransportConfig", "listen"},
    {"TransportConfig", "advertise"},
    {"HandoffConfig", "digests", "full", 0, 0, "off|sampled|full"},
    {"HandoffConfig", "lease_ms", "10000", 100, 600000},
    {"HandoffConfig", "transfers_max", "256", 1, 65536},
    {"HandoffConfig", "drift_permille", "10", 0, 500},
    {"WorkerConfig", "service"},
    {"WorkerConfig", "model"},
    {"WorkerConfig", "engine"},
    {"WorkerConfig", "transport"},
    {"WorkerConfig", "handoff"},
    {"WorkerConfig", "role", "", 0, 0, "prefill|decode|both"},
    {"WorkerConfig", "cache_manager"},
    {"WorkerConfig", "credits_max", "8", 1, 1024},
    {"WorkerConfig", "claim_key_file"},
    {"RouterConfig", "service"},
    {"RouterConfig", "http_listen", "127.0.0.1:8080"},
    {"RouterConfig", "cache_manager"},
    {"RouterConfig", "workers"},
    {"RouterConfig", "tokenizer"},
    {"RouterConfig", "split", "auto", 0, 0, "auto|always|never"},
    {"RouterConfig", "local_tokens_max", "256", 0, 1000000},
    {"RouterConfig", "default_deadline_s", "600", 1, 86400},
    {"RouterConfig", "slow_reader_s", "20", 1, 600},
    {"RouterConfig", "queue_max", "1024", 1, 1000000},
    {"RouterConfig", "queue_wait_s", "30", 1, 3600},
    {"RouterConfig", "attempts_max", "3", 1, 10},
    {"RouterConfig", "migrations_max", "3", 0, 10},
    {"RouterConfig", "cache_secret_file"},
    {"RouterConfig", "no_auth"},
    {"RouterConfig", "lookup_ms", "20", 1, 1000},
    {"RouterConfig", "body_kib_max", "4096", 1, 65536},
    {"RouterConfig", "insecure_clients_anywhere"},
    {"RouterConfig", "tenants_file"},
    {"RouterConfig", "claim_key_file"},
    {"RouterConfig", "client_tls"},
    {"RouterConfig", "usage_file"},
    {"TenantsFile", "key_pepper_file"},
    {"TenantsFile", "jwt"},
    {"TenantsFile", "default_class"},
    {"TenantsFile", "tenants"},
    {"TenantsFile", "public_prefixes"},
    {"TenantsFile", "kv_capacity"},
    {"JwtIssuer", "jwks_file"},
    {"JwtIssuer", "issuer"},
    {"JwtIssuer", "audience"},
    {"JwtIssuer", "tenant_claim", "sub"},
    {"TenantEntry", "id"},
    {"TenantEntry", "key_hashes"},
    {"TenantEntry", "jwt_subjects"},
    {"TenantEntry", "mtls_names"},
    {"TenantEntry", "trusted_proxy"},
    {"TenantEntry", "sharing_group"},
    {"TenantEntry", "limits"},
    {"TenantLimits", "weight", "1", 1, 1000000},
    {"TenantLimits", "priority", "50", 0, 100},
    {"TenantLimits", "requests_per_min", "", 1, 1000000000},
    {"TenantLimits", "request_burst", "", 1, 1000000000},
    {"TenantLimits", "tokens_per_min", "", 1, 1000000000000},
    {"TenantLimits", "token_burst", "", 1, 1000000000000},
    {"TenantLimits", "concurrency", "", 1, 1000000},
    {"TenantLimits", "kv"},
    {"TenantKv", "device"},
    {"TenantKv", "host"},
    {"TenantKv", "nvme"},
    {"TenantKvShare", "floor"},
    {"TenantKvShare", "cap"},
    {"KvCapacity", "device"},
    {"KvCapacity", "host"},
    {"KvCapacity", "nvme"},
    {"PublicPrefix", "name"},
    {"PublicPrefix", "digest"},
    {"PublicPrefix", "tokens", "", 1, 10000000},
    {"CacheManagerConfig", "service"},
    {"CacheManagerConfig", "heartbeat_ms", "500", 50, 60000},
    {"CacheManagerConfig", "blocks_max", "10000000", 1000, 1000000000},
    {"CacheManagerConfig", "tenants_file"},
};

std::string CheckText(const FieldRule& rule, const std::string& value) {
  if (*rule.allowed == '\0') return "";
  for (absl::string_view choice : absl::StrSplit(rule.allowed, '|')) {
    if (choice == value) return "";
  }
  return absl::StrCat("is \"", value, "\"; it must be one of ",
                      absl::StrReplaceAll(rule.allowed, {{"|", ", "}}));
}

std::string CheckNumber(const FieldRule& rule, uint64_t value) {
  if (value >= rule.min && value <= rule.max) return "";
  return absl::StrCat("is ", value, "; it must be in ", rule.min, "..", rule.max);
}

const FieldRule* RuleOf(const FieldDescriptor& field) {
  for (const FieldRule& rule : kRules) {
    if (field.containing_type()->name() == rule.message && field.name() == rule.field) return &rule;
  }
  return nullptr;
}

bool IsSet(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  return field.is_repeated() ? reflection.FieldSize(message, &field) > 0
                             : reflection.HasField(message, &field);
}

// What is wrong with the values of one field that is set; empty when nothing is.
std::string Check(const FieldRule& rule, const FieldDescriptor& field, const Message& message) {
  const auto& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return CheckNumber(rule, reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return CheckNumber(rule, reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      break;
    default:
      return "";
  }
  if (!field.is_repeated()) return CheckText(rule, reflection.GetString(message, &field));
  std::string wrong;
  for (int i = 0; i < reflection.FieldSize(message, &field) && wrong.empty(); ++i)
    wrong = CheckText(rule, reflection.GetRepeatedString(message, &field, i));
  return wrong;
}

absl::Status CompleteField(const FieldDescriptor& field, const std::string& path, Message* message,
                           ErrorMaker error) {
  const FieldRule* rule = RuleOf(field);
  if (rule == nullptr)
    return absl::InternalError(absl::StrCat("config: no rule for ", field.full_name()));
  if (!IsSet(*message, field) && *rule->fallback != '\0') {
    SLUICE_RETURN_IF_ERROR(MergeOverride(absl::StrCat(field.name(), "=", rule->fallback), message));
  }
  if (!IsSet(*message, field)) return absl::OkStatus();
  const std::string wrong = Check(*rule, field, *message);
  return wrong.empty() ? absl::OkStatus() : error(path, wrong);
}

absl::Status CompleteAll(const std::string& prefix, Message* message, ErrorMaker error) {
  const auto* descriptor = message->GetDescriptor();
  const auto& reflection = *message->GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor& field = *descriptor->field(i);
    const std::string path = prefix + field.name();
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      SLUICE_RETURN_IF_ERROR(CompleteField(field, path, message, error));
    } else if (field.is_repeated()) {
      for (int j = 0; j < reflection.FieldSize(*message, &field); ++j) {
        SLUICE_RETURN_IF_ERROR(CompleteAll(absl::StrCat(path, "[", j, "]."),
                                           reflection.MutableRepeatedMessage(message, &field, j),
                                           error));
      }
    } else {
      SLUICE_RETURN_IF_ERROR(
          CompleteAll(path + ".", reflection.MutableMessage(message, &field), error));
    }
  }
  return absl::OkStatus();
}

absl::Status Read(const Sources& sources, Message* message) {
  if (!sources.file.empty()) {
    std::ifstream in(sources.file);
    std::stringstream text;
    if (!in || !(text << in.rdbuf())) {
      return absl::NotFoundError(absl::StrCat("cannot read the configuration file ", sources.file));
    }
    SLUICE_RETURN_IF_ERROR(MergeYaml(text.str(), sources.file, message));
  }
  for (const std::string& assignment : sources.overrides)
    SLUICE_RETURN_IF_ERROR(MergeOverride(assignment, message));
  return Complete(message, [](const std::string& path, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(path, " ", what));
  });
}

absl::Status CheckAddress(absl::string_view path, const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (address.empty() ||
      (colon != std::string::npos && colon > 0 &&
       absl::SimpleAtoi(absl::string_view(address).substr(colon + 1), &port) && port <= 65535)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is \"", address, "\"; it must be host:port, for example 127.0.0.1:0"));
}

void SetIfEmpty(std::string* text, absl::string_view value) {
  if (text->empty()) *text = std::string(value);
}

absl::Status CheckTls(const v1::TlsConfig& tls, absl::string_view path) {
  const std::pair<absl::string_view, bool> files[] = {{"cert_file", tls.cert_file().empty()},
                                                      {"key_file", tls.key_file().empty()},
                                                      {"ca_file", tls.ca_file().empty()}};
  for (const auto& [name, missing] : files) {
    if (missing != files[0].second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".", missing ? name : files[0].first,
                       " is missing; set cert_file, key_file and ca_file, or none of them"));
    }
  }
  return absl::OkStatus();
}

// Names and addresses that depend on the service.
absl::Status CompleteService(absl::string_view name, absl::string_view listen,
                             absl::string_view metrics, absl::string_view admin,
                             v1::ServiceConfig* service) {
  SetIfEmpty(service->mutable_name(), name);
  SetIfEmpty(service->mutable_listen(), listen);
  SetIfEmpty(service->mutable_metrics_listen(), metrics);
  SetIfEmpty(service->mutable_admin_listen(), admin);
  SLUICE_RETURN_IF_ERROR(CheckAddress("service.listen", service->listen()));
  SLUICE_RETURN_IF_ERROR(CheckAddress("service.metrics_listen", service->metrics_listen()));
  SLUICE_RETURN_IF_ERROR(CheckAddress("service.admin_listen", service->admin_listen()));
  SLUICE_RETURN_IF_ERROR(CheckTls(service->tls(), "service.tls"));
  return CheckAddress("service.advertise", service->advertise());
}

constexpr char kAnyPort[] = "127.0.0.1:0";

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Pages take the way that the service's certificates and addresses suggest.
void CompleteTransport(const v1::ServiceConfig& service, v1::TransportConfig* transport) {
  if (transport->backends().empty())
    transport->add_backends(service.tls().cert_file().empty() ? "ucx-shm" : "tls");
  if (transport->listen().empty()) {
    const std::string host = HostOf(service.listen());
    transport->set_listen(absl::StrCat(host == "localhost" ? "127.0.0.1" : host, ":0"));
  }
  if (transport->advertise().empty() && !service.advertise().empty()) {
    transport->set_advertise(HostOf(service.advertise()));
  }
}

absl::Status CheckTransport(const v1::TransportConfig& transport) {
  for (const std::string& backend : transport.backends()) {
    const bool by_network = backend == "ucx-tcp" || backend == "ucx-rdma";
    if (by_network && !transport.trusted_network()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "transport.backends names ", backend, ", which accepts anybody's messages; set ",
          "transport.trusted_network: true if only your own machines reach this network, or remove "
          "it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const FieldRule> AllRules() { return kRules; }

std::string NameOfModel(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  path.remove_prefix(path.rfind('/') + 1);
  for (absl::string_view extension : {".gguf", ".safetensors"}) {
    if (path.size() > extension.size() &&
        path.substr(path.size() - extension.size()) == extension) {
      path.remove_suffix(extension.size());
    }
  }
  return std::string(path);
}

absl::Status Complete(google::protobuf::Message* message, ErrorMaker error) {
  return CompleteAll("", message, error);
}

absl::StatusOr<v1::WorkerConfig> LoadWorkerConfig(const Sources& sources, absl::string_view role) {
  v1::WorkerConfig config;
  SLUICE_RETURN_IF_ERROR(Read(sources, &config));
  SLUICE_RETURN_IF_ERROR(
      CompleteService(role, kAnyPort, kAnyPort, kAnyPort, config.mutable_service()));
  SetIfEmpty(config.mutable_role(), role);
  if (config.model().path().empty()) {
    return absl::InvalidArgumentError(
        "model.path is missing; give a GGUF file, a model folder or \"toy\"");
  }
  SetIfEmpty(config.mutable_model()->mutable_served_name(), NameOfModel(config.model().path()));
  if (config.engine().page_tokens() % 16 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "engine.page_tokens is ", config.engine().page_tokens(), "; it must be a multiple of 16"));
  }
  CompleteTransport(config.service(), config.mutable_transport());
  SLUICE_RETURN_IF_ERROR(CheckTransport(config.transport()));
  SLUICE_RETURN_IF_ERROR(CheckAddress("cache_manager", config.cache_manager()));
  return config;
}

absl::StatusOr<v1::RouterConfig> LoadRouterConfig(const Sources& sources) {
  v1::RouterConfig config;
  SLUICE_RETURN_IF_ERROR(Read(sources, &config));
  SLUICE_RETURN_IF_ERROR(CompleteService("router", "127.0.0.1:8081", "127.0.0.1:8082",
                                         "127.0.0.1:8083", config.mutable_service()));
  SLUICE_RETURN_IF_ERROR(CheckAddress("http_listen", config.http_listen()));
  SLUICE_RETURN_IF_ERROR(CheckAddress("cache_manager", config.cache_manager()));
  for (const std::string& worker : config.workers())
    SLUICE_RETURN_IF_ERROR(CheckAddress("workers", worker));
  if (config.cache_manager().empty() && config.workers().empty()) {
    return absl::InvalidArgumentError(
        "neither cache_manager nor workers is set; the router needs one to find its workers");
  }
  if (config.no_auth() &&
      (config.service().insecure_listen_anywhere() || config.insecure_clients_anywhere())) {
    return absl::InvalidArgumentError(
        absl::StrCat("no_auth and ",
                     config.insecure_clients_anywhere() ? "insecure_clients_anywhere"
                                                        : "service.insecure_listen_anywhere",
                     " are both true: everybody could use this router; drop one of them"));
  }
  SLUICE_RETURN_IF_ERROR(CheckTls(config.client_tls(), "client_tls"));
  if (config.no_auth() && !config.tenants_file().empty()) {
    return absl::InvalidArgumentError(
        "no_auth and tenants_file are both set: with no_auth nobody is asked who they are; drop "
        "one of them");
  }
  if (!config.tenants_file().empty() && config.claim_key_file().empty() &&
      config.service().tls().cert_file().empty()) {
    return absl::InvalidArgumentError(
        "tenants_file needs claim_key_file (the same here and on the workers) or service.tls: "
        "workers would not believe this router whose requests it brings");
  }
  return config;
}

absl::StatusOr<v1::CacheManagerConfig> LoadCacheManagerConfig(const Sources& sources) {
  v1::CacheManagerConfig config;
  SLUICE_RETURN_IF_ERROR(Read(sources, &config));
  SLUICE_RETURN_IF_ERROR(
      CompleteService("cache-manager", kAnyPort, kAnyPort, kAnyPort, config.mutable_service()));
  return config;
}

}  // namespace sluice::config
