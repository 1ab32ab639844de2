#include "model/tokenizer/pipeline/post_processor.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "common/text.h"

namespace keel::model {

namespace {

std::vector<int32_t> IdsOfSpecial(const Component& component, const std::string& name) {
  const Json* all = component.Find("special_tokens");
  const Json* ids = nullptr;
  if (all != nullptr && all->is_object() && all->contains(name) && (*all)[name].is_object() &&
      (*all)[name].contains("ids")) {
    ids = &(*all)[name]["ids"];
  }
  if (ids == nullptr || !ids->is_array()) {
    component.Refuse(fmt::format("special_tokens has no ids for \"{}\"", Printable(name)));
  }
  std::vector<int32_t> out;
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
      component.Refuse(fmt::format("the ids of \"{}\" are not all ids", Printable(name)));
    }
    out.push_back(id.get<int32_t>());
  }
  return out;
}

void AddTemplate(const Component& component, PostProcessor* out) {
  component.RefuseOtherKeys({"single", "pair", "special_tokens"});
  const Json* parts = component.Find("single");
  if (parts == nullptr || !parts->is_array()) component.Refuse("single must be a list");
  bool text = false;
  for (const Json& part : *parts) {
    if (!part.is_object() || part.size() != 1 || !part.begin().value().is_object()) {
      component.Refuse("each part of single is {\"SpecialToken\": ...} or {\"Sequence\": ...}");
    }
    const std::string& kind = part.begin().key();
    const std::string id =
        ValueOrThrow(GetString(part.begin().value(), "id", component.where() + ".single"));
    if (kind == "Sequence" && id == "A" && !text) {
      text = true;
    } else if (kind == "SpecialToken") {
      std::vector<int32_t>& side = text ? out->after : out->before;
      const std::vector<int32_t> ids = IdsOfSpecial(component, id);
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      component.Refuse("single must hold the text A once, and special tokens");
    }
  }
  if (!text) component.Refuse("single must hold the text A once, and special tokens");
}

}  // namespace

PostProcessor MakePostProcessor(const Component& component) {
  PostProcessor out;
  if (component.type() == "Sequence") {
    component.RefuseOtherKeys({"processors"});
    for (const Component& part : component.List("processors")) {
      const PostProcessor next = MakePostProcessor(part);
      // `tokenizers` takes what the first template has made for a pair of texts.
      if (next.has_template && !(out.before.empty() && out.after.empty())) {
        component.Refuse("a TemplateProcessing behind another one is not supported");
      }
      // Each works on what the last one left.
      out.before.insert(out.before.begin(), next.before.begin(), next.before.end());
      out.after.insert(out.after.end(), next.after.begin(), next.after.end());
      out.has_template = out.has_template || next.has_template;
      out.trims.insert(out.trims.end(), next.trims.begin(), next.trims.end());
    }
  } else if (component.type() == "TemplateProcessing") {
    AddTemplate(component, &out);
    out.has_template = true;
  } else if (component.type() == "ByteLevel") {
    component.RefuseOtherKeys({"add_prefix_space", "trim_offsets", "use_regex"});
    const bool keeps_first_space = component.Bool("add_prefix_space", true);
    if (component.Bool("trim_offsets", true)) out.trims.push_back(keeps_first_space);
  } else {
    component.RefuseType("post-processor", "TemplateProcessing, ByteLevel and Sequence");
  }
  return out;
}

}  // namespace keel::model
