#include "tools/serve/serve_orders.h"

#include "common/guarded.h"
#include "common/json.h"

namespace keel::tools {

namespace {

Json JsonOf(const rollout::Request& request) {
  const rollout::SamplingParams& p = request.sampling;
  return {{"id", request.prompt_id},
          {"sample", request.sample},
          {"draws_as", request.draws_as.value_or(request.prompt_id)},
          {"prompt", request.prompt},
          {"temperature", p.temperature},
          {"top_k", p.top_k},
          {"top_p", p.top_p},
          {"min_p", p.min_p},
          {"repetition_penalty", p.repetition_penalty},
          {"max_tokens", p.max_tokens},
          {"stop_token_ids", p.stop_token_ids},
          {"stop", p.stop},
          {"ignore_eos", p.ignore_eos},
          {"continues_prompt", p.continues_prompt},
          {"prompt_log_probs", p.prompt_log_probs},
          {"likeliest", p.likeliest},
          {"seed", p.seed}};
}

rollout::Request RequestOf(const Json& json) {
  rollout::Request request;
  json.at("id").get_to(request.prompt_id);
  json.at("sample").get_to(request.sample);
  request.draws_as = json.at("draws_as").get<uint64_t>();
  json.at("prompt").get_to(request.prompt);
  rollout::SamplingParams& p = request.sampling;
  json.at("temperature").get_to(p.temperature);
  json.at("top_k").get_to(p.top_k);
  json.at("top_p").get_to(p.top_p);
  json.at("min_p").get_to(p.min_p);
  json.at("repetition_penalty").get_to(p.repetition_penalty);
  json.at("max_tokens").get_to(p.max_tokens);
  json.at("stop_token_ids").get_to(p.stop_token_ids);
  json.at("stop").get_to(p.stop);
  json.at("ignore_eos").get_to(p.ignore_eos);
  json.at("continues_prompt").get_to(p.continues_prompt);
  json.at("prompt_log_probs").get_to(p.prompt_log_probs);
  json.at("likeliest").get_to(p.likeliest);
  json.at("seed").get_to(p.seed);
  return request;
}

}  // namespace

std::string Packed(const ServeOrders& orders) {
  Json json = {{"take", orders.take},
               {"weights", static_cast<int>(orders.weights)},
               {"step", orders.step},
               {"add", Json::array()}};
  for (const rollout::Request& request : orders.add) json["add"].push_back(JsonOf(request));
  std::string bytes;
  Json::to_cbor(json, nlohmann::detail::output_adapter<char>(bytes));
  return bytes;
}

Result<ServeOrders> Unpacked(std::string_view bytes) {
  ServeOrders orders;
  const Status status = Guarded([&] {
    const Json json = Json::from_cbor(bytes.begin(), bytes.end());
    json.at("take").get_to(orders.take);
    orders.weights = static_cast<WeightOrder>(json.at("weights").get<int>());
    json.at("step").get_to(orders.step);
    for (const Json& one : json.at("add")) orders.add.push_back(RequestOf(one));
    return Status::Ok();
  });
  if (!status.ok()) return Status(StatusCode::kInternal, "rank 0's orders: " + status.message());
  return orders;
}

}  // namespace keel::tools
