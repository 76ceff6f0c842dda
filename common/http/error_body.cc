#include "http/error_body.h"

#include "http/json_writer.h"

namespace sluice::http {

std::string ErrorBody(const ErrorFields& fields) {
  JsonWriter json;
  json.BeginObject().Key("error").BeginObject();
  json.Key("message").String(fields.message).Key("type").String(fields.type);
  json.Key("param").StringOrNull(fields.param).Key("code").StringOrNull(fields.code);
  json.EndObject().EndObject();
  return json.Take();
}

}  // namespace sluice::http
