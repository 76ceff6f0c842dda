// Expressions to trees.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace sluice::text::jinja {

class ExpressionParser {
 public:
  // The stream must outlive the parser.
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // A whole expression; with `conditional` false, one without "if" (the iterable of a loop).
  absl::StatusOr<ExprPtr> Parse(bool conditional = true);
  // An expression, or several with commas between them: a tuple.
  absl::StatusOr<ExprPtr> ParseTuple(bool conditional = true);

  // Names that were called as functions, with the line of the first call.
  const std::map<std::string, int>& called() const { return called_; }

 private:
  absl::StatusOr<ExprPtr> Or();
  absl::StatusOr<ExprPtr> And();
  absl::StatusOr<ExprPtr> Not();
  absl::StatusOr<ExprPtr> Compare();
  absl::StatusOr<ExprPtr> Sum();
  absl::StatusOr<ExprPtr> Concat();
  absl::StatusOr<ExprPtr> Product();
  absl::StatusOr<ExprPtr> Power();
  absl::StatusOr<ExprPtr> Unary(bool with_filters = true);
  absl::StatusOr<ExprPtr> Primary();
  absl::StatusOr<ExprPtr> Parenthesis();
  absl::StatusOr<ExprPtr> ListOrDict(bool dict);
  absl::StatusOr<ExprPtr> Postfix(ExprPtr expression);
  absl::StatusOr<ExprPtr> Filters(ExprPtr expression);
  absl::StatusOr<ExprPtr> Attribute(ExprPtr object);
  absl::StatusOr<ExprPtr> Subscript(ExprPtr object);
  absl::StatusOr<ExprPtr> Filter(ExprPtr operand);
  absl::StatusOr<ExprPtr> Test(ExprPtr operand);
  absl::Status Arguments(Expr* call);
  absl::StatusOr<ExprPtr> Call(ExprPtr callee);

  TokenStream& tokens_;
  std::map<std::string, int> called_;
  int depth_ = 0;
};

}  // namespace sluice::text::jinja
