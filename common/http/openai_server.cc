#include "http/openai_server.h"

#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/bounded_queue.h"
#include "base/status_macros.h"
#include "http/error_body.h"
#include "http/json_writer.h"
#include "http/openai_call.h"
#include "http/openai_error.h"
#include "http/openai_request.h"
#include "http/openai_response.h"
#include "rpc/error.h"

namespace sluice::http {
namespace {

constexpr size_t kAffinityBytesMax = 256;
constexpr size_t kIgnoredHeaderBytesMax = 512;
constexpr absl::string_view kModels = "/v1/models";

using Responder = std::shared_ptr<HttpResponder>;

identity::Credentials CredentialsOf(const HttpRequest& request) {
  return {rpc::BearerOf(request.header("authorization")),
          {},
          std::string(request.header(rpc::kTenantHeader))};
}

enum class Access { kTenants, kEverybody };

// Every path that is served. What is not here does not exist; what does not say otherwise is only
// for tenants, whose credentials are checked before anything else is looked at.
struct Route {
  absl::string_view path;
  bool with_children = false;  // and what is below it
  bool get = false;            // GET and HEAD, else POST
  Access access = Access::kTenants;
};
constexpr Route kRoutes[] = {
    {.path = "/v1/chat/completions"},
    {.path = "/v1/completions"},
    {.path = "/tokenize"},
    {.path = "/detokenize"},
    {.path = kModels, .with_children = true, .get = true},
    {.path = "/health", .get = true, .access = Access::kEverybody},
    {.path = "/live", .get = true, .access = Access::kEverybody},
    {.path = "/ready", .get = true, .access = Access::kEverybody},
    {.path = "/version", .get = true, .access = Access::kEverybody},
};

Endpoint EndpointOf(const HttpRequest& request) {
  return request.path == "/v1/completions" ? Endpoint::kCompletions : Endpoint::kChat;
}

const Route* RouteOf(absl::string_view path) {
  for (const Route& route : kRoutes) {
    absl::string_view rest = path;
    if (!absl::ConsumePrefix(&rest, route.path)) continue;
    if (rest.empty() || (route.with_children && rest[0] == '/')) return &route;
  }
  return nullptr;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Ids of models may hold a slash, which some clients escape.
std::string PercentDecoded(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
                        HexDigit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

// Browsers send other types (or none) to foreign sites without asking, so a page could use a server
// on this host; JSON they ask for first, which is refused.
absl::Status CheckContentType(const HttpRequest& request) {
  const absl::string_view type = request.header("content-type");
  if (type.empty() && request.header("origin").empty()) return absl::OkStatus();
  const absl::string_view name = absl::StripAsciiWhitespace(type.substr(0, type.find(';')));
  if (absl::EqualsIgnoreCase(name, "application/json")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the content type is '", name, "'; send 'Content-Type: application/json'"));
}

class Server final : public OpenAiServer {
 public:
  Server(const OpenAiServerOptions& options, rpc::InferenceBackend& backend, Clock& clock)
      : options_(options),
        backend_(backend),
        clock_(clock),
        text_queue_(static_cast<size_t>(options.text_waiting_max)),
        text_thread_([this] { RunText(); }) {}
  ~Server() override {
    Shutdown(absl::ZeroDuration());
    text_queue_.Close();
    text_thread_.join();
  }

  absl::Status Listen() {
    const auto handler = [this](HttpRequest request, Responder responder) {
      Handle(std::move(request), std::move(responder));
    };
    SLUICE_ASSIGN_OR_RETURN(server_, HttpServer::Start(options_.http, handler, clock_));
    return absl::OkStatus();
  }
  const std::string& address() const override { return server_->address(); }
  void BeginShutdown() override {
    if (server_ != nullptr) server_->BeginShutdown();
  }
  void Shutdown(absl::Duration grace) override {
    if (server_ != nullptr) server_->Shutdown(grace);
  }
  HttpServerStats stats() const override { return server_->stats(); }

 private:
  void RunText();
  void Handle(HttpRequest request, Responder responder);
  void GetState(const HttpRequest& request, const Responder& responder);
  void HandlePost(HttpRequest& request, const TenantId& tenant, const Responder& responder);
  void GetModels(const HttpRequest& request, const Responder& responder);
  void Generate(Endpoint endpoint, const HttpRequest& request, const TenantId& tenant,
                const Responder& responder);
  void Text(HttpRequest request, const Responder& responder);
  HttpReply Tokenize(absl::string_view body, absl::string_view request_id);
  HttpReply Detokenize(absl::string_view body, absl::string_view request_id);
  uint32_t ContextOf(absl::string_view model);

  const OpenAiServerOptions options_;
  rpc::InferenceBackend& backend_;
  Clock& clock_;
  BoundedQueue<std::function<void()>> text_queue_;
  std::thread text_thread_;
  std::unique_ptr<HttpServer> server_;
};

void Server::RunText() {
  while (true) {
    const auto work = text_queue_.PopFor(absl::InfiniteDuration());
    if (work.has_value()) {
      (*work)();
    } else if (text_queue_.closed()) {
      return;
    }
  }
}

void Server::Handle(HttpRequest request, Responder responder) {
  const Route* route = RouteOf(request.path);
  if (route == nullptr) {
    return responder->Reply(
        {.status = 404,
         .body = ErrorBody({.message = absl::StrCat("no such path: ", request.path,
                                                    "; there are /v1/chat/completions, "
                                                    "/v1/completions, /v1/models, /tokenize and "
                                                    "/detokenize"),
                            .code = "not_found"})});
  }
  const bool get = request.method == "GET" || request.method == "HEAD";
  if (route->get ? !get : request.method != "POST") {
    HttpReply reply{
        .status = 405,
        .body = ErrorBody({.message = absl::StrCat(request.path, " does not take ", request.method),
                           .code = "method_not_allowed"})};
    reply.headers.emplace_back("Allow", route->get ? "GET, HEAD" : "POST");
    return responder->Reply(std::move(reply));
  }
  if (route->access == Access::kEverybody) return GetState(request, responder);
  const auto tenant = backend_.Authenticate(CredentialsOf(request));
  if (!tenant.ok()) {
    return responder->Reply(ErrorReply(tenant.status(), EndpointOf(request), request.request_id));
  }
  if (route->get) return GetModels(request, responder);
  HandlePost(request, *tenant, responder);
}

// What probes ask.
void Server::GetState(const HttpRequest& request, const Responder& responder) {
  JsonWriter json;
  json.BeginObject();
  int status = 200;
  if (request.path == "/version") {
    json.Key("version").String(options_.version);
  } else if (request.path == "/ready") {
    const bool ready = backend_.Ready();
    status = ready ? 200 : 503;
    json.Key("status").String(ready ? "ready" : "not ready: starting, draining or without workers");
  } else {
    json.Key("status").String("ok");
  }
  responder->Reply({.status = status, .body = json.EndObject().Take()});
}

void Server::GetModels(const HttpRequest& request, const Responder& responder) {
  const auto fail = [&](const absl::Status& status) {
    responder->Reply(ErrorReply(status, Endpoint::kChat, request.request_id));
  };
  const v1::ListModelsResponse models = backend_.ListModels();
  if (request.path == kModels) return responder->Reply({.body = ModelList(models)});
  const std::string id = PercentDecoded(absl::string_view(request.path).substr(kModels.size() + 1));
  for (const v1::Model& model : models.models()) {
    if (model.id() == id) return responder->Reply({.body = OneModel(model)});
  }
  fail(rpc::MakeError(v1::MODEL_NOT_FOUND,
                      absl::StrCat("no model '", id, "'; GET /v1/models lists them"),
                      {.field = "model"}));
}

void Server::HandlePost(HttpRequest& request, const TenantId& tenant, const Responder& responder) {
  if (const absl::Status type = CheckContentType(request); !type.ok()) {
    responder->Reply(
        {.status = 415,
         .body = ErrorBody({.message = type.message(), .code = "unsupported_media_type"})});
  } else if (absl::StartsWith(request.path, "/v1/")) {
    Generate(EndpointOf(request), request, tenant, responder);
  } else {
    Text(std::move(request), responder);
  }
}

void Server::Generate(Endpoint endpoint, const HttpRequest& request, const TenantId& tenant,
                      const Responder& responder) {
  auto parsed = ParseGeneration(endpoint, request.body);
  const absl::string_view affinity = request.header("x-session-affinity");
  if (parsed.ok() && affinity.size() > kAffinityBytesMax) {
    parsed = rpc::MakeError(
        v1::INVALID_FIELD,
        absl::StrCat("x-session-affinity has more than ", kAffinityBytesMax, " bytes"),
        {.field = "x-session-affinity"});
  }
  if (!parsed.ok())
    return responder->Reply(ErrorReply(parsed.status(), endpoint, request.request_id));
  if (!affinity.empty()) {
    for (v1::GenerateRequest& generation : parsed->generations)
      generation.set_session_affinity(std::string(affinity));
  }
  OpenAiCallOptions options;
  options.request_id = request.request_id;
  options.arrived = request.arrived;
  options.reply_bytes_max = options_.reply_bytes_max;
  options.ping_interval = options_.ping_interval;
  if (!parsed->ignored.empty()) {
    options.headers.emplace_back(
        "x-sluice-ignored-fields",
        absl::StrJoin(parsed->ignored, ", ").substr(0, kIgnoredHeaderBytesMax));
  }
  OpenAiCall::Start(*std::move(parsed), {.tenant = tenant}, std::move(options), responder, backend_,
                    clock_);
}

// Text of megabytes takes a while: off the server's threads.
void Server::Text(HttpRequest request, const Responder& responder) {
  const std::string request_id = request.request_id;
  const bool queued = text_queue_.TryPush([this, responder, request = std::move(request)] {
    responder->Reply(request.path == "/tokenize" ? Tokenize(request.body, request.request_id)
                                                 : Detokenize(request.body, request.request_id));
  });
  if (queued) return;
  const absl::Status busy = rpc::MakeError(
      v1::OVERLOADED,
      absl::StrCat(options_.text_waiting_max,
                   " requests for the tokenizer are waiting already; try again soon"));
  responder->Reply(ErrorReply(busy, Endpoint::kCompletions, request_id));
}

HttpReply Server::Tokenize(absl::string_view body, absl::string_view request_id) {
  const auto request = ParseTokenize(body);
  auto response = request.ok() ? backend_.Tokenize(*request)
                               : absl::StatusOr<v1::TokenizeResponse>(request.status());
  if (!response.ok()) return ErrorReply(response.status(), Endpoint::kCompletions, request_id);
  return {.body = TokenizeReply(*response, ContextOf(request->model()))};
}

HttpReply Server::Detokenize(absl::string_view body, absl::string_view request_id) {
  const auto request = ParseDetokenize(body);
  auto response = request.ok() ? backend_.Detokenize(*request)
                               : absl::StatusOr<v1::DetokenizeResponse>(request.status());
  if (!response.ok()) return ErrorReply(response.status(), Endpoint::kCompletions, request_id);
  return {.body = DetokenizeReply(*response)};
}

// 0 when unknown.
uint32_t Server::ContextOf(absl::string_view model) {
  const v1::ListModelsResponse models = backend_.ListModels();
  for (const v1::Model& known : models.models()) {
    if (known.id() == model || (model.empty() && models.models_size() == 1))
      return known.context_tokens();
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpenAiServer>> OpenAiServer::Start(
    const OpenAiServerOptions& options, rpc::InferenceBackend& backend, Clock& clock) {
  auto server = std::make_unique<Server>(options, backend, clock);
  SLUICE_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace sluice::http
