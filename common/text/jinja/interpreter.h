// Walks the tree of a template.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "text/jinja/arguments.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

// Variables; what is not found here is looked up outside.
struct Scope {
  Scope* outer = nullptr;
  std::map<std::string, Value, std::less<>> variables;
};

// One rendering. Thread-compatible.
class Interpreter {
 public:
  Interpreter(Heap& heap, Budget& budget, absl::CivilDay today)
      : context_{heap, budget}, today_(today) {}

  absl::StatusOr<Text> Run(const Block& block, Scope& scope);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  absl::StatusOr<Flow> Execute(const Block& block, Scope& scope, Text* out);
  absl::StatusOr<Flow> ExecuteNode(const Node& node, Scope& scope, Text* out);
  absl::Status Print(const Node& node, Scope& scope, Text* out);
  absl::StatusOr<Flow> For(const Node& node, Scope& scope, Text* out);
  absl::Status Set(const Node& node, Scope& scope);
  absl::Status Assign(const std::vector<std::string>& targets, Value value, Scope& scope);

  absl::StatusOr<Value> Eval(const Expr& expression, Scope& scope);
  absl::StatusOr<Value> EvalKind(const Expr& expression, Scope& scope);
  absl::StatusOr<Value> Operator(const Expr& expression, Scope& scope);
  static Value Name(const std::string& name, const Scope& scope);
  absl::StatusOr<Value> Container(const Expr& expression, Scope& scope);
  absl::StatusOr<Value> Slice(const Expr& expression, Scope& scope);
  absl::StatusOr<Value> Concat(const Expr& expression, Scope& scope);
  absl::StatusOr<Value> Compare(const Expr& expression, Scope& scope);
  absl::StatusOr<Value> Call(const Expr& expression, Scope& scope);
  absl::StatusOr<Value> CallMacro(const Macro& macro, const Arguments& arguments);
  absl::StatusOr<Value> CallFunction(absl::string_view name, const Arguments& arguments);
  // Operands from the second on, and keywords.
  absl::StatusOr<Arguments> EvalArguments(const Expr& expression, size_t first, Scope& scope);

  Context context_;
  const absl::CivilDay today_;
  int depth_ = 0;
};

}  // namespace sluice::text::jinja
