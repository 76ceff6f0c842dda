#include "text/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "text/jinja/language.h"
#include "text/jinja/library.h"
#include "text/jinja/operations.h"
#include "text/jinja/printing.h"

namespace sluice::text::jinja {
namespace {

// Expressions and blocks inside each other, macros that call themselves included.
constexpr int kDepthMax = 400;

class Nesting {
 public:
  explicit Nesting(int* depth) : depth_(depth) { ++*depth_; }
  ~Nesting() { --*depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int* depth_;
};

Value ConstantValue(const Expr::Constant& constant) {
  if (const auto* flag = std::get_if<bool>(&constant)) return *flag;
  if (const auto* whole = std::get_if<int64_t>(&constant)) return *whole;
  if (const auto* number = std::get_if<double>(&constant)) return *number;
  if (const auto* text = std::get_if<std::string>(&constant)) return Trusted(*text);
  return None{};
}

}  // namespace

absl::StatusOr<Text> Interpreter::Run(const Block& block, Scope& scope) {
  Text out;
  SLUICE_RETURN_IF_ERROR(Execute(block, scope, &out).status());
  return out;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Block& block, Scope& scope,
                                                       Text* out) {
  const Nesting nesting(&depth_);
  if (depth_ > kDepthMax) return Fail(context_, "too many calls inside each other");
  for (const auto& node : block) {
    context_.line = node->line;
    SLUICE_RETURN_IF_ERROR(context_.budget.Spend(1));
    SLUICE_ASSIGN_OR_RETURN(const Flow flow, ExecuteNode(*node, scope, out));
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteNode(const Node& node, Scope& scope,
                                                           Text* out) {
  switch (node.kind) {
    case Node::Kind::kText:
      SLUICE_RETURN_IF_ERROR(context_.budget.SpendText(node.name.size()));
      out->Append(node.name, /*trusted=*/true);
      return Flow::kOn;
    case Node::Kind::kPrint:
      SLUICE_RETURN_IF_ERROR(Print(node, scope, out));
      return Flow::kOn;
    case Node::Kind::kIf: {
      SLUICE_ASSIGN_OR_RETURN(const Value condition, Eval(*node.expression, scope));
      return Execute(IsTrue(condition) ? node.body : node.otherwise, scope, out);
    }
    case Node::Kind::kFor:
      return For(node, scope, out);
    case Node::Kind::kSet:
    case Node::Kind::kSetBlock:
      SLUICE_RETURN_IF_ERROR(Set(node, scope));
      return Flow::kOn;
    case Node::Kind::kMacro:
      scope.variables.insert_or_assign(node.name, Macro{&node, &scope});
      return Flow::kOn;
    case Node::Kind::kScope: {
      Scope inner{&scope, {}};
      return Execute(node.body, inner, out);
    }
    case Node::Kind::kBreak:
      return Flow::kBreak;
    case Node::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

absl::Status Interpreter::Print(const Node& node, Scope& scope, Text* out) {
  SLUICE_ASSIGN_OR_RETURN(const Value value, Eval(*node.expression, scope));
  SLUICE_ASSIGN_OR_RETURN(const Text text, ToText(value, context_));
  out->Append(text);
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::For(const Node& node, Scope& scope, Text* out) {
  SLUICE_ASSIGN_OR_RETURN(const Value iterable, Eval(*node.expression, scope));
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Items(iterable, context_));
  if (node.condition != nullptr) {
    std::vector<Value> chosen;
    for (Value& item : items) {
      Scope inner{&scope, {}};
      SLUICE_RETURN_IF_ERROR(Assign(node.targets, item, inner));
      SLUICE_ASSIGN_OR_RETURN(const Value wanted, Eval(*node.condition, inner));
      if (IsTrue(wanted)) chosen.push_back(std::move(item));
    }
    items = std::move(chosen);
  }
  if (items.empty()) return Execute(node.otherwise, scope, out);
  Loop* loop = context_.heap.NewLoop();
  loop->items = context_.heap.NewItems(std::move(items));
  for (; loop->index0 < loop->items->size(); ++loop->index0) {
    SLUICE_RETURN_IF_ERROR(context_.budget.Spend(1));
    Scope inner{&scope, {}};
    inner.variables.emplace("loop", Value(const_cast<const Loop*>(loop)));
    SLUICE_RETURN_IF_ERROR(Assign(node.targets, (*loop->items)[loop->index0], inner));
    SLUICE_ASSIGN_OR_RETURN(const Flow flow, Execute(node.body, inner, out));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kOn;
}

absl::Status Interpreter::Set(const Node& node, Scope& scope) {
  Value value;
  if (node.kind == Node::Kind::kSetBlock) {
    Scope inner{&scope, {}};
    Text text;
    SLUICE_RETURN_IF_ERROR(Execute(node.body, inner, &text).status());
    value = TextValue(std::move(text));
  } else {
    SLUICE_ASSIGN_OR_RETURN(value, Eval(*node.expression, scope));
  }
  if (node.name.empty()) return Assign(node.targets, std::move(value), scope);
  // Only a namespace can be changed from inside a loop.
  const Value object = Name(node.targets[0], scope);
  const auto* space = std::get_if<Namespace*>(&object);
  if (space == nullptr)
    return Fail(context_, absl::StrCat("'", node.targets[0], "' is no namespace"));
  for (auto& [name, known] : (*space)->members) {
    if (name != node.name) continue;
    known = std::move(value);
    return absl::OkStatus();
  }
  (*space)->members.emplace_back(node.name, std::move(value));
  return absl::OkStatus();
}

absl::Status Interpreter::Assign(const std::vector<std::string>& targets, Value value,
                                 Scope& scope) {
  if (targets.size() == 1) {
    scope.variables.insert_or_assign(targets[0], std::move(value));
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> parts, Items(value, context_));
  if (parts.size() != targets.size()) {
    return Fail(context_, absl::StrCat(parts.size(), " values for ", targets.size(), " names"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    scope.variables.insert_or_assign(targets[i], std::move(parts[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::Eval(const Expr& expression, Scope& scope) {
  const Nesting nesting(&depth_);
  context_.line = expression.line;
  if (depth_ > kDepthMax) return Fail(context_, "too many calls inside each other");
  SLUICE_RETURN_IF_ERROR(context_.budget.Spend(1));
  return EvalKind(expression, scope);
}

absl::StatusOr<Value> Interpreter::EvalKind(const Expr& expression, Scope& scope) {
  const auto operand = [&](size_t i) { return Eval(*expression.operands[i], scope); };
  switch (expression.kind) {
    case Expr::Kind::kConstant:
      return ConstantValue(expression.value);
    case Expr::Kind::kName:
      return Name(expression.name, scope);
    case Expr::Kind::kList:
    case Expr::Kind::kTuple:
    case Expr::Kind::kDict:
      return Container(expression, scope);
    case Expr::Kind::kAttribute: {
      SLUICE_ASSIGN_OR_RETURN(const Value object, operand(0));
      return GetAttribute(object, expression.name, context_);
    }
    case Expr::Kind::kSubscript: {
      SLUICE_ASSIGN_OR_RETURN(const Value object, operand(0));
      SLUICE_ASSIGN_OR_RETURN(const Value key, operand(1));
      return GetItem(object, key, context_);
    }
    case Expr::Kind::kSlice:
      return Slice(expression, scope);
    case Expr::Kind::kCall:
      return Call(expression, scope);
    case Expr::Kind::kMethod: {
      SLUICE_ASSIGN_OR_RETURN(const Value object, operand(0));
      SLUICE_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expression, 1, scope));
      return CallMethod(expression.name, object, arguments, context_);
    }
    case Expr::Kind::kFilter: {
      SLUICE_ASSIGN_OR_RETURN(const Value input, operand(0));
      SLUICE_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expression, 1, scope));
      return ApplyFilter(expression.name, input, arguments, context_);
    }
    case Expr::Kind::kTest: {
      SLUICE_ASSIGN_OR_RETURN(const Value input, operand(0));
      SLUICE_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expression, 1, scope));
      SLUICE_ASSIGN_OR_RETURN(const bool passes,
                              ApplyTest(expression.name, input, arguments, context_));
      return Value(passes);
    }
    case Expr::Kind::kConcat:
      return Concat(expression, scope);
    case Expr::Kind::kCompare:
      return Compare(expression, scope);
    default:
      return Operator(expression, scope);
  }
}

// What has operands only.
absl::StatusOr<Value> Interpreter::Operator(const Expr& expression, Scope& scope) {
  const auto operand = [&](size_t i) { return Eval(*expression.operands[i], scope); };
  switch (expression.kind) {
    case Expr::Kind::kNot: {
      SLUICE_ASSIGN_OR_RETURN(const Value value, operand(0));
      return Value(!IsTrue(value));
    }
    case Expr::Kind::kNegate: {
      SLUICE_ASSIGN_OR_RETURN(const Value value, operand(0));
      return Negate(value, context_);
    }
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      SLUICE_ASSIGN_OR_RETURN(Value left, operand(0));
      if (IsTrue(left) == (expression.kind == Expr::Kind::kOr)) return left;
      return operand(1);
    }
    case Expr::Kind::kArithmetic: {
      SLUICE_ASSIGN_OR_RETURN(const Value left, operand(0));
      SLUICE_ASSIGN_OR_RETURN(const Value right, operand(1));
      return Arithmetic(expression.name, left, right, context_);
    }
    case Expr::Kind::kConditional: {
      SLUICE_ASSIGN_OR_RETURN(const Value condition, operand(0));
      if (IsTrue(condition)) return operand(1);
      if (expression.operands[2] != nullptr) return operand(2);
      return Value(Undefined{"an 'if' without 'else'"});
    }
    default:
      return Value(None{});
  }
}

Value Interpreter::Name(const std::string& name, const Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->outer) {
    const auto found = at->variables.find(name);
    if (found != at->variables.end()) return found->second;
  }
  if (IsFunction(name)) return Value(Function{name});
  return Value(Undefined{name});
}

absl::StatusOr<Value> Interpreter::Container(const Expr& expression, Scope& scope) {
  std::vector<Value> values;
  for (const ExprPtr& operand : expression.operands) {
    SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*operand, scope));
    values.push_back(std::move(value));
  }
  if (expression.kind != Expr::Kind::kDict) {
    const bool tuple = expression.kind == Expr::Kind::kTuple;
    return Value(context_.heap.NewList(std::move(values), tuple));
  }
  Dict* dict = context_.heap.NewDict();
  for (size_t i = 0; i < values.size(); i += 2) {
    const Text* key = AsText(values[i]);
    if (key == nullptr) return Fail(context_, "a key that is no string");
    dict->Set(*key, std::move(values[i + 1]));
  }
  return Value(dict);
}

absl::StatusOr<Value> Interpreter::Slice(const Expr& expression, Scope& scope) {
  std::vector<Value> values;
  const Value* bounds[3] = {};
  values.reserve(4);
  for (size_t i = 0; i < 4; ++i) {
    if (expression.operands[i] == nullptr) continue;
    SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*expression.operands[i], scope));
    values.push_back(std::move(value));
    if (i > 0) bounds[i - 1] = &values.back();
  }
  return GetSlice(values[0], bounds[0], bounds[1], bounds[2], context_);
}

absl::StatusOr<Value> Interpreter::Concat(const Expr& expression, Scope& scope) {
  Text out;
  for (const ExprPtr& operand : expression.operands) {
    SLUICE_ASSIGN_OR_RETURN(const Value value, Eval(*operand, scope));
    SLUICE_ASSIGN_OR_RETURN(const Text text, ToText(value, context_));
    out.Append(text);
  }
  return TextValue(std::move(out));
}

absl::StatusOr<Value> Interpreter::Compare(const Expr& expression, Scope& scope) {
  SLUICE_ASSIGN_OR_RETURN(Value left, Eval(*expression.operands[0], scope));
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(Value right, Eval(*expression.operands[i + 1], scope));
    const absl::string_view sign = expression.comparisons[i];
    bool holds = false;
    if (sign == "in" || sign == "not in") {
      SLUICE_ASSIGN_OR_RETURN(holds, Contains(right, left, context_));
    } else if (sign == "==" || sign == "!=") {
      SLUICE_ASSIGN_OR_RETURN(holds, Equal(left, right, context_));
    } else {
      SLUICE_ASSIGN_OR_RETURN(const int order, Order(left, right, context_));
      holds = sign == "<"    ? order < 0
              : sign == "<=" ? order <= 0
              : sign == ">"  ? order > 0
                             : order >= 0;
    }
    if (holds == (sign == "not in" || sign == "!=")) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Arguments> Interpreter::EvalArguments(const Expr& expression, size_t first,
                                                     Scope& scope) {
  Arguments arguments;
  for (size_t i = first; i < expression.operands.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*expression.operands[i], scope));
    arguments.positional.push_back(std::move(value));
  }
  for (const Keyword& keyword : expression.keywords) {
    SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*keyword.value, scope));
    arguments.named.emplace_back(keyword.name, std::move(value));
  }
  context_.line = expression.line;
  return arguments;
}

absl::StatusOr<Value> Interpreter::Call(const Expr& expression, Scope& scope) {
  const Value callee = Name(expression.name, scope);
  SLUICE_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expression, 0, scope));
  if (const auto* macro = As<Macro>(callee)) return CallMacro(*macro, arguments);
  if (const auto* function = As<Function>(callee)) return CallFunction(function->name, arguments);
  return Fail(context_,
              absl::StrCat("'", expression.name, "' is ", TypeName(callee), ", no function"));
}

absl::StatusOr<Value> Interpreter::CallMacro(const Macro& macro, const Arguments& arguments) {
  const Node& node = *macro.node;
  const auto& parameters = node.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return Fail(context_, absl::StrCat("the macro '", node.name, "' takes ", parameters.size(),
                                       " arguments"));
  }
  for (const auto& [name, value] : arguments.named) {
    const bool known =
        std::any_of(parameters.begin(), parameters.end(),
                    [&key = name](const Keyword& parameter) { return parameter.name == key; });
    if (!known)
      return Fail(context_, absl::StrCat("the macro '", node.name, "' has no '", name, "'"));
  }
  Scope inner{macro.scope, {}};
  for (size_t i = 0; i < parameters.size(); ++i) {
    Value value = Undefined{parameters[i].name};
    if (const Value* given = arguments.Get(i, parameters[i].name)) {
      value = *given;
    } else if (parameters[i].value != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(value, Eval(*parameters[i].value, inner));
    }
    inner.variables.insert_or_assign(parameters[i].name, std::move(value));
  }
  Text text;
  SLUICE_RETURN_IF_ERROR(Execute(node.body, inner, &text).status());
  return TextValue(std::move(text));
}

absl::StatusOr<Value> Interpreter::CallFunction(absl::string_view name,
                                                const Arguments& arguments) {
  const auto& positional = arguments.positional;
  if (name == "raise_exception") {
    Text why;
    if (!positional.empty()) {
      SLUICE_ASSIGN_OR_RETURN(why, ToText(positional[0], context_));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the chat template refuses the conversation: ", why.view()));
  }
  if (name == "strftime_now") {
    const Text* format = positional.size() == 1 ? AsText(positional[0]) : nullptr;
    if (format == nullptr || format->size() > 64)
      return Fail(context_, "strftime_now needs a format");
    const absl::TimeZone zone = absl::UTCTimeZone();
    return Trusted(
        absl::FormatTime(std::string(format->view()), absl::FromCivil(today_, zone), zone));
  }
  if (name == "range") {
    int64_t bounds[3] = {0, 0, 1};
    if (positional.empty() || positional.size() > 3)
      return Fail(context_, "range needs 1 to 3 numbers");
    for (size_t i = 0; i < positional.size(); ++i) {
      const auto* number = As<int64_t>(positional[i]);
      if (number == nullptr)
        return Fail(context_, absl::StrCat("range of ", TypeName(positional[i])));
      bounds[positional.size() == 1 ? 1 : i] = *number;
    }
    if (bounds[2] == 0) return Fail(context_, "range with the step 0");
    std::vector<Value> numbers;
    for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
      SLUICE_RETURN_IF_ERROR(context_.budget.Spend(1));
      numbers.emplace_back(i);
      if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    return Value(context_.heap.NewList(std::move(numbers)));
  }
  const Dict* given = positional.size() == 1 ? AsDict(positional[0]) : nullptr;
  if (positional.size() > (given == nullptr ? 0 : 1))
    return Fail(context_, absl::StrCat(name, " of what is no mapping"));
  if (name == "dict") {
    Dict* dict = context_.heap.NewDict();
    if (given != nullptr) *dict = *given;
    for (const auto& [key, value] : arguments.named) dict->Set(Text(key, true), value);
    return Value(dict);
  }
  Namespace* space = context_.heap.NewNamespace();
  if (given != nullptr) {
    for (const auto& [key, value] : given->members)
      space->members.emplace_back(std::string(key.view()), value);
  }
  for (const auto& [key, value] : arguments.named) space->members.emplace_back(key, value);
  return Value(space);
}

}  // namespace sluice::text::jinja
