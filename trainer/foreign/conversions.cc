#include "trainer/foreign/conversions.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/text.h"
#include "trainer/config/choices.h"
#include "trainer/foreign/given_values.h"
#include "trainer/foreign/trl_arguments.h"

namespace keel::trainer::foreign {

namespace {

const Json kNothing(Json::value_t::discarded);

Status Expected(const std::string& what, const Json& value) {
  return Status(StatusCode::kConfig, fmt::format("expected {}, got {}", what, Shown(value)));
}

std::string Lower(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : "";
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  return text;
}

}  // namespace

Result<Json> AsList(const Json& value) {
  if (value.is_null()) return kNothing;
  return value.is_array() ? value : Json::array({value});
}

Result<Json> AsFilterMetric(const Json& value) {
  if (value.is_null()) return kNothing;
  const bool whole = value == Json("seq_reward") || value == Json("seq_final_reward");
  return whole ? Json("reward") : value;
}

Result<Json> AsDtype(const Json& value) {
  if (value.is_null() || value == Json("auto")) return kNothing;
  std::string name = Lower(value);
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name == "fp32" || name == "float" || name == "float32" || name == "no")
    return Json(NameOf(WeightDtype::kFloat32));
  if (name == "bf16" || name == "bfloat16") return Json(NameOf(WeightDtype::kBfloat16));
  return Expected("float32 or bfloat16, with fp32 masters", value);
}

Result<Json> AsDecayStyle(const Json& value) {
  if (value.is_null()) return kNothing;
  std::string name = Lower(value);
  if (name == "constant_with_warmup") name = "constant";
  if (name == "warmup_stable_decay") name = "wsd";
  if (!ParseName<LrDecayStyle>(name))
    return Expected(fmt::format("one of {}", fmt::join(AllNames<LrDecayStyle>(), ", ")), value);
  return Json(name);
}

// Their cosine falls to 0, and only that one of this name to another rate.
Result<Json> AsTransformersDecayStyle(const Json& value) {
  return AsDecayStyle(!value.is_null() && Lower(value) == "cosine_with_min_lr" ? Json("cosine")
                                                                               : value);
}

Result<Json> AsToolLoop(const Json& value) {
  if (value.is_null() || value == "single_turn_agent") return kNothing;
  if (value == "tool_agent") return Json(true);
  return Expected("single_turn_agent, or tool_agent, the loop of tools", value);
}

Result<Json> OneLess(const Json& value) {
  if (value.is_null()) return kNothing;
  if (!value.is_number_integer()) return Expected("a whole number", value);
  return Json(std::max<int64_t>(0, value.get<int64_t>() - 1));
}

Result<Json> AsLoggers(const Json& value) {
  const std::vector<std::string> here = AllNames<LogSink>();
  const std::string jsonl(NameOf(LogSink::kJsonl));
  Json list = Json::array();
  const auto add = [&](const std::string& name) {
    if (std::find(list.begin(), list.end(), Json(name)) == list.end()) list.push_back(name);
  };
  add(std::string(NameOf(LogSink::kConsole)));
  KEEL_ASSIGN_OR_RETURN(const Json names, AsList(value));
  if (names.is_discarded()) return kNothing;
  for (const Json& item : names) {
    const std::string name = Lower(item);
    if (name == "all") {
      for (const std::string& sink : here) add(sink);
    } else if (name != "none" && std::find(here.begin(), here.end(), name) != here.end()) {
      add(name);
    }
  }
  add(jsonl);  // what all others can be filled from
  return list;
}

std::string LoggersLeftOut(const Json& value) {
  const Result<Json> names = AsList(value);
  if (!names.ok() || names->is_discarded()) return "";
  const std::vector<std::string> here = AllNames<LogSink>();
  std::vector<std::string> others;
  for (const Json& item : *names) {
    const std::string name = Lower(item);
    if (name != "all" && name != "none" && std::find(here.begin(), here.end(), name) == here.end())
      others.push_back(Printable(name, 40));
  }
  if (others.empty()) return "";
  return fmt::format(
      "nothing goes to {} during the run: metrics.jsonl in its folder has every metric, which "
      "tools/export_wandb.py and tools/export_mlflow.py send there",
      fmt::join(others, ", "));
}

Result<Json> UnlessNegative(const Json& value) {
  if (value.is_null() || (value.is_number() && value.get<double>() < 0)) return kNothing;
  return value;
}

Result<Json> FromOneOn(const Json& value) {
  if (value.is_null() || (value.is_number() && value.get<double>() < 1)) return kNothing;
  return value;
}

Result<Json> Worked(const Json&) { return kNothing; }

Result<Json> Bf16AsDtype(const Json& value) {
  if (value.is_null() || value == Json(true)) return Json(NameOf(WeightDtype::kBfloat16));
  if (value == Json(false)) return Json(NameOf(WeightDtype::kFloat32));
  return Expected("true or false", value);
}

Result<Json> RandomAsShuffle(const Json& value) {
  if (value == Json("random")) return Json(true);
  if (value == Json("sequential")) return Json(false);
  return Expected("random or sequential", value);
}

Result<Json> AsTruncation(const Json& value) {
  if (value == Json("keep_start")) return Json("right");
  if (value == Json("keep_end")) return Json("left");
  return Expected("keep_start or keep_end", value);
}

Result<Json> OneOfList(const Json& value) {
  if (!value.is_array()) return value;
  return value.size() == 1 ? value[0] : value;
}

Result<Json> ZeroAsAll(const Json& value) {
  return value.is_null() || value == Json(0) ? Json(-1) : value;
}

Result<Json> NothingAsZero(const Json& value) { return value.is_null() ? Json(0) : value; }

Result<Json> GroupAsTrue(const Json& value) {
  if (value == Json("group") || value == Json(true)) return Json(true);
  if (value == Json("none") || value == Json(false)) return Json(false);
  return Expected("group or none", value);
}

Result<Json> CpuAsDevice(const Json& value) {
  return value == Json(true) ? Json(NameOf(DeviceKind::kCpu)) : kNothing;
}

Result<Json> PathOrNothing(const Json& value) { return value.is_string() ? value : kNothing; }

Result<Json> NumbersOrNothing(const Json& value) {
  if (value.is_null()) return kNothing;
  if (value.is_array()) return value;
  if (const auto number = AsNumber(value)) return Json::array({*number});
  return Expected("a number or a list of them", value);
}

Result<Json> MapOrNothing(const Json& value) {
  if (value.is_null()) return kNothing;
  if (value.is_object()) return value;
  return Expected("a map", value);
}

}  // namespace keel::trainer::foreign
