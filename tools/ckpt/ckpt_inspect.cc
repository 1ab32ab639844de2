// keel ckpt inspect: what a step holds.

#include <fmt/format.h>

#include <map>
#include <ostream>

#include "checkpoint/read/step_reader.h"
#include "checkpoint/run/pin.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"

namespace keel::tools {
namespace {

using checkpoint::Index;
using checkpoint::IndexTensor;

int64_t BytesOf(const IndexTensor& tensor) {
  return tensor.shape.elements() * DTypeSize(tensor.dtype);
}

Json ToJson(const checkpoint::StepReader& reader, bool tensors) {
  Json json = Json::parse(reader.manifest().Serialize());
  const Index& index = reader.index();
  Json scopes = Json::object();
  for (int s = 0; s < index.scopes(); ++s) {
    const auto [first, count] = index.tensor_range(s);
    int64_t bytes = 0;
    Json list = Json::object();
    for (int64_t t = first; t < first + count; ++t) {
      const IndexTensor tensor = index.tensor(t);
      bytes += BytesOf(tensor);
      if (!tensors) continue;
      Json boxes = Json::array();
      for (int64_t b = tensor.first_box; b < tensor.first_box + tensor.box_count; ++b) {
        const checkpoint::IndexBox box = index.box(b);
        boxes.push_back(
            {{"offset", std::vector<int64_t>(box.box.offset.begin(), box.box.offset.end())},
             {"size", std::vector<int64_t>(box.box.size.begin(), box.box.size.end())},
             {"file", index.file(box.file).path},
             {"begin", box.begin},
             {"bytes", box.bytes}});
      }
      list[std::string(tensor.name)] = {
          {"dtype", DTypeName(tensor.dtype)},
          {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
          {"boxes", std::move(boxes)}};
    }
    Json one = {{"tensors", count}, {"bytes", bytes}};
    if (tensors) one["list"] = std::move(list);
    scopes[std::string(index.scope_name(s))] = std::move(one);
  }
  json["scopes"] = std::move(scopes);
  return json;
}

}  // namespace

int CkptInspect(const CkptInspectOptions& options, std::ostream& out, std::ostream& err) {
  const auto place = OpenStep(options.step);
  if (!place.ok()) return Fail(place.status(), err);
  const auto reader = checkpoint::StepReader::Open(*place->fs, place->directory);
  if (!reader.ok()) return Fail(reader.status(), err);
  const bool pinned = checkpoint::IsPinned(*place->fs, place->directory);
  if (options.json) {
    Json json = ToJson(*reader, options.tensors);
    json["pinned"] = pinned;
    out << ShownJson(json) << "\n";
    return 0;
  }
  const checkpoint::Manifest& manifest = reader->manifest();
  const Index& index = reader->index();
  out << fmt::format(
      "step      {}\ncreated   {}\nrun       {}\nsave      {} (commit {} of this directory)\n"
      "layout    {}\nconfig    {}\ncontents  {}\n",
      manifest.step, Shown(manifest.created), Shown(manifest.run_id), Shown(manifest.save_id),
      manifest.sequence,
      Shown(manifest.layout.dump(-1, ' ', false, Json::error_handler_t::replace)),
      manifest.config_digest.empty() ? "-" : Shown(manifest.config_digest),
      fmt::join(manifest.contents.Names(), ", "));
  if (manifest.metric) out << fmt::format("metric    {}\n", *manifest.metric);
  if (pinned) out << "pinned    yes\n";
  out << fmt::format("size      {} in {} files\n", HumanBytes(manifest.TotalBytes()),
                     manifest.files.size());
  for (int s = 0; s < index.scopes(); ++s) {
    const auto [first, count] = index.tensor_range(s);
    int64_t bytes = 0;
    int64_t boxes = 0;
    std::map<std::string_view, int64_t> dtypes;
    for (int64_t t = first; t < first + count; ++t) {
      const IndexTensor tensor = index.tensor(t);
      bytes += BytesOf(tensor);
      boxes += tensor.box_count;
      ++dtypes[DTypeName(tensor.dtype)];
    }
    std::string kinds;
    for (const auto& [name, number] : dtypes)
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", number, name);
    out << fmt::format("\n{}: {} tensors ({}) in {} boxes, {}\n", Shown(index.scope_name(s)), count,
                       kinds, boxes, HumanBytes(bytes));
    if (!options.tensors) continue;
    for (int64_t t = first; t < first + count; ++t) {
      const IndexTensor tensor = index.tensor(t);
      out << fmt::format("  {} {}{}\n", Shown(tensor.name), DTypeName(tensor.dtype),
                         tensor.shape.ToString());
      for (int64_t b = tensor.first_box; b < tensor.first_box + tensor.box_count; ++b) {
        const checkpoint::IndexBox box = index.box(b);
        out << fmt::format("    {} in {} at byte {}\n", box.box.ToString(),
                           Shown(index.file(box.file).path), box.begin);
      }
    }
  }
  out << "\nfiles:\n";
  for (const checkpoint::ManifestFile& file : manifest.files) {
    out << fmt::format("  {:>12}  {:<9}  {}\n", file.size, checkpoint::FileRoleName(file.role),
                       Shown(file.path));
  }
  return 0;
}

}  // namespace keel::tools
