#include "trainer/run/shared_facts.h"

#include <fmt/format.h>

#include <set>
#include <string>

#include "common/hash.h"
#include "common/options/flat_values.h"
#include "common/process/program_id.h"
#include "parallel/tensor/matrix_product.h"

namespace keel::trainer {

SharedFacts FactsOfRun(const LoadedConfig& loaded, at::Device device) {
  SharedFacts facts;
  static constexpr char kHere = 0;  // in the file, program or module, whose build is meant
  facts["program"] = fmt::format("keel {} (build {})", ProgramVersion(), BuildId(&kHere));
  facts["device"] = device.is_cpu() ? "cpu" : "cuda";
  const std::set<std::string> per_node = PerNodeKeys();
  const std::set<std::string> secret = SecretKeys();
  for (const auto& [key, value] :
       ValueOrThrow(options::Flatten({"resolved configuration", loaded.resolved}))) {
    if (per_node.contains(key)) {
      // Whether there is a value decides what a rank does, and what it asks of the others.
      facts.emplace(key + " is given", value == "null" || value == "[]" ? "no" : "yes");
    } else if (secret.contains(key)) {
      facts.emplace(key, fmt::format("a value of digest {:016x}", Hash64(value)));
    } else {
      facts.emplace(key, value);
    }
  }
  return facts;
}

SharedFacts WorkerFacts(const LoadedConfig& loaded, at::Device device,
                        const ModelDescription& model) {
  SharedFacts facts = FactsOfRun(loaded, device);
  facts["the tokenizer"] = "digest " + model.tokenizer_digest;
  facts["the model"] = model.config.Digest();
  for (const checkpoint::Document& document : model.documents) {
    if (document.path.ends_with("config.json"))
      facts["the model's " + document.path] =
          fmt::format("digest {:016x}", Hash64(document.content));
  }
  return facts;
}

SharedFacts RoundingFacts(at::Device device, at::ScalarType dtype) {
  if (!device.is_cpu()) return {};
  return {{"arithmetic", parallel::HostArithmetic(dtype)}};
}

}  // namespace keel::trainer
