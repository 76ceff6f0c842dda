// sluice up: a whole cluster on loopback.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/certificates/service_identity.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "config/config.h"
#include "identity/api_key.h"
#include "services/cli/child_process.h"
#include "services/cli/command.h"
#include "services/cli/state_folder.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(120);

struct UpFlags {
  bool demo = false;
  bool detach = false;
  std::string model;
  std::string prefill_model;  // empty: model
  std::string decode_model;   // empty: model
  uint32_t prefill = 1;
  uint32_t decode = 1;
  uint32_t routers = 1;
  std::string split = "auto";
  std::string kv = "auto";
  std::string transport;  // empty: what suits the certificates
  std::string tls;        // folder of `sluice certs`
  std::string tenants;    // file; empty: no authentication
  std::string endpoints;
  uint32_t threads = 0;
  uint32_t kv_pool_mib = 256;
};

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary);
  file << text << "\n";
  file.close();
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!file || error) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

// The running cluster; stops what it started unless it was released.
class Cluster {
 public:
  Cluster(const UpFlags& flags, const Clock& clock) : flags_(flags), clock_(clock) {}
  ~Cluster() { Stop(); }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  absl::Status Start() {
    SLUICE_RETURN_IF_ERROR(MakeFolder());
    Plan manager{"cache-manager", "sluice-cache-manager", {}};
    if (!flags_.tenants.empty())
      manager.settings.push_back(absl::StrCat("tenants_file=", flags_.tenants));
    SLUICE_RETURN_IF_ERROR(StartGroup({std::move(manager)}, &manager_));
    SLUICE_RETURN_IF_ERROR(StartGroup(WorkerPlans(), &workers_));
    SLUICE_RETURN_IF_ERROR(StartGroup(RouterPlans(), &routers_));
    for (const ReadyInfo& router : routers_) {
      SLUICE_RETURN_IF_ERROR(WaitHttpReady(router.metrics, clock_, kStartTimeout));
    }
    return absl::OkStatus();
  }

  // Routers first, so that streams end before the workers they need.
  void Stop() {
    for (auto* group : {&routers_, &workers_, &manager_}) {
      std::vector<pid_t> pids;
      for (const ReadyInfo& info : *group) pids.push_back(info.pid);
      StopProcesses(pids, clock_, kStopGrace);
      group->clear();
    }
    std::vector<pid_t> rest;  // started, but never ready
    for (const ChildProcess& child : children_) rest.push_back(child.pid);
    StopProcesses(rest, clock_, kStopGrace);
    children_.clear();
  }
  // Tells, once each, of services that ended by themselves. They stay to be reaped by Stop().
  void ReportEnded() {
    for (const ChildProcess& child : children_) {
      siginfo_t info{};
      const bool ended =
          waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid != 0;
      if (!ended || !reported_.insert(child.pid).second) continue;
      std::fprintf(stderr, "%s (pid %d) %s %d; the others go on without it. Its log: %s\n",
                   child.name.c_str(), child.pid,
                   info.si_code == CLD_EXITED ? "ended with exit code" : "was ended by signal",
                   info.si_status, child.log_path.c_str());
    }
  }
  void RemoveFolder() const { folder_.Remove(); }
  void Release() {
    routers_.clear();
    workers_.clear();
    manager_.clear();
    children_.clear();
  }

  boost::json::object Endpoints() const {
    namespace json = boost::json;
    json::array routers, router_pids, prefill, prefill_pids, decode, decode_pids, router_metrics;
    for (const ReadyInfo& info : routers_) {
      routers.push_back({{"http", info.http}, {"grpc", absl::StrCat("grpc://", info.grpc)}});
      router_pids.push_back(info.pid);
      router_metrics.push_back(json::value(info.metrics));
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      const bool is_prefill = i < flags_.prefill;
      (is_prefill ? prefill : decode).push_back(json::value(workers_[i].metrics));
      (is_prefill ? prefill_pids : decode_pids).push_back(workers_[i].pid);
    }
    return {{"folder", folder_.path()},
            {"http", routers_[0].http},
            {"grpc", absl::StrCat("grpc://", routers_[0].grpc)},
            {"routers", std::move(routers)},
            {"metrics",
             {{"router", std::move(router_metrics)},
              {"cache_manager", manager_[0].metrics},
              {"prefill", std::move(prefill)},
              {"decode", std::move(decode)}}},
            {"pids",
             {{"router", std::move(router_pids)},
              {"cache_manager", manager_[0].pid},
              {"prefill", std::move(prefill_pids)},
              {"decode", std::move(decode_pids)}}}};
  }
  const std::string& folder() const { return folder_.path(); }

 private:
  struct Plan {
    std::string name;
    std::string binary;
    std::vector<std::string> settings;
  };

  absl::Status MakeFolder() {
    std::error_code error;
    const std::string parent = std::filesystem::temp_directory_path(error).string();
    RemoveStaleFolders(parent);
    SLUICE_ASSIGN_OR_RETURN(folder_, StateFolder::Create(parent));
    // All routers of a cluster must derive the same cache domains, and be known as routers to its
    // workers.
    SLUICE_RETURN_IF_ERROR(WriteSecret("cache-secret"));
    return WriteSecret("claim-key");
  }
  absl::Status WriteSecret(absl::string_view name) const {
    SecureRandom random;
    return WriteFile(absl::StrCat(folder(), "/", name), identity::MakeSecret(random));
  }
  std::string ClaimKeySetting() const {
    return absl::StrCat("claim_key_file=", folder(), "/claim-key");
  }

  std::vector<Plan> WorkerPlans() const {
    std::vector<Plan> plans;
    for (uint32_t i = 0; i < flags_.prefill + flags_.decode; ++i) {
      const bool prefill = i < flags_.prefill;
      Plan plan{absl::StrCat(prefill ? "prefill-" : "decode-", prefill ? i : i - flags_.prefill),
                prefill ? "sluice-prefill" : "sluice-decode",
                {absl::StrCat("cache_manager=", manager_[0].grpc),
                 absl::StrCat("model.path=", prefill ? flags_.prefill_model : flags_.decode_model),
                 absl::StrCat("model.served_name=", config::NameOfModel(flags_.model)),
                 absl::StrCat("engine.kv_format=", flags_.kv),
                 absl::StrCat("engine.kv_pool_mib=", flags_.kv_pool_mib), ClaimKeySetting()}};
      if (!flags_.transport.empty())
        plan.settings.push_back(absl::StrCat("transport.backends=[", flags_.transport, "]"));
      if (flags_.transport == "ucx-tcp") plan.settings.push_back("transport.trusted_network=true");
      if (flags_.threads > 0)
        plan.settings.push_back(absl::StrCat("engine.threads=", flags_.threads));
      if (!prefill && flags_.split != "always") plan.settings.push_back("role=both");
      plans.push_back(std::move(plan));
    }
    return plans;
  }

  std::vector<Plan> RouterPlans() const {
    std::vector<Plan> plans;
    for (uint32_t i = 0; i < flags_.routers; ++i) {
      Plan plan{
          absl::StrCat("router-", i),
          "sluice-router",
          {absl::StrCat("cache_manager=", manager_[0].grpc), absl::StrCat("split=", flags_.split),
           flags_.tenants.empty() ? "no_auth=true" : absl::StrCat("tenants_file=", flags_.tenants),
           absl::StrCat("cache_secret_file=", folder(), "/cache-secret"), ClaimKeySetting()}};
      if (!flags_.tenants.empty())
        plan.settings.push_back(absl::StrCat("usage_file=", folder(), "/", plan.name, ".usage"));
      if (flags_.demo || i > 0) {
        for (const char* listen :
             {"service.listen", "http_listen", "service.metrics_listen", "service.admin_listen"}) {
          plan.settings.push_back(absl::StrCat(listen, "=127.0.0.1:0"));
        }
      }
      plans.push_back(std::move(plan));
    }
    return plans;
  }

  // Of the role that the binary plays.
  std::vector<std::string> CertificateSettings(absl::string_view binary) const {
    if (flags_.tls.empty()) return {};
    const CertificateFiles files =
        CertificateFilesIn(absl::StrCat(flags_.tls, "/", absl::StripPrefix(binary, "sluice-")));
    return {absl::StrCat("service.tls.cert_file=", files.certificate),
            absl::StrCat("service.tls.key_file=", files.key),
            absl::StrCat("service.tls.ca_file=", files.authorities)};
  }

  absl::Status StartGroup(const std::vector<Plan>& plans, std::vector<ReadyInfo>* ready) {
    std::vector<ChildProcess> group;
    for (const Plan& plan : plans) {
      std::vector<std::string> arguments;
      for (const std::string& setting : CertificateSettings(plan.binary)) {
        arguments.push_back("--set");
        arguments.push_back(setting);
      }
      for (const std::string& setting : plan.settings) {
        arguments.push_back("--set");
        arguments.push_back(setting);
      }
      SLUICE_ASSIGN_OR_RETURN(ChildProcess child, StartChild(folder(), plan.name, plan.binary,
                                                             arguments, !flags_.detach));
      children_.push_back(child);
      group.push_back(std::move(child));
    }
    SLUICE_ASSIGN_OR_RETURN(*ready, WaitReady(group, folder(), clock_, kStartTimeout));
    for (size_t i = 0; i < group.size(); ++i) (*ready)[i].pid = group[i].pid;
    return absl::OkStatus();
  }

  const UpFlags& flags_;
  const Clock& clock_;
  StateFolder folder_;
  std::vector<ChildProcess> children_;
  std::set<pid_t> reported_;
  std::vector<ReadyInfo> manager_;
  std::vector<ReadyInfo> workers_;
  std::vector<ReadyInfo> routers_;
};

void PrintHints(const boost::json::object& endpoints, const std::string& folder, bool keys) {
  const std::string http = endpoints.at("http").as_string().c_str();
  std::fprintf(
      stderr,
      "ready; logs in %s\n"
      "  curl %s/v1/chat/completions -H 'content-type: application/json' %s\\\n"
      "       -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"stream\":true}'\n"
      "  %s/sluice chat --url %s%s \"Hello\"\n",
      folder.c_str(), http.c_str(), keys ? "-H 'authorization: Bearer KEY' " : "",
      BinaryFolder().c_str(), endpoints.at("grpc").as_string().c_str(),
      keys ? " --api-key KEY" : "");
}

absl::Status Up(const UpFlags& flags) {
  if (flags.prefill + flags.decode == 0 || flags.decode == 0)
    return absl::InvalidArgumentError("--decode must be at least 1");
  if (flags.routers == 0) return absl::InvalidArgumentError("--routers must be at least 1");
  if (flags.prefill == 0 && flags.split == "always") {
    return absl::InvalidArgumentError("--split always needs at least one prefill worker");
  }
  if (flags.transport == "tls" && flags.tls.empty()) {
    return absl::InvalidArgumentError(
        "--transport tls needs certificates: make some with sluice certs --out DIR, then --tls "
        "DIR");
  }
  // Blocked before any thread or child exists; children unblock them again.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, nullptr);

  SystemClock clock;
  Cluster cluster(flags, clock);
  int received = 0;
  if (const absl::Status started = cluster.Start(); !started.ok()) {
    // The signal that interrupted the start shall not cut the stop short as well.
    if (absl::IsCancelled(started)) sigwait(&signals, &received);
    cluster.Stop();
    // The logs say why a start failed; nobody needs those of one that was interrupted.
    if (absl::IsCancelled(started)) cluster.RemoveFolder();
    return started;
  }
  const boost::json::object endpoints = cluster.Endpoints();
  std::string file = flags.endpoints;
  if (file.empty()) file = absl::StrCat(cluster.folder(), "/endpoints.json");
  SLUICE_RETURN_IF_ERROR(WriteFile(file, boost::json::serialize(endpoints)));
  PrintLine(boost::json::serialize(endpoints));
  PrintHints(endpoints, cluster.folder(), !flags.tenants.empty());
  if (flags.detach) {
    std::fprintf(stderr, "  %s/sluice down --endpoints %s\n", BinaryFolder().c_str(), file.c_str());
    cluster.Release();
    return absl::OkStatus();
  }
  const std::string grace = absl::FormatDuration(kStopGrace);
  std::fprintf(stderr,
               "  Ctrl-C lets running requests finish, for at most %s, and stops; a second one "
               "stops at once\n",
               grace.c_str());
  constexpr timespec kReportEvery{1, 0};
  while (sigtimedwait(&signals, nullptr, &kReportEvery) < 0) cluster.ReportEnded();
  std::fprintf(stderr, "stopping\n");
  cluster.Stop();
  cluster.RemoveFolder();
  return absl::OkStatus();
}

}  // namespace

void AddUpCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* up =
      app.add_subcommand("up", "Start a whole cluster on loopback and wait until it is ready");
  up->add_flag("--demo", flags->demo, "Any free ports, split always");
  auto* model = AddModelOption(*up, &flags->model,
                               "Model folder, .gguf file, toy, or a name in deploy/models")
                    ->default_val("toy");
  AddModelOption(*up, &flags->prefill_model,
                 "Model of the prefill workers: the same in another weight format",
                 "--prefill-model")
      ->default_str("--model");
  AddModelOption(*up, &flags->decode_model, "Model of the decode workers", "--decode-model")
      ->default_str("--model");
  up->add_option("--prefill", flags->prefill, "Prefill workers")->capture_default_str();
  up->add_option("--decode", flags->decode, "Decode workers")->capture_default_str();
  up->add_option("--routers", flags->routers, "Routers")->capture_default_str();
  auto* split = up->add_option("--split", flags->split, "Where prompts are computed")
                    ->check(CLI::IsMember({"auto", "always", "never"}))
                    ->capture_default_str();
  up->add_option(
        "--kv", flags->kv,
        "KV format: auto (FP8), f32, bf16, gqa_fp8, gqa_fp8c, gqa_int8c, mla_fp8, mla_fp8_656")
      ->capture_default_str();
  up->add_option("--transport", flags->transport, "How pages travel")
      ->check(CLI::IsMember({"ucx-shm", "ucx-tcp", "tls"}))
      ->default_str("tls with --tls, else ucx-shm");
  up->add_option(
        "--tls", flags->tls,
        "mTLS between the services, with the certificates that sluice certs wrote into this folder")
      ->check(CLI::ExistingDirectory);
  up->add_option("--tenants", flags->tenants,
                 "Tenants file (sluice tenants makes one); default: no authentication")
      ->check(CLI::ExistingFile)
      ->transform([](const std::string& path) { return std::filesystem::absolute(path).string(); });
  up->add_option("--threads", flags->threads,
                 "Compute threads of each worker; 0: every usable core")
      ->capture_default_str();
  up->add_option("--kv-pool-mib", flags->kv_pool_mib, "Page pool of each worker in MiB")
      ->capture_default_str();
  up->add_flag("--detach", flags->detach, "Leave the cluster running; stop it with sluice down");
  up->add_option("--endpoints", flags->endpoints, "File that gets addresses and pids as JSON");
  up->callback([flags, run, split, model] {
    if (flags->demo && split->count() == 0) flags->split = "always";
    // `model` names what clients see, whatever the roles run.
    if (model->count() == 0 && !flags->prefill_model.empty()) flags->model = flags->prefill_model;
    if (model->count() == 0 && !flags->decode_model.empty()) flags->model = flags->decode_model;
    if (flags->prefill_model.empty()) flags->prefill_model = flags->model;
    if (flags->decode_model.empty()) flags->decode_model = flags->model;
    *run = [flags] { return Up(*flags); };
  });
}

}  // namespace sluice::cli
