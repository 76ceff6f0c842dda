// sluice tenants: the tenants file and its keys.

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "config/tenants.h"
#include "identity/api_key.h"
#include "identity/cache_secret.h"
#include "services/cli/chat_file.h"
#include "services/cli/command.h"
#include "services/cli/tenants/file_edit.h"
#include "services/text_model/text_model.h"

namespace sluice::cli {
namespace {

constexpr char kPepperName[] = "pepper";
constexpr size_t kHashShown = 8;

struct TenantsFlags {
  std::string file = "tenants.yaml";
  std::string id;
  bool json = false;
  std::string model;
  std::string text;
  std::string chat;
  std::vector<std::string> records;
};

mode_t ModeOf(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0644;
}

// The pepper of a file; made, and named in `yaml`, where there is none.
absl::StatusOr<std::string> PepperOf(const std::string& path, std::string* yaml) {
  SLUICE_ASSIGN_OR_RETURN(v1::TenantsFile file, config::LoadTenants(*yaml, path));
  if (file.key_pepper_file().empty()) {
    *yaml = WithPepperFile(*yaml, kPepperName);
    file.set_key_pepper_file(kPepperName);
  }
  const std::string pepper_path = config::PathBeside(path, file.key_pepper_file());
  std::error_code error;
  if (!std::filesystem::exists(pepper_path, error)) {
    SecureRandom random;
    SLUICE_RETURN_IF_ERROR(ReplaceFile(pepper_path, identity::MakeSecret(random) + "\n", 0600));
    std::fprintf(stderr, "made %s, the secret that key hashes are made with; keep it with %s\n",
                 pepper_path.c_str(), path.c_str());
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(pepper_path));
  std::string pepper = identity::PepperIn(text);
  if (pepper.size() < identity::kSecretBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat(pepper_path, " holds ", pepper.size(),
                                                   " characters in its first line; it must be at "
                                                   "least ",
                                                   identity::kSecretBytesMin));
  }
  return pepper;
}

// Adds a fresh key to the tenant and prints it, the only time that it is shown.
absl::Status AddKey(const TenantsFlags& flags, std::string yaml) {
  SLUICE_ASSIGN_OR_RETURN(const std::string pepper, PepperOf(flags.file, &yaml));
  SecureRandom random;
  const std::string key = identity::MakeApiKey(random);
  const std::string hash = identity::HashApiKey(pepper, key);
  SLUICE_ASSIGN_OR_RETURN(const std::string edited, WithKeyHash(yaml, flags.file, flags.id, hash));
  SLUICE_RETURN_IF_ERROR(ReplaceFile(flags.file, edited, ModeOf(flags.file)));
  PrintLine(key);
  std::fprintf(stderr,
               "A key of tenant %s, shown only now. Its hash in %s begins with %s; removing it "
               "revokes the key. Routers read the file again by themselves.\n",
               flags.id.c_str(), flags.file.c_str(), hash.substr(0, kHashShown).c_str());
  return absl::OkStatus();
}

absl::Status Add(const TenantsFlags& flags) {
  std::error_code error;
  std::string yaml;
  if (std::filesystem::exists(flags.file, error)) {
    SLUICE_ASSIGN_OR_RETURN(yaml, ReadTextFile(flags.file));
  }
  SLUICE_ASSIGN_OR_RETURN(yaml, WithTenant(yaml, flags.file, flags.id));
  return AddKey(flags, std::move(yaml));
}

absl::Status AddAnotherKey(const TenantsFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(std::string yaml, ReadTextFile(flags.file));
  return AddKey(flags, std::move(yaml));
}

std::string Amount(bool limited, uint64_t value) {
  return limited ? absl::StrCat(value) : std::string("-");
}

absl::Status List(const TenantsFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const std::string yaml, ReadTextFile(flags.file));
  SLUICE_ASSIGN_OR_RETURN(const v1::TenantsFile file, config::LoadTenants(yaml, flags.file));
  boost::json::array rows;
  if (!flags.json) {
    std::printf("%-24s %6s %8s %12s %14s %11s  %-16s %s\n", "tenant", "weight", "priority",
                "requests/min", "tokens/min", "concurrency", "sharing group", "keys");
  }
  for (const v1::TenantEntry& tenant : file.tenants()) {
    const v1::TenantLimits& limits = tenant.limits();
    std::string keys;
    boost::json::array hashes;
    for (const std::string& hash : tenant.key_hashes()) {
      absl::StrAppend(&keys, keys.empty() ? "" : " ", hash.substr(0, kHashShown));
      hashes.push_back(boost::json::value(hash.substr(0, kHashShown)));
    }
    if (!flags.json) {
      std::printf("%-24s %6u %8u %12s %14s %11s  %-16s %s\n", tenant.id().c_str(), limits.weight(),
                  limits.priority(),
                  Amount(limits.has_requests_per_min(), limits.requests_per_min()).c_str(),
                  Amount(limits.has_tokens_per_min(), limits.tokens_per_min()).c_str(),
                  Amount(limits.has_concurrency(), limits.concurrency()).c_str(),
                  tenant.sharing_group().empty() ? "-" : tenant.sharing_group().c_str(),
                  keys.empty() ? "-" : keys.c_str());
      continue;
    }
    boost::json::object row = {{"id", tenant.id()},
                               {"weight", limits.weight()},
                               {"priority", limits.priority()},
                               {"sharing_group", tenant.sharing_group()},
                               {"trusted_proxy", tenant.trusted_proxy()},
                               {"keys", std::move(hashes)}};
    row["requests_per_min"] = limits.has_requests_per_min()
                                  ? boost::json::value(limits.requests_per_min())
                                  : boost::json::value(nullptr);
    row["tokens_per_min"] = limits.has_tokens_per_min()
                                ? boost::json::value(limits.tokens_per_min())
                                : boost::json::value(nullptr);
    row["concurrency"] = limits.has_concurrency() ? boost::json::value(limits.concurrency())
                                                  : boost::json::value(nullptr);
    rows.push_back(std::move(row));
  }
  if (flags.json)
    PrintLine(boost::json::serialize(boost::json::object{{"tenants", std::move(rows)}}));
  return absl::OkStatus();
}

struct TenantUsage {
  uint64_t requests = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;
};

// Adds the records of one file. A last line without its end is still being written.
absl::Status AddUsage(const std::string& path, std::map<std::string, TenantUsage>* usage) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::string line;
  for (int number = 1; std::getline(file, line) && !file.eof(); ++number) {
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(line, error);
    const boost::json::object* record = error ? nullptr : value.if_object();
    const auto count = [record](const char* name) {
      const boost::json::value* found = record->if_contains(name);
      boost::system::error_code wrong;
      return found == nullptr ? 0 : found->to_number<uint64_t>(wrong);
    };
    const boost::json::value* tenant = record == nullptr ? nullptr : record->if_contains("tenant");
    if (tenant == nullptr || !tenant->is_string())
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": not a usage record of a router"));
    TenantUsage& sum = (*usage)[std::string(tenant->get_string())];
    ++sum.requests;
    sum.prompt_tokens += count("prompt_tokens");
    sum.cached_tokens += count("cached_tokens");
    sum.output_tokens += count("output_tokens");
  }
  return absl::OkStatus();
}

absl::Status Usage(const TenantsFlags& flags) {
  std::map<std::string, TenantUsage> usage;
  for (const std::string& path : flags.records) SLUICE_RETURN_IF_ERROR(AddUsage(path, &usage));
  boost::json::array rows;
  if (!flags.json)
    std::printf("%-24s %10s %14s %14s %14s\n", "tenant", "requests", "prompt tokens",
                "of these cached", "output tokens");
  for (const auto& [tenant, sum] : usage) {
    if (!flags.json) {
      std::printf("%-24s %10lu %14lu %15lu %14lu\n", tenant.c_str(), sum.requests,
                  sum.prompt_tokens, sum.cached_tokens, sum.output_tokens);
      continue;
    }
    rows.push_back(boost::json::object{{"id", tenant},
                                       {"requests", sum.requests},
                                       {"prompt_tokens", sum.prompt_tokens},
                                       {"cached_tokens", sum.cached_tokens},
                                       {"output_tokens", sum.output_tokens}});
  }
  if (flags.json)
    PrintLine(boost::json::serialize(boost::json::object{{"tenants", std::move(rows)}}));
  return absl::OkStatus();
}

// The lines that declare the beginning of prompts public.
absl::Status Prefix(const TenantsFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto model, services::LoadTextModel(flags.model));
  std::vector<int32_t> ids;
  if (!flags.chat.empty()) {
    if (model->chat_template == nullptr) return model->template_error;
    SLUICE_ASSIGN_OR_RETURN(text::ChatRequest chat, ReadChatFile(flags.chat));
    chat.add_generation_prompt = false;
    SLUICE_ASSIGN_OR_RETURN(services::EncodedChat encoded, model->EncodeChat(chat));
    ids = std::move(encoded.ids);
  } else {
    SLUICE_ASSIGN_OR_RETURN(ids, model->EncodePrompt(flags.text, false));
  }
  if (ids.empty()) return absl::InvalidArgumentError("the prefix has no tokens");
  PrintLine(absl::StrFormat("public_prefixes:\n  - name: %s\n    digest: %s\n    tokens: %d",
                            "prefix", identity::PublicPrefixes::DigestOf(ids), ids.size()));
  return absl::OkStatus();
}

}  // namespace

void AddTenantsCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<TenantsFlags>();
  CLI::App* tenants = app.add_subcommand("tenants", "Who may call: the tenants file and its keys");
  tenants->require_subcommand(1);
  const auto add = [&](const char* name, const char* help,
                       absl::Status (*what)(const TenantsFlags&)) {
    CLI::App* command = tenants->add_subcommand(name, help);
    command->callback([flags, run, what] { *run = [flags, what] { return what(*flags); }; });
    return command;
  };
  CLI::App* list = add("list", "Tenants and their limits; checks the file", List);
  list->add_flag("--json", flags->json, "One JSON object");
  CLI::App* add_tenant =
      add("add", "Add a tenant, print its first key; makes the file if there is none", Add);
  CLI::App* add_key = add("add-key", "Add a key to a tenant and print it, once", AddAnotherKey);
  for (CLI::App* command : {list, add_tenant, add_key})
    command->add_option("--file", flags->file, "The tenants file")->capture_default_str();
  for (CLI::App* command : {add_tenant, add_key})
    command->add_option("tenant", flags->id, "Its id")->required();
  CLI::App* usage = add("usage", "Sum the routers' usage records (usage_file) by tenant", Usage);
  usage->add_option("records", flags->records, "Files of records")->required();
  usage->add_flag("--json", flags->json, "One JSON object");
  CLI::App* prefix =
      add("prefix", "Print the lines that make a beginning of prompts public", Prefix);
  AddModelOption(*prefix, &flags->model,
                 "Model folder, .gguf file, toy, or a name in deploy/models")
      ->required();
  CLI::Option_group* input = prefix->add_option_group("input");
  input->add_option("--text", flags->text, "The beginning of prompts that are text");
  input->add_option("--chat", flags->chat, "JSON file with the first messages of chats");
  input->require_option(1);
  tenants->footer(
      "Examples:\n"
      "  sluice tenants add --file tenants.yaml acme\n"
      "  sluice up --tenants tenants.yaml\n"
      "  sluice tenants list --file tenants.yaml");
}

}  // namespace sluice::cli
