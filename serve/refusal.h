// Refusal: why a request is not answered, as OpenAI's API says it. Torch-free.
#pragma once

#include <string>

namespace keel::serve {

struct Refusal {
  int status = 400;  // HTTP's
  std::string message = {};
  std::string param = {};  // the parameter that is wrong; "": none in particular
  std::string code = {};   // for programs: "model_not_found"; "": none
  int retry_after_s = 0;
};

}  // namespace keel::serve
