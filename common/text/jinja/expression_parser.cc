#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/language.h"

namespace sluice::text::jinja {
namespace {

using Kind = Expr::Kind;

constexpr int kDepthMax = 64;
// Of a tree. Chains such as a + b + c grow without nesting; walking them recurses all the same.
constexpr int kHeightMax = 300;

std::unique_ptr<Expr> Make(Kind kind, int line, std::string name = "") {
  auto expression = std::make_unique<Expr>();
  expression->kind = kind;
  expression->line = line;
  expression->name = std::move(name);
  return expression;
}

ExprPtr Constant(int line, Expr::Constant value) {
  auto expression = Make(Kind::kConstant, line);
  expression->value = std::move(value);
  return expression;
}

void Adopt(Expr* parent, ExprPtr child) {
  if (child != nullptr) parent->height = std::max(parent->height, child->height + 1);
  parent->operands.push_back(std::move(child));
}

absl::StatusOr<ExprPtr> NotTooHigh(ExprPtr expression) {
  if (expression->height <= kHeightMax) return expression;
  return WrongTemplate(expression->line, "an expression is too long");
}

absl::StatusOr<ExprPtr> Unite(Kind kind, int line, std::string name, ExprPtr left, ExprPtr right) {
  auto expression = Make(kind, line, std::move(name));
  Adopt(expression.get(), std::move(left));
  Adopt(expression.get(), std::move(right));
  return NotTooHigh(std::move(expression));
}

// Counts nesting while it lives.
class Nesting {
 public:
  explicit Nesting(int* depth) : depth_(depth) { ++*depth_; }
  ~Nesting() { --*depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int* depth_;
};

}  // namespace

absl::StatusOr<ExprPtr> ExpressionParser::ParseTuple(bool conditional) {
  const int line = tokens_.line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr first, Parse(conditional));
  if (!tokens_.IsOperator(",")) return first;
  auto tuple = Make(Kind::kTuple, line);
  Adopt(tuple.get(), std::move(first));
  while (tokens_.TakeOperator(",")) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr item, Parse(conditional));
    Adopt(tuple.get(), std::move(item));
  }
  return tuple;
}

absl::StatusOr<ExprPtr> ExpressionParser::Parse(bool conditional) {
  const Nesting nesting(&depth_);
  const int line = tokens_.line();
  if (depth_ > kDepthMax) return WrongTemplate(line, "an expression is nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Or());
  while (conditional && tokens_.TakeName("if")) {
    auto choice = Make(Kind::kConditional, line);
    SLUICE_ASSIGN_OR_RETURN(ExprPtr condition, Or());
    ExprPtr otherwise;
    if (tokens_.TakeName("else")) {
      SLUICE_ASSIGN_OR_RETURN(otherwise, Parse());
    }
    Adopt(choice.get(), std::move(condition));
    Adopt(choice.get(), std::move(value));
    Adopt(choice.get(), std::move(otherwise));
    SLUICE_ASSIGN_OR_RETURN(value, NotTooHigh(std::move(choice)));
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::Or() {
  SLUICE_ASSIGN_OR_RETURN(ExprPtr left, And());
  while (tokens_.IsName("or")) {
    const int line = tokens_.Take().line;
    SLUICE_ASSIGN_OR_RETURN(ExprPtr right, And());
    SLUICE_ASSIGN_OR_RETURN(left, Unite(Kind::kOr, line, "", std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::And() {
  SLUICE_ASSIGN_OR_RETURN(ExprPtr left, Not());
  while (tokens_.IsName("and")) {
    const int line = tokens_.Take().line;
    SLUICE_ASSIGN_OR_RETURN(ExprPtr right, Not());
    SLUICE_ASSIGN_OR_RETURN(left, Unite(Kind::kAnd, line, "", std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::Not() {
  if (!tokens_.IsName("not")) return Compare();
  const Nesting nesting(&depth_);
  if (depth_ > kDepthMax)
    return WrongTemplate(tokens_.line(), "an expression is nested too deeply");
  auto negation = Make(Kind::kNot, tokens_.Take().line);
  SLUICE_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  Adopt(negation.get(), std::move(operand));
  return negation;
}

absl::StatusOr<ExprPtr> ExpressionParser::Compare() {
  const int line = tokens_.line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr first, Sum());
  auto comparison = Make(Kind::kCompare, line);
  Adopt(comparison.get(), std::move(first));
  for (;;) {
    std::string sign;
    for (const char* text : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (sign.empty() && tokens_.TakeOperator(text)) sign = text;
    }
    const bool negated = sign.empty() && tokens_.IsName("not") && tokens_.next().text == "in" &&
                         tokens_.next().kind == TokenKind::kName;
    if (negated) tokens_.Take();
    if (sign.empty() && tokens_.TakeName("in")) sign = negated ? "not in" : "in";
    if (sign.empty()) break;
    SLUICE_ASSIGN_OR_RETURN(ExprPtr operand, Sum());
    comparison->comparisons.push_back(std::move(sign));
    Adopt(comparison.get(), std::move(operand));
  }
  if (comparison->comparisons.empty()) return std::move(comparison->operands[0]);
  return comparison;
}

absl::StatusOr<ExprPtr> ExpressionParser::Sum() {
  SLUICE_ASSIGN_OR_RETURN(ExprPtr left, Concat());
  while (tokens_.IsOperator("+") || tokens_.IsOperator("-")) {
    const Token sign = tokens_.Take();
    SLUICE_ASSIGN_OR_RETURN(ExprPtr right, Concat());
    SLUICE_ASSIGN_OR_RETURN(
        left, Unite(Kind::kArithmetic, sign.line, sign.text, std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::Concat() {
  const int line = tokens_.line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr first, Product());
  if (!tokens_.IsOperator("~")) return first;
  auto concat = Make(Kind::kConcat, line);
  Adopt(concat.get(), std::move(first));
  while (tokens_.TakeOperator("~")) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr part, Product());
    Adopt(concat.get(), std::move(part));
  }
  return concat;
}

absl::StatusOr<ExprPtr> ExpressionParser::Product() {
  SLUICE_ASSIGN_OR_RETURN(ExprPtr left, Power());
  while (tokens_.IsOperator("*") || tokens_.IsOperator("/") || tokens_.IsOperator("//") ||
         tokens_.IsOperator("%")) {
    const Token sign = tokens_.Take();
    SLUICE_ASSIGN_OR_RETURN(ExprPtr right, Power());
    SLUICE_ASSIGN_OR_RETURN(
        left, Unite(Kind::kArithmetic, sign.line, sign.text, std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::Power() {
  SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Unary());
  if (tokens_.IsOperator("**")) return UnsupportedTemplate(tokens_.line(), "the operator '**'");
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::Unary(bool with_filters) {
  const Nesting nesting(&depth_);
  if (depth_ > kDepthMax)
    return WrongTemplate(tokens_.line(), "an expression is nested too deeply");
  ExprPtr value;
  if (tokens_.IsOperator("-")) {
    auto negative = Make(Kind::kNegate, tokens_.Take().line);
    SLUICE_ASSIGN_OR_RETURN(ExprPtr operand, Unary(/*with_filters=*/false));
    Adopt(negative.get(), std::move(operand));
    value = std::move(negative);
  } else {
    SLUICE_ASSIGN_OR_RETURN(value, Primary());
    SLUICE_ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
  }
  return with_filters ? Filters(std::move(value)) : absl::StatusOr<ExprPtr>(std::move(value));
}

absl::StatusOr<ExprPtr> ExpressionParser::Primary() {
  const int line = tokens_.line();
  switch (tokens_.current().kind) {
    case TokenKind::kName: {
      const std::string name = tokens_.Take().text;
      if (name == "true" || name == "True") return Constant(line, true);
      if (name == "false" || name == "False") return Constant(line, false);
      if (name == "none" || name == "None") return Constant(line, {});
      return Make(Kind::kName, line, name);
    }
    case TokenKind::kString: {
      std::string text;
      while (tokens_.Is(TokenKind::kString)) text += tokens_.Take().text;
      return Constant(line, std::move(text));
    }
    case TokenKind::kInteger: {
      int64_t number = 0;
      if (!absl::SimpleAtoi(tokens_.Take().text, &number)) {
        return UnsupportedTemplate(line, "a number of more than 64 bits");
      }
      return Constant(line, number);
    }
    case TokenKind::kFloat: {
      double number = 0;
      if (!absl::SimpleAtod(tokens_.Take().text, &number))
        return WrongTemplate(line, "a bad number");
      return Constant(line, number);
    }
    default:
      if (tokens_.TakeOperator("(")) return Parenthesis();
      if (tokens_.TakeOperator("[")) return ListOrDict(/*dict=*/false);
      if (tokens_.TakeOperator("{")) return ListOrDict(/*dict=*/true);
      return tokens_.Unexpected("a value");
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Parenthesis() {
  const int line = tokens_.line();
  auto tuple = Make(Kind::kTuple, line);
  bool comma = false;
  while (!tokens_.TakeOperator(")")) {
    if (!tuple->operands.empty()) {
      SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      comma = true;
      if (tokens_.TakeOperator(")")) break;
    }
    SLUICE_ASSIGN_OR_RETURN(ExprPtr item, Parse());
    Adopt(tuple.get(), std::move(item));
  }
  if (tuple->operands.size() == 1 && !comma) return std::move(tuple->operands[0]);
  return tuple;
}

absl::StatusOr<ExprPtr> ExpressionParser::ListOrDict(bool dict) {
  auto list = Make(dict ? Kind::kDict : Kind::kList, tokens_.line());
  const absl::string_view end = dict ? "}" : "]";
  while (!tokens_.TakeOperator(end)) {
    if (!list->operands.empty()) {
      SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.TakeOperator(end)) break;
    }
    SLUICE_ASSIGN_OR_RETURN(ExprPtr item, Parse());
    Adopt(list.get(), std::move(item));
    if (!dict) continue;
    SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Parse());
    Adopt(list.get(), std::move(value));
  }
  return list;
}

absl::StatusOr<ExprPtr> ExpressionParser::Postfix(ExprPtr expression) {
  for (;;) {
    if (tokens_.TakeOperator(".")) {
      SLUICE_ASSIGN_OR_RETURN(expression, Attribute(std::move(expression)));
    } else if (tokens_.TakeOperator("[")) {
      SLUICE_ASSIGN_OR_RETURN(expression, Subscript(std::move(expression)));
    } else if (tokens_.IsOperator("(")) {
      SLUICE_ASSIGN_OR_RETURN(expression, Call(std::move(expression)));
    } else {
      return expression;
    }
    SLUICE_ASSIGN_OR_RETURN(expression, NotTooHigh(std::move(expression)));
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Attribute(ExprPtr object) {
  const int line = tokens_.line();
  if (tokens_.Is(TokenKind::kInteger)) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr index, Primary());
    return Unite(Kind::kSubscript, line, "", std::move(object), std::move(index));
  }
  SLUICE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  auto attribute = Make(Kind::kAttribute, line, std::move(name));
  Adopt(attribute.get(), std::move(object));
  return attribute;
}

absl::StatusOr<ExprPtr> ExpressionParser::Subscript(ExprPtr object) {
  const int line = tokens_.line();
  std::vector<ExprPtr> parts;
  bool slice = false;
  for (;;) {
    ExprPtr part;
    if (!tokens_.IsOperator(":") && !tokens_.IsOperator("]")) {
      SLUICE_ASSIGN_OR_RETURN(part, Parse());
    }
    parts.push_back(std::move(part));
    if (parts.size() == 3 || !tokens_.TakeOperator(":")) break;
    slice = true;
  }
  SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  if (!slice && parts[0] == nullptr) return WrongTemplate(line, "an empty subscript");
  auto subscript = Make(slice ? Kind::kSlice : Kind::kSubscript, line);
  Adopt(subscript.get(), std::move(object));
  if (slice) parts.resize(3);
  for (ExprPtr& part : parts) Adopt(subscript.get(), std::move(part));
  return subscript;
}

absl::StatusOr<ExprPtr> ExpressionParser::Call(ExprPtr callee) {
  const int line = callee->line;
  std::unique_ptr<Expr> call;
  if (callee->kind == Kind::kAttribute) {
    // Data has no methods but these.
    if (!IsMethod(callee->name)) {
      return UnsupportedTemplate(line, absl::StrCat("the method '", callee->name, "'"));
    }
    call = Make(Kind::kMethod, line, callee->name);
    Adopt(call.get(), std::move(callee->operands[0]));
  } else if (callee->kind == Kind::kName) {
    called_.emplace(callee->name, line);
    call = Make(Kind::kCall, line, callee->name);
  } else {
    return UnsupportedTemplate(line, "a call of what is no name");
  }
  SLUICE_RETURN_IF_ERROR(Arguments(call.get()));
  return call;
}

absl::Status ExpressionParser::Arguments(Expr* call) {
  SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  bool first = true;
  while (!tokens_.TakeOperator(")")) {
    if (!std::exchange(first, false)) {
      SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.TakeOperator(")")) break;
    }
    if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
      return UnsupportedTemplate(tokens_.line(), "a list of arguments in one");
    }
    const bool keyword = tokens_.Is(TokenKind::kName) &&
                         tokens_.next().kind == TokenKind::kOperator && tokens_.next().text == "=";
    std::string name;
    if (keyword) {
      name = tokens_.Take().text;
      tokens_.Take();
    } else if (!call->keywords.empty()) {
      return WrongTemplate(tokens_.line(), "an argument without a name behind one with a name");
    }
    SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Parse());
    if (keyword) {
      call->height = std::max(call->height, value->height + 1);
      call->keywords.push_back({std::move(name), std::move(value)});
    } else {
      Adopt(call, std::move(value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ExprPtr> ExpressionParser::Filters(ExprPtr expression) {
  for (;;) {
    if (tokens_.TakeOperator("|")) {
      SLUICE_ASSIGN_OR_RETURN(expression, Filter(std::move(expression)));
    } else if (tokens_.TakeName("is")) {
      SLUICE_ASSIGN_OR_RETURN(expression, Test(std::move(expression)));
    } else if (tokens_.IsOperator("(")) {
      return UnsupportedTemplate(tokens_.line(), "a call of what a filter gave");
    } else {
      return expression;
    }
    SLUICE_ASSIGN_OR_RETURN(expression, NotTooHigh(std::move(expression)));
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Filter(ExprPtr operand) {
  const int line = tokens_.line();
  SLUICE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  if (!IsFilter(name)) return UnsupportedTemplate(line, absl::StrCat("the filter '", name, "'"));
  auto filter = Make(Kind::kFilter, line, std::move(name));
  Adopt(filter.get(), std::move(operand));
  if (tokens_.IsOperator("(")) SLUICE_RETURN_IF_ERROR(Arguments(filter.get()));
  return filter;
}

absl::StatusOr<ExprPtr> ExpressionParser::Test(ExprPtr operand) {
  const int line = tokens_.line();
  const bool negated = tokens_.TakeName("not");
  SLUICE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  if (!IsTest(name)) return UnsupportedTemplate(line, absl::StrCat("the test '", name, "'"));
  auto test = Make(Kind::kTest, line, std::move(name));
  Adopt(test.get(), std::move(operand));
  const TokenKind kind = tokens_.current().kind;
  if (tokens_.IsOperator("(")) {
    SLUICE_RETURN_IF_ERROR(Arguments(test.get()));
  } else if (kind == TokenKind::kString || kind == TokenKind::kInteger ||
             kind == TokenKind::kFloat || tokens_.IsOperator("[") || tokens_.IsOperator("{") ||
             (kind == TokenKind::kName && !tokens_.IsName("else") && !tokens_.IsName("or") &&
              !tokens_.IsName("and") && !tokens_.IsName("is") && !tokens_.IsName("if"))) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    SLUICE_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    Adopt(test.get(), std::move(argument));
  }
  if (!test->keywords.empty()) return UnsupportedTemplate(line, "a named argument of a test");
  if (!negated) return test;
  auto negation = Make(Kind::kNot, line);
  Adopt(negation.get(), std::move(test));
  return negation;
}

}  // namespace sluice::text::jinja
