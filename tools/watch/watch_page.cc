#include "tools/watch/watch_page.h"

#include <fmt/format.h>

#include "common/json.h"
#include "common/text.h"
#include "tools/report/report_page.h"

namespace keel::tools {

std::string_view WatchPage() {
  static const std::string page = std::string(R"html(<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>keel watch</title>
<style>
)html") + std::string(kReportStyle) +
                                  R"html(#link{float:right}#link.lost{color:#d1242f}
.state td:first-child{color:#57606a}.state td{text-align:left}
</style>
<body>
<p id="link">connecting</p>
<h1 id="title"></h1>
<form id="ask" hidden><label>key <input id="key" type="password" autocomplete="off"></label>
<button>Go on</button></form>
<div id="run"></div>
<script>
const at = id => document.getElementById(id);
const wait = ms => new Promise(done => setTimeout(done, ms));
let version = -1;
function say(text, lost) {
  at("link").textContent = text;
  at("link").className = lost ? "lost" : "";
}
async function ask() {
  at("ask").hidden = false;
  await new Promise(done => at("ask").onsubmit = event => { event.preventDefault(); done(); });
  at("ask").hidden = true;
}
async function look() {
  const key = at("key").value;
  const reply = await fetch("after/" + version,
                            {headers: key ? {Authorization: "Bearer " + key} : {}});
  if (reply.status === 401) return ask();
  if (!reply.ok) throw new Error("status " + reply.status);
  const got = await reply.json();
  say("live");
  if (got.version === version) return;
  version = got.version;
  document.title = got.title;
  at("title").textContent = got.title;
  at("run").innerHTML = got.html;
}
(async () => {
  for (;;) {
    try {
      await look();
    } catch (error) {
      version = -1;
      say("keel watch is not reached: " + error.message, true);
      await wait(2000);
    }
  }
})();
</script>
</html>
)html";
  return page;
}

std::string WatchAnswer(const WatchState& state, int64_t version) {
  std::string html = "<table class=state>";
  for (const auto& [name, text] : WatchFacts(state))
    html += fmt::format("<tr><td>{}<td>{}</tr>", HtmlText(name), HtmlText(text, 400));
  html += "</table>\n";
  if (state.begun) html += LiveReport(*state.run);
  const Json answer = {
      {"version", version}, {"title", Printable(state.run->name, 100)}, {"html", std::move(html)}};
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace keel::tools
