// What the subcommands of `sluice` share. Results go to stdout, everything else to stderr; exit 0
// only on success, 2 on bad usage.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "request/sampling.h"
#include "services/local_model/local_model.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace sluice::cli {

// A subcommand runs after its flags were parsed and returns the reason of its failure.
using Command = std::function<absl::Status()>;

// Each adds its subcommands to `app` and sets `*run` when one of them was chosen.
void AddTextCommands(CLI::App& app, Command* run);            // tokenize, detokenize, render
void AddGenerateCommand(CLI::App& app, Command* run);         // generate
void AddLogitsCommand(CLI::App& app, Command* run);           // logits
void AddChatCommand(CLI::App& app, Command* run);             // chat
void AddDoctorCommand(CLI::App& app, Command* run);           // doctor
void AddBenchEngineCommand(CLI::App& bench, Command* run);    // bench engine
void AddBenchKernelsCommand(CLI::App& bench, Command* run);   // bench kernels
void AddBenchServeCommand(CLI::App& bench, Command* run);     // bench serve
void AddBenchTransferCommand(CLI::App& bench, Command* run);  // bench transfer
void AddCalibrateCommand(CLI::App& app, Command* run);        // calibrate
void AddPerplexityCommand(CLI::App& app, Command* run);       // perplexity
void AddPlanCommand(CLI::App& app, Command* run);             // plan
void AddQuantizeCommand(CLI::App& app, Command* run);         // quantize
void AddCertsCommand(CLI::App& app, Command* run);            // certs
void AddUpCommand(CLI::App& app, Command* run);               // up
void AddDownCommand(CLI::App& app, Command* run);             // down
void AddChaosCommand(CLI::App& app, Command* run);            // chaos
void AddTenantsCommand(CLI::App& app, Command* run);          // tenants

// `flag` for a model: a path, "toy", or the name of a model that ships with the program
// (model_name.h).
CLI::Option* AddModelOption(CLI::App& command, std::string* model, const std::string& description,
                            const std::string& flag = "--model");

// --model, --kv, --kv-centre, --kernels, --exactness, --activations, --threads.
void AddModelOptions(CLI::App& command, services::LocalModelOptions* options);

// "1,2,3" to ids. Errors: INVALID_ARGUMENT naming the part that is no number.
absl::StatusOr<std::vector<request::TokenId>> ParseTokenList(absl::string_view text);
// The bytes of a file, a device or a pipe.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);
// Prints one line to stdout.
void PrintLine(absl::string_view line);

}  // namespace sluice::cli
